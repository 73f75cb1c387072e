"""What can be on a GPU at once has one answer: rules, planner, ledger and inspection agree, whatever was recorded."""

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.fleets import A30, A100, T4, pod_of
from builders.requests import exact, gpushare, need
from tessera.core.cluster.closing import closed
from tessera.core.cluster.cluster import Cluster, ObservedNode, ObservedPod, Phase
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Running, Share, Snapshot
from tessera.core.explain.inspection import inspect
from tessera.core.gpu.mig import all_layouts
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Fleet
from tessera.core.packing.ledger import Ledger, LedgerEntry
from tessera.core.packing.plan import plan
from tessera.core.packing.unrecorded import PodOnNode, with_unrecorded_shares
from tessera.core.workload.need import Isolation, Need, PodKey
from tessera.errors import InvalidInput

LAYOUTS = {model: tuple(all_layouts(model))[::7] for model in (A30, A100)}
MODES = (Mode.WHOLE, Mode.MIG, Mode.MPS, Mode.MEMORY_SHARE)
A = NodeName("a")
NEEDS = (
    Need(requests=(exact(),)),
    *(Need(requests=(exact(1, f"nvidia.com/mig-{profile}"),)) for profile in ("1g.6gb", "3g.20gb")),
    *(Need(requests=(need(mib, isolation=isolation),)) for mib in (3_000, 10_000) for isolation in Isolation),
    Need(requests=(gpushare(9_000),)),
)


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    model = draw(st.sampled_from((A30, A100, T4)))
    layout = draw(st.sampled_from(LAYOUTS[model])) if model in LAYOUTS else None
    clients = draw(st.sampled_from((2, 3, 4)))
    replicas = tuple((profile, clients) for profile in sorted({place.profile for place in layout or ()}))
    cut = (
        Sharing(layout=layout),
        Sharing(modes=(Mode.MIG,), layout=layout, allow_repartition=False),
        Sharing(modes=(Mode.MIG, Mode.MIG_MPS), layout=layout, allow_repartition=False, replicas=replicas),
    )
    shared = (
        Sharing(modes=tuple(draw(st.sets(st.sampled_from(MODES))))),
        Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", clients),)),
        Sharing(modes=(Mode.MPS,), replicas=(("", clients),), allocator="scheduler"),
    )
    sharing = draw(st.sampled_from((*shared, *cut) if layout else shared))
    return Gpu(index=0, model=model, memory_mib=model.memory_mib, sharing=sharing, uuid="GPU-0")


