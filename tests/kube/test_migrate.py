"""The pages of docs/migrate, walked on two nodes: their own commands run, and pods that run are not harmed.

The other systems do not run here. What they write stands for them: labels, annotations, ConfigMaps, and device plugins
with their resource names and device ids, so that the kubelet's record is as it is with them.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kube.otherplugins import OtherPlugins
from kube.pods import busybox, create, phase, remove, until_allocatable
from kube.walkthrough.page import Walk, chart_values, delete, without_tessera
from tessera.sim.nvmlsim import Machine, library
from testbed.__main__ import building
from testbed.cluster import Cluster, Desired
from testbed.deploy import NAMESPACE, objects
from testbed.node import Node
from testbed.processes import until
from testbed.programs import HELM, programs

GPUS = ("2xA100-40GB",)
GPU, SHARE = "nvidia.com/gpu", "aliyun.com/gpu-mem"
SLICE, LARGER = "nvidia.com/mig-1g.5gb", "nvidia.com/mig-2g.10gb"
Begin = Callable[[str], Walk]
_S = 180


@pytest.fixture(scope="module")
def bare_cluster(program_folder: Path) -> Iterator[Cluster]:
    """Give a cluster with two nodes that have GPUs and know Tessera's image, and nothing of Tessera installed."""
    with without_tessera("moves", program_folder, Desired(nodes=2, gpus=GPUS)) as cluster:
        yield cluster


@pytest.fixture
def cluster(bare_cluster: Cluster) -> Iterator[Cluster]:
    """Give it, and remove what the test made of it: objects, labels, taints, layouts, the agents' state."""
    before = {each["metadata"]["name"]: each for each in bare_cluster.get("nodes")["items"]}
    yield bare_cluster
    bare_cluster.kubectl("delete", "deployments", "--all", f"--timeout={_S}s")
    bare_cluster.kubectl("delete", "pods", "--all", "--grace-period=1", f"--timeout={_S}s")
    bare_cluster.kubectl("delete", "gpunodes,gpupolicies", "--all", f"--timeout={_S}s")
    delete(bare_cluster, *objects("namespace.yaml"))
    for node in bare_cluster.nodes:
        now = bare_cluster.get("node", node.name)
        gone = {
            kind: {key: before[node.name]["metadata"][kind].get(key) for key in now["metadata"][kind]}
            for kind in ("labels", "annotations")
        }
        patch = {"metadata": gone, "spec": {"taints": None, "unschedulable": None}}
        bare_cluster.kubectl("patch", "node", node.name, "--type=merge", f"--patch={json.dumps(patch)}")
        shutil.rmtree(node.folder / "var-lib" / "tessera", ignore_errors=True)
        with Machine(node.gpu_state) as machine:
            machine.renew()


@pytest.fixture
def begin(cluster: Cluster, tmp_path: Path, pytestconfig: pytest.Config) -> Begin:
    """Return what opens a page, for a reader who has helm and the programs in `tmp_path/bin`."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), building(Console(stderr=True)) as report:
        helm = programs(report, modules=HELM)
    values = chart_values()
    (tmp_path / "home").mkdir()

    def opened(page: str) -> Walk:
        if page == "gke-sharing":  # the page says itself where the driver is; there is no pool without GPUs
            for part in ("server", "controller"):
                values[part]["tolerations"] = [{"key": GPU, "operator": "Exists"}]
            values["agent"]["env"] = [
                each for each in values["agent"]["env"] if each["name"] not in {"LD_LIBRARY_PATH", "PATH"}
            ]
        return Walk(f"migrate/{page}", cluster, tmp_path / "home", (tmp_path / "bin", helm), values)

    return opened


def gpus(node: Node) -> tuple[str, ...]:
    """Return the UUIDs of a node's GPUs."""
    with Machine(node.gpu_state) as machine:
        return tuple(each["uuid"] for each in machine.describe()["gpus"])


def slices(node: Node, profile: str) -> tuple[str, ...]:
    """Return the UUIDs of a node's MIG devices of one profile."""
    with Machine(node.gpu_state) as machine:
        instances = [one for gpu in machine.describe()["gpus"] for one in gpu["instances"]]
    return tuple(part["uuid"] for one in instances if one["profile"] == profile for part in one["compute_instances"])


def label(cluster: Cluster, *labels: str) -> None:
    cluster.kubectl("label", "nodes", "--all", "--overwrite", *labels)


