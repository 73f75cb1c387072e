"""A synthetic workload with the class mix of the published one, for any fleet and for people without its files."""

import random
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import GPU_RESOURCE, Mode, Sharing
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.errors import InvalidInput
from tessera.sim.workloads.openb import SHARE_RESOURCE
from tessera.sim.workloads.records import MILLI, Trace

__all__ = ["PUBLISHED_MIX", "ClassMix", "make", "plain_nodes"]


class ClassMix(msgspec.Struct, frozen=True, kw_only=True):
    """How much of what is requested."""

    part: float
    """Weight of pods that request a part of a GPU, in GPU demand."""
    one: float
    """Weight of pods that request one GPU."""
    several: float
    """Weight of pods that request several."""
    without_percent: float
    """Percent of all pods that request no GPU."""


PUBLISHED_MIX = ClassMix(part=28.5, one=64.3, several=7.3, without_percent=13.3)
"""The default trace. Source: openb traces (cluster-trace-gpu-v2023), shares of GPU demand and of pods."""


class _Size(msgspec.Struct, frozen=True):
    """One size of pod in a class."""

    weight: int
    """How many pods of the trace have it."""
    gpus: int
    milli: int
    """Of one GPU."""
    cpu_milli: int
    memory_mib: int


# Sizes of the default openb trace with the number of pods that have them; cpu and memory are rounded means over these
# pods. Sizes that fewer than ten pods have are left out. Source: cluster-trace-gpu-v2023, openb_pod_list_default.csv.
_PART = (
    _Size(1078, 1, 810, 3_200, 5_700),
    _Size(750, 1, 470, 10_000, 39_000),
    _Size(328, 1, 320, 4_700, 22_400),
    _Size(253, 1, 650, 11_600, 45_700),
    _Size(140, 1, 230, 4_500, 27_800),
    _Size(128, 1, 460, 6_300, 11_500),
    _Size(75, 1, 590, 3_200, 5_600),
    _Size(74, 1, 160, 4_500, 17_400),
    _Size(72, 1, 550, 4_200, 10_600),
    _Size(62, 1, 220, 5_200, 23_300),
    _Size(47, 1, 370, 4_100, 10_500),
    _Size(24, 1, 110, 4_700, 21_300),
    _Size(19, 1, 480, 4_200, 23_300),
)
_ONE = (_Size(3911, 1, MILLI, 11_100, 42_400),)
_SEVERAL = (
    _Size(44, 8, MILLI, 80_300, 338_900),
    _Size(16, 2, MILLI, 16_900, 80_700),
    _Size(15, 4, MILLI, 37_800, 169_600),
)
_WITHOUT = (_Size(1088, 0, 0, 17_600, 48_900),)

_WHOLE_PERCENT = 100
_DEMAND = 0.98
"""GPU demand of the trace over the capacity, as published."""


def plain_nodes(count: int) -> tuple[Node, ...]:
    """Return nodes of 8 GPUs, 136 cores and 640 GiB: cpu and memory for each GPU as in the published cluster."""
    model = GpuModel(name="GPU", arch="any", memory_mib=0)
    sharing = Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))
    gpus = tuple(Gpu(index=index, model=model, memory_mib=0, sharing=sharing) for index in range(8))
    return tuple(
        Node(name=NodeName(f"node-{number:05}"), cpu_milli=136_000, memory_mib=655_360, gpus=gpus)
        for number in range(count)
    )


def make(nodes: Sequence[Node], seed: int, mix: ClassMix = PUBLISHED_MIX) -> Trace:
    """Return a trace of pods whose GPU demand is 98 % of the nodes' GPUs, as that of the published one.

    Sizes that request more GPUs than the largest node has are left out. The draws come from a stream of their own.

    Raises:
        InvalidInput: no GPUs, or a mix of negative or no weights.

    """
    most = max((len(node.gpus) for node in nodes), default=0)
    if not most:
        raise InvalidInput("fleet", found="it has no GPUs", hint="give at least one node with GPUs")
    sizes, weights = _weighted(mix, most)
    rng = random.Random(f"tessera synthetic {seed}")
    target = _DEMAND * MILLI * sum(len(node.gpus) for node in nodes)
    bounds = list(accumulate(weights))
    pods: list[tuple[str, Need]] = []
    demand = 0
    while demand < target:
        (size,) = rng.choices(sizes, cum_weights=bounds)
        demand += size.gpus * size.milli
        pods.append((f"pod-{len(pods):06}", _need(size)))
    return Trace.of("synthetic", nodes, pods)


def _weighted(mix: ClassMix, most: int) -> tuple[list[_Size], list[float]]:
    """Return the sizes and how often to draw each: weights of demand become numbers of pods."""
    demands = (mix.part, mix.one, mix.several)
    if not (min(demands) >= 0 and sum(demands) > 0 and 0 <= mix.without_percent < _WHOLE_PERCENT):
        found = f"{mix.part:g} {mix.one:g} {mix.several:g}, {mix.without_percent:g} % without GPU"
        raise InvalidInput("mix of classes", found=found, expected="weights from 0, not all 0, and below 100 %")
    sizes: list[_Size] = []
    weights: list[float] = []
    for demand, group in zip(demands, (_PART, _ONE, _SEVERAL), strict=True):
        fitting = [size for size in group if size.gpus <= most]
        whole = sum(size.weight * size.gpus * size.milli for size in fitting)
        sizes += fitting
        weights += [demand * size.weight / whole for size in fitting]
    if not sum(weights):
        raise InvalidInput(
            "mix of classes", found="all its sizes are larger than any node", hint="choose pods that fit a node"
        )
    with_gpu = 100 - mix.without_percent
    return [*sizes, *_WITHOUT], [*weights, sum(weights) * mix.without_percent / with_gpu]


def _need(size: _Size) -> Need:
    requests: tuple[DeviceRequest, ...] = ()
    if size.milli == MILLI:
        requests = (DeviceRequest(resource=GPU_RESOURCE, count=size.gpus),)
    elif size.gpus:
        requests = (DeviceRequest(resource=SHARE_RESOURCE, form=Form.SHARE, compute_percent=size.milli // 10),)
    return Need(cpu_milli=size.cpu_milli, memory_mib=size.memory_mib, requests=requests)
