"""Small worlds of nodes and needs that mix all modes and all ask forms, and a judge of what pods may hold there.

The judge is written independently of the program: it knows nothing of the fleet's arrays and tries every combination.
"""

import itertools
import random
from collections.abc import Iterator, Sequence

import msgspec
from hypothesis import strategies as st

from builders.profiles import profile
from builders.requests import gpushare, need
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Share, Taint
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need, Requirement, SelectorTerm, Toleration

A100 = GpuModel(
    name="A100",
    arch="Ampere",
    memory_mib=40_000,
    memory_slices=8,
    compute_slices=7,
    profiles=(
        profile("1g.5gb", 1, range(7), 4_864),
        msgspec.structs.replace(profile("1g.5gb+me", 1, range(7), 4_864, media="me"), max_instances=1),
        profile("2g.10gb", 2, (0, 2, 4), 9_856, slices=2),
        profile("3g.20gb", 4, (0, 4), 19_968, slices=3),
        profile("7g.40gb", 8, (0,), 40_000, slices=7),
    ),
    at_most_one=("me",),
)
A30 = GpuModel(
    name="A30",
    arch="Ampere",
    memory_mib=24_000,
    memory_slices=4,
    compute_slices=4,
    profiles=(profile("1g.6gb", 1, range(4), 5_800), profile("2g.12gb", 2, (0, 2), 11_600, slices=2)),
)
T4 = GpuModel(name="T4", arch="Turing", memory_mib=15_000)
BALANCED = (
    Placement(0, 1, "1g.5gb"),
    Placement(1, 1, "1g.5gb"),
    Placement(2, 2, "2g.10gb"),
    Placement(4, 4, "3g.20gb"),
)
GPU_KINDS = (
    (A100, Sharing()),
    (A100, Sharing(layout=BALANCED)),
    (A100, Sharing(layout=BALANCED, allow_repartition=False, modes=(Mode.MIG,))),
    (A100, Sharing(layout=BALANCED, allow_repartition=False, modes=(Mode.MIG,), strategy="single")),
    (
        A100,
        Sharing(
            layout=BALANCED,
            allow_repartition=False,
            modes=(Mode.MIG_TIME_SLICING,),
            replicas=(("1g.5gb", 2), ("3g.20gb", 2)),
        ),
    ),
    (A100, Sharing(layout=BALANCED, modes=(Mode.MIG, Mode.MIG_MPS), replicas=(("3g.20gb", 2),), renamed=True)),
    (A100, Sharing(modes=(Mode.MIG,))),
    (A30, Sharing()),
    (T4, Sharing(modes=(Mode.WHOLE,))),
    (T4, Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))),
    (T4, Sharing(modes=(Mode.MEMORY_SHARE,))),
    (T4, Sharing(modes=(Mode.MPS,))),
    (T4, Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 3),))),
    (T4, Sharing(modes=(Mode.MPS,), replicas=(("", 2),), renamed=True)),
)


ASKS: tuple[tuple[DeviceRequest, ...], ...] = (
    (),
    (DeviceRequest(resource="nvidia.com/gpu"),),
    (DeviceRequest(resource="nvidia.com/gpu", count=2),),
    (DeviceRequest(resource="nvidia.com/gpu.shared"),),
    (DeviceRequest(resource="nvidia.com/mig-1g.5gb"),),
    (DeviceRequest(resource="nvidia.com/mig-1g.5gb.me"),),
    (DeviceRequest(resource="nvidia.com/mig-2g.10gb", count=2),),
    (DeviceRequest(resource="nvidia.com/mig-3g.20gb"),),
    (DeviceRequest(resource="nvidia.com/mig-3g.20gb.shared"),),
    (gpushare(4_000),),
    (gpushare(0, compute_percent=47),),
    (gpushare(9_000, compute_percent=30),),
    (gpushare(7_000, compute_percent=10, count=2),),
    (need(4_000, isolation=Isolation.NONE),),
    (need(9_000, 1, 20, isolation=Isolation.DRIVER),),
    (need(9_000, isolation=Isolation.HARDWARE),),
    (need(4_500, 2, isolation=Isolation.HARDWARE),),
    (need(18_000, 1, 40, isolation=Isolation.HARDWARE),),
    (need(35_000, isolation=Isolation.DRIVER),),
    (DeviceRequest(resource="nvidia.com/gpu"), need(4_000, isolation=Isolation.HARDWARE)),
    (
        DeviceRequest(resource="nvidia.com/mig-1g.5gb"),
        DeviceRequest(resource="nvidia.com/mig-3g.20gb"),
        gpushare(3_000),
    ),
)
POOL = Taint(key="pool", value="gpu", effect="NoSchedule")


@st.composite
def nodes_of(draw: st.DrawFn) -> tuple[Node, ...]:
    gpus = st.lists(st.sampled_from(GPU_KINDS), min_size=1, max_size=3)
    return tuple(
        Node(
            name=NodeName(f"node-{i}"),
            cpu_milli=draw(st.sampled_from((4_000, 64_000))),
            memory_mib=draw(st.sampled_from((4_000, 64_000))),
            max_pods=draw(st.sampled_from((3, 110))),
            labels=(("zone", draw(st.sampled_from("ab"))),),
            taints=draw(st.sampled_from(((), (POOL,)))),
            gpus=tuple(
                Gpu(index=2 * n, model=model, memory_mib=model.memory_mib, sharing=sharing)
                for n, (model, sharing) in enumerate(draw(gpus))
            ),
        )
        for i in range(draw(st.integers(1, 3)))
    )


