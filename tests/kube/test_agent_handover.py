"""The agent on a real node: how devices are handed over unasked, and what a manifest can say against it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders.kubeobjects import amount
from kube.gpunode import HANDED_OVER, GpuNode
from kube.pods import busybox, create, environment, run, showing
from tessera.api.tessera.pods.assignments import write_shares
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import placements_of
from tessera.sim.nvmlsim import Machine
from testbed.gpus import DRIVER_SPEC
from testbed.processes import until

GPUS = ("2xA100-40GB",)
GPU, UNITS = "nvidia.com/gpu", "tessera.dev/gpu-memory"
SHOW = showing("echo NODES=$(ls /dev | grep '^nvidia[0-9]')")
SHARED = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "memory-share"}]}


def greedy(name: str, limits: dict[str, int] | None = None) -> dict[str, Any]:
    """Return a pod whose manifest asks NVIDIA's runtime for every GPU, as the samples of some recipes do."""
    made = busybox(name, command=SHOW, limits=limits)
    made["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    return made


def until_handed_over(node: GpuNode, want: str) -> None:
    def said() -> str:
        found = node.cluster.get("node", node.node.name)["metadata"]["annotations"]
        return str(found.get(HANDED_OVER, ""))

    until(f"devices handed over by {want}", lambda: said() == want, timeout_s=60, found=said)


def test_a_manifest_that_asks_for_all_gpus_gets_its_own_alone(gpu_node: GpuNode) -> None:
    gpu_node.start_agent()
    gpu_node.until_offered((GPU, 2))
    until_handed_over(gpu_node, "cdi-cri")
    run(gpu_node.cluster, greedy("one", {GPU: 1}), greedy("none"))
    found = environment(gpu_node.cluster, "one")
    assert found["NVIDIA_VISIBLE_DEVICES"] == "void", "NVIDIA's runtime adds nothing"
    assert found["TESSERA_GPU_UUIDS"] == gpu_node.gpu_uuids()[int(found["NODES"].removeprefix("nvidia"))]
    assert environment(gpu_node.cluster, "none")["NODES"] == ""


def test_a_share_is_its_own_alone_as_well(gpu_node: GpuNode) -> None:
    gpu_node.start_agent(policy=SHARED)
    gpu_node.until_offered((UNITS, 2 * 39))
    one = greedy("share", {UNITS: 4})
    one["spec"]["containers"][0]["env"].append({"name": "TESSERA_GPU_MEMORY_MIB", "value": "40000"})
    one["metadata"]["annotations"] = {"tessera.dev/assignment": write_shares((amount(1, None, 4096),))}
    run(gpu_node.cluster, one)
    found = environment(gpu_node.cluster, "share")
    assert (found["NVIDIA_VISIBLE_DEVICES"], found["NODES"]) == ("void", "nvidia1")
    assert found["TESSERA_GPU_MEMORY_MIB"] == "4096", "what a share is limited to is not the manifest's to say"
    assert found["TESSERA_GPU_UUIDS"] == gpu_node.gpu_uuids()[1]


@pytest.mark.parametrize("configured", ["by an option", "by a file"])
def test_by_the_environment_the_manifest_wins_which_docs_security_says(gpu_node: GpuNode, configured: str) -> None:
    if configured == "by a file":
        gpu_node.start_agent("--device-list-strategy=cdi-cri", flags={"plugin": {"deviceListStrategy": ["envvar"]}})
    else:
        gpu_node.start_agent("--device-list-strategy=envvar")
    gpu_node.until_offered((GPU, 2))
    until_handed_over(gpu_node, "envvar")
    run(gpu_node.cluster, greedy("one", {GPU: 1}), busybox("honest", command=SHOW, limits={GPU: 1}))
    assert environment(gpu_node.cluster, "one")["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment(gpu_node.cluster, "honest")["NVIDIA_VISIBLE_DEVICES"] in gpu_node.gpu_uuids()


def device_list(node: GpuNode) -> tuple[str, str]:
    """Return what `tessera doctor` says about the strategy: verdict and finding."""
    program = str(Path(sys.executable).with_name("tessera"))
    command = node.node.command(program, "doctor", "-o", "json")
    done = subprocess.run(command, capture_output=True, check=False, text=True, env=node.node.environment())
    (found,) = (each for each in json.loads(done.stdout) if each["name"] == "device-list")
    return found["verdict"], found["found"]


def test_a_node_without_the_drivers_specification_falls_back_and_says_so(gpu_node: GpuNode) -> None:
    spec = gpu_node.node.path(str(DRIVER_SPEC))
    text = spec.read_text()
    spec.unlink()
    try:
        gpu_node.start_agent()
        until_handed_over(gpu_node, "envvar")
        cause = "there is no CDI specification of the driver"
        assert device_list(gpu_node) == ("warning", f"envvar and not cdi-cri: {cause}")
    finally:
        spec.write_text(text)
    until_handed_over(gpu_node, "cdi-cri")
    assert device_list(gpu_node) == ("ok", "cdi-cri")
    told = [json.loads(line) for line in gpu_node.log_lines() if "device_list_strategy" in line]
    assert [(each["strategies"], cause in each["reason"]) for each in told] == [
        (["envvar"], True),
        (["cdi-cri"], False),
    ]


LIBRARY = "touch /usr/local/nvidia/lib64/mine || echo LIBRARIES=$(ls /usr/local/nvidia/lib64)"


@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar"])
def test_where_neither_a_runtime_nor_a_specification_brings_the_driver_its_folder_does(
    gpu_node: GpuNode, strategy: str
) -> None:
    """As on GKE: containers get the folder, which they cannot write to, and their own GPU's device files."""
    spec = gpu_node.node.path(str(DRIVER_SPEC))
    text = spec.read_text()
    spec.unlink()
    driver = gpu_node.node.path("/run/driver")
    (driver / "lib64").mkdir(parents=True)
    (driver / "lib64" / "libcuda.so.1").touch()
    try:
        # By CDI without being told to: the folder is all that was lacking.
        options = [] if strategy == "cdi-cri" else [f"--device-list-strategy={strategy}"]
        gpu_node.start_agent("--driver-folder=/run/driver", *options)
        gpu_node.until_offered((GPU, 2))
        until_handed_over(gpu_node, strategy)
        run(gpu_node.cluster, busybox("one", command=f"{LIBRARY}; {SHOW}", limits={GPU: 1}))
        found = environment(gpu_node.cluster, "one")
        assert found["LIBRARIES"] == "libcuda.so.1"
        assert found["TESSERA_GPU_UUIDS"] == gpu_node.gpu_uuids()[int(found["NODES"].removeprefix("nvidia"))]
    finally:
        spec.write_text(text)
        shutil.rmtree(driver)


def test_a_pod_that_is_admitted_while_the_drivers_specification_appears_gets_its_share(gpu_node: GpuNode) -> None:
    """As on a node that boots: `Allocate` waits for an instance, and the strategy changes meanwhile."""
    half = next(each for each in placements_of(model("A100-40GB"), "3g.20gb") if each.start == 4)
    auto = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "auto"}]}
    spec = gpu_node.node.path(str(DRIVER_SPEC))
    text = spec.read_text()
    spec.unlink()
    try:
        gpu_node.start_agent(policy=auto)
        gpu_node.until_registered(UNITS)
        until_handed_over(gpu_node, "envvar")
        with Machine(gpu_node.node.gpu_state) as machine:
            machine.fault("nvmlDeviceCreateGpuInstance*", latency_ms=6000, times=2)
        one = busybox("half", command=SHOW, limits={UNITS: 16})
        one["metadata"]["annotations"] = {"tessera.dev/assignment": write_shares((amount(0, half, 16384),))}
        create(gpu_node.cluster, one)
        until("a call", lambda: any("share_awaited" in line for line in gpu_node.log_lines()), timeout_s=30)
    finally:
        spec.write_text(text)
    until_handed_over(gpu_node, "cdi-cri")
    until("it runs", lambda: gpu_node.cluster.get("pod", "half")["status"]["phase"] == "Running", timeout_s=60)
    found = environment(gpu_node.cluster, "half")
    assert found["NVIDIA_VISIBLE_DEVICES"] == found["TESSERA_GPU_UUIDS"] != ""