def on(node: Node, name: str, limits: dict[str, int], **annotations: str) -> dict[str, Any]:
    """Return a pod that the other system's scheduler has bound to a node."""
    made = busybox(name, limits=limits, nodeName=node.name)
    made["metadata"]["annotations"] = annotations
    return made


def runs(cluster: Cluster, name: str) -> None:
    until(f"pod {name}", lambda: phase(cluster, name) == "Running", timeout_s=_S, found=lambda: phase(cluster, name))


def agents(cluster: Cluster) -> list[str]:
    """Return the nodes with an agent."""
    found = cluster.get("pods", f"--namespace={NAMESPACE}", "--selector=app.kubernetes.io/component=agent")["items"]
    return [each["spec"]["nodeName"] for each in found]


def uninstalled(cluster: Cluster) -> None:
    until("no pod of Tessera", lambda: not cluster.get("pods", f"--namespace={NAMESPACE}")["items"], timeout_s=_S)


OPERATORS_LABELS = (
    *(f"nvidia.com/gpu.deploy.{part}=true" for part in ("device-plugin", "mig-manager", "gpu-feature-discovery")),
    *("nvidia.com/gpu.present=true", "nvidia.com/mig.capable=true", "nvidia.com/gpu.count=2"),
    *("nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.replicas=4"),
    *("nvidia.com/mig.config=half-half", "nvidia.com/mig.config.state=success", "nvidia.com/device-plugin.config=four"),
)


def test_from_the_gpu_operator(cluster: Cluster, begin: Begin) -> None:
    """The MIG manager's work is done by `tessera mig apply` from its ConfigMap; devices have NVIDIA's ids."""
    walk, (first, _) = begin("gpu-operator"), cluster.nodes
    label(cluster, *OPERATORS_LABELS)
    cluster.kubectl("create", "namespace", "gpu-operator")
    for name in ("custom-mig-config.yaml", "time-slicing-config.yaml"):
        walk.apply(name)
    offers = [(GPU, 4), (SLICE, 2), (LARGER, 1)]
    with ExitStack() as stack:
        for node in cluster.nodes:
            walk.on_node(node, "mig", "apply", "-f", "custom-mig-config.yaml", "-c", "half-half")
            replicas = tuple(f"{gpus(node)[1]}::{number}" for number in range(4))
            devices = {GPU: replicas, SLICE: slices(node, "1g.5gb"), LARGER: slices(node, "2g.10gb")}
            stack.enter_context(OtherPlugins(cluster, node, "nvidia.com/gpu.deploy.device-plugin=true", devices))
            until_allocatable(cluster, node.name, offers)
            create(cluster, on(node, f"slice-{node.name}", {SLICE: 1}), on(node, f"replica-{node.name}", {GPU: 1}))
            walk.watch(f"slice-{node.name}", f"replica-{node.name}")
        former = slices(first, "1g.5gb"), slices(first, "2g.10gb")
        walk.step("1.")
        walk.step("2.")
        walk.step("3.")
        assert agents(cluster) == []
        walk.step("4.")
        assert agents(cluster) == ["node1"]
        until_allocatable(cluster, "node1", offers)
        assert (slices(first, "1g.5gb"), slices(first, "2g.10gb")) == former, "no instance was created again"
        create(cluster, on(first, "by-name", {SLICE: 1}))
        walk.watch("by-name")
        walk.step("5.")
        create(cluster, busybox("amount", limits={"tessera.dev/gpu-memory": 4}))
        walk.watch("amount")
        assert "amount" in walk.step("After")
        walk.unwatch("amount")
        remove(cluster, "amount")
        walk.step("Rollback")
        uninstalled(cluster)
        # The MIG manager, which compares before it changes anything, has nothing to do.
        walk.on_node(first, "mig", "assert", "-f", "custom-mig-config.yaml", "-c", "half-half")
        until_allocatable(cluster, "node1", offers)
        remove(cluster, "by-name", "replica-node1")
        create(cluster, on(first, "again", {GPU: 1}))
        runs(cluster, "again")
        walk.unwatch("by-name")
        walk.unwatch("replica-node1")
        walk.unharmed("rollback")
    walk.ended()


def units(node: Node) -> tuple[str, ...]:
    """Return gpushare's device ids of a node: one for each GiB of each GPU."""
    return tuple(f"{uuid}-_-{number}" for uuid in gpus(node) for number in range(39))


