import contextlib
import os
import signal
from pathlib import Path

import pytest

from kube.pods import busybox, log, remove, run
from tessera.errors import Conflict, Unavailable
from testbed.cluster import Cluster, Desired
from testbed.node import Node
from testbed.processes import find_process, until

HOST_FOLDERS = tuple(map(Path, ("/var/lib/kubelet", "/var/lib/cni", "/run/netns", "/run/containerd", "/var/log/pods")))
"""Where a kubelet and its helpers would leave something if they were not kept apart."""


def restarts(cluster: Cluster, name: str) -> int:
    return int(cluster.get("pod", name)["status"]["containerStatuses"][0]["restartCount"])


def answers(cluster: Cluster, name: str) -> bool:
    try:
        return cluster.kubectl("exec", name, "--", "echo", "here") == "here\n"
    except Unavailable:
        return False


def test_a_pod_runs_and_its_log_can_be_read(node_cluster: Cluster) -> None:
    run(node_cluster, busybox("hello", command="echo hello; exec sleep 600"))
    assert log(node_cluster, "hello", "hello") == ["hello"]
    assert node_cluster.kubectl("exec", "hello", "--", "echo", "again") == "again\n"
    remove(node_cluster, "hello")


def test_a_pod_runs_on_while_the_kubelet_is_restarted(node_cluster: Cluster, node: Node) -> None:
    run(node_cluster, busybox("patient"))
    before = node.process("kubelet")
    node.restart_kubelet()
    assert node.process("kubelet") not in {before, None}
    assert restarts(node_cluster, "patient") == 0
    until("the kubelet knows the pod", lambda: answers(node_cluster, "patient"), timeout_s=60)
    remove(node_cluster, "patient")


def test_a_node_boots_again_after_a_power_cut(node_cluster: Cluster, node: Node) -> None:
    run(node_cluster, busybox("survivor"))
    node.power_off()
    assert [one.name for one in node_cluster.components() if not one.pid] == [
        "node1",
        "node1-containerd",
        "node1-kubelet",
    ]
    node_cluster.up(node_cluster.desired)
    until("the pod runs again", lambda: restarts(node_cluster, "survivor") == 1, timeout_s=90)
    node_cluster.kubectl("wait", "--for=condition=Ready", "pod/survivor", "--timeout=90s")
    remove(node_cluster, "survivor")


def test_nothing_lies_outside_the_run_folder(node_cluster: Cluster, node: Node) -> None:
    assert node.device_plugins.is_dir()
    assert [str(path) for path in HOST_FOLDERS if path.exists() and list(path.glob("*"))] == []
    mounts = Path("/proc/self/mountinfo").read_text()
    assert str(node_cluster.folder) not in mounts


def test_another_number_of_nodes_is_refused_while_it_runs(node_cluster: Cluster) -> None:
    with pytest.raises(Conflict, match="it runs with 1 nodes with"):
        node_cluster.up(Desired(nodes=2))


def test_down_cleans_after_everything_was_killed_with_a_pod_running(second_cluster: Cluster) -> None:
    """The processes are those of the namespaces, and no folder, mount or control group outlives them."""
    run(second_cluster, busybox("victim"))
    components = [component for component in second_cluster.components() if component.pid]
    processes = [find_process(component.pid) for component in components]
    for component in components:
        with contextlib.suppress(ProcessLookupError):  # the end of the first is the end of the others
            os.kill(component.pid, signal.SIGKILL)
    second_cluster.down()
    assert [process for process in processes if process and process.alive] == []
    assert not second_cluster.folder.exists()
    assert list(Path("/sys/fs/cgroup").glob(f"*/{second_cluster.cgroup}")) == []
    assert second_cluster.components() == ()
    second_cluster.down()
