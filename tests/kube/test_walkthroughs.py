"""The pages of docs/walkthroughs, walked from the chart on: their own commands, and what they show."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.ceph import lack
from judges.dashboards import DASHBOARDS, NOT_WITH_VLLM
from judges.deviceuse import Container, judged, uses_of
from kube.busy import keep_busy, keep_instances_busy, let_go, top
from kube.conftest import shown
from kube.modelstore import ceph_bucket, serve_bucket, small_disk
from kube.observing import containers_of, living, used_node
from kube.pagepictures import take_page
from kube.registry import RealRegistry, serve_on
from kube.servingmetrics import Prometheus, draw
from kube.walkthrough.page import REGISTRY_PORT, Walk, chart_values, without_tessera
from testbed.cluster import Cluster, Desired
from testbed.images import PAUSE
from testbed.kueue import KUEUE, kueue_chart, kueue_image
from testbed.processes import until
from testbed.programs import HELM, K6, PROMETHEUS, PROXY, Module, programs
from testbed.services import start_proxy
from testbed.tesseraimage import k6_image, prometheus_image, triton_image, vllm_image

_S = 180
_CURL = shutil.which("curl") or "curl"


def built(modules: tuple[Module, ...]) -> Callable[[pytest.Config], Path]:
    """Return a fixture: the folder of programs that the page's reader has, built the first time, which is shown."""

    def folder(pytestconfig: pytest.Config) -> Path:
        with shown(pytestconfig) as report:
            return programs(report, modules=modules)

    return pytest.fixture(folder)


helm_folder = built(HELM)
proxy_folder = built(PROXY)
load_folder = built(K6)
prometheus_folder = built(PROMETHEUS)
kueue_folder = built(KUEUE)


@pytest.fixture
def three_nodes(program_folder: Path, proxy_folder: Path, prometheus_folder: Path) -> Iterator[Cluster]:
    with without_tessera("walk-b", program_folder, Desired(nodes=3, gpus=("1xA100-40GB",), services=True)) as cluster:
        for node in cluster.nodes:
            start_proxy(node, cluster.pki.folder / "inside.kubeconfig", proxy_folder / "kube-proxy")
            node.import_image(triton_image(lambda _: None))
            images, built = cluster.folder / "images", prometheus_folder
            node.import_image(prometheus_image(images, built / "prometheus", built / "promtool"))
        yield cluster


@pytest.fixture
def eight_h100s_to_serve(
    program_folder: Path, proxy_folder: Path, load_folder: Path, prometheus_folder: Path
) -> Iterator[Cluster]:
    vllm = vllm_image(lambda _: None)
    desired = Desired(nodes=2, gpus=("8xH100-80GB",), services=True)
    with without_tessera("walk-c", program_folder, desired) as cluster:
        serving, other = cluster.nodes
        for node in cluster.nodes:
            start_proxy(node, cluster.pki.folder / "inside.kubeconfig", proxy_folder / "kube-proxy")
        serving.import_image(vllm)
        images = cluster.folder / "images"
        other.import_image(prometheus_image(images, prometheus_folder / "prometheus", prometheus_folder / "promtool"))
        other.import_image(k6_image(images, load_folder / "k6"))
        yield cluster


@pytest.fixture
def two_a100s(program_folder: Path) -> Iterator[Cluster]:
    with without_tessera("walk-d", program_folder, Desired(nodes=1, gpus=("2xA100-40GB",))) as cluster:
        yield cluster


@pytest.fixture
def eight_h100s(program_folder: Path) -> Iterator[Cluster]:
    with without_tessera("walk-a", program_folder, Desired(nodes=2, gpus=("8xH100-80GB",))) as cluster:
        yield cluster


