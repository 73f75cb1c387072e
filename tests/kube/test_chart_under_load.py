"""Upgrade, rollback, uninstall and install by the real Helm while pods use GPUs: none is harmed, none is lost."""

from pathlib import Path
from typing import Any

from kube.bystanders import Bystanders
from kube.helm import Helm
from kube.pods import busybox, phase
from tessera.cli.manifests import chart_folder
from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE
from testbed.installed import PARTS, values
from testbed.processes import until

GPUS = ("2xA100-40GB",)
EXAMPLES = Path(__file__).parents[2] / "examples" / "8-on-a-cluster" / "pods.yaml"
RUNNING = ("six", "hard", "exact", "gpushare")
FORCE = "--force-conflicts"
"""Fields that kubectl applied before are kubectl's as well."""
_WAIT_S = 180
_LOOKS = 20


def running(cluster: Cluster, *names: str) -> None:
    for name in names:
        until(f"pod {name} runs", lambda name=name: phase(cluster, name) == "Running", timeout_s=_WAIT_S)  # type: ignore[misc]


def rolled_out(cluster: Cluster) -> None:
    for workload in PARTS.values():
        cluster.kubectl("rollout", "status", workload, f"--namespace={NAMESPACE}", f"--timeout={_WAIT_S}s")


def asks(name: str) -> dict[str, Any]:
    return busybox(name, limits={"tessera.dev/gpu-memory": 1}, schedulerName="tessera-scheduler")


def test_no_pod_is_harmed_by_helm(image_cluster: Cluster, helm: Helm) -> None:
    cluster, chart, mine = image_cluster, str(chart_folder()), values(scheduler=True, admission=True)
    cluster.kubectl("apply", "-f", str(EXAMPLES))
    running(cluster, *RUNNING)
    (node,) = cluster.nodes
    with Bystanders(cluster, *RUNNING) as bystanders:
        unharmed = bystanders.unharmed
        # 1. Helm takes over what was applied without it.
        helm.run("install", "tessera", chart, "--take-ownership", FORCE, values=mine, cluster=cluster)
        rolled_out(cluster)
        unharmed("install")
        # 2. New pods of all parts.
        helm.run("upgrade", "tessera", chart, FORCE, values={**mine, "logLevel": "debug"}, cluster=cluster)
        rolled_out(cluster)
        unharmed("upgrade")
        cluster.apply(asks("upgraded"))
        running(cluster, "upgraded")
        # 3. Back.
        helm.run("rollback", "tessera", "1", FORCE, cluster=cluster)
        rolled_out(cluster)
        unharmed("rollback")
        cluster.apply(asks("rolled-back"))
        running(cluster, "rolled-back")
        # 4. Away: what runs goes on, and what is known of it stays.
        helm.run("uninstall", "tessera", "--wait", cluster=cluster)
        own = ("pods", f"--namespace={NAMESPACE}")
        until("Tessera's pods are gone", lambda: not cluster.get(*own)["items"], timeout_s=_WAIT_S)
        unharmed("uninstall")
        assert cluster.get("gpunode", node.name)["status"]["gpus"]
        # 5. A new installation trusts what the former one signed, and goes on.
        helm.run("install", "tessera", chart, values=mine, cluster=cluster)
        rolled_out(cluster)
        unharmed("a new installation")
        cluster.apply(asks("new"))
        running(cluster, "new")
        running(cluster, "upgraded", "rolled-back")
        unharmed("pods after it")
        assert bystanders.looks > _LOOKS, "all the time"
        # Who harms a pod is seen.
        cluster.kubectl("delete", "pod", "exact", "--wait=false")
        until("harm", lambda: any(each.startswith("exact: ") for each in bystanders.harmed), timeout_s=_WAIT_S)
