import json
import os
import signal
from pathlib import Path

import pytest

from tessera.errors import Unavailable
from testbed.cluster import Cluster
from testbed.lookups import Lookups


def test_it_answers_from_this_machine_by_its_kubeconfig(control_plane: Cluster) -> None:
    said = json.loads(control_plane.kubectl("version", "-o", "json"))
    assert said["serverVersion"]["gitVersion"] == "v1.36.3"


def test_every_component_is_healthy(control_plane: Cluster) -> None:
    components = control_plane.components()
    want = ["namespaces", "etcd", "apiserver", "controller-manager", "scheduler", "relay"]
    assert [component.name for component in components] == want
    assert [component.name for component in components if not component.healthy] == []


def test_a_pod_is_bound_to_a_node_that_is_an_object_only(control_plane: Cluster) -> None:
    control_plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "made-up"}})
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "4"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "as the test says"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    patch = json.dumps({"status": status})
    control_plane.kubectl("patch", "node", "made-up", "--subresource=status", "--type=merge", "-p", patch)
    control_plane.kubectl("patch", "node", "made-up", "--type=merge", "-p", '{"spec":{"taints":null}}')
    container = {"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "3"}}}
    control_plane.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bound"}, "spec": {"containers": [container]}}
    )
    control_plane.kubectl("wait", "--for=condition=PodScheduled", "pod/bound", "--timeout=60s")
    assert control_plane.get("pod", "bound")["spec"]["nodeName"] == "made-up"
    control_plane.kubectl("delete", "pod", "bound", "--grace-period=0", "--force")
    control_plane.kubectl("delete", "node", "made-up")


# What tests of this folder ask for: one object, lists, short names, kinds of Tessera, several kinds, selectors.
LOOKUPS = (
    ("namespaces",),
    ("ns", "default"),
    ("serviceaccount", "default", "-n", "kube-system"),
    ("serviceaccount", "--namespace=kube-system", "default"),
    ("sa", "--all-namespaces"),
    ("services,namespaces,gpupolicies", "-A"),
    ("clusterroles", "-l", "kubernetes.io/bootstrapping=rbac-defaults"),
    ("services", "--namespace=default", "--selector=component=apiserver,provider=kubernetes"),
    ("services", "--field-selector=metadata.name=kubernetes"),
    ("services", "--field-selector=metadata.name=none"),
    ("svc", "kubernetes"),
    ("crd", "gpunodes.tessera.dev"),
    ("gpunodes.tessera.dev",),
    ("deployments", "-A"),
    ("hpa", "-n", "default"),
    ("apiservice", "v1.apps"),
)


@pytest.mark.parametrize("arguments", LOOKUPS, ids=" ".join)
def test_a_lookup_answers_as_kubectl_does(arguments: tuple[str, ...], control_plane: Cluster) -> None:
    control_plane.install()
    want = json.loads(control_plane.kubectl("get", *arguments, "-o", "json"))
    found = control_plane.get(*arguments)
    assert found == want if "items" not in want else found["items"] == want["items"]


@pytest.mark.parametrize("arguments", [("pod", "none"), ("namespace", "none"), ("unknownkind",)], ids=" ".join)
def test_a_lookup_of_what_is_not_there_fails_as_kubectl_does(
    arguments: tuple[str, ...], control_plane: Cluster
) -> None:
    with pytest.raises(Unavailable) as want:
        control_plane.kubectl("get", *arguments, "-o", "json")
    with pytest.raises(Unavailable) as found:
        control_plane.get(*arguments)
    assert found.value.found == want.value.found


def test_without_an_api_server_nothing_is_found(control_plane: Cluster, tmp_path: Path) -> None:
    assert not Lookups(tmp_path / "none").answers("/readyz")
    config = json.loads(control_plane.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "elsewhere").write_text(json.dumps(config))
    with pytest.raises(Unavailable, match="no answer"):
        Lookups(tmp_path / "elsewhere").get("nodes")


def test_up_again_changes_nothing(control_plane: Cluster) -> None:
    before = [component.pid for component in control_plane.components()]
    control_plane.up(control_plane.desired)
    assert [component.pid for component in control_plane.components()] == before


def test_up_starts_again_what_was_killed(control_plane: Cluster) -> None:
    killed = control_plane.processes.get("scheduler")
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)
    control_plane.up(control_plane.desired)
    after = control_plane.processes.get("scheduler")
    assert after is not None
    assert after.pid != killed.pid
