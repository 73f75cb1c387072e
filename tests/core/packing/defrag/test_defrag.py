"""Defragmentation: the fewest moves that let pods fit, compared with trying every set; and why nothing helps."""

import itertools
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import kubeobjects
from builders.fleets import T4, amount, gpu, node
from builders.gpunodes import sevenths
from builders.mixedclusters import Judge, World, worlds
from builders.shares import mig_share, whole
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.cluster.cluster import Cluster, ObservedNode, ObservedPod, Phase, Record
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState, UnhealthyDevice
from tessera.core.cluster.snapshot import Node, Snapshot
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.packing.defrag import DefragProposal, Evictable, PodToPlace, propose, search
from tessera.core.packing.fit.admission import refusal
from tessera.core.packing.ledger import Ledger, LedgerEntry
from tessera.core.workload.need import Isolation, Need, Pod, PodKey

OWNER = "ReplicaSet/default/made-by"


def holder(pod: ObservedPod) -> LedgerEntry:
    assert pod.node is not None
    return LedgerEntry(pod.uid, pod.pod.key, pod.node, pod.pod.need, pod.shares)


def fits(ledger: Ledger, need: Need, spec: Node) -> bool:
    requested = need.cpu_milli, need.memory_mib, 1
    room = all(map(int.__ge__, ledger.free_resources(spec.name), requested))
    return room and refusal(need, spec) is None and ledger.fits(need, spec.name)


def put(ledger: Ledger, need: Need, nodes: Sequence[Node], name: str) -> LedgerEntry | None:
    """Place a pod where the ledger rates it best, as kube-scheduler and the extender would."""
    unsuited = ledger.unsuited(need, [spec.name for spec in nodes])
    able = [spec.name for spec in nodes if spec.name not in unsuited and fits(ledger, need, spec)]
    if not able:
        return None
    scores = ledger.scores(need, able)
    best = able[scores.index(max(scores))]
    shares = ledger.choose(need, best)
    assert not isinstance(shares, str)
    placed = LedgerEntry(name, PodKey(f"default/{name}"), best, need, shares)
    ledger.put_pod(placed)
    return placed


def cluster(nodes: Sequence[Node], pods: Sequence[ObservedPod]) -> Cluster:
    return Cluster(
        nodes=tuple(ObservedNode(node=spec) for spec in nodes), pods=tuple(pods), snapshot=Snapshot(nodes=tuple(nodes))
    )


def running(placed: LedgerEntry, priority: int = 0) -> ObservedPod:
    return ObservedPod(
        pod=Pod(key=placed.key, need=placed.need, priority=priority, owner=OWNER),
        uid=str(placed.id),
        node=placed.node,
        shares=placed.shares,
        record=Record.RECORDED if placed.shares else Record.NONE,
        phase=Phase.RUNNING,
    )


def free(*pods: ObservedPod) -> dict[PodKey, Evictable]:
    return {pod.pod.key: Evictable(pod=pod.pod.key) for pod in pods}


@st.composite
def fragmented(draw: st.DrawFn) -> tuple[Cluster, list[Need]]:
    """A small cluster that was filled and from which some pods went again."""
    world: World = draw(worlds)
    nodes, kinds, rng = world
    ledger = Ledger()
    for spec in nodes:
        ledger.put_node(spec)
    placed = [put(ledger, rng.choice(kinds), rng.sample(nodes, 1), f"p{n}") for n in range(9)]
    there = [each for each in placed if each is not None]
    rng.shuffle(there)
    kept = there[: draw(st.integers(0, 6))]
    return cluster(nodes, [running(each) for each in kept]), [need for need in kinds if need.requests]


def enough(state: Cluster, moved: Sequence[ObservedPod], targets: Sequence[Need]) -> bool:
    """Whether these moves are enough, made on a ledger of the test's own."""
    nodes = [each.node for each in state.nodes]
    ledger = Ledger()
    for spec in nodes:
        gone = {share.gpu for pod in moved if pod.node == spec.name for share in pod.shares}
        ledger.put_node(spec, reserved=tuple(map(whole, sorted(gone))))
    for pod in state.pods:
        ledger.put_pod(holder(pod))
    for number, pod in enumerate(moved):
        if put(ledger, pod.pod.need, nodes, f"new-{number}") is None:
            return False
    for pod in moved:
        ledger.drop_pod(pod.uid)
    for spec in nodes:
        ledger.put_node(spec)
    return all(put(ledger, need, nodes, f"target-{n}") is not None for n, need in enumerate(targets))


