"""Forged assignments on a real node with admission switched off: refused, with a reason, and nobody else is harmed."""

import json
from functools import partial
from typing import Any

from click.testing import CliRunner

from builders.shares import share
from builders.signed import SERVER, STRANGER, config_map
from kube.gpunode import GpuNode
from kube.pods import busybox, create, devices, phase, run, showing
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.signatures import KEYS
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.cli import main
from tessera.core.gpu.sharing import Mode
from testbed.processes import until

GPUS = ("2xA100-40GB",)
UNITS = "tessera.dev/gpu-memory"
ASSIGNMENT, SIGNATURE = "tessera.dev/assignment", "tessera.dev/assignment-signature"
POLICY = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "memory-share"}]}


def container(node: GpuNode, name: str) -> tuple[Any, ...]:
    """Return what must not change of a pod that runs."""
    (found,) = node.cluster.get("pod", name)["status"]["containerStatuses"]
    return found["containerID"], found["restartCount"], found["ready"]


def failed(node: GpuNode, name: str) -> bool:
    return phase(node.cluster, name) == "Failed"


def conflicts(node: GpuNode) -> list[str]:
    done = CliRunner().invoke(main, ["inspect", "--kubeconfig", str(node.cluster.kubeconfig), "-o", "json"])
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)["nodes"]
    return [*found["conflicts"], *(text for gpu in found["gpus"] for text in gpu["conflicts"])]


def test_a_pod_that_gives_itself_a_gpu_is_refused_and_honest_ones_are_left_alone(gpu_node: GpuNode) -> None:
    cluster = gpu_node.cluster
    gpu_node.start_agent(policy=POLICY)
    gpu_node.until_offered((UNITS, 2 * 39))
    honest = []
    for index in range(2):
        one = busybox(f"honest-{index}", limits={UNITS: 4})
        one["metadata"]["annotations"] = {ASSIGNMENT: write_shares((share(index, 4096),))}
        honest.append(one)
    run(cluster, *honest)
    before = [container(gpu_node, f"honest-{index}") for index in range(2)]
    assigned = cluster.get("pod", "honest-1")["metadata"]["annotations"]
    more = {ASSIGNMENT: write_shares((share(1, 38000),))}
    forged = {
        "more": more,
        "whole": {ASSIGNMENT: write_shares((share(0, 40192, Mode.WHOLE, resource=UNITS),))},
        "copied": {key: assigned[key] for key in (ASSIGNMENT, SIGNATURE)},
        "stranger": STRANGER.sealed(more, uid="", node=gpu_node.node.name),
        "stolen": SERVER.sealed(more, uid="another", node=gpu_node.node.name),
    }
    for name, annotations in forged.items():
        one = busybox(name, limits={UNITS: 1}, nodeName=gpu_node.node.name)
        one["metadata"]["annotations"] = annotations
        cluster.apply(one)
        until(f"end of {name}", partial(failed, gpu_node, name), timeout_s=60)
        status = cluster.get("pod", name)["status"]
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "assignments not signed by Tessera: " in status["message"]
        assert "default/" not in status["message"], "whose they are is nobody else's business"
        assert "schedulerName: tessera-scheduler" in status["message"]
        assert conflicts(gpu_node) == []
    assert [container(gpu_node, f"honest-{index}") for index in range(2)] == before
    late = busybox("late", limits={UNITS: 1})
    late["metadata"]["annotations"] = {ASSIGNMENT: write_shares((share(1, 1024),))}
    create(cluster, late)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/late", "--timeout=60s")
    assert devices(cluster, "late") == gpu_node.gpu_uuids()[1]


def test_what_runs_survives_the_loss_of_all_public_keys(gpu_node: GpuNode) -> None:
    """Nobody is left who knows the key that signed it: its container starts again, and servers can judge it again."""
    cluster = gpu_node.cluster
    gpu_node.start_agent(policy=POLICY)
    gpu_node.until_offered((UNITS, 2 * 39))
    one = busybox("kept", limits={UNITS: 4}, command=showing(then="sleep 15; exit 1"))
    one["metadata"]["annotations"] = {ASSIGNMENT: write_shares((share(1, 4096),))}
    run(cluster, one)
    before = cluster.get("pod", "kept")["metadata"]["annotations"]
    gpu_node.kill_agent()
    (known,) = (gpu_node.node.folder / "var-lib" / "tessera").rglob("server-keys.json")
    known.unlink()
    cluster.kubectl("delete", "configmap", "-n", NAMESPACE, KEYS)
    try:
        cluster.apply(config_map(STRANGER))
        begun, *_ = cluster.get("pod", "kept")["status"]["containerStatuses"]
        gpu_node.start_again()
        gpu_node.until_registered(UNITS)

        def signed_anew() -> bool:
            now = cluster.get("pod", "kept")["metadata"]["annotations"]
            return bool(now[ASSIGNMENT] == before[ASSIGNMENT] and now[SIGNATURE] != before[SIGNATURE])

        until("another signature", signed_anew, timeout_s=60, found=gpu_node.agent_log)

        def started_again() -> bool:
            (now,) = cluster.get("pod", "kept")["status"]["containerStatuses"]
            return bool(now["restartCount"] > begun["restartCount"] and now["ready"])

        until("another start of the container", started_again, timeout_s=90, found=gpu_node.agent_log)
        assert devices(cluster, "kept") == gpu_node.gpu_uuids()[1]
        assert not any("pod_in_conflict" in line for line in gpu_node.log_lines())
        assert conflicts(gpu_node) == []
    finally:
        cluster.kubectl("delete", "configmap", "-n", NAMESPACE, KEYS)
