"""How the scheduler sees a node: no layout on managed GPUs, and what is reserved there."""

from typing import Any

import msgspec
import pytest

from builders.fleets import A30, T4, amount, gpu, node, slices
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState, UnhealthyDevice
from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Offer, Sharing
from tessera.core.packing.ledger import Ledger, LedgerEntry, schedulable_node
from tessera.core.workload.need import DeviceRequest, Isolation, Need, PodKey

FIRST, SECOND = Placement(0, 2, "2g.12gb"), Placement(2, 2, "2g.12gb")
FIXED = Sharing(modes=(Mode.MIG,), layout=(FIRST, SECOND), allow_repartition=False)
REPLICAS = Sharing(
    modes=(Mode.MIG_TIME_SLICING,), layout=(FIRST, SECOND), allow_repartition=False, replicas=(("2g.12gb", 2),)
)


def a_gpu(index: int = 0, sharing: Sharing | None = None) -> Gpu:
    return msgspec.structs.replace(gpu(index, A30, sharing or Sharing()), uuid=f"GPU-{index}")


def state(*gpus: Gpu, **more: Any) -> GpuNodeState:
    return GpuNodeState(name=NodeName("n"), gpus=gpus, **{"reported": True} | more)


def ledger_of(observed: GpuNodeState, guess: Node | None = None) -> Ledger:
    ledger = Ledger()
    spec, reserved = schedulable_node(guess or node("n", gpu(0, T4)), observed)
    ledger.put_node(spec, reserved=reserved)
    return ledger


def test_the_report_of_the_agent_is_taken_and_not_the_guess_from_labels() -> None:
    spec, reserved = schedulable_node(node("n", gpu(0, T4)), state(a_gpu(0), a_gpu(1)))
    assert (spec.gpus, reserved) == ((a_gpu(0), a_gpu(1)), ())


def test_a_managed_gpu_is_scheduled_without_its_layout() -> None:
    cut = Sharing(layout=(FIRST,), offers=(Offer(placement=FIRST, mode=Mode.MIG_MPS, clients=0),))
    spec, _ = schedulable_node(node("n"), state(a_gpu(0, cut), a_gpu(1, FIXED)))
    assert [each.sharing for each in spec.gpus] == [Sharing(), FIXED]


def test_before_the_agent_has_reported_nothing_can_be_granted() -> None:
    ledger = ledger_of(state(reported=False))
    reason = "the node's agent has not reported its GPUs yet: check the agent there if this lasts"
    assert ledger.filter(amount(1), ["n"]).failed == {"n": reason}
    ledger.put_node(schedulable_node(msgspec.structs.replace(node("n", gpu(0, T4)), reported=False), state(a_gpu()))[0])
    assert ledger.filter(amount(1), ["n"]).fitting == ("n",)


def offered(*instances: Placement, whole: bool = False) -> dict[str, Any]:
    return {"offered": (DesiredDevices(gpu="GPU-0", whole=whole, instances=instances),)}


BY_SCHEDULER = msgspec.structs.replace(FIXED, allocator="scheduler")
SHARED_BY_SCHEDULER = msgspec.structs.replace(REPLICAS, allocator="scheduler")
WHOLE_BY_SCHEDULER = Sharing(modes=(Mode.WHOLE,), allocator="scheduler")
HALF, QUARTER = amount(11_000), amount(5_000)
GRADED = amount(11_000, Isolation.HARDWARE)

# sentence: what is observed, what a pod needs, and how many such pods fit
BY_NAME: dict[str, tuple[GpuNodeState, Need, int]] = {
    "a managed GPU": (state(a_gpu()), GRADED, 2),
    "an instance is offered by name": (state(a_gpu(), **offered(FIRST)), GRADED, 1),
    "an instance is offered, and desired as well": (
        state(a_gpu(), desired=(DesiredDevices(gpu="GPU-0", instances=(FIRST,)),), **offered(FIRST)),
        GRADED,
        1,
    ),
    "an instance is offered in the place of one that is desired": (
        state(
            a_gpu(), desired=(DesiredDevices(gpu="GPU-0", instances=(FIRST,)),), **offered(Placement(0, 1, "1g.6gb"))
        ),
        amount(5_000, Isolation.HARDWARE),
        2,
    ),
    "an instance is offered of which nobody knows the profile": (
        state(a_gpu(), **offered(Placement(0, 1, "9g.99gb"))),
        GRADED,
        0,
    ),
    "the whole GPU is offered": (state(a_gpu(), **offered(whole=True)), GRADED, 0),
    "a GPU is offered that is not there": (state(a_gpu(1), **offered(whole=True)), GRADED, 2),
    "amounts of a GPU that is offered": (
        state(a_gpu(0, Sharing(modes=(Mode.MEMORY_SHARE,))), **offered(whole=True)),
        QUARTER,
        0,
    ),
    "a fixed layout": (state(a_gpu(0, FIXED)), HALF, 0),
    "a fixed layout, offered as ever": (state(a_gpu(0, FIXED), **offered(FIRST, SECOND)), HALF, 0),
    "a fixed layout of the scheduler's": (state(a_gpu(0, BY_SCHEDULER)), HALF, 2),
    "a fixed layout that the kubelet still has half of": (state(a_gpu(0, BY_SCHEDULER), **offered(FIRST)), HALF, 1),
    "a fixed layout on a GPU that the kubelet still has": (
        state(a_gpu(0, BY_SCHEDULER), **offered(whole=True)),
        HALF,
        0,
    ),
    "replicas that the kubelet still has": (state(a_gpu(0, SHARED_BY_SCHEDULER), **offered(FIRST)), QUARTER, 2),
    "a whole GPU of the kubelet's": (state(a_gpu(0, Sharing(modes=(Mode.WHOLE,)))), HALF, 0),
    "a whole GPU of the scheduler's": (state(a_gpu(0, WHOLE_BY_SCHEDULER)), HALF, 1),
    "a whole GPU that the kubelet still has": (state(a_gpu(0, WHOLE_BY_SCHEDULER), **offered(whole=True)), HALF, 0),
}


