"""The published policies against their formulas, written out a node at a time in rational numbers."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.fragmentation import typical
from tessera.core.packing.pack import UNFIT, Mix, Packer
from tessera.core.workload.need import DeviceRequest, Form, Need
from tessera.errors import InvalidInput

TWO_MODELS = tuple(GpuModel(name=name, arch="", memory_mib=0) for name in ("G2", "T4"))
SHARING = Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))
CPU, GPU = 128_000, 8_000


def need(cpu: int, gpus: int = 0, milli: int = 0, models: tuple[str, ...] = ()) -> Need:
    request = DeviceRequest(resource="nvidia.com/gpu", count=gpus)
    if gpus == 1 and milli < 1000:
        request = DeviceRequest(resource="milli", form=Form.SHARE, compute_percent=milli // 10)
    return Need(cpu_milli=cpu, requests=(request,) if gpus else (), models=models)


def kinds() -> st.SearchStrategy[Need]:
    cpu = st.integers(0, 40).map(lambda c: 500 * c)
    models = st.sampled_from(((), (), ("G2",), ("T4", "G2")))
    return st.one_of(
        st.builds(need, cpu),
        st.builds(need, cpu, st.just(1), st.integers(1, 100).map(lambda p: 10 * p), models),
        st.builds(need, cpu, st.sampled_from((2, 4, 8)), st.just(1000), models),
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Node, ...]:
    # the first node is the largest of the published cluster, whose size the formulas contain
    sizes = [(CPU, 8), *draw(st.lists(st.tuples(st.integers(1, 128).map(lambda c: 1000 * c), st.integers(0, 8))))]
    return tuple(
        Node(
            name=NodeName(f"n{i}"),
            cpu_milli=cpu,
            memory_mib=1000,
            gpus=tuple(Gpu(index=g, model=a_gpu, memory_mib=0, sharing=SHARING) for g in range(gpus)),
        )
        for i, (cpu, gpus) in enumerate(sizes[:5])
        for a_gpu in [draw(st.sampled_from(TWO_MODELS))]
    )


def milli(pod: Need) -> tuple[int, int]:
    """Return (num_gpu, gpu_milli) as the traces have them."""
    if not pod.requests:
        return 0, 0
    request = pod.requests[0]
    return request.count, 1000 if request.form is Form.EXACT else 10 * request.compute_percent


class View:
    """One node as the artifact sees it."""

    def __init__(self, fleet: Fleet, node: int, held: list[Need]) -> None:
        spec = fleet.nodes[node]
        self.cpu = spec.cpu_milli - sum(pod.cpu_milli for pod in held)
        self.left: list[int] = [10 * v for v in fleet.remaining[: len(spec.gpus), node].tolist()]
        self.model = spec.gpus[0].model.name if spec.gpus else ""
        self.held = [milli(pod) for pod in held if pod.requests]

    def takes(self, pod: Need) -> list[int]:
        """Return the GPUs taken where the policy does not choose: those with least left."""
        count, size = milli(pod)
        fitting = [g for g in sorted(range(len(self.left)), key=self.left.__getitem__) if self.left[g] >= size]
        return fitting[:count]

    def after(self, pod: Need, gpus: list[int]) -> "View":
        view = object.__new__(View)
        view.cpu, view.model, view.held = self.cpu - pod.cpu_milli, self.model, []
        view.left = [v - milli(pod)[1] * (g in gpus) for g, v in enumerate(self.left)]
        return view

    def fragmentation(self, mix: Mix) -> Fraction:
        total = sum(weight for _, weight in mix)
        return sum((Fraction(weight, total) * self._lost(pod) for pod, weight in mix), Fraction(0))

    def _lost(self, pod: Need) -> int:
        count, size = milli(pod)
        allowed = not pod.models or self.model in pod.models
        if not count or not allowed or self.cpu < pod.cpu_milli or sum(v >= size for v in self.left) < count:
            return sum(self.left)
        return sum(v for v in self.left if v < size)


def sigmoid(decrease: Fraction) -> int:
    return math.floor(100 / (1 + math.exp(-float(decrease) / 1000))) if decrease else 50


def fgd(view: View, pod: Need, mix: Mix) -> int:
    count, size = milli(pod)
    before = view.fragmentation(mix)
    choices = [[g] for g, v in enumerate(view.left) if v >= size] if count == 1 else [view.takes(pod)]
    return max(sigmoid(before - view.after(pod, gpus).fragmentation(mix)) for gpus in choices)


def dot_product(view: View, pod: Need, _mix: Mix) -> int:
    count, size = milli(pod)
    cpu = Fraction(view.cpu, CPU) * Fraction(pod.cpu_milli, CPU)
    gpu = Fraction(sum(view.left), GPU) * Fraction(count * size, GPU)
    return int(100 * (1 - (cpu + gpu) / 2))


def best_fit(view: View, pod: Need, _mix: Mix) -> int:
    count, size = milli(pod)
    cpu = Fraction(view.cpu - pod.cpu_milli, CPU)
    gpu = Fraction(sum(view.left) - count * size, GPU)
    return int(100 * (1 - cpu / 2 - gpu / 2))


def packing(view: View, pod: Need, _mix: Mix) -> int:
    if not pod.requests:
        return 0
    free = view.left.count(1000)
    if free == len(view.left):
        return max(33 - free, free)
    taken = [view.left[g] for g in view.takes(pod)]
    if taken.count(1000):
        return max(50 - taken.count(1000), 33)
    return max(100 - sum(taken) // 10 // 10, 50)


def clustering(view: View, pod: Need, _mix: Mix) -> int:
    if not pod.requests:
        return 0
    sizes = {count if size == 1000 else 0 for count, size in view.held}
    count, size = milli(pod)
    own = count if size == 1000 else 0
    fit = 25 if not sizes else 75 if sizes == {own} else 50 if own in sizes else 0
    return 25 * (GPU - sum(view.left)) // GPU + fit


FORMULAS = {
    "fgd": fgd,
    "dot-product": dot_product,
    "best-fit": best_fit,
    "gpu-packing": packing,
    "gpu-clustering": clustering,
}


@pytest.mark.parametrize("policy", FORMULAS)
@settings(max_examples=40, deadline=None)
@given(nodes=fleets(), pods=st.lists(kinds(), min_size=1, max_size=6, unique=True), rng=st.randoms())
def test_scores_are_the_published_integers(
    policy: str, nodes: tuple[Node, ...], pods: list[Need], rng: random.Random
) -> None:
    fleet = Fleet(nodes)
    mix = tuple((pod, n + 1) for n, pod in enumerate(pods))
    packer = Packer(fleet, policy, mix=mix)
    known = tuple((pod, weight) for pod, weight in sorted(mix, key=lambda item: -item[1]))
    keep = len(typical(mix, cover_percent=95))
    held: list[list[Need]] = [[] for _ in nodes]
    for _ in range(8):
        pod = rng.choice(pods)
        choice = packer.place(packer.intern(pod))
        if choice:
            held[choice.node].append(pod)
        for own in pods:
            row = packer.row(packer.intern(own))
            views = [View(fleet, node, held[node]) for node in range(len(nodes))]
            want = [
                FORMULAS[policy](v, own, known[:keep]) if s != UNFIT else UNFIT for v, s in zip(views, row, strict=True)
            ]
            assert row.tolist() == want


@settings(max_examples=40, deadline=None)
@given(nodes=fleets(), pods=st.lists(kinds(), min_size=1, max_size=6, unique=True), rng=st.randoms())
def test_fgd_takes_the_first_gpu_with_the_highest_score(
    nodes: tuple[Node, ...], pods: list[Need], rng: random.Random
) -> None:
    fleet = Fleet(nodes)
    mix = tuple((pod, 1) for pod in pods)
    packer = Packer(fleet, "fgd", mix=mix)
    held: list[list[Need]] = [[] for _ in nodes]
    keep = mix[: len(typical(mix, cover_percent=95))]
    for _ in range(10):
        pod = rng.choice(pods)
        views = [View(fleet, node, held[node]) for node in range(len(nodes))]
        choice = packer.place(packer.intern(pod))
        if choice is None:
            continue
        view = views[choice.node]
        count, size = milli(pod)
        gpus = [share.gpu for share in choice.shares]
        if count == 1:
            before = view.fragmentation(keep)
            score = [
                sigmoid(before - view.after(pod, [g]).fragmentation(keep)) if v >= size else -1
                for g, v in enumerate(view.left)
            ]
            assert gpus == [score.index(max(score))]
        else:
            assert gpus == [g for g, v in enumerate(view.left) if v == 1000][:count]
        held[choice.node].append(pod)


def test_an_unknown_policy_and_a_missing_generator_are_named() -> None:
    with pytest.raises(InvalidInput, match="policy: worst-fit is not the name of a policy: random, "):
        Packer(Fleet(()), "worst-fit")
    with pytest.raises(InvalidInput, match="generator"):
        Packer(Fleet(()), "random")
    packer = Packer(Fleet(()), "random", rng=random.Random(0))
    assert packer.place(packer.intern(Need())) is None
    assert np.array_equal(packer.row(0), [])