def shared_by(gpu: int, gib: int) -> dict[str, str]:
    """Return the annotations that gpushare's extender and device plugin write on a pod."""
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(gpu),
        "ALIYUN_COM_GPU_MEM_POD": str(gib),
        "ALIYUN_COM_GPU_MEM_DEV": "39",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
    }


def gpu_of(cluster: Cluster, name: str) -> str:
    return str(cluster.get("pod", name)["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_IDX"])


def test_from_gpushare(cluster: Cluster, begin: Begin) -> None:
    """GPU 0 of node2 is full by gpushare's annotations alone: who did not read them would put a pod there."""
    walk, (first, second) = begin("gpushare"), cluster.nodes
    label(cluster, "gpushare=true")
    count = [{"op": "add", "path": "/status/capacity/aliyun.com~1gpu-count", "value": "2"}]
    with ExitStack() as stack:
        for node in cluster.nodes:
            stack.enter_context(OtherPlugins(cluster, node, "gpushare=true", {SHARE: units(node)}))
            until_allocatable(cluster, node.name, [(SHARE, 78)])
            patch = ("--subresource=status", "--type=json", f"--patch={json.dumps(count)}")
            cluster.kubectl("patch", "node", node.name, *patch)
        create(
            cluster,
            on(second, "full", {SHARE: 39}, **shared_by(0, 39)),
            on(second, "stays", {SHARE: 5}, **shared_by(1, 5)),
            on(first, "ends", {SHARE: 8}, **shared_by(1, 8)),
        )
        walk.watch("full", "stays", "ends")
        table = walk.step("1.")
        assert [row.split()[2:] for row in table.splitlines() if re.match(r"node\d .*/78$", row)] == [
            ["0/39", "8/39", "8/78"],
            ["39/39", "5/39", "44/78"],
        ]
        walk.step("2.")
        assert agents(cluster) == []
        cluster.kubectl("cordon", "node1")
        create(cluster, busybox("by-server", limits={SHARE: 20}))
        walk.watch("by-server")
        assert gpu_of(cluster, "by-server") == "1"
        walk.unwatch("ends")
        remove(cluster, "ends")
        walk.step("3.")
        assert agents(cluster) == ["node1"]
        until_allocatable(cluster, "node1", [(SHARE, 78)])
        create(cluster, busybox("by-agent", limits={SHARE: 30}))
        walk.watch("by-agent")
        assert cluster.get("pod", "by-agent")["spec"]["nodeName"] == "node1"
        walk.step("4.")
        table = walk.step("After")
        assert "by-agent" in table
        walk.unwatch("by-agent")
        remove(cluster, "by-agent")
        walk.step("Rollback")
        uninstalled(cluster)
        until_allocatable(cluster, "node1", [(SHARE, 78)])
        create(cluster, on(first, "again", {SHARE: 30}, **shared_by(0, 30)))
        runs(cluster, "again")
        walk.unharmed("rollback")
    walk.ended()


def register(node: Node) -> str:
    """Return what HAMi's device plugin writes about a node's GPUs."""
    shown = {"count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA-A100-SXM4-40GB", "health": True}
    found = [{"id": uuid, "index": index, "mode": "hami-core", **shown} for index, uuid in enumerate(gpus(node))]
    return json.dumps(found)


def vgpu(node: Node, name: str, gpu: int) -> dict[str, Any]:
    """Return a pod as HAMi's webhook and scheduler leave it."""
    limits = {GPU: 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}
    allocated = f"{gpus(node)[gpu]},NVIDIA,3000,30:;"
    keys = {"hami.io/vgpu-node": node.name, "hami.io/bind-phase": "success"}
    made = on(node, name, limits, **{"hami.io/vgpu-devices-allocated": allocated}, **keys)
    made["spec"]["schedulerName"] = "hami-scheduler"
    return made