@pytest.mark.parametrize("sentence", BY_NAME)
def test_what_is_offered_by_name_serves_no_need(sentence: str) -> None:
    observed, need, want = BY_NAME[sentence]
    ledger, placed = ledger_of(observed), 0
    while not isinstance(shares := ledger.choose(need, "n"), str):
        ledger.put_pod(LedgerEntry(f"p{placed}", PodKey(f"default/p{placed}"), NodeName("n"), need, shares))
        placed += 1
    assert placed == want
    assert list(ledger.impossible_shares) == []


def test_needs_and_names_applied_together_never_meet() -> None:
    """One GPU has a fixed layout, the other is managed: needs go to that alone, as many as it has places."""
    ledger = ledger_of(
        state(a_gpu(0), a_gpu(1, FIXED), offered=(DesiredDevices(gpu="GPU-1", instances=(FIRST, SECOND)),))
    )
    gpus = []
    while not isinstance(shares := ledger.choose(GRADED, "n"), str):
        gpus.append(shares[0].gpu)
        ledger.put_pod(LedgerEntry(f"p{len(gpus)}", PodKey(f"default/p{len(gpus)}"), NodeName("n"), GRADED, shares))
    assert gpus == [0, 0]


def test_a_pod_keeps_a_replica_beside_those_that_the_kubelet_still_has() -> None:
    ledger = ledger_of(state(a_gpu(0, SHARED_BY_SCHEDULER)))
    shares = ledger.choose(QUARTER, "n")
    assert not isinstance(shares, str)
    spec, reserved = schedulable_node(node("n"), state(a_gpu(0, SHARED_BY_SCHEDULER), **offered(FIRST, SECOND)))
    ledger.put_pod(LedgerEntry("a", PodKey("default/a"), NodeName("n"), QUARTER, shares))
    ledger.put_node(spec, reserved=reserved)
    assert list(ledger.impossible_shares) == []
    assert not ledger.fits(QUARTER, "n")


def test_a_gpu_that_is_wholly_the_kubelet_s_serves_by_name_what_is_offered() -> None:
    ledger = ledger_of(state(a_gpu(0, Sharing(modes=(Mode.WHOLE,))), **offered(whole=True)))
    assert ledger.fits(WHOLE, "n")


WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu"),))
RESERVED = {
    "nothing": (state(a_gpu()), 2, True),
    "an instance that is desired": (
        state(a_gpu(), desired=(DesiredDevices(gpu="GPU-0", instances=(FIRST,)),)),
        1,
        False,
    ),
    "all instances": (state(a_gpu(), desired=(DesiredDevices(gpu="GPU-0", instances=(FIRST, SECOND)),)), 0, False),
    "the whole GPU": (state(a_gpu(), desired=(DesiredDevices(gpu="GPU-0", whole=True),)), 0, False),
    "a GPU that is not there": (state(a_gpu(), desired=(DesiredDevices(gpu="GPU-9", whole=True),)), 2, True),
    "a GPU with an administrator's layout": (
        state(a_gpu(0, FIXED), desired=(DesiredDevices(gpu="GPU-0", instances=(FIRST,)),)),
        2,
        False,
    ),
    "an unhealthy GPU": (state(a_gpu(), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-0")),)), 0, False),
    "an unhealthy GPU that is not there": (
        state(a_gpu(), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-9")),)),
        2,
        True,
    ),
    "an unhealthy instance": (state(a_gpu(), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-0", SECOND)),)), 1, False),
    "an unhealthy instance of a fixed layout": (
        state(a_gpu(0, FIXED), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-0", SECOND)),)),
        1,
        False,
    ),
    "an unhealthy instance that is shared": (
        state(a_gpu(0, REPLICAS), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-0", SECOND)),)),
        2,
        False,
    ),
}


@pytest.mark.parametrize(("observed", "want", "whole"), RESERVED.values(), ids=RESERVED)
def test_what_is_reserved_leaves_so_much(observed: GpuNodeState, want: int, *, whole: bool) -> None:
    ledger = ledger_of(observed)
    fitting = [count for count in (1, 2, 3) if ledger.fits(slices("2g.12gb", count), "n")]
    assert max(fitting, default=0) == want
    assert ledger.fits(WHOLE, "n") == whole


def test_a_unhealthy_gpu_keeps_what_pods_hold_there() -> None:
    ledger = ledger_of(state(a_gpu()))
    shares = ledger.choose(amount(1_000), "n")
    assert not isinstance(shares, str)
    spec, reserved = schedulable_node(node("n"), state(a_gpu(), unhealthy=(UnhealthyDevice(device=DeviceId("GPU-0")),)))
    ledger.put_pod(LedgerEntry("a", PodKey("default/a"), NodeName("n"), amount(1_000), shares))
    ledger.put_node(spec, reserved=reserved)
    assert list(ledger.impossible_shares) == []
    assert not ledger.fits(amount(1_000), "n")


def test_of_lost_gpus_without_an_agent_the_last_are_kept_from_new_pods() -> None:
    found = msgspec.structs.replace(node("n", gpu(0, T4), gpu(1, T4), gpu(2, T4)), lost=2)
    assert [share.gpu for share in schedulable_node(found, None)[1]] == [1, 2]
    assert schedulable_node(node("n", gpu(0, T4)), None)[1] == ()
