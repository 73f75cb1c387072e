"""What the documentation shows is read as it says."""

import re
from pathlib import Path

import pytest

from builders.nodefacts import gpu
from tessera.api import documents
from tessera.api.kubernetes import workloads
from tessera.api.kubernetes.labeledgpus import MODEL_LABELS
from tessera.api.kubernetes.podspecs import MEMORY_UNIT
from tessera.api.nvidia import sharingconfig
from tessera.api.tessera.cluster import fleets
from tessera.api.tessera.node import nodepolicy
from tessera.core.workload.tesseranames import GPU_MODEL, ISOLATION

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def blocks(page: str) -> list[str]:
    found: list[str] = BLOCK.findall((DOCS / page).read_text())
    assert found
    return found


@pytest.mark.parametrize("text", blocks("requests.md"))
def test_requests_that_are_shown_are_read(text: str) -> None:
    got = workloads.read(documents.read("requests.md", text))
    assert got.pods
    assert (got.left_out, got.notes) == ((), ())
    assert all(pod.need.requests for pod in got.pods)


@pytest.mark.parametrize("text", blocks("fleet.md"))
def test_fleets_that_are_shown_are_read(text: str) -> None:
    got = fleets.read(documents.read("fleet.md", text))
    assert all(node.gpus for node in got.nodes)
    assert got.notes == ()


def test_sharing_files_that_are_shown_are_read() -> None:
    config, policy = blocks("sharing.md")[:2]
    assert len(sharingconfig.read(documents.read("sharing.md", config)[0]).entries) == 3
    gpus = (gpu(0), *(gpu(index, "A100-40GB") for index in (1, 2, 3)), gpu(4, "L4"))
    said = nodepolicy.read(documents.read("sharing.md", policy)[0], gpus)
    assert len(said.policies) == 5
    assert said.ignored == ()


@pytest.mark.parametrize("name", [GPU_MODEL, ISOLATION, MEMORY_UNIT])
def test_annotations_are_documented(name: str) -> None:
    assert f"`{name}`" in (DOCS / "requests.md").read_text()


@pytest.mark.parametrize("name", MODEL_LABELS)
def test_labels_are_documented(name: str) -> None:
    assert f"`{name}`" in (DOCS / "fleet.md").read_text()