needs = st.builds(
    Need,
    cpu_milli=st.sampled_from((0, 500, 2_000)),
    memory_mib=st.sampled_from((0, 1_000, 3_000)),
    requests=st.sampled_from(ASKS),
    models=st.sampled_from(((), (), ("A100",), ("T4", "A30"))),
    node_selector=st.sampled_from(((), (), (("zone", "a"),))),
    affinity=st.sampled_from(
        (None, None, (SelectorTerm(expressions=(Requirement(key="zone", operator="In", values=("a", "b")),)),))
    ),
    tolerations=st.sampled_from(((Toleration(operator="Exists"),), (Toleration(operator="Exists"),), ())),
)
worlds = st.tuples(nodes_of(), st.lists(needs, min_size=2, max_size=4, unique=True), st.randoms(use_true_random=False))


World = tuple[tuple[Node, ...], list[Need], random.Random]


class Judge:
    """What pods hold, and whether that is allowed; knows nothing of the fleet's arrays."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.held: dict[int, list[tuple[Need, tuple[Share, ...]]]] = {i: [] for i in range(len(nodes))}

    def fits(self, node: int, need: Need) -> bool:
        """Whether any shares at all would serve `need` here: tries every combination."""
        return any(self.allows(node, need, shares) for shares in self.every(node, need))

    def mixed(self, node: int, need: Need) -> bool:
        """Whether the kubelet could give other devices here by a name of which the pod says more."""
        for request in need.requests:
            any_grade = msgspec.structs.replace(request, isolation=Isolation.NONE)
            for gpu in (
                self.nodes[node].gpus
                if request.form is Form.EXACT and request.resource.startswith("nvidia.com/")
                else ()
            ):
                if len(list(shares_on(gpu, any_grade, ()))) > len(list(shares_on(gpu, request, need.models))):
                    return True
        return False

    def every(self, node: int, need: Need) -> Iterator[tuple[Share, ...]]:
        devices = [request for request in need.requests for _ in range(request.count)]
        ways = [
            [s for gpu in self.nodes[node].gpus for s in shares_on(gpu, request, need.models)] for request in devices
        ]
        return itertools.product(*ways)

    def allows(self, node: int, need: Need, shares: tuple[Share, ...]) -> bool:
        spec = self.nodes[node]
        zones = [("zone", "a")] if need.node_selector else [("zone", "a"), ("zone", "b")]
        pods = [*self.held[node], (need, shares)]
        return (
            (not spec.taints or bool(need.tolerations))
            and spec.labels[0] in zones
            and sum(n.cpu_milli for n, _ in pods) <= spec.cpu_milli
            and sum(n.memory_mib for n, _ in pods) <= spec.memory_mib
            and len(pods) <= spec.max_pods
            and serves(need, shares)
            and all(legal(gpu, [s for _, own in pods for s in own if s.gpu == gpu.index]) for gpu in spec.gpus)
        )


def shares_on(gpu: Gpu, request: DeviceRequest, models: Sequence[str]) -> Iterator[Share]:
    for option in gpu.options(request) if not models or gpu.model.name in models else ():
        starts: Sequence[int | None] = [None]
        if option.exists:
            starts = [d.placement.start if d.placement else None for d in gpu.devices if resembles(d, option)]
        elif option.profile:
            starts = next(p.starts for p in gpu.model.profiles if p.name == option.profile)
        for start in starts:
            yield Share(
                gpu=gpu.index,
                mode=option.mode,
                profile=option.profile,
                start=start,
                memory_mib=option.memory_mib,
                compute_percent=option.compute_percent,
                isolation=option.mode.isolation,
                resource=option.resource or request.resource,
                container=request.container,
            )


def resembles(device: object, other: object) -> bool:
    names = ("mode", "resource", "memory_mib", "compute_percent")
    return all(getattr(device, name) == getattr(other, name) for name in names)


def serves(need: Need, shares: tuple[Share, ...]) -> bool:
    left = list(shares)
    for request in need.requests:
        own, left = left[: request.count], left[request.count :]
        if len(own) < request.count or (request.form is not Form.EXACT and len({s.gpu for s in own}) < request.count):
            return False
        for share in own:
            if share.memory_mib < request.memory_mib or share.compute_percent < request.compute_percent:
                return False
            if not share.isolation.covers(request.isolation):
                return False
    return not left


def legal(gpu: Gpu, shares: Sequence[Share]) -> bool:
    """Whether a GPU may give all these shares at once."""
    if any(s.mode is Mode.WHOLE for s in shares):
        return len(shares) == 1
    standing = {(d.mode, d.placement.start if d.placement else None): d for d in gpu.devices}
    devices = [s for s in shares if (s.mode, s.start) in standing or s.profile]
    amounts = [s for s in shares if s not in devices]
    if devices and amounts:
        return False
    if amounts:
        return (
            len({s.mode for s in amounts}) == 1
            and sum(s.memory_mib for s in amounts) <= gpu.memory_mib
            and sum(s.compute_percent for s in amounts) <= 100
        )
    fixed = not gpu.sharing.allow_repartition or (gpu.sharing.layout is None and bool(gpu.devices))
    spots = {(s.mode, s.profile, s.start) for s in devices}
    for mode, name, start in spots:
        device = standing.get((mode, start))
        same = device is not None and (name is None or (device.placement and device.placement.profile == name))
        clients = device.clients if same and device else 0 if fixed else 1
        if sum((s.mode, s.profile, s.start) == (mode, name, start) for s in devices) > clients:
            return False
    profiles = {p.name: p for p in gpu.model.profiles}
    units = [u for _, n, start in spots if n for u in range(start or 0, (start or 0) + profiles[n].size)]
    media = [profiles[n].media for _, n, _ in spots if n and profiles[n].media in gpu.model.at_most_one]
    return len(units) == len(set(units)) and len(media) == len(set(media))