def fewest(state: Cluster, targets: Sequence[Need]) -> int | None:
    """How few moves are enough, by trying every set of pods that hold devices."""
    pods = [pod for pod in state.pods if pod.shares]
    for count in range(len(pods) + 1):
        if any(enough(state, moved, targets) for moved in itertools.combinations(pods, count)):
            return count
    return None


def replay(state: Cluster, needs: dict[PodKey, Need], got: DefragProposal) -> None:
    """Make the moves one after another, before a judge that knows nothing of the program's arrays."""
    nodes = [each.node for each in state.nodes]
    index = {spec.name: number for number, spec in enumerate(nodes)}
    judge = Judge(nodes)
    pods = {pod.pod.key: pod for pod in state.pods}
    for pod in state.pods:
        assert pod.node is not None
        judge.held[index[pod.node]].append((pod.pod.need, pod.shares))
    for move in got.moves:
        need = pods[move.pod].pod.need
        freed = {(move.frees.node, share.gpu) for each in got.moves for share in each.frees.shares}
        assert not freed & {(move.fits.node, share.gpu) for share in move.fits.shares}
        assert judge.allows(index[move.fits.node], need, move.fits.shares)
        judge.held[index[move.fits.node]].append((need, move.fits.shares))
        judge.held[index[move.frees.node]].remove((need, move.frees.shares))
    for placed in got.placed:
        need, at = needs[placed.pod], index[placed.place.node]
        assert judge.allows(at, need, placed.place.shares)
        judge.held[at].append((need, placed.place.shares))


def target(need: Need, number: int = 0, priority: int = 0) -> PodToPlace:
    return PodToPlace(pod=PodKey(f"default/target-{number}"), need=need, priority=priority)


@settings(max_examples=50, deadline=None)
@given(case=fragmented())
def test_one_pod_takes_the_fewest_moves_of_all_sets_and_everything_fits_then(
    case: tuple[Cluster, list[Need]],
) -> None:
    state, kinds = case
    for need in kinds:
        got = propose(state, [target(need)], free(*state.pods))
        replay(state, {PodKey("default/target-0"): need}, got)
        want = fewest(state, [need])
        assert bool(got.stuck) == (want is None)
        assert len(got.moves) == (want or 0)
        assert got.exhaustive
        assert got.fewest


@settings(max_examples=20, deadline=None)
@given(case=fragmented(), data=st.data())
def test_several_pods_take_the_fewest_moves_for_all_of_them(
    case: tuple[Cluster, list[Need]], data: st.DataObject
) -> None:
    state, kinds = case
    if not kinds:
        return
    needs = data.draw(st.lists(st.sampled_from(kinds), min_size=2, max_size=3))
    targets = [target(need, number) for number, need in enumerate(needs)]
    got = propose(state, targets, free(*state.pods))
    replay(state, {each.pod: each.need for each in targets}, got)
    want = fewest(state, needs)
    assert len(got.placed) + len(got.stuck) == len(targets)
    if want is None:
        assert got.stuck
    else:
        assert not got.stuck
        assert len(got.moves) == want
        assert got.fewest


def two_halves(*, priority: int = 0, mib: int = 7_000) -> list[ObservedPod]:
    """Two GPUs with half of each held, or another part."""
    spec = node("n", gpu(0, T4), gpu(1, T4))
    ledger = Ledger()
    ledger.put_node(spec)
    found = []
    for name, shares in (("a", 0), ("b", 1)):
        share = ledger.choose(amount(mib), "n")
        assert not isinstance(share, str)
        moved = tuple(msgspec.structs.replace(each, gpu=shares) for each in share)
        found.append(running(LedgerEntry(name, PodKey(f"default/{name}"), spec.name, amount(mib), moved), priority))
    return found


TWO = [node("n", gpu(0, T4), gpu(1, T4))]
WHOLE = amount(15_000, Isolation.HARDWARE)


def test_the_smaller_of_two_goes_and_the_one_that_comes_takes_its_gpu() -> None:
    pods = two_halves()
    got = propose(cluster(TWO, pods), [target(WHOLE)], free(*pods))
    assert [move.pod for move in got.moves] == ["default/a"]
    assert [share.gpu for share in got.moves[0].fits.shares] == [1]
    assert got.moves[0].owner == OWNER
    assert [share.gpu for share in got.placed[0].place.shares] == [0]
    assert (got.at_least, got.fewest, got.exhaustive) == (1, True, True)


def altered(**fields: object) -> list[ObservedPod]:
    return [msgspec.structs.replace(pod, **fields) for pod in two_halves()]


