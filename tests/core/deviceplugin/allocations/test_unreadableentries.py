"""Which unreadable entries are recorded anew, and which not."""

import itertools

import msgspec
import pytest

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.unreadableentries import (
    UnknownUse,
    UnreadableEntry,
    is_idle,
    still_unrecorded,
    unknown_uses,
    uses_unknown,
)
from tessera.core.gpu.deviceids import DeviceId

ENTRY = AgentAllocation(resource="r", ids=("a",), uid="u", pod="ns/p", container="c")
LEFT = AgentAllocation(resource="r", ids=(), uid="u", container="process 7")
OF_A_FILE = UnreadableEntry("u")
# sentence: (what is left of an entry, the record, whether it is still lost)
CASES: dict[str, tuple[UnreadableEntry, tuple[AgentAllocation, ...], bool]] = {
    "nothing was recorded": (UnreadableEntry("u", "c", "r"), (), True),
    "that container was": (UnreadableEntry("u", "c", "r"), (ENTRY,), False),
    "another container of the pod was": (UnreadableEntry("u", "d", "r"), (ENTRY,), True),
    "another resource of the container was": (UnreadableEntry("u", "c", "s"), (ENTRY,), True),
    "an illegible container may be any": (UnreadableEntry("u", "", "r"), (ENTRY,), True),
    "of a file without a readable entry the pod is recorded anew": (OF_A_FILE, (ENTRY,), False),
    "another pod is not it": (UnreadableEntry("v"), (ENTRY,), True),
    "what is known of its processes is not all": (OF_A_FILE, (LEFT,), True),
}


@pytest.mark.parametrize("case", CASES)
def test_an_entry_is_lost_until_all_of_it_is_recorded_anew(case: str) -> None:
    lost, record, still = CASES[case]
    assert still_unrecorded([lost], record) == (frozenset({lost}) if still else frozenset())


def test_of_a_container_without_ids_and_devices_it_is_unknown_what_it_uses() -> None:
    unknown = msgspec.structs.replace(ENTRY, ids=())
    assert uses_unknown(unknown)
    assert not uses_unknown(ENTRY)
    units = msgspec.structs.replace(unknown, ids=("u",), resource="tessera.dev/gpu-memory")
    assert uses_unknown(msgspec.structs.replace(units, started=True)), "it runs, and units name no device"
    assert not uses_unknown(msgspec.structs.replace(units, started=False)), "it never started"
    assert not uses_unknown(msgspec.structs.replace(ENTRY, started=True)), "ids by name say it, whatever is listed"
    assert not uses_unknown(LEFT), "its process is known"
    assert not uses_unknown(msgspec.structs.replace(unknown, uses=(AllocatedDevice(device=DeviceId("GPU-0")),)))


def test_why_nothing_is_offered_names_each_pod_and_what_to_do() -> None:
    living, deleted = UnknownUse("ns/p", deleted=False), UnknownUse("u", deleted=True)
    assert unknown_uses([]) == ""
    assert unknown_uses([deleted, living]) == (
        "pod ns/p: it requests devices and runs, and neither the kubelet's record nor the agent's says what it has: "
        "delete it; no device is allocated before; pod u: it was deleted, its processes run, and the record of what "
        "it uses was unreadable: end them, or restart the node; no device is allocated before"
    )


def test_of_a_pod_whose_units_are_on_record_it_says_that_the_assignment_was_removed() -> None:
    removed = UnknownUse.of(ENTRY)
    assert removed == UnknownUse("ns/p", deleted=False, unassigned=True)
    assert UnknownUse.of(msgspec.structs.replace(ENTRY, ids=())) == UnknownUse("ns/p", deleted=False)
    assert unknown_uses([removed]) == (
        "pod ns/p: it requests units of GPU memory and runs, and the assignment that says of which GPU was removed "
        "or replaced, or the driver does not list that GPU: delete it; no device is allocated before"
    )


def test_a_container_that_no_record_had_uses_nothing_before_it_begins_and_an_init_container_after_its_end() -> None:
    """Every pod of an init container and one that lasts, whatever is observed of it."""
    order = ("init", "main")
    for container, reported, ended, seen, *created in itertools.product(
        order, (False, True), (False, True), (None, False, True), (False, True), (False, True)
    ):
        began = frozenset(itertools.compress(order, created)) if reported else frozenset[str]()
        pod = GatePod(
            name="ns/p", ended=ended, lasting=frozenset({"main"}), order=order, created=began, reported=reported
        )
        entry = AgentAllocation(resource="nvidia.com/gpu", ids=(), uid="p", pod="ns/p", container=container)
        processes = None if seen is None else frozenset({("p", container)} if seen else {("p", "other")})
        if container == "main" and "main" in began:
            uses = True  # it may be restarting
        elif seen is not None:
            uses = seen and not ended
        else:
            uses = not ended and (not reported or (container in began and "main" not in began))
        assert is_idle(entry, pod, processes) is not uses
