"""How active pods are, and when a device is idle."""

import pytest

from tessera.core.usage.activity import UNUSED_MIB, is_idle, pod_activity, pod_memory

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


def test_a_pod_uses_of_a_gpu_what_its_containers_use_of_its_parts() -> None:
    uses = [
        ("n1", "GPU-0", "ml/p/main", 20),
        ("n1", "GPU-0", "ml/p/side", 5),
        ("n1", "GPU-0", "ml/p/main", 3),
        ("n1", "GPU-1", "ml/p/main", 0),
        ("n2", "GPU-0", "ml/p/main", 7),
        ("n1", "GPU-0", "ml/q/main", None),
        ("n1", "GPU-0", "ml/q/side", 5),
        ("n1", "GPU-0", "ml/r/main", 5),
        ("n1", "GPU-0", "ml/r/side", None),
        ("n1", "GPU-2", "ml/r/side", None),
    ]
    want = {("n1", "GPU-0"): {"ml/p": 28}, ("n1", "GPU-1"): {"ml/p": 0}, ("n2", "GPU-0"): {"ml/p": 7}}
    assert pod_memory(uses) == want, "a pod of which a part is unknown has none"