# Keyed by a sentence: the pods, what may leave, the pod to place; desired is a word of the reason.
STUCK: dict[str, tuple[list[ObservedPod], dict[PodKey, Evictable], PodToPlace, str]] = {
    "no pod may leave": (
        two_halves(),
        {pod.pod.key: Evictable(pod=pod.pod.key, refused="it is dear") for pod in two_halves()},
        target(WHOLE),
        "on n, default/a would have to move, and it is dear",
    ),
    "nothing is known of the pods": (two_halves(), {}, target(WHOLE), "its controller is unknown"),
    "all are of a higher priority": (
        two_halves(priority=7),
        free(*two_halves()),
        target(WHOLE, priority=6),
        "its priority 7 is above 6",
    ),
    "a pod is ending": (altered(ending=True), free(*two_halves()), target(WHOLE), "it is already being deleted"),
    "a pod cannot be read": (altered(problem="it is odd"), free(*two_halves()), target(WHOLE), "it is odd"),
    "a pod starts": (altered(phase=Phase.STARTING), free(*two_halves()), target(WHOLE), "are not running yet"),
    "devices are guessed": (altered(record=Record.UNRECORDED), free(*two_halves()), target(WHOLE), "not recorded"),
    "a replacement fits nowhere beside it": (
        two_halves()[:1],
        free(*two_halves()),
        target(amount(15_000, Isolation.HARDWARE, count=2)),
        "on n, default/a would have to move, and they do not all fit elsewhere",
    ),
    "a replacement fits nowhere": (
        two_halves(mib=14_000),
        free(*two_halves()),
        target(WHOLE),
        "default/a would have to move, and its replacement does not fit elsewhere",
    ),
    "no GPU is large enough": (
        two_halves(),
        free(*two_halves()),
        target(amount(16_000)),
        "it fits no node, even an empty one",
    ),
    "no node admits the pod": (
        two_halves(),
        free(*two_halves()),
        target(msgspec.structs.replace(WHOLE, node_selector=(("zone", "z"),))),
        "no node admits it: the node has no label zone=z, which the pod selects (n)",
    ),
    "too little cpu": (
        two_halves(),
        free(*two_halves()),
        target(msgspec.structs.replace(WHOLE, cpu_milli=1 << 20)),
        "moving pods does not help: too little CPU: 1048.576 requested, 64 free (n)",
    ),
}


@pytest.mark.parametrize(("pods", "evictable", "one", "want"), STUCK.values(), ids=STUCK)
def test_why_nothing_helps(
    pods: list[ObservedPod], evictable: dict[PodKey, Evictable], one: PodToPlace, want: str
) -> None:
    got = propose(cluster(TWO, pods), [one], evictable)
    assert got.moves == ()
    assert want in got.stuck[0].reasons[0]


def test_an_unhealthy_gpu_is_named_where_an_emptied_node_does_not_help() -> None:
    (spec,) = TWO
    unhealthy = tuple(UnhealthyDevice(device=DeviceId(each.uuid), reason="Xid 79") for each in spec.gpus)
    state = GpuNodeState(name=spec.name, gpus=spec.gpus, unhealthy=unhealthy, reported=True)
    observed = Cluster(nodes=(ObservedNode(node=spec, state=state),), snapshot=Snapshot(nodes=(spec,)))
    got = propose(observed, [target(WHOLE)], {})
    (reason,) = got.stuck[0].reasons
    assert reason == (
        "moving pods does not help: no room for 14.7 GiB with hardware isolation: 2 GPUs are unhealthy (n)"
    )


def test_a_node_that_withholds_the_resource_is_named_beside_those_that_are_too_small() -> None:
    """A GPU of the one is large enough, so that it is not said that even an empty node could not take the pod."""
    reason = "tessera.dev/gpu-memory is not advertised: set unit: GiB"
    large = msgspec.structs.replace(node("a", gpu(0)), withheld=(("tessera.dev/gpu-memory", reason),))
    got = propose(cluster([large, node("b", gpu(0, T4))], []), [target(amount(39_000))], {})
    small = "no GPU of the node can provide 38.1 GiB (b: 1 x T4 of 15360 MiB shared as whole, mps, memory-share)"
    assert got.stuck[0].reasons == (f"no node can take it: {reason} (a); {small}",)


def test_pods_that_fit_alone_are_told_that_others_come_before_them() -> None:
    targets = [target(WHOLE, number) for number in range(3)]
    got = propose(cluster(TWO, []), targets, {})
    assert [each.pod for each in got.placed] == ["default/target-0", "default/target-1"]
    assert got.stuck[0].reasons == ("on n it would fit without the pods that come before it",)


SEVENTHS = sevenths()
ONE, GPU = "nvidia.com/mig-1g.5gb", "nvidia.com/gpu"


