"""deploy/uninstall, after an installation without Helm: what it refuses, and what is left after it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.observing import mps_daemons
from kube.pods import busybox, create, phase, remove
from kube.walkthrough.page import without_tessera
from kube.walkthrough.undo import state_of_cluster, until_undone
from testbed import installed
from testbed.cluster import Cluster, Desired
from testbed.deploy import FOLDER, NAMESPACE
from testbed.processes import until

POLICY = {
    "apiVersion": "tessera.dev/v1alpha1",
    "kind": "GPUPolicy",
    "metadata": {"name": "shared"},
    "spec": {
        "gpus": [
            {"devices": ["0"], "sharing": {"mode": "mig", "layout": {"configuration": "all-1g.5gb"}}},
            {"sharing": {"mode": "auto", "modes": ["mps"]}},
        ]
    },
}
OF_THE_DISK_AGENT = (
    '{"status": {"conditions": [{"type": "TesseraDisksReady", "status": "True", "reason": "DisksReady"}]}}'
)
_S = 180


@pytest.fixture
def two_nodes(program_folder: Path) -> Iterator[Cluster]:
    with without_tessera("uninstall", program_folder, Desired(nodes=2, gpus=("2xA100-40GB",))) as cluster:
        yield cluster


def uninstall(cluster: Cluster) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{cluster.bin}:{os.environ['PATH']}"}
    return subprocess.run(
        [FOLDER / "uninstall", "--yes"], env=variables, capture_output=True, text=True, check=False, timeout=400
    )


def test_it_refuses_while_a_pod_has_a_share_and_leaves_nothing_after_it(two_nodes: Cluster, tmp_path: Path) -> None:
    """MIG, MPS, gpushare's counts and the marks of the disk agent; Tessera came by kubectl."""
    node, other = two_nodes.nodes
    two_nodes.kubectl("label", "node", other.name, "nvidia.com/gpu.count=1")  # another system's, which stays
    of_another = "tessera-administrators"  # which stays, as only its name is like the chart's
    two_nodes.kubectl("create", "clusterrole", of_another, "--verb=get", "--resource=pods")
    before = state_of_cluster(two_nodes, tmp_path)
    values = installed.values(scheduler=True, admission=True)
    installed.install(two_nodes, (node,), values, lambda _: None)
    two_nodes.apply(POLICY)
    two_nodes.kubectl("label", "node", other.name, "tessera.dev/disks=ready")
    two_nodes.kubectl("patch", "node", other.name, "--subresource=status", f"--patch={OF_THE_DISK_AGENT}")
    create(two_nodes, busybox("sharer", limits={"aliyun.com/gpu-mem": 3}))
    until("the sharer", lambda: phase(two_nodes, "sharer") == "Running", timeout_s=_S)

    def status() -> str:
        found = two_nodes.get("node", node.name)
        return str((found["metadata"]["labels"], found["status"]["allocatable"]))

    for mark in ("aliyun.com/gpu-count': '", "nvidia.com/mig-1g.5gb': '7'", "nvidia.com/mig-1g.5gb.product"):
        until(mark, lambda mark=mark: mark in status(), timeout_s=_S, found=status)  # type: ignore[misc]
    assert mps_daemons(node)
    refused = uninstall(two_nodes)
    assert (refused.returncode, "first: default/sharer" in refused.stderr) == (1, True), refused
    assert two_nodes.get("gpupolicies")["items"], "nothing was deleted"
    assert two_nodes.get("pods", f"--namespace={NAMESPACE}")["items"]
    remove(two_nodes, "sharer")
    done = uninstall(two_nodes)
    assert (done.returncode, done.stderr.count("did not remove")) == (0, 0), done
    assert f"/{of_another} stays: it lacks the label" in done.stderr
    two_nodes.kubectl("label", "node", node.name, f"{installed.LABEL}-")
    until_undone(before, two_nodes, tmp_path)
    again = uninstall(two_nodes)
    assert again.returncode == 0, again
