"""Which obstacle of a node is named where there are several: rules, then its GPUs, then what is free."""

from typing import Any

import msgspec
import pytest

from builders.fleets import gpu, node
from builders.requests import exact, need
from tessera.core.cluster.snapshot import Taint
from tessera.core.packing.firstobstacle import first_obstacle, mixed
from tessera.core.packing.obstacles import Cause, Obstacle
from tessera.core.workload.need import Isolation, Need

NAMED = Need(cpu_milli=1000, memory_mib=1000, requests=(exact(),))
AMOUNT = Need(cpu_milli=1000, memory_mib=1000, requests=(need(1024),))
NO_DEVICE, BUSY = Obstacle(Cause.NO_DEVICE, "none"), Obstacle(Cause.DEVICES_BUSY, "busy")
ROOM, NO_CPU, FULL = (1000, 1000, 1), (10, 1000, 1), (1000, 1000, 0)
BARE = node("a", gpu(0))
# From the last obstacle to the first: each case has what makes those before it, too.
ORDER: tuple[tuple[dict[str, Any], Obstacle | None, tuple[int, int, int], Cause | None], ...] = (
    ({}, None, ROOM, None),
    ({}, BUSY, ROOM, Cause.DEVICES_BUSY),
    ({}, BUSY, FULL, Cause.PODS),
    ({}, BUSY, (1000, 10, 1), Cause.MEMORY),
    ({}, BUSY, NO_CPU, Cause.CPU),
    ({"advertised": ("nvidia.com/gpu.shared",)}, BUSY, NO_CPU, Cause.NO_AGENT),
    ({"advertised": ()}, NO_DEVICE, NO_CPU, Cause.NO_DEVICE),
    ({"withheld": (("nvidia.com/gpu", "reasons"),)}, NO_DEVICE, NO_CPU, Cause.WITHHELD),
    ({"withheld": (("nvidia.com/gpu", "reasons"),), "reported": False}, NO_DEVICE, NO_CPU, Cause.UNREPORTED),
    ({"reported": False, "problem": "an unknown model"}, NO_DEVICE, NO_CPU, Cause.UNREADABLE),
    ({"problem": "x", "taints": (Taint(key="k", effect="NoSchedule"),)}, NO_DEVICE, NO_CPU, Cause.REFUSED),
)


@pytest.mark.parametrize(("facts", "devices", "free", "want"), ORDER, ids=[str(each[3]) for each in ORDER])
def test_the_first_obstacle_is_named(
    facts: dict[str, Any], devices: Obstacle | None, free: tuple[int, int, int], want: Cause | None
) -> None:
    found = first_obstacle(NAMED, msgspec.structs.replace(BARE, **facts), devices=devices, free=free)
    assert (found and found.cause) == want


def test_what_concerns_other_resources_or_no_device_is_no_obstacle() -> None:
    facts = {"advertised": (), "withheld": (("nvidia.com/gpu", "reasons"),)}
    assert first_obstacle(AMOUNT, msgspec.structs.replace(BARE, **facts), devices=None, free=ROOM) is None
    plain = msgspec.structs.replace(BARE, reported=False, problem="an unknown model")
    assert first_obstacle(Need(cpu_milli=1000, memory_mib=1000), plain, devices=None, free=ROOM) is None


def test_devices_of_one_name_that_are_not_alike() -> None:
    request = msgspec.structs.replace(exact(), isolation=Isolation.HARDWARE)
    found = mixed(request, ("A100-40GB", "T4"))
    assert found.cause is Cause.MIXED
    assert found.text.startswith(
        "not every nvidia.com/gpu of the node is one with hardware isolation of model A100-40GB or"
    )
    assert mixed(exact(), ("T4",)).text.startswith("not every nvidia.com/gpu of the node is one of model T4, and")