def partitioned(name: str, *unhealthy: UnhealthyDevice, kept: bool = True) -> list[kubeobjects.Object]:
    """A node with a GPU of two instances: kept for pods by name on a managed one, or all that a fixed one has."""
    both = SEVENTHS[:2]
    offered = (DesiredDevices(gpu=f"GPU-{name}-0", instances=both),)
    sharing = AUTO if kept else Sharing(modes=(Mode.MIG,), layout=both, allow_repartition=False)
    gpus = kubeobjects.gpu(0, sharing=sharing, layout=both if kept else None, node=name)
    return [
        kubeobjects.node(name, {ONE: str(2 - len(unhealthy))}),
        kubeobjects.gpunode(name, gpus, desired=offered if kept else (), offered=offered, unhealthy=unhealthy),
    ]


def by_name(objects: Sequence[kubeobjects.Object]) -> DefragProposal:
    state = read_cluster(as_fields(objects))
    pending = [PodToPlace(pod=each.pod.key, need=each.pod.need) for each in state.pods if each.node is None]
    return propose(state, pending, free(*state.pods))


def test_pods_by_name_take_idle_devices_that_are_desired_for_such_pods_and_no_pod_moves() -> None:
    used = kubeobjects.pod("x", {ONE: 1}, mig_share(0, "1g.5gb", 0), node="n")
    got = by_name([*partitioned("n"), used, *(kubeobjects.pod(name, {ONE: 1}, node=None) for name in "ab")])
    starts = [[share.start for share in each.place.shares] for each in got.placed]
    assert (got.moves, got.stuck, starts) == ((), (), [[1], [2]])  # the second is created


def test_a_pod_by_name_moves_to_an_idle_device_of_its_name() -> None:
    x = kubeobjects.pod("x", {ONE: 1}, mig_share(0, "1g.5gb", 0), node="n")
    y = kubeobjects.pod("y", {ONE: 1}, mig_share(0, "1g.5gb", 0), node="m")
    got = by_name([*partitioned("n"), *partitioned("m"), x, y, kubeobjects.pod("me", {GPU: 1}, node=None)])
    (move,) = got.moves
    assert (move.frees.node, move.fits.node) in {("n", "m"), ("m", "n")}
    assert [share.start for share in move.fits.shares] == [1]
    assert [each.place.node for each in got.placed] == [move.frees.node]


def test_kube_scheduler_counts_a_device_in_use_that_is_unhealthy_twice() -> None:
    """As requested, and as one that the node does not advertise any more."""
    used = kubeobjects.pod("x", {ONE: 1}, mig_share(0, "1g.5gb", 0), node="n")
    unhealthy = UnhealthyDevice(device=DeviceId("GPU-n-0", SEVENTHS[0]))
    got = by_name([*partitioned("n", unhealthy, kept=False), used, kubeobjects.pod("me", {ONE: 1}, node=None)])
    assert got.stuck[0].reasons == (f"on n: too few free devices: 1 x {ONE} requested, 0 of 1 advertised are free",)


def test_no_more_moves_than_allowed() -> None:
    pods = two_halves()
    got = propose(cluster(TWO, pods), [target(WHOLE)], free(*pods), most=0)
    assert got.stuck[0].reasons == ("on n, default/a would have to move, which is more than 0 moves",)


def test_pods_that_wait_hold_nothing() -> None:
    pods = two_halves()
    waiting = msgspec.structs.replace(pods[0], node=None, shares=(), phase=Phase.WAITING)
    got = propose(cluster(TWO, [waiting, pods[1]]), [target(WHOLE)], free(*pods))
    assert (got.moves, len(got.placed)) == ((), 1)


def test_two_devices_take_the_pods_of_both_gpus() -> None:
    pods = two_halves()
    spare = node("m", gpu(0, T4), gpu(1, T4), cpu_milli=1_000)
    need = msgspec.structs.replace(amount(15_000, Isolation.HARDWARE, count=2), cpu_milli=2_000)
    got = propose(cluster([*TWO, spare], pods), [target(need)], free(*pods))
    assert [move.pod for move in got.moves] == ["default/a", "default/b"]
    assert {move.fits.node for move in got.moves} == {"m"}
    assert got.fewest


def pod_on(name: str, need: Need, *gpus: int) -> ObservedPod:
    ledger = Ledger()
    ledger.put_node(node("n", *(gpu(index, T4) for index in range(5))))
    shares = ledger.choose(need, "n")
    assert not isinstance(shares, str)
    placed = tuple(msgspec.structs.replace(share, gpu=index) for share, index in zip(shares, gpus, strict=True))
    return running(LedgerEntry(name, PodKey(f"default/{name}"), node("n").name, need, placed))


