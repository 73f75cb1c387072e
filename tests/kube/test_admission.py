"""The admission policy on a real API server: which pods go to tessera-scheduler without naming it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kube import pods
from testbed.cluster import Cluster
from testbed.deploy import objects
from testbed.processes import until

MEMORY = {"tessera.dev/gpu-memory": 6}
OURS, DEFAULT = "tessera-scheduler", "default-scheduler"


def scheduler_of(cluster: Cluster, pod: dict[str, Any], namespace: str = "default") -> str:
    """Return the scheduler that a pod would go to."""
    said = cluster.kubectl(
        *("create", "--dry-run=server", "-n", namespace, "-o", "json", "-f", "-"), input_text=json.dumps(pod)
    )
    return str(json.loads(said)["spec"]["schedulerName"])


@pytest.fixture(scope="module")
def plane(control_plane: Cluster) -> Iterator[Cluster]:
    policy = objects("admission/scheduler-name.yaml")
    control_plane.apply(*policy)
    asking = pods.pod("probe", limits=MEMORY)
    until("the policy is in force", lambda: scheduler_of(control_plane, asking) == OURS, timeout_s=60)
    yield control_plane
    for each in policy:
        control_plane.kubectl("delete", each["kind"], each["metadata"]["name"])
    until("the policy is gone", lambda: scheduler_of(control_plane, asking) == DEFAULT, timeout_s=60)


INIT = {"name": "first", "image": "x", "resources": {"limits": {"tessera.dev/gpu-memory": "1"}}}
CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a need": (pods.pod("a", limits={**MEMORY, "tessera.dev/gpu-compute": 30}), "default", OURS),
    "gpushare's memory": (pods.pod("a", limits={"aliyun.com/gpu-mem": 2}), "default", OURS),
    "an init container asks": (pods.pod("a", initContainers=[INIT]), "default", OURS),
    "nothing is asked": (pods.pod("a"), "default", DEFAULT),
    "an exact device is asked": (pods.pod("a", limits={"nvidia.com/gpu": 1}), "default", DEFAULT),
    "another scheduler is named": (pods.pod("a", limits=MEMORY, schedulerName="volcano"), "default", "volcano"),
    "a node is named": (pods.pod("a", limits=MEMORY, nodeName="n"), "default", DEFAULT),
    "a namespace of the system": (pods.pod("a", limits=MEMORY), "kube-system", DEFAULT),
}


@pytest.mark.parametrize("case", CASES)
def test_which_scheduler_a_pod_goes_to(plane: Cluster, case: str) -> None:
    pod, namespace, want = CASES[case]
    assert scheduler_of(plane, pod, namespace) == want


def test_a_label_keeps_a_pod_where_it_is(plane: Cluster) -> None:
    pod = pods.pod("a", limits=MEMORY)
    pod["metadata"]["labels"]["tessera.dev/scheduling"] = "false"
    assert scheduler_of(plane, pod) == DEFAULT