@pytest.fixture
def two_a100s_of_a_team(program_folder: Path, proxy_folder: Path, kueue_folder: Path) -> Iterator[Cluster]:
    desired = Desired(nodes=2, gpus=("2xA100-40GB",), services=True)
    with without_tessera("walk-e", program_folder, desired) as cluster:
        image = kueue_image(cluster.folder / "images", kueue_folder / "kueue")
        for node in cluster.nodes:
            start_proxy(node, cluster.pki.folder / "inside.kubeconfig", proxy_folder / "kube-proxy")
            node.import_image(image)
        yield cluster


@pytest.fixture
def begin(helm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Walk]:
    """Return what opens a page whose models are in a bucket; every node has a disk for them."""

    def opened(page: str, cluster: Cluster, values: dict[str, Any] | None = None, **more: Any) -> Walk:
        for node in cluster.nodes:
            small_disk(node, "/var/lib/tessera/disk")
        monkeypatch.setenv("KEY", "key")
        monkeypatch.setenv("SECRET", "secret")
        values = values or chart_values()
        (tools := tmp_path / "tools").mkdir()  # the bucket is in the testbed's network alone
        inside = shlex.join(cluster.nodes[0].command("env"))
        (tools / "curl").write_text(f'#!/bin/sh\nexec {inside} --chdir="$PWD" {_CURL} "$@"\n')
        (tools / "curl").chmod(0o755)
        # The first process here is not the node's, as `/proc/1/root` expects; the state folder is in the agent's pod.
        values["agent"]["args"] += ["--host-root=/", "--model-dir=/var/lib/tessera/disk/models"]
        return Walk(f"walkthroughs/{page}", cluster, tmp_path, (helm_folder, tools), values, **more)

    return opened


@pytest.mark.long
def test_models_on_nvme(eight_h100s: Cluster, begin: Callable[..., Walk]) -> None:
    """The model changes while 56 pods read it; the four that follow read the new one."""
    bucket, node = eight_h100s.folder / "bucket", eight_h100s.nodes[0]
    serve_bucket(node, bucket)
    walk = begin("models-on-nvme", eight_h100s)
    walk.step("1.")
    walk.step("2.")
    walk.step("3.")
    assert walk.step("4.").count("Pending") == 4
    walk.step("5.")
    # A look misses pods whose first process has just ended: each starts a `sleep` or `cat` now and then.
    seen = dict[str, str]()

    def each_has_one() -> bool:
        seen.update(instances_of(eight_h100s, "--namespace=default", "--selector=job-name=readers"))
        return len(seen) == 56

    until("a MIG instance in each of 56 pods", each_has_one, timeout_s=20, found=lambda: str(len(seen)))
    assert {*seen.values()} == {each.uuid for each in used_node(node).instances}
    take_page(eight_h100s, "models-on-nvme.png", height=580)
    said = re.findall(r"^ *(\d+) (.*)$", walk.step("6."), re.MULTILINE)
    assert said == [("30", "by hostPath"), ("30", "by resource"), ("1680", "whole one"), ("120", "whole two")]
    walk.step("Undo")
    walk.ended()


@pytest.mark.long
def test_triton_on_mig(three_nodes: Cluster, begin: Callable[..., Walk]) -> None:
    """A real Triton, Prometheus, HorizontalPodAutoscaler and kube-proxy; no client is ever failed."""
    bucket = three_nodes.folder / "bucket"
    serve_bucket(three_nodes.nodes[0], bucket)
    walk = begin("triton-on-mig", three_nodes)
    walk.step("1.")
    walk.step("2.")
    walk.step("3.")
    walk.step("4.")
    said = walk.step("5.")
    assert answered(said) > 10_000
    scraped = re.findall(r'^\{pod="(sleeper-[^"]+)"\} => [1-9]', said, re.MULTILINE)
    assert len(set(scraped)) == 7, "Prometheus has the metrics of each replica"
    take_page(three_nodes, "triton-on-mig.png", height=330)
    assert answered(walk.step("6.", within_s=2400)) > 1_000
    said = walk.step("7.")
    assert answered(said) > 1_000
    proposed = re.findall(r"^ReplicasProposed +(\d+) replicas?: ", said, re.MULTILINE)
    assert max(map(int, proposed)) >= 3, "twelve requests in flight fill three replicas with four slots"
    walk.step("Undo")
    walk.ended()