FIVE = [node("n", *(gpu(index, T4) for index in range(5)))]
WIDE = [
    pod_on("wide", amount(8_000, count=2), 0, 1),
    pod_on("small", amount(7_000), 2),
    pod_on("fixed-1", amount(7_000), 3),
    pod_on("fixed-2", amount(7_000), 4),
]


def test_one_move_for_two_where_one_after_the_other_there_is_none_for_the_second() -> None:
    got = propose(cluster(FIVE, WIDE), [target(WHOLE), target(WHOLE, 1)], free(*WIDE[:2]))
    assert [move.pod for move in got.moves] == ["default/wide"]
    assert (len(got.placed), got.stuck, got.fewest) == (2, (), True)


def test_fewer_moves_for_two_than_one_after_the_other() -> None:
    more = [*FIVE, node("m", gpu(0, T4))]
    pods = [
        *WIDE,
        running(msgspec.structs.replace(holder(WIDE[1]), id="o", key=PodKey("default/o"), node=more[1].name)),
    ]
    pods[-1] = msgspec.structs.replace(
        pods[-1], shares=tuple(msgspec.structs.replace(share, gpu=0) for share in pods[-1].shares)
    )
    got = propose(cluster(more, pods), [target(WHOLE), target(WHOLE, 1)], free(*pods[:2]))
    assert [move.pod for move in got.moves] == ["default/wide"]
    assert got.fewest


def test_one_of_two_is_placed_and_the_other_is_reported_why_not() -> None:
    pods = two_halves()
    got = propose(cluster(TWO, pods), [target(WHOLE), target(WHOLE, 1)], free(*pods))
    assert [each.pod for each in got.placed] == ["default/target-0"]
    assert [each.pod for each in got.stuck] == ["default/target-1"]
    assert len(got.moves) == 1


def test_of_many_those_that_fit_nowhere_are_not_tried_together() -> None:
    pods = two_halves()
    got = propose(cluster(TWO, pods), [target(amount(16_000), number) for number in range(7)], free(*pods))
    assert len(got.stuck) == 7


BOUNDS = {"too many sets on one node": "_MOST_TRIES", "too many sets on the cluster": "_MOST_TRIALS"}


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_where_there_is_too_much_to_try_one_set_a_gpu_is(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(search, bound, 0)
    pods = two_halves()
    got = propose(cluster(TWO, pods), [target(WHOLE)], free(*pods))
    assert (len(got.moves), got.at_least, got.exhaustive, got.fewest) == (1, 1, False, True)
    got = propose(cluster(TWO, pods), [target(WHOLE), target(WHOLE, 1)], free(*pods))
    assert (len(got.moves), len(got.stuck), got.exhaustive) == (1, 1, False)


def test_where_there_is_too_much_to_try_fewer_moves_may_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = WIDE[:1]
    need = amount(15_000, Isolation.HARDWARE, count=2)
    monkeypatch.setattr(search, "_MOST_TRIALS", 1)
    got = propose(cluster(FIVE, WIDE), [target(need), target(amount(1))], free(*pods))
    assert (len(got.moves), got.exhaustive) == (1, False)


def test_one_set_a_node_after_other_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST_TRIES", 0)
    state = cluster([*FIVE, node("m", gpu(0, T4))], WIDE)
    got = propose(state, [target(amount(15_000, Isolation.HARDWARE, count=2)), target(WHOLE, 1)], free(*WIDE))
    assert got.placed
    assert not got.exhaustive


# Keyed by a sentence: memory that two pods hold, nodes beside theirs, the most moves.
NONE_FOUND = {
    "it takes more moves than allowed": (7_000, [node("m", gpu(0, T4), cpu_milli=1_000)], 1),
    "there is room for one of two replacements": (8_000, [node("m", gpu(0, T4), cpu_milli=1_000)], 5),
}


@pytest.mark.parametrize(("mib", "more", "most"), NONE_FOUND.values(), ids=NONE_FOUND)
def test_one_set_a_node_that_is_not_enough(
    monkeypatch: pytest.MonkeyPatch, mib: int, more: list[Node], most: int
) -> None:
    monkeypatch.setattr(search, "_MOST_TRIES", 0)
    need = msgspec.structs.replace(amount(15_000, Isolation.HARDWARE, count=2), cpu_milli=2_000)
    pods = two_halves(mib=mib)
    got = propose(cluster([*TWO, *more], pods), [target(need)], free(*pods), most=most)
    assert (got.moves, len(got.stuck), got.exhaustive) == ((), 1, False)
