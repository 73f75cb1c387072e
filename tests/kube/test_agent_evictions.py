"""The agent and `tessera mig apply` on a real node evict pods in the way, as PodDisruptionBudgets allow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kube.gpunode import GpuNode
from kube.pods import environment, phase, pod, run
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
    guarded = pod("guarded", limits={SLICE: 1})
    guarded["metadata"]["labels"]["app"] = "guarded"
    run(node.cluster, guarded, pod("loose", limits={SLICE: 1}))
    node.cluster.apply(BUDGET)

    def counted() -> bool:
        status = node.cluster.get("pdb", "guard").get("status", {})
        return bool(status.get("currentHealthy") == 1 and status.get("observedGeneration"))

    until("the budget's count of healthy pods", counted, timeout_s=30)
    return environment(node.cluster, "guarded")["NVIDIA_VISIBLE_DEVICES"]


def names(node: GpuNode) -> set[str]:
    return {each["metadata"]["name"] for each in node.cluster.get("pods", "-l", "made-by=test")["items"]}


def condition(node: GpuNode) -> str:
    conditions = node.cluster.get("node", node.node.name)["status"]["conditions"]
    return str(next(one["message"] for one in conditions if one["type"] == "TesseraLayoutApplied"))


def test_pods_in_the_way_are_evicted_as_their_budgets_allow(gpu_node: GpuNode) -> None:
    used = prepared(gpu_node, "--evict", "--pending-s=90")
    try:
        gpu_node.ask_layout("all-3g.20gb")
        until("the reason", lambda: REFUSED in condition(gpu_node), timeout_s=60, found=lambda: condition(gpu_node))
        assert "disruption budget" in condition(gpu_node)
        until("eviction of the other", lambda: names(gpu_node) == {"guarded"}, timeout_s=30, found=gpu_node.agent_log)
        assert gpu_node.labels()["nvidia.com/mig.config.state"] == "pending"
        assert phase(gpu_node.cluster, "guarded") == "Running"
        assert used in gpu_node.mig_uuids()
    finally:
        gpu_node.cluster.kubectl("delete", "pdb", "guard")
    gpu_node.until_state("success", timeout_s=90)
    assert names(gpu_node) == set()
    gpu_node.until_offered(("nvidia.com/mig-3g.20gb", 2), (SLICE, 0))


def test_the_command_does_the_same_where_no_agent_runs(gpu_node: GpuNode) -> None:
    used = prepared(gpu_node)
    gpu_node.stop_agent()

    def apply(*arguments: str) -> tuple[int, dict[str, Any], str]:
        program = str(Path(sys.executable).with_name("tessera"))
        command = gpu_node.node.command(program, "mig", "apply", "-c", "all-3g.20gb", "-o", "json", *arguments)
        done = subprocess.run(command, capture_output=True, check=False, text=True, env=gpu_node.node.environment())
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    try:
        assert apply()[0] == 5
        code, plan, _ = apply("--evict", "--dry-run")
        steps = plan["gpus"][0]["steps"]
        assert (code, [each["disturbs"][0]["pod"] for each in steps if each["do"] == "evict"]) == (
            0,
            ["default/guarded", "default/loose"],
        )
        code, _, said = apply("--evict", "--timeout=8")
        assert (code, REFUSED in said, used in gpu_node.mig_uuids()) == (5, True, True)
        assert names(gpu_node) == {"guarded"}
    finally:
        gpu_node.cluster.kubectl("delete", "pdb", "guard")
    code, done, said = apply("--evict", "--timeout=60")
    assert (code, done["gpus"][0]["result"]) == (0, "done"), said
    assert len(gpu_node.mig_uuids()) == 2
