"""What is unhealthy serves those who hold it and nobody else."""

import itertools

import msgspec
import pytest

from builders.fleets import A30, amount, node, plain_share, slices
from builders.kubeobjects import gpu, mig_share, place, share
from builders.requests import exact
from tessera.core.cluster.closing import without_new
from tessera.core.cluster.gpunodestate import GpuNodeState, UnhealthyDevice
from tessera.core.cluster.namedshares import named_share
from tessera.core.cluster.snapshot import Assignment, Gpu, NodeName, Running, Share, Snapshot
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Layout, all_layouts
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Demand, Fleet
from tessera.core.packing.ledger import Ledger, LedgerEntry, schedulable_node
from tessera.core.packing.partitioning import PartitioningLimits, PartitioningMemory, PartitioningState, advance
from tessera.core.packing.plan import plan
from tessera.core.packing.reasons import Reasons
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need, Pod, PodKey

T4 = 15360
LAYOUT = (place("A100-40GB", "3g.20gb", 0), place("A100-40GB", "3g.20gb", 4))
FIXED = Sharing(
    modes=(Mode.MIG, Mode.MIG_TIME_SLICING), layout=LAYOUT, allow_repartition=False, replicas=(("3g.20gb", 2),)
)
WHOLE_SICK = (UnhealthyDevice(device=DeviceId("GPU-a-0"), reason="Xid 79"),)
SECOND_SICK = (UnhealthyDevice(device=DeviceId("GPU-a-0", LAYOUT[1]), reason="Xid 43"),)
ANY = (
    amount(1024),
    amount(1024, Isolation.DRIVER),
    amount(1024, Isolation.HARDWARE),
    plain_share(1024),
    slices("1g.5gb"),
    slices("3g.20gb"),
    Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),)),
    Need(requests=(DeviceRequest(resource="nvidia.com/mig-3g.20gb.shared"),)),
)
OF_A30 = (
    *(slices("1g.6gb", count) for count in (1, 3, 4)),
    *(slices("2g.12gb", count) for count in (1, 2)),
    *(slices(profile) for profile in ("1g.6gb.me", "2g.12gb.me", "4g.24gb")),
    Need(requests=(exact(),)),
    *(amount(gib << 10, isolation) for gib in (5, 22) for isolation in Isolation),
)


