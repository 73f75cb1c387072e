import json
import os
import signal

from testbed.cluster import Cluster


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