def answered(said: str) -> int:
    """Return how many requests of both pods of clients were answered, of which none may have failed."""
    found = re.findall(r"^(\d+) answered, .*, 0 failed$", said, re.MULTILINE)
    assert len(found) == 2, said[-2000:]
    return sum(map(int, found))


KV_CACHE_BYTES = 64 << 20
ON_A_PROCESSOR = {
    "args": ["--enforce-eager", f"--kv-cache-memory-bytes={KV_CACHE_BYTES}"],
    "resources": {"cpu": "20m", "memory": "1440Mi"},
}
"""What a vLLM for a processor needs: a size of its KV cache, and no compiler. As the page says."""
REPLICAS = ("--namespace=walkthrough-serving", "--selector=serving.tessera.dev/server=chat")
REAL = 2
"""Replicas in which vLLM itself runs: those on the first GPU; the others answer what was recorded."""


@pytest.mark.long
def test_vllm_on_3g40gb(eight_h100s_to_serve: Cluster, begin: Callable[..., Walk]) -> None:
    """Sixteen replicas, each with an instance of its own as driver and containers show it; real vLLM in two of them."""
    cluster = eight_h100s_to_serve
    bucket, node = cluster.folder / "bucket", cluster.nodes[0]
    serve_bucket(node, bucket)
    walk = begin("vllm-on-3g40gb", cluster, serving=ON_A_PROCESSOR)
    walk.step("1.")
    walk.step("2.")
    said = walk.step("3.")
    assert re.search(r"3g\.40gb +40448 +yes +18\.9 +154,996 +18\.9 +256x8192", said)
    assert "16 of 16 pods placed; 8 of 8 GPUs in use" in said
    said = walk.step("4.", within_s=1500)
    assert '"--max-num-seqs=256","--max-num-batched-tokens=8192"' in said
    instances = instances_of(cluster, *REPLICAS)
    assert len(instances) == len(used_node(node).instances) == 16
    assert kv_cache_tokens(cluster) == [KV_CACHE_BYTES // 512] * REAL
    walk.step("5.")
    keep_instances_busy(cluster, instances, memory_mib=30_000)
    said = walk.step("6.")
    assert re.search(r"checks_succeeded\S*: 100\.00%", said), said[-3000:]
    prometheus = Prometheus(cluster)
    answered_by = prometheus.instant('sum by (pod) (vllm:request_success_total{finished_reason="length"}) > 0')
    assert len(answered_by) == REAL
    empty = {board: prometheus.empty_panels(board, node.name) for board in DASHBOARDS}
    empty["nvidia"] = prometheus.empty_panels_of_nvidia()
    sys.stdout.write(f"panels without series: {empty}\n")
    assert {board: empty[board] - NOT_WITH_VLLM for board in ("fleet", "nodes", "serving", "nvidia")} == {
        "fleet": set(),
        "nodes": set(),
        "serving": set(),
        "nvidia": {"GPU Utilization"},
    }, "under MIG the driver says no utilization, and of all else there is something"
    if pictures := os.environ.get("TESSERA_PICTURES"):
        draw(prometheus, Path(pictures) / "vllm-on-3g40gb.svg", 180)
    assert re.search(r"^\{\} => 16 @", walk.step("7."), re.MULTILINE)
    walk.step("Undo")
    walk.ended()


def kv_cache_tokens(cluster: Cluster) -> list[int]:
    """Return what vLLM itself logs about its KV cache, in each replica in which it runs.

    Of this model a token takes 512 bytes, as `tessera size` counts: 2 layers x 2 x 2 KV heads x 32 x 2 bytes.
    """
    said = cluster.kubectl("logs", *REPLICAS, "--tail=-1", "--max-log-requests=16")
    return [int(each.replace(",", "")) for each in re.findall(r"KV cache size: ([\d,]+) tokens", said)]


def instances_of(cluster: Cluster, *selection: str) -> dict[str, str]:
    """Return the MIG device of each running pod by the pod's UID, as containers and driver show it: one for each."""
    driver, alive = used_node(cluster.nodes[0]), living(cluster.cgroup)
    uids = {each["metadata"]["uid"] for each in cluster.get("pods", *selection)["items"]}
    pods = {key: each for key, each in alive.items() if each.pod_uid in uids}
    found = [*containers_of(pods, lambda each, _: Container(each.node, each.pod_uid, each.id, asked_devices=1))]
    assert judged(driver, found) == []
    used = {each.pod: uses_of(each, driver) for each in found}
    assert [len(each) for each in used.values()] == [1] * len(used)
    devices = {pod: one.device for pod, (one,) in used.items()}
    assert {*devices.values()} <= {each.uuid for each in driver.instances}
    assert len({*devices.values()}) == len(devices)
    return devices


def test_memory_shares(two_a100s: Cluster, helm_folder: Path, tmp_path: Path) -> None:
    published = Path(os.environ.get("TESSERA_GPUSHARE", tmp_path))
    walk = Walk("walkthroughs/memory-shares", two_a100s, tmp_path, (helm_folder, published), chart_values())
    walk.step("1.")
    assert re.search(r" 20/39 +25/39 +45/78\n", walk.step("2."))
    said = " ".join(walk.step("3.").split())
    assert "25 GiB requested, at most 19.4 GiB free on one GPU (GPU 0)" in said
    if published != tmp_path:
        of_gpushare(two_a100s, walk, published)
    said = walk.step("4.")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M" in said

    def limits() -> int:  # a container is ready before it has written
        return two_a100s.kubectl("logs", "-l", "app=guarded").count("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M")

    until("both limits", lambda: limits() == 2, timeout_s=_S)
    take_page(two_a100s, "memory-shares.png", height=320)
    assert re.search(r"MPS +16/39.4 GiB", said)
    assert re.search(r"memory share +20/39.4 GiB", said)
    walk.step("Undo")
    walk.ended()


def of_gpushare(cluster: Cluster, walk: Walk, published: Path) -> None:
    """Run gpushare's samples unchanged, and compare its own client with Tessera's table.

    The three that fit are on the GPU with the least room. The fourth requests MiB where these are GiB.
    """
    (node,) = cluster.nodes
    ctr = (str(cluster.bin / "ctr"), "--address=/run/containerd/containerd.sock", "--namespace=k8s.io")
    node.run(*ctr, "images", "tag", "--force", PAUSE, "docker.io/cheyang/gpu-player:v2")  # which only waits
    samples = published / "samples"
    walk.run("gpushare's samples", f"kubectl apply -f {samples}\n")
    names = " ".join(f"deployment/binpack-{number}" for number in (1, 2, 3))
    walk.run("three of them run", f"kubectl rollout status {names} --timeout=180s\n")
    tables = [walk.run("a table", f"{each}\n") for each in ("kubectl inspect gpushare", "tessera inspect -o gpushare")]
    theirs, ours = ([line.split() for line in table.splitlines() if line.strip(" -")] for table in tables)
    assert theirs == ours
    assert re.search(r" (26/39 +25/39|25/39 +26/39) +51/78", tables[0])
    assert "no GPU of the node can provide 16276 GiB" in " ".join(
        walk.run(
            "the fourth",
            "tessera explain pod $(kubectl get pods -l app=binpack-4 -o jsonpath='{.items[0].metadata.name}')\n",
        ).split()
    )
    walk.run("gpushare's samples go", f"kubectl delete -f {samples}\n")


FEW_S = 15.0
"""Within which a command runs whose image and data are on the node; on a quiet machine it takes four."""


def containers(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    """Return the status of the running containers of a Job of the team."""
    pods = cluster.get("pods", "--namespace=team-a", f"--selector=job-name={job}")["items"]
    found = [each for pod in pods for each in pod["status"]["containerStatuses"]]
    return [each for each in found if "running" in each["state"]]


@pytest.mark.long
def test_team_gpu_cloud(
    two_a100s_of_a_team: Cluster,
    real_registry: RealRegistry,
    begin: Callable[..., Walk],
    kueue_folder: Path,
    tmp_path: Path,
) -> None:
    """A member of one namespace, whose image and data are on the node when registry and bucket have gone."""
    cluster = two_a100s_of_a_team
    node, bucket = cluster.nodes[0], cluster.folder / "bucket"
    assert not lack(), f"the data is in a Ceph: apt-get install {lack()}"
    values = chart_values()
    runtime = str(node.folder / "containerd")  # so it does not see how full the disk of the images is
    values["agent"]["volumes"].append({"name": "runtime", "hostPath": {"path": runtime}})
    values["agent"]["volumeMounts"].append({"name": "runtime", "mountPath": runtime, "readOnly": True})
    kueue_chart(tmp_path / "kueue", kueue_folder / "charts" / "kueue")
    walk = begin("team-gpu-cloud", cluster, values)
    walk.step("1.")
    assert walk.step("2.").endswith("no\n")
    real_registry.push_archive(cluster.folder / "images" / "busybox.tar", "tools/shell", "1")
    with serve_on(node, real_registry, REGISTRY_PORT), ceph_bucket(node, cluster.folder / "ceph", bucket):
        assert "commands and scripts" in walk.step("3.")
    lines = walk.step("4.").splitlines()
    assert {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=10240M"} <= {*lines}
    assert "digits of the team" in lines
    first, second, uploaded, fetched, size = lines[-5:]
    assert first == second == uploaded, "what Ceph was given, after it has gone"
    assert (fetched, int(size)) == ("1", (16 << 20) + len("digits of the team")), "fetched once for all Jobs"
    took = re.search(r"^real\s+(\d+)m([\d.]+)s$", walk.errors, re.MULTILINE)
    assert took, walk.errors
    assert 60 * int(took[1]) + float(took[2]) < FEW_S
    assert re.search(r"memory share +20/39.4 GiB", walk.step("5."))
    gpu, processes = keep_busy(cluster, "team-a", noisy=93, quiet=4)
    blamed = r"thermal, caused by team-a/noisy-\w+(/main)?; slowed down: team-a/quiet-"
    until("the noisy one is named", lambda: re.search(blamed, top(cluster)) is not None, timeout_s=_S)
    said = walk.step("6.")
    assert re.search(blamed, " ".join(said.split()))
    assert re.search(r"^noisy: uses GPU \d: 4 GiB of 10 GiB, 93 % busy$", said, re.MULTILINE)
    take_page(cluster, "team-gpu-cloud.png", height=360)
    let_go(cluster, gpu, processes)
    said = walk.step("7.")
    assert re.search(r"3g\.20gb noisy-", said), "10 GiB are more than a 2g.10gb has"
    assert re.search(r"memory share +10/39.4 GiB", said)
    assert [each["restartCount"] for each in containers(cluster, "quiet")] == [0], "it keeps running"
    said = walk.step("8.")
    assert re.search(r"MPS +30/39.4 GiB", said)
    waits = "pending in queue default: .*insufficient unused quota for tessera.dev/gpu-memory in flavor gpus, 10 more"
    assert re.search(f"large: Queued: {waits}", said)
    for kind, quota in (("ClusterQueue", "team-a"), ("ResourceQuota", "team-a/gpus")):
        assert re.search(rf'^tessera_quota_used.*kind="{kind}".*quota="{quota}".*gpu-memory.* 40', said, re.MULTILINE)
    walk.step("Undo")
    walk.ended()
