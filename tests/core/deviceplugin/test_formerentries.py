"""What entries of earlier agents lack, and how it is found."""

import msgspec
import pytest

from tessera.core.cluster.mps import mps_key
from tessera.core.deviceplugin.allocations import Allocation, AssignedUses, Exclusivity, Use
from tessera.core.deviceplugin.formerentries import is_vague, supplemented, with_strategies
from tessera.core.deviceplugin.lastgate import GatePod
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement

NAMED, UNITS = "nvidia.com/gpu", "tessera.dev/gpu-memory"
PLACE = Placement(0, 1, "1g.5gb")
TURNS = Use(device=DeviceId("GPU-0"), exclusivity=Exclusivity.REPLICA)
WHOLE = Use(device=DeviceId("GPU-1"))
PART = Use(device=DeviceId("GPU-0"), exclusivity=Exclusivity.MEMORY, memory_mib=5)
POD = GatePod(name="ns/a", lasting=frozenset({"proxy", "main"}), order=("proxy", "init", "main"))


def entry(*uses: Use, container: str = "main", resource: str = NAMED) -> Allocation:
    return Allocation(resource=resource, ids=("x",), uses=uses, uid="a", pod="ns/a", container=container)


def by_mps(use: Use, *, mps: bool | None) -> Use:
    return msgspec.structs.replace(use, mps=mps)


# sentence: (uses, resource, assigned uses, whether the pod runs, daemons, the uses that are known then)
SHARED: dict[str, tuple[tuple[Use, ...], str, tuple[Use, ...], bool, set[str], list[bool | None]]] = {
    "a replica on a GPU without a daemon": ((TURNS,), NAMED, (), True, set(), [False]),
    "a replica on a GPU with one": ((TURNS,), NAMED, (), True, {mps_key("GPU-0")}, [True]),
    "a replica of an instance with one": (
        (msgspec.structs.replace(TURNS, device=DeviceId(TURNS.device.gpu, PLACE)),),
        NAMED,
        (),
        True,
        {mps_key("GPU-0", PLACE)},
        [True],
    ),
    "a replica of a pod that does not run": ((TURNS,), NAMED, (), False, set(), [None]),
    "replicas of two GPUs, of which one is known": (
        (by_mps(TURNS, mps=False), msgspec.structs.replace(TURNS, device=DeviceId("GPU-2"))),
        NAMED,
        (),
        True,
        {mps_key("GPU-0"), mps_key("GPU-2")},
        [False, True],
    ),
    "a whole GPU beside a replica": ((WHOLE, TURNS), NAMED, (), True, set(), [None, False]),
    "an amount, by its assignment": ((PART,), UNITS, (by_mps(PART, mps=True),), False, set(), [True]),
    "an amount of a pod with another assignment": (
        (PART,),
        UNITS,
        (msgspec.structs.replace(PART, memory_mib=6, mps=True),),
        True,
        {mps_key("GPU-0")},
        [None],
    ),
    "an amount without an assignment": ((PART,), UNITS, (), True, set(), [None]),
}


@pytest.mark.parametrize("case", SHARED)
def test_by_what_a_shared_device_is_served(case: str) -> None:
    uses, resource, assigned, runs, daemons, want = SHARED[case]
    known: AssignedUses = {("a", "main", resource): assigned} if assigned else {}
    (found,) = supplemented([entry(*uses, resource=resource)], {"a": POD}, known, {"a"} if runs else (), daemons)
    assert [use.mps for use in found.uses] == want
    assert [by_mps(use, mps=None) for use in found.uses] == [by_mps(use, mps=None) for use in uses]
    again = supplemented([found], {"a": POD}, known, {"a"}, {mps_key("GPU-0")} - daemons)
    assert [found] == list(again) or is_vague(found), "what is known stays"


def test_where_a_container_stands_in_its_pod() -> None:
    record = [entry(WHOLE, container=each) for each in ("main", "init", "proxy", "debugger")]
    found = supplemented(record, {"a": POD}, {}, (), ())
    assert [(each.order, each.initial) for each in found] == [(2, False), (1, True), (0, False), (-1, False)]


def test_of_a_pod_that_is_gone_nothing_is_known() -> None:
    record = (entry(TURNS), entry(PART, resource=UNITS))
    assert supplemented(record, {}, {}, (), ()) == record


def test_whose_sharing_is_unknown() -> None:
    assert [is_vague(entry(each)) for each in (WHOLE, TURNS, PART, by_mps(TURNS, mps=False))] == [
        False,
        True,
        True,
        False,
    ]


def test_how_former_agents_answered_is_kept_as_devices_are_handed_over_when_that_is_first_looked_at() -> None:
    new = msgspec.structs.replace(entry(WHOLE), strategies=("envvar",))
    answer = Allocation(resource=NAMED, ids=("y",), uses=(WHOLE,))
    found = with_strategies((entry(TURNS), new, answer), ("cdi-cri",))
    assert [each.strategies for each in found] == [("cdi-cri",), ("envvar",), ()]
    assert with_strategies(found, ("envvar",)) == found
    assert with_strategies((entry(TURNS),), ()) == (entry(TURNS),)
