"""How active pods are, and when a device is idle."""

import pytest

from tessera.core.usage.activity import UNUSED_MIB, is_idle, pod_activity

CASES: dict[str, tuple[list[float | None], int | None, bool]] = {
    "all containers compute hardly": ([0.0, 4.9], 20_000, True),
    "one container computes": ([0.0, 5.0], 0, False),
    "of one the load is unknown, and nothing is in use": ([0.0, None], 0, True),
    "of one the load is unknown, and memory is in use": ([0.0, None], UNUSED_MIB + 1, False),
    "the driver's own memory of an empty MIG instance": ([None], 14, True),
    "the smallest context of CUDA": ([None], 72, False),
    "nothing is known": ([None], None, False),
    "no container": ([], 0, True),
    "no container, but memory is in use": ([], 300, False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_device_is_idle_by_its_containers_else_by_its_memory(case: str) -> None:
    percent, used_mib, want = CASES[case]
    assert is_idle(percent, used_mib) == want


def test_a_pod_is_as_active_as_on_its_busiest_device_of_a_node() -> None:
    loads = [("n1", "ml/p/main", 20.0), ("n1", "ml/p/side", 101.0), ("n2", "ml/p/main", 3.0), ("n1", "ml/q/main", None)]
    assert pod_activity(loads) == {("n1", "ml/p"): 100.0, ("n2", "ml/p"): 3.0}