@st.composite
def recorded(draw: st.DrawFn, of: Gpu) -> dict[PodKey, tuple[Share, ...]]:
    """Draw records of pods on a GPU that may have been shared otherwise when they came."""
    former = draw(gpus().filter(lambda each: each.model is of.model))
    devices = [Share.of_device(0, device, "x") for each in (of, former) for device in each.devices]
    odd = st.builds(
        Share,
        gpu=st.just(0),
        mode=st.sampled_from(Mode),
        profile=st.sampled_from((None, None, *(profile.name for profile in of.model.profiles))),
        start=st.sampled_from((None, 0, 1, 4)),
        memory_mib=st.sampled_from((0, 1_024, of.memory_mib // 2, of.memory_mib, of.memory_mib + 1, -1)),
        compute_percent=st.sampled_from((0, 10, 50, 100)),
        isolation=st.just(Isolation.NONE),
        resource=st.just("x"),
    )
    shares = st.one_of(st.sampled_from(devices), odd) if devices else odd
    held = draw(st.lists(st.tuples(shares), max_size=4))
    return {PodKey(f"ns/p{number}"): own for number, own in enumerate(held)}


gpus_with_records = gpus().flatmap(lambda of: st.tuples(st.just(of), recorded(of)))


def node_of(gpu: Gpu) -> Node:
    return Node(name=A, cpu_milli=1 << 20, memory_mib=1 << 30, gpus=(gpu,))


def running(key: PodKey, *shares: Share) -> Running:
    return Running(pod=pod_of(Need(), key), assignment=Assignment(pod=key, node=A, shares=shares))


def ledger_of(gpu: Gpu, held: dict[PodKey, tuple[Share, ...]]) -> Ledger:
    ledger = Ledger("first-fit")
    ledger.put_node(node_of(gpu))
    for key, shares in held.items():
        ledger.put_pod(LedgerEntry(key, key, A, Need(), shares))
    return ledger


def inspected(gpu: Gpu, held: dict[PodKey, tuple[Share, ...]]) -> Iterator[str]:
    """Yield the conflicts that `tessera inspect` shows, without the pods."""
    pods = tuple(
        ObservedPod(pod=pod_of(Need(), key), node=A, shares=shares, phase=Phase.RUNNING) for key, shares in held.items()
    )
    cluster = Cluster(nodes=(ObservedNode(node=node_of(gpu)),), pods=pods, snapshot=Snapshot(nodes=()))
    for each in inspect(cluster, names=(A,)).nodes[0].gpus[0].conflicts:
        yield each.rpartition("; pods: ")[0]


def refused(snapshot: Snapshot) -> bool:
    try:
        Fleet.of(snapshot)
    except InvalidInput:
        return True
    return False


@pytest.mark.search
@settings(max_examples=150, deadline=None)
@given(drawn=gpus_with_records)
def test_rules_planner_ledger_and_inspection_agree_on_what_can_be_together(
    drawn: tuple[Gpu, dict[PodKey, tuple[Share, ...]]],
) -> None:
    gpu, held = drawn
    found = [fault.text for fault in faults(GpuType.of(gpu), held)]
    pods = tuple(running(key, *shares) for key, shares in held.items())
    assert refused(Snapshot(nodes=(node_of(gpu),), running=pods)) is bool(found)
    assert bool(ledger_of(gpu, held).impossible_shares) is bool(found)
    assert list(inspected(gpu, held))[: len(found)] == found


@pytest.mark.search
@settings(max_examples=150, deadline=None)
@given(drawn=gpus_with_records, asked=st.lists(st.sampled_from(NEEDS), min_size=1, max_size=4), exactly=st.booleans())
def test_no_plan_overcommits_a_gpu_whose_sharing_changed_under_its_pods(
    drawn: tuple[Gpu, dict[PodKey, tuple[Share, ...]]], asked: list[Need], exactly: bool
) -> None:
    """Every record counts: what is planned fits beside all of them, and the ledger gives where a plan does."""
    gpu, held = drawn
    found = with_unrecorded_shares(node_of(gpu), [PodOnNode(pod_of(Need(), key), own) for key, own in held.items()])
    kept = [share for each in found.running for share in each.assignment.shares]
    assert bool(found.conflicts) is any(faults(GpuType.of(gpu), held))
    seen = closed(gpu, kept) if found.conflicts else gpu
    pending = tuple(pod_of(each, f"ns/q{number}") for number, each in enumerate(asked))
    before = Snapshot(nodes=(node_of(seen),), running=found.running, pending=pending)
    made = plan(before, exact=exactly)
    granted = {each.pod: each.shares for each in made.assignments}
    assert not (found.conflicts and granted)
    assert not any(faults(GpuType.of(gpu), held | granted)) or found.conflicts
    assert sum(s.memory_mib for own in (kept, *granted.values()) for s in own if s.profile is None) <= max(
        gpu.memory_mib, sum(share.memory_mib for share in kept if share.mode is Mode.WHOLE)
    )
    ledger = ledger_of(gpu, held)
    placed = [each for each in pending if each.key in granted]
    assert bool(placed) is any(ledger.fits(each, A) for each in asked)


def test_replicas_from_when_there_were_fewer_leave_no_room_for_as_many() -> None:
    """Two of two MPS clients with half the GPU each; then four are allowed, and nothing is left for two more."""
    four = Gpu(
        index=0,
        model=A100,
        memory_mib=A100.memory_mib,
        sharing=Sharing(modes=(Mode.MPS,), replicas=(("", 4),), allocator="scheduler"),
    )
    two = msgspec.structs.replace(four, sharing=Sharing(modes=(Mode.MPS,), replicas=(("", 2),)))
    (half,) = (Share.of_device(0, device, "x") for device in two.devices)
    asked = tuple(pod_of(Need(requests=(need(4_000, isolation=Isolation.DRIVER),)), f"ns/q{n}") for n in range(4))
    for count, room in ((1, 2), (2, 0)):
        pods = tuple(running(PodKey(f"ns/p{number}"), half) for number in range(count))
        before = Snapshot(nodes=(node_of(four),), running=pods, pending=asked)
        assert [len(plan(before, exact=exactly).assignments) for exactly in (False, True)] == [room, room]
        fleet = Fleet.of(before)
        twin = fleet.copy()
        for each in pods:
            twin.give(0, each.pod.need, each.assignment.shares)
        assert fleet.state(0) != twin.state(0) == Fleet((node_of(four),)).state(0)