def replicated(start: int) -> Share:
    own = mig_share(0, "3g.20gb", start, mode=Mode.MIG_TIME_SLICING)
    return msgspec.structs.replace(own, memory_mib=own.memory_mib // 2, compute_percent=own.compute_percent // 2)


# Keyed by a sentence: the GPU, what is unhealthy, what is held; desired is whether anything new is served.
CASES: dict[str, tuple[Gpu, tuple[UnhealthyDevice, ...], tuple[Share, ...], bool]] = {
    "a GPU that is well": (gpu(0), (), (), True),
    "the neighbor is unhealthy": (gpu(0), (UnhealthyDevice(device=DeviceId("GPU-a-1")),), (), True),
    "an empty GPU": (gpu(0), WHOLE_SICK, (), False),
    "a GPU held whole": (gpu(0), WHOLE_SICK, (share(0, 40000, Mode.WHOLE, percent=100),), False),
    "memory shares": (gpu(0), WHOLE_SICK, (share(0, 4096), share(0, 2048)), False),
    "shares by MPS": (gpu(0), WHOLE_SICK, (share(0, 4096, Mode.MPS, percent=10),), False),
    "instances that Tessera cut": (gpu(0), WHOLE_SICK, (mig_share(0, "1g.5gb", 6), mig_share(0, "2g.10gb", 0)), False),
    "replicas of the whole GPU": (
        gpu(0, sharing=Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 4),))),
        WHOLE_SICK,
        (share(0, 9000, Mode.TIME_SLICING, percent=25),),
        False,
    ),
    "replicas of an instance": (gpu(0, sharing=FIXED), WHOLE_SICK, (replicated(0),), False),
    "one instance of two, unused": (gpu(0, sharing=FIXED), SECOND_SICK, (replicated(0),), True),
    "one instance of two, held once of twice": (
        gpu(0, sharing=FIXED),
        SECOND_SICK,
        (replicated(0), replicated(0), replicated(4)),
        False,
    ),
    "an instance on a managed GPU, unused": (gpu(0, layout=LAYOUT), SECOND_SICK, (), True),
    "an instance on a managed GPU, held": (gpu(0, layout=LAYOUT), SECOND_SICK, (mig_share(0, "3g.20gb", 4),), True),
    "an instance that is no more": (gpu(0), SECOND_SICK, (), True),
    "the only instance of a fixed layout": (
        gpu(0, sharing=msgspec.structs.replace(FIXED, layout=LAYOUT[1:])),
        SECOND_SICK,
        (),
        False,
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_what_is_unhealthy_serves_nobody_new(sentence: str) -> None:
    given, unhealthy, held, want = CASES[sentence]
    closed = without_new(given, unhealthy, held)
    running = tuple(
        Running(
            pod=Pod(key=PodKey(f"ns/{number}"), need=Need()),
            assignment=Assignment(pod=PodKey(f"ns/{number}"), node=NodeName("a"), shares=(each,)),
        )
        for number, each in enumerate(held)
    )
    fleet = Fleet.of(Snapshot(nodes=(node("a", closed),), running=running))  # those who hold it stay
    every = fleet.room[0] * 0
    assert any(bool(Demand(need, fleet).fits(fleet, every)[0]) for need in ANY) is want


def test_a_unhealthy_instance_is_reserved_and_its_neighbor_is_offered() -> None:
    given = gpu(0, sharing=FIXED)
    closed = without_new(given, SECOND_SICK, ())
    assert [(each.start, each.mode) for each in closed.reserved] == [(4, Mode.MIG_TIME_SLICING)] * 2
    assert msgspec.structs.replace(closed, reserved=()) == given


@pytest.mark.parametrize("exactly", [False, True])
def test_a_plan_leaves_a_unhealthy_instance_where_it_is(*, exactly: bool) -> None:
    closed = without_new(gpu(0, layout=LAYOUT), SECOND_SICK, ())
    wanted = {"whole": Need(requests=(exact(),)), "half": slices("3g.20gb"), "other": slices("3g.20gb")}
    pending = tuple(Pod(key=PodKey(name), need=need) for name, need in wanted.items())
    made = plan(Snapshot(nodes=(node("a", closed),), pending=pending), exact=exactly)
    assert [(each.pod, each.shares[0].start) for each in made.assignments] == [("half", 0)]


@pytest.mark.search
@pytest.mark.parametrize("layout", all_layouts(A30), ids=lambda layout: "-".join(map(str, layout)) or "empty")
def test_planner_ledger_and_controller_agree_on_what_is_unhealthy(layout: Layout) -> None:
    """Whatever is cut, unhealthy and held of an A30: what does not fit for one fits for none of them.

    The controller is asked where no instance has media engines: its plan takes longest.
    """
    plain = not any("+me" in each.profile for each in layout)
    for unhealthy, used in itertools.product((None, *layout), ((), *((each,) for each in layout))):
        a_gpu = msgspec.structs.replace(gpu(0, "A30-24GB"), sharing=Sharing(layout=layout or None))
        state = GpuNodeState(
            name=NodeName("a"),
            gpus=(a_gpu,),
            unhealthy=(UnhealthyDevice(device=DeviceId(a_gpu.uuid, unhealthy)),),
            reported=True,
        )
        where = node("a", a_gpu)
        shares = tuple(named_share(a_gpu, each) for each in used)
        holder = LedgerEntry("uid", PodKey("ns/held"), NodeName("a"), Need(), shares)
        running = Running(
            pod=Pod(key=holder.key, need=Need()),
            assignment=Assignment(pod=holder.key, node=NodeName("a"), shares=shares),
        )
        planned = Snapshot(nodes=(node("a", without_new(a_gpu, state.unhealthy, shares)),), running=(running,))
        ledger, reasons = Ledger(), Reasons(planned)
        ledger.put_pod(holder)
        spec, reserved = schedulable_node(where, state)
        ledger.put_node(spec, reserved=reserved)
        for need in OF_A30:
            fits = reasons.verdicts(need)[0].obstacle is None
            assert bool(ledger.filter(need, ("a",)).fitting) is fits, (unhealthy, used, need)
            assert not (unhealthy is None and fits)
            if plain and any(request.form is Form.EXACT for request in need.requests):
                observed = PartitioningState(
                    nodes=(where,), states=(state,), running=(running,), pending=(Pod(key=PodKey("ns/new"), need=need),)
                )
                at_once = PartitioningLimits(idle_s=0, longest_s=0)
                made = advance(PartitioningMemory(), observed, 0, at_once)[1]
                assert (made.pending == ()) is fits, (unhealthy, used, need)
