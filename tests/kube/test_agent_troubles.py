"""The agent on a real node is killed inside the kubelet's calls, and cannot make sockets: nothing is lost or harmed."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.shares import share
from kube.gpunode import GpuNode
from kube.pods import binding, busybox, create, devices, environment, run, showing, unscheduled
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.kubelet import PodResources
from tessera.sim.nvmlsim import FOREVER, Machine
from testbed.processes import until

GPUS = ("A100-40GB",)
SLICE = "nvidia.com/mig-1g.5gb"
UNITS = "tessera.dev/gpu-memory"
ASSIGNMENT = "tessera.dev/assignment"
POLICY = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "memory-share"}]}
HANGS_MS = 120_000


def assigned(name: str, units: int) -> dict[str, Any]:
    """Return a pod with so much memory of the GPU."""
    made = busybox(name, limits={UNITS: units})
    made["metadata"]["annotations"] = {ASSIGNMENT: write_shares((share(0, units * 1024),))}
    return made


def replicated(one: dict[str, Any]) -> dict[str, Any]:
    """Return what keeps one such pod running, with another pod where the kubelet refused one."""
    labels = one["metadata"]["labels"] | {"set": "late"}
    template = {"metadata": one["metadata"] | {"labels": labels}, "spec": unscheduled(one)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"set": "late"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "late"}, "spec": spec}


def start(node: GpuNode, strategy: str) -> dict[str, Any]:
    """Start an agent that hands memory over in this way, and a pod that must not be harmed."""
    node.start_agent(policy=POLICY, flags={"migStrategy": "none", "plugin": {"deviceListStrategy": [strategy]}})
    node.until_offered((UNITS, 39))
    run(node.cluster, assigned("steady", 2))
    return status(node, "steady")


def status(node: GpuNode, name: str) -> dict[str, Any]:
    """Return what must not change of a pod that runs."""
    found = node.cluster.get("pod", name)
    container = found["status"]["containerStatuses"][0]
    kept = ("containerID", "restartCount", "ready")
    return {
        ASSIGNMENT: found["metadata"].get("annotations", {}).get(ASSIGNMENT),
        **{key: container[key] for key in kept},
    }


def kill_inside(node: GpuNode, call: str, late: dict[str, Any]) -> None:
    """Let a pod come while the driver hangs, and kill the agent inside the call that the kubelet makes for it."""
    with Machine(node.node.gpu_state) as machine:
        machine.fault("nvmlDevice*", latency_ms=HANGS_MS, times=FOREVER)
        create(node.cluster, late)

        def inside() -> bool:
            lines = node.log_lines()
            return any("share_awaited" in line and call in line and "late" in line for line in lines)

        until(f"a call of {call}", inside, timeout_s=60, found=node.agent_log)
        node.kill_agent()
        machine.clear_faults()
    node.start_again()


def late_pods(node: GpuNode) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.cluster.get("pods", "-l", "set=late")["items"]
    return found


@pytest.mark.anyio
async def test_killed_inside_allocate(gpu_node: GpuNode) -> None:
    """The kubelet refuses the pod whose call was cut off, for good; the one in its place gets the same share."""
    before = start(gpu_node, "envvar")
    late = assigned("late", 3)
    with binding(gpu_node.cluster):
        kill_inside(gpu_node, "Allocate", replicated(late))
        try:

            def runs() -> bool:
                status = gpu_node.cluster.get("rs", "late").get("status", {})
                return bool(status.get("readyReplicas") == 1)

            until("the pod in its place", runs, timeout_s=90, found=gpu_node.agent_log)
            (name,) = [one["metadata"]["name"] for one in late_pods(gpu_node) if one["status"]["phase"] == "Running"]
            reasons = {one["status"].get("reason") for one in late_pods(gpu_node) if one["status"]["phase"] == "Failed"}
            assert reasons == {"UnexpectedAdmissionError"}
            assert status(gpu_node, "steady") == before
            assert environment(gpu_node.cluster, name)["TESSERA_GPU_MEMORY_MIB"] == "3072"
            assert status(gpu_node, name)[ASSIGNMENT] == late["metadata"]["annotations"][ASSIGNMENT]
            record = {one.pod: len(one.device_ids) for one in await PodResources(gpu_node.node.pod_resources).list()}
            assert record == {"steady": 2, name: 3}
        finally:
            gpu_node.cluster.kubectl("delete", "rs", "late", "--wait=true")


@pytest.mark.anyio
async def test_killed_inside_pre_start_container(gpu_node: GpuNode) -> None:
    """The kubelet tries again to start the container of a pod that it has admitted."""
    before = start(gpu_node, "cdi-cri")
    late = assigned("late", 3)
    kill_inside(gpu_node, "PreStartContainer", late)
    gpu_node.cluster.kubectl("wait", "--for=condition=Ready", "pod/late", "--timeout=90s")
    assert status(gpu_node, "steady") == before
    assert environment(gpu_node.cluster, "late")["TESSERA_GPU_MEMORY_MIB"] == "3072"
    assert status(gpu_node, "late")[ASSIGNMENT] == late["metadata"]["annotations"][ASSIGNMENT]
    record = {one.pod: len(one.device_ids) for one in await PodResources(gpu_node.node.pod_resources).list()}
    assert record == {"steady": 2, "late": 3}


def info(node: GpuNode) -> dict[str, Any]:
    return dict(node.cluster.get("node", node.node.name)["status"]["nodeInfo"])


def test_pods_that_come_while_containerd_is_away_get_their_devices(gpu_node: GpuNode) -> None:
    """The kubelet says then that it does not know the runtime's version: nobody may take that for an old containerd."""
    gpu_node.start_agent(policy=POLICY)
    gpu_node.until_offered((UNITS, 39))
    run(gpu_node.cluster, assigned("before", 2))
    gpu_node.cluster.processes.stop(f"{gpu_node.node.name}-containerd", number=signal.SIGKILL)
    try:
        until("a kubelet that notices", lambda: "Unknown" in info(gpu_node)["containerRuntimeVersion"], timeout_s=60)
        create(gpu_node.cluster, assigned("late", 3))
        until(
            "an answer to Allocate for it",
            lambda: any("share_allocated" in line and "late" in line for line in gpu_node.log_lines()),
            timeout_s=60,
            found=gpu_node.agent_log,
        )
    finally:
        gpu_node.cluster.up(gpu_node.cluster.desired)
    gpu_node.cluster.kubectl("wait", "--for=condition=Ready", "pod/late", "--timeout=90s")
    for name in ("before", "late"):
        assert environment(gpu_node.cluster, name)["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert devices(gpu_node.cluster, name)


@contextmanager
def plugins_mounted(node: GpuNode, folder: str) -> Iterator[None]:
    """Show the kubelet's folder of device plugins under another name, as a container has it, to be made read-only."""
    node.node.run("mkdir", "-p", folder)
    node.node.run("mount", "--bind", "/var/lib/kubelet/device-plugins", folder)
    try:
        yield
    finally:
        node.node.run("umount", folder)


def read_only_is_reported(node: GpuNode) -> bool:
    """Return whether the agent that was started last says that it cannot make the socket, why, and what would do."""
    lines = [line for line in node.log_lines() if "resource_not_advertised" in line and SLICE in line]
    return any("Read-only file system" in line and "host path without readOnly" in line for line in lines)


def doctor(node: GpuNode, *options: str) -> list[dict[str, str]]:
    """Return what `tessera doctor` finds on the node."""
    program = str(Path(sys.executable).with_name("tessera"))
    command = node.node.command(program, "doctor", "-o", "json", *options)
    done = subprocess.run(command, capture_output=True, check=False, text=True, env=node.node.environment())
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found


def test_a_socket_folder_that_becomes_read_only(gpu_node: GpuNode) -> None:
    folder = "/run/plugins"
    with plugins_mounted(gpu_node, folder):
        gpu_node.start_agent(f"--plugins-dir={folder}")
        gpu_node.ask_layout("all-1g.5gb")
        gpu_node.until_offered((SLICE, 7))
        run(gpu_node.cluster, busybox("steady", limits={SLICE: 1}))
        before, instances = status(gpu_node, "steady"), gpu_node.mig_uuids()
        gpu_node.node.run("mount", "-o", "remount,bind,ro", folder)
        gpu_node.node.restart_kubelet()
        for restarted in (False, True):
            if restarted:
                gpu_node.kill_agent()
                gpu_node.start_again()
            until("a word about it", lambda: read_only_is_reported(gpu_node), timeout_s=60, found=gpu_node.agent_log)
        gpu_node.until_offered((SLICE, 0))
        said = doctor(gpu_node, f"--plugins-dir={folder}")
        assert "Read-only file system" in event(gpu_node, "ResourceNotAdvertised")
        assert (f"{folder} is read-only", "failed") in {(each["found"], each["verdict"]) for each in said}
        assert gpu_node.mig_uuids() == instances
        assert status(gpu_node, "steady") == before
        gpu_node.node.run("mount", "-o", "remount,bind,rw", folder)
        gpu_node.until_offered((SLICE, 7))
        run(gpu_node.cluster, busybox("next", limits={SLICE: 1}))
        used = {devices(gpu_node.cluster, name) for name in ("steady", "next")}
        assert (len(used), used <= set(instances)) == (2, True)
        assert status(gpu_node, "steady") == before
        gpu_node.stop_agent()


def test_a_full_disk_takes_no_pods_until_there_is_room(gpu_node: GpuNode) -> None:
    folder, node = "/run/state", gpu_node.node
    node.run("sh", "-c", f"mkdir -p {folder} && mount -t tmpfs -o size=256k tmpfs {folder}")
    try:
        gpu_node.start_agent(f"--state-dir={folder}")
        gpu_node.ask_layout("all-1g.5gb")
        gpu_node.until_offered((SLICE, 7))
        run(gpu_node.cluster, busybox("steady", limits={SLICE: 1}))
        before = status(gpu_node, "steady")
        node.run("sh", "-c", f"dd if=/dev/zero of={folder}/fill bs=1k 2>/dev/null; true")
        create(gpu_node.cluster, busybox("refused", limits={SLICE: 1}))
        until("it is said", lambda: "No space left on device" in event(gpu_node, "ResourceNotAdvertised"), timeout_s=60)
        gpu_node.until_offered((SLICE, 1))
        assert status(gpu_node, "steady") == before
        node.run("rm", f"{folder}/fill")
        gpu_node.until_offered((SLICE, 7))
        run(gpu_node.cluster, busybox("next", limits={SLICE: 1}))
        assert status(gpu_node, "steady") == before
        gpu_node.stop_agent()
    finally:
        node.run("umount", "-l", folder)


def test_gpus_are_handed_over_by_mounts_and_by_annotations(gpu_node: GpuNode) -> None:
    """The ways that other tests do not take: NVIDIA's runtime reads the mounts, containerd the annotations, by CDI."""
    strategies = ["volume-mounts", "cdi-annotations"]
    gpu_node.start_agent(flags={"migStrategy": "none", "plugin": {"deviceListStrategy": strategies}})
    gpu_node.until_offered(("nvidia.com/gpu", 1))
    shown = showing("echo MOUNTS=$(ls /var/run/nvidia-container-devices)", "echo NODES=$(ls /dev)")
    run(gpu_node.cluster, busybox("whole", command=shown, limits={"nvidia.com/gpu": 1}))
    found = environment(gpu_node.cluster, "whole")
    assert found["MOUNTS"].split() == list(gpu_node.gpu_uuids())
    assert {"nvidia0", "nvidiactl", "nvidia-uvm"} <= set(found["NODES"].split())
    an_error_withdraws_the_gpu_and_leaves_its_pod(gpu_node)


def an_error_withdraws_the_gpu_and_leaves_its_pod(gpu_node: GpuNode) -> None:
    before = status(gpu_node, "whole")
    with Machine(gpu_node.node.gpu_state) as machine:
        machine.inject_xid(0, 48)
    gpu_node.until_offered(("nvidia.com/gpu", 0))
    assert status(gpu_node, "whole") == before
    assert gpu_node.gpu_uuids()[0] in event(gpu_node, "DeviceUnhealthy")


def event(node: GpuNode, reason: str) -> str:
    """Return the messages of the node's events with this reason."""
    found = node.cluster.get("events", f"--field-selector=reason={reason}", "--all-namespaces")["items"]
    return "; ".join(each["message"] for each in found)
