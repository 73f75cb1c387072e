"""The agent and `tessera mig apply` on a real node evict pods in the way, as PodDisruptionBudgets allow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kube.gpunode import GpuNode
from kube.pods import busybox, devices, phase, run
from testbed.processes import until

GPUS = ("A100-40GB",)
SLICE = "nvidia.com/mig-1g.5gb"
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "guard"},
    "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
}
REFUSED = "pod default/guarded is not evicted: "


def prepared(node: GpuNode, *options: str) -> str:
    """Run a pod with a budget and one without on slices, and return the UUID of the slice that the first has."""
    node.start_agent(*options)
    node.ask_layout("all-1g.5gb")
    node.until_offered((SLICE, 7))
    guarded = busybox("guarded", limits={SLICE: 1})
    guarded["metadata"]["labels"]["app"] = "guarded"
    run(node.cluster, guarded, busybox("loose", limits={SLICE: 1}))
    node.cluster.apply(BUDGET)

    def counted() -> bool:
        status = node.cluster.get("pdb", "guard").get("status", {})
        return bool(status.get("currentHealthy") == 1 and status.get("observedGeneration"))

    until("the budget's count of healthy pods", counted, timeout_s=60)
    return devices(node.cluster, "guarded")


def names(node: GpuNode) -> set[str]:
    return {each["metadata"]["name"] for each in node.cluster.get("pods", "-l", "made-by=test")["items"]}


def condition(node: GpuNode) -> str:
    conditions = node.cluster.get("node", node.node.name)["status"]["conditions"]
    return str(next(one["message"] for one in conditions if one["type"] == "TesseraLayoutApplied"))


def apply(node: GpuNode, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Run `tessera mig apply` on the node; return its exit code, what it prints, and its error."""
    program = str(Path(sys.executable).with_name("tessera"))
    command = node.node.command(program, "mig", "apply", "-c", "all-3g.20gb", "-o", "json", *arguments)
    done = subprocess.run(command, capture_output=True, check=False, text=True, env=node.node.environment())
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def test_pods_in_the_way_are_evicted_as_their_budgets_allow(gpu_node: GpuNode) -> None:
    """First by the command, while no agent runs, then by the agent."""
    used = prepared(gpu_node, "--evict", "--pending-s=90")
    try:
        gpu_node.stop_agent()
        code, plan, _ = apply(gpu_node, "--evict", "--dry-run")
        evicted = [pod["pod"] for step in plan["gpus"][0]["steps"] if step["do"] == "evict" for pod in step["disturbs"]]
        # In the order of the slices, of which the kubelet gave each pod any.
        assert (code, sorted(evicted)) == (0, ["default/guarded", "default/loose"])
        assert names(gpu_node) == {"guarded", "loose"}
        code, _, said = apply(gpu_node, "--evict", "--timeout=4")
        assert (code, REFUSED in said, used in gpu_node.mig_uuids()) == (5, True, True)
        assert names(gpu_node) == {"guarded"}
        gpu_node.ask_layout("all-3g.20gb")
        gpu_node.start_again()
        until("the reason", lambda: REFUSED in condition(gpu_node), timeout_s=60, found=lambda: condition(gpu_node))
        assert "The disruption budget guard needs 1 healthy pods and has 1" in condition(gpu_node), "its name"
        assert gpu_node.labels()["nvidia.com/mig.config.state"] == "pending"
        assert phase(gpu_node.cluster, "guarded") == "Running"
        assert used in gpu_node.mig_uuids()
    finally:
        gpu_node.cluster.kubectl("delete", "pdb", "guard")
    gpu_node.until_state("success", timeout_s=90)
    until("the evicted pod to be gone", lambda: not names(gpu_node), timeout_s=60)
    gpu_node.until_offered(("nvidia.com/mig-3g.20gb", 2), (SLICE, 0))
