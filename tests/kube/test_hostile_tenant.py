"""What the real API server keeps a tenant from, where the namespace has `baseline`, as docs/security.md asks for."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from builders.admissionpods import asking
from tessera.errors import Unavailable
from testbed.cluster import Cluster

TENANTS = "baseline-tenants"


@pytest.fixture(scope="module")
def tenants(control_plane: Cluster) -> Iterator[Cluster]:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TENANTS, "labels": labels}})
    yield control_plane
    control_plane.kubectl("delete", "namespace", TENANTS, "--wait=false")


def create(cluster: Cluster, pod: dict[str, Any]) -> None:
    words = ("create", "--dry-run=server", f"--namespace={TENANTS}", "-f", "-")
    cluster.kubectl(*words, input_text=json.dumps(pod))


def mounting(path: str) -> dict[str, Any]:
    return asking(volumes=[{"name": "host", "hostPath": {"path": path}}])


def container(**security: Any) -> dict[str, Any]:
    return asking(containers=[{"name": "main", "image": "none", "securityContext": security}])


REFUSED = {
    "the kubelet's sockets of device plugins": mounting("/var/lib/kubelet/device-plugins"),
    "the pipes of all MPS daemons": mounting("/run/tessera"),
    "the agent's key": mounting("/var/lib/tessera"),
    "the CDI specifications": mounting("/var/run/cdi"),
    "the GPUs' device files": mounting("/dev"),
    "mounts by which volume-mounts names a GPU": mounting("/dev/null"),
    "privileged": container(privileged=True),
    "a capability": container(capabilities={"add": ["SYS_ADMIN"]}),
    "the node's processes": asking(hostPID=True),
    "the node's shared memory": asking(hostIPC=True),
    "the node's network, where the extender would be": asking(hostNetwork=True),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_tenants_pod_reaches_nothing_of_the_node(tenants: Cluster, case: str) -> None:
    with pytest.raises(Unavailable, match="violates PodSecurity"):
        create(tenants, REFUSED[case])
    create(tenants, asking({"tessera.dev/gpu-memory": "6"}))


def test_annotations_end_where_the_tests_of_readers_end(tenants: Cluster) -> None:
    """tests/server/test_hostile_tenant.py goes as far as a tenant can."""
    pod = asking()
    pod["metadata"]["annotations"] = {"tessera.dev/isolation": "x" * (256 << 10)}
    with pytest.raises(Unavailable, match="annotations: Too long"):
        create(tenants, pod)
