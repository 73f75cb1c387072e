"""The pages of docs/walkthroughs, walked from the chart on: their own commands, and what they show."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from kube.modelstore import put, serve_bucket, small_disk
from kube.walking import Walk, chart_values, without_tessera
from testbed.__main__ import building
from testbed.cluster import Cluster, Desired
from testbed.deploy import NAMESPACE
from testbed.processes import until
from testbed.programs import HELM, PROXY, programs
from testbed.services import start_proxy
from testbed.tesseraimage import triton_image

Begin = Callable[[str], Walk]
_S = 180
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def helm_folder(pytestconfig: pytest.Config) -> Path:
    """Return the folder of the real Helm, building it the first time; the build is shown."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), building(Console(stderr=True)) as report:
        return programs(report, modules=HELM)


@pytest.fixture
def proxy_folder(pytestconfig: pytest.Config) -> Path:
    """Return the folder of kube-proxy, building it the first time; the build is shown."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None
    with capture.global_and_fixture_disabled(), building(Console(stderr=True)) as report:
        return programs(report, modules=PROXY)


@pytest.fixture
def three_nodes(program_folder: Path, proxy_folder: Path) -> Iterator[Cluster]:
    with without_tessera("walk-b", program_folder, Desired(nodes=3, gpus=("1xA100-40GB",))) as cluster:
        for node in cluster.nodes:
            start_proxy(node, cluster.pki.folder / "inside.kubeconfig", proxy_folder / "kube-proxy")
            node.import_image(triton_image(lambda _: None))
        yield cluster


@pytest.fixture
def two_a100s(program_folder: Path) -> Iterator[Cluster]:
    with without_tessera("walk-d", program_folder, Desired(nodes=1, gpus=("2xA100-40GB",))) as cluster:
        yield cluster


@pytest.fixture
def eight_h100s(program_folder: Path) -> Iterator[Cluster]:
    with without_tessera("walk-a", program_folder, Desired(nodes=2, gpus=("8xH100-80GB",))) as cluster:
        yield cluster


@pytest.mark.long
def test_models_on_nvme(
    eight_h100s: Cluster, helm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model changes while 56 pods read it; the four that follow read the new one."""
    bucket, node = eight_h100s.folder / "bucket", eight_h100s.nodes[0]
    put(bucket, "llama", config="one", weights="one")
    serve_bucket(node, bucket)
    small_disk(node, "/var/lib/tessera/disk")
    monkeypatch.setenv("KEY", "key")
    monkeypatch.setenv("SECRET", "secret")
    values = chart_values()
    # The first process here is not the node's, as `/proc/1/root` expects; the state folder is in the agent's pod too.
    values["agent"]["args"] = ["--host-root=/", "--model-dir=/var/lib/tessera/disk/models"]
    walk = Walk("walkthroughs/models-on-nvme", eight_h100s, tmp_path, (helm_folder,), values)
    walk.step("1.")
    walk.step("2.")
    walk.step("3.")
    assert walk.step("4.").count("Pending") == 4
    put(bucket, "llama", config="two", weights="two")
    assert re.findall(r"^ *(\d+) (.*)$", walk.step("5."), re.MULTILINE) == [("1680", "whole one"), ("120", "whole two")]
    walk.step("Undo")
    walk.ended()


@pytest.mark.long
def test_triton_on_mig(
    three_nodes: Cluster, helm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real Triton, a real HorizontalPodAutoscaler and a real kube-proxy; no client is ever failed."""
    bucket = three_nodes.folder / "bucket"
    shutil.copytree(EXAMPLES / "9-model-servers" / "sleeper", bucket / "sleeper")
    serve_bucket(three_nodes.nodes[0], bucket)
    for node in three_nodes.nodes:
        small_disk(node, "/var/lib/tessera/disk")
    monkeypatch.setenv("KEY", "key")
    monkeypatch.setenv("SECRET", "secret")
    values = chart_values()
    values["agent"]["args"] = ["--host-root=/", "--model-dir=/var/lib/tessera/disk/models"]
    walk = Walk("walkthroughs/triton-on-mig", three_nodes, tmp_path, (helm_folder,), values)
    walk.step("1.")
    walk.step("2.")
    walk.step("3.")
    assert answered(walk.step("4.")) > 10_000
    assert answered(walk.step("5.", within_s=2400)) > 1_000
    assert answered(walk.step("6.")) > 1_000
    walk.step("Undo")
    walk.ended()


def answered(said: str) -> int:
    """Return how many requests of the clients were answered, of which none may have failed."""
    found = re.search(r"^(\d+) answered, .*, 0 failed$", said, re.MULTILINE)
    assert found, said[-2000:]
    return int(found[1])


def test_memory_shares(two_a100s: Cluster, helm_folder: Path, tmp_path: Path) -> None:
    walk = Walk("walkthroughs/memory-shares", two_a100s, tmp_path, (helm_folder,), chart_values())
    walk.step("1.")
    assert re.search(r" 20/39 +25/39 +45/78\n", walk.step("2."))
    said = " ".join(walk.step("3.").split())
    assert "25 GiB requested, at most 19.4 GiB free on one GPU (GPU 0)" in said
    said = walk.step("4.")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M" in said

    def limits() -> int:  # a container is ready before it has written
        return two_a100s.kubectl("logs", "-l", "app=guarded").count("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M")

    until("both limits", lambda: limits() == 2, timeout_s=_S)
    assert re.search(r"MPS +16/39.4 GiB", said)
    assert re.search(r"memory share +20/39.4 GiB", said)
    walk.step("Undo")
    walk.ended()
    pods = ("pods", f"--namespace={NAMESPACE}")
    until("no pod of Tessera", lambda: not two_a100s.get(*pods)["items"], timeout_s=_S)