def test_a_container_that_was_answered_by_cdi_starts_though_the_strategy_was_changed(gpu_node: GpuNode) -> None:
    """Its init container runs meanwhile."""
    cluster = gpu_node.cluster
    gpu_node.start_agent(policy=SHARED, flags={"plugin": {"deviceListStrategy": ["cdi-cri"]}})
    gpu_node.until_offered((UNITS, 2 * 39))
    one = busybox("slow", command=SHOW, limits={UNITS: 5})
    image = one["spec"]["containers"][0]["image"]
    one["spec"]["initContainers"] = [{"name": "first", "image": image, "command": ["sleep", "20"]}]
    one["metadata"]["annotations"] = {"tessera.dev/assignment": write_shares((amount(1, None, 5120),))}
    create(cluster, one)

    def began() -> bool:
        statuses = cluster.get("pod", "slow")["status"].get("initContainerStatuses", [])
        return any("running" in each["state"] for each in statuses)

    until("its init container runs", began, timeout_s=60)
    gpu_node.stop_agent()
    gpu_node.start_agent(policy=SHARED, flags={"plugin": {"deviceListStrategy": ["envvar"]}})
    until_handed_over(gpu_node, "envvar")
    until("it runs", lambda: cluster.get("pod", "slow")["status"]["phase"] == "Running", timeout_s=90)
    found = environment(cluster, "slow")
    assert (found["NVIDIA_VISIBLE_DEVICES"], found["NODES"]) == ("void", "nvidia1")
