"""What containers ask of device plugins."""

from typing import Any

import pytest

from tessera.api.kubernetes.containerlimits import (
    admitted_amounts,
    awaiting_amounts,
    containers_in_order,
    has_resource_claim,
    holds_devices,
    lasting_containers,
    limits_of,
)
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode

POD: dict[str, Any] = {
    "spec": {
        "initContainers": [{"name": "init"}, {"name": "sidecar", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "0"}}}],
    }
}


def test_init_containers_end_and_sidecars_last() -> None:
    assert lasting_containers(POD) == {"sidecar", "main"}
    assert containers_in_order(POD) == ("init", "sidecar", "main")
    assert list(limits_of(POD)) == [("main", "nvidia.com/gpu", "2")]


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        ({"nvidia.com/gpu": "1"}, True),
        ({"nvidia.com/mig-1g.5gb": "1"}, True),
        ({"tessera.dev/gpu-memory": 5}, True),
        ({"aliyun.com/gpu-mem": "5"}, True),
        ({"nvidia.com/gpu": "0"}, False),
        ({"example.com/gold": "1"}, True),
        ({"cpu": "1"}, False),
        ({"nvidia.com/hostdev": "1"}, False),
        ({}, False),
    ],
)
def test_who_has_devices(limits: dict[str, Any], *, want: bool) -> None:
    pod = {"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
    assert holds_devices(pod, RegisteredNode(renamed=frozenset({"example.com/gold"}))) is want


def test_a_pod_that_says_nothing() -> None:
    assert not holds_devices({}, RegisteredNode())
    assert lasting_containers({}) == frozenset()
    assert containers_in_order({}) == ()


def asking(name: str, amount: str, **more: str) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": {"a/b": amount}}, **more}


def claimed(*containers: str, resource: str = "a/b") -> dict[str, Any]:
    """Return the status of an admitted pod; source: `PodExtendedResourceClaimStatus` of Kubernetes' core/v1."""
    mappings = [{"containerName": each, "resourceName": resource, "requestName": "r"} for each in containers]
    return {**ADMITTED, "extendedResourceClaimStatus": {"resourceClaimName": "c", "requestMappings": mappings}}


ADMITTED = {"phase": "Running", "containerStatuses": [{"name": "main"}]}
# sentence: (containers, init containers, status, how many the kubelet counts)
AMOUNTS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any], int]] = {
    "containers run beside each other": ([asking("main", "2"), asking("more", "1k")], [], ADMITTED, 1002),
    "an init container ends before": ([asking("main", "2")], [asking("init", "1")], ADMITTED, 2),
    "an init container uses more": ([asking("main", "2")], [asking("init", "5"), asking("i", "3")], ADMITTED, 5),
    "a sidecar stays": ([asking("main", "2")], [asking("side", "4", restartPolicy="Always")], ADMITTED, 6),
    "an init container after a sidecar": (
        [asking("main", "2")],
        [asking("side", "4", restartPolicy="Always"), asking("init", "3")],
        ADMITTED,
        7,
    ),
    "no amount": ([asking("main", "0"), asking("more", "none"), asking("part", "0.5")], [], ADMITTED, 0),
    "a driver for DRA serves them": ([asking("main", "2")], [asking("init", "3")], claimed("main", "init"), 0),
    "a driver for DRA serves another resource": ([asking("main", "2")], [], claimed("main", resource="a/c"), 2),
    "a driver for DRA serves one container": ([asking("main", "2"), asking("more", "1")], [], claimed("more"), 2),
    "it was not admitted yet": ([asking("main", "2")], [], {"phase": "Pending"}, 0),
    "it has ended": ([asking("main", "2")], [], {**ADMITTED, "phase": "Failed"}, 0),
}


@pytest.mark.parametrize("case", AMOUNTS)
def test_what_a_kubelet_counts_of_the_pods_it_has_admitted(case: str) -> None:
    containers, init, status, want = AMOUNTS[case]
    pod = {"spec": {"containers": containers, "initContainers": init}, "status": status}
    assert admitted_amounts([pod])["a/b"] == want
    assert admitted_amounts([pod, pod])["a/b"] == 2 * want


def test_a_kubelet_has_admitted_a_pod_that_a_record_has_though_its_status_is_late() -> None:
    pods = [
        {"metadata": {"uid": uid}, "spec": {"containers": [asking("main", "2")]}, "status": {"phase": phase}}
        for uid, phase in (("p", "Pending"), ("q", "Pending"), ("r", "Failed"))
    ]
    assert admitted_amounts(pods)["a/b"] == 0
    assert admitted_amounts(pods, {"p", "r"})["a/b"] == 2
    assert admitted_amounts([{}], {""}) == {}


def test_pods_that_no_kubelet_has_admitted_and_that_have_not_ended_await_what_they_request() -> None:
    for case, (containers, init, status, _) in AMOUNTS.items():
        spec = {"containers": containers, "initContainers": init}
        waits = case == "it was not admitted yet"
        pod = {"metadata": {"uid": "p"}, "spec": spec, "status": status}
        assert awaiting_amounts([pod]) == ({"p": {"a/b": 2}} if waits else {}), case
        unreported = {**status, "containerStatuses": [], "phase": "Pending"}
        admitted = {**unreported, "containerStatuses": ADMITTED["containerStatuses"]}
        want = admitted_amounts([{**pod, "status": admitted}])
        assert awaiting_amounts([{**pod, "status": unreported}])["p"] == want, case
    assert awaiting_amounts([{}]) == {"": {}}


def test_a_driver_serves_what_the_status_has_a_claim_of() -> None:
    assert has_resource_claim({"status": {"extendedResourceClaimStatus": {"resourceClaimName": "c"}}})
    assert not has_resource_claim({"status": None})
