"""A container counts as running unless it is certain that no process of its pod is in it."""

import itertools

import pytest

from tessera.core.deviceplugin.allocations.podprocesses import PodProcess, running_containers

CONTAINERS = frozenset({"main", "side"})
PROCESSES = tuple(itertools.starmap(PodProcess, itertools.product(("", "main"), ("pause", "python"), (0, 1, 2))))
PODS = tuple(pod for count in range(4) for pod in itertools.product(PROCESSES, repeat=count))
"""All pods of up to three processes."""


def is_certainly_the_sandbox(pod: tuple[PodProcess, ...], at: int) -> bool:
    own, others = pod[at], pod[:at] + pod[at + 1 :]
    return own.container == "" and own.name == "pause" and all(0 < own.started < other.started for other in others)


@pytest.mark.parametrize("runtime", ["containerd", "docker", "cri-o", ""])
def test_no_process_is_exempt_that_is_not_certainly_the_first(runtime: str) -> None:
    pausing = runtime in {"containerd", "docker"}
    for pod in PODS:
        counted = [
            each
            for at, each in enumerate(pod)
            if not (pausing and each.started > 0 and is_certainly_the_sandbox(pod, at))
        ]
        anywhere = any(each.container == "" for each in counted)
        want = CONTAINERS if anywhere else {each.container for each in counted}
        assert running_containers(CONTAINERS, pod, runtime) == want, pod


def test_another_process_lets_no_container_count_as_ended() -> None:
    for pod in PODS:
        if len(pod) < 3:
            before = running_containers(CONTAINERS, pod, "containerd")
            assert all(before <= running_containers(CONTAINERS, (*pod, more), "containerd") for more in PROCESSES), pod


def test_of_two_processes_of_unknown_containers_one_counts_for_all() -> None:
    for pod in PODS:
        if sum(each.container == "" for each in pod) > 1:
            assert running_containers(CONTAINERS, pod, "containerd") == CONTAINERS, pod