def test_from_hami(cluster: Cluster, begin: Begin) -> None:
    """HAMi's scheduler, webhook and library are not there; its pods are bound and annotated as it leaves them."""
    walk, (first, second) = begin("hami"), cluster.nodes
    label(cluster, "gpu=on")
    with ExitStack() as stack:
        for node in cluster.nodes:
            ids = tuple(f"{uuid}::{number}" for uuid in gpus(node) for number in range(10))
            stack.enter_context(OtherPlugins(cluster, node, "gpu=on", {GPU: ids}))
            keys = (f"hami.io/node-nvidia-register={register(node)}", "hami.io/node-handshake=Reported")
            cluster.kubectl("annotate", "node", node.name, *keys)
            until_allocatable(cluster, node.name, [(GPU, 20)])
        create(cluster, vgpu(second, "stays", 1), vgpu(first, "ends", 0))
        walk.watch("stays", "ends")
        said = walk.step("1.")
        assert "nvidia.com/gpumem is a name of HAMi" in " ".join(said.split())
        assert "1 of 1 pod placed" in " ".join(walk.step("2.").split())
        walk.step("3.")
        walk.unwatch("ends")
        remove(cluster, "ends")
        walk.step("4.")
        walk.watch("moved")
        assert agents(cluster) == ["node1"]
        assert cluster.get("pod", "moved")["spec"]["nodeName"] == "node1"
        # Not translated: it waits for HAMi, and nobody gives it a whole GPU.
        walk.apply("hami.yaml")
        cluster.kubectl("wait", "--for=condition=PodScheduled=False", "pod/vgpu", f"--timeout={_S}s")
        walk.step("After")
        remove(cluster, "vgpu", "moved")
        walk.unwatch("moved")
        walk.step("Rollback")
        uninstalled(cluster)
        until_allocatable(cluster, "node1", [(GPU, 20)])
        create(cluster, vgpu(first, "again", 1))
        runs(cluster, "again")
        walk.unharmed("rollback")
    walk.ended()


POOLS = """#!/bin/sh -e
# Stands for gcloud: makes the pool of node1, or empties it.
case "$*" in
"container node-pools create tessera "*gpu-driver-version=disabled*gke-no-default-nvidia-gpu-device-plugin=true*)
  kubectl label node node1 cloud.google.com/gke-nodepool=tessera cloud.google.com/gke-accelerator=nvidia-tesla-a100 \\
    cloud.google.com/gke-accelerator-count=2 gke-no-default-nvidia-gpu-device-plugin=true
  kubectl uncordon node1 ;;
"container node-pools delete tessera "*) kubectl cordon node1 ;;
*) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


def test_from_gke_sharing(cluster: Cluster, begin: Begin, tmp_path: Path) -> None:
    """node2 is the former pool, cut by GKE into 1g.5gb; node1 the new one, with the driver in GKE's folder."""
    walk, (first, second) = begin("gke-sharing"), cluster.nodes
    gcloud = tmp_path / "bin" / "gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text(POOLS)
    gcloud.chmod(0o755)
    cluster.kubectl("cordon", "node1")
    cluster.kubectl("taint", "nodes", "--all", "nvidia.com/gpu=present:NoSchedule")
    accelerator = ("nvidia-tesla-a100", "gke-accelerator-count=2", "gke-gpu-partition-size=1g.5gb")
    keys = (f"cloud.google.com/{each}" for each in (f"gke-accelerator={accelerator[0]}", *accelerator[1:]))
    cluster.kubectl("label", "node", "node2", "gke-nodepool=shared", *keys)
    driver = first.path("/home/kubernetes/bin/nvidia")
    (driver / "lib64").mkdir(parents=True, exist_ok=True)
    shutil.copy(library(), driver / "lib64")
    ids = tuple(f"nvidia{gpu}/gi{number}" for gpu in (0, 1) for number in range(7, 14))
    with OtherPlugins(cluster, second, "gke-nodepool=shared", {GPU: ids}):
        until_allocatable(cluster, "node2", [(GPU, 14)])
        create(cluster, on(second, "stays", {GPU: 1}))
        walk.watch("stays")
        walk.apply("before.yaml")
        cluster.kubectl("rollout", "status", "deployment/embed", f"--timeout={_S}s")
        walk.step("1.")
        walk.step("2.")
        walk.step("3.")
        assert agents(cluster) == ["node1"]
        walk.step("4.")
        (moved,) = living(cluster)
        assert moved["spec"]["nodeName"] == "node1"
        assert len(slices(first, "1g.5gb")) >= 1
        walk.step("After")
        walk.step("Rollback")
        uninstalled(cluster)
        (back,) = living(cluster)
        assert back["spec"]["nodeName"] == "node2"
        walk.unharmed("rollback")
    walk.ended()


def living(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the pods of the Deployment, once those that end are gone."""
    selected = ("pods", "--selector=app=embed")
    until("one pod", lambda: len(cluster.get(*selected)["items"]) == 1, timeout_s=_S)
    found: list[dict[str, Any]] = cluster.get(*selected)["items"]
    return found
