"""Which GPUs a node has by its labels, and which label counts where several tell."""

import pytest

from tessera.api.documents import Document
from tessera.api.fields import Field
from tessera.api.kubernetes.labeledgpus import model_rules, read_labeled_gpus
from tessera.core.gpu.gpumodels import model
from tessera.errors import InvalidInput

OWN, GFD, GKE = "tessera.dev/gpu-model", "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"
TYPE, OLD_TYPE = "node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"


def labels(shown: dict[str, str]) -> Field:
    return Field(Document(source="nodes", number=1, data=dict(shown), first_line=1), dict(shown))


def karpenter(name: str, memory: str = "", count: str = "1", maker: str = "nvidia") -> dict[str, str]:
    told = {"name": name, "memory": memory, "count": count, "manufacturer": maker}
    return {f"karpenter.k8s.aws/instance-gpu-{key}": value for key, value in told.items() if value}


TOLD: dict[str, tuple[dict[str, str], tuple[str, int, int | None]]] = {
    "GFD before the instance type": ({TYPE: "g5.xlarge", GFD: "NVIDIA-L4"}, ("L4", 23034, None)),
    "GFD and the instance type agree": ({TYPE: "g5.12xlarge", GFD: "NVIDIA-A10G"}, ("A10G", 23028, 4)),
    "a product that is unknown beside an instance type": (
        {TYPE: "Standard_NV6ads_A10_v5", GFD: "NVIDIA-A10-4Q"},
        ("A10", 3814, 1),
    ),
    "a product that is unknown beside GKE's name": ({GFD: "NVIDIA-X", GKE: "nvidia-l4"}, ("L4", 23034, None)),
    "the owner before all": ({OWN: "T4", GFD: "NVIDIA-L4", TYPE: "g5.xlarge"}, ("T4", 15360, None)),
    "the older label of the instance type": ({OLD_TYPE: "p4d.24xlarge"}, ("A100-40GB", 40960, 8)),
    "an instance type in lower case": ({TYPE: "standard_nc24ads_a100_v4"}, ("A100-80GB", 81920, 1)),
    "one name, two models": (karpenter("v100", "32768", "8"), ("V100-32GB", 32768, 8)),
    "nominal memory is the whole GPU's": (karpenter("t4", "16384"), ("T4", 15360, 1)),
    "a quarter of a GPU": (karpenter("l4", "5722", "0"), ("L4", 5722, None)),
    "no memory told": (karpenter("h200", count="8"), ("H200-141GB", 143771, 8)),
    "an unknown name beside a known instance type": (karpenter("x9") | {TYPE: "g6.xlarge"}, ("L4", 23034, 1)),
}


@pytest.mark.parametrize(("shown", "want"), TOLD.values(), ids=TOLD)
def test_the_model(shown: dict[str, str], want: tuple[str, int, int | None]) -> None:
    got = read_labeled_gpus(labels(shown))
    assert got is not None
    assert (got.model.name, got.memory_mib, got.count) == want


KARPENTER = {
    ("t4", "16384"): "T4",
    ("t4g", "16384"): "T4G",
    ("a10g", "22888"): "A10G",
    ("l4", "22888"): "L4",
    ("l40s", "45776"): "L40S",
    ("rtx-pro-4500", "32768"): "RTX-PRO-4500-Blackwell-32GB",
    ("rtx-pro-server-6000", "98304"): "RTX-PRO-6000-Blackwell-96GB",
    ("v100", "32768"): "V100-32GB",
    ("a100", "40960"): "A100-40GB",
    ("a100", "81920"): "A100-80GB",
    ("h100", "81920"): "H100-80GB",
    ("h200", "144384"): "H200-141GB",
    ("b200", "183359"): "B200-180GB",
    ("b300", "275040"): "B300",
}
"""Every NVIDIA GPU of Karpenter on AWS, by name and memory.

Source: aws/karpenter-provider-aws at 1d927085, `website/content/en/docs/reference/instance-types.md`.
"""
GKE_NAMES = {
    "nvidia-tesla-p4": "P4",
    "nvidia-tesla-p100": "P100",
    "nvidia-tesla-v100": "V100-16GB",
    "nvidia-tesla-t4": "T4",
    "nvidia-l4": "L4",
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100-80GB",
    "nvidia-h100-mega-80gb": "H100-80GB",
    "nvidia-h200-141gb": "H200-141GB",
    "nvidia-b200": "B200-180GB",
    "nvidia-gb200": "GB200-186GB",
    "nvidia-gb300": "GB300",
    "nvidia-rtx-pro-6000": "RTX-PRO-6000-Blackwell-96GB",
}
"""Every NVIDIA GPU of GKE but the K80, which went in 2024. Source: Google Cloud documentation, GPU machine types."""


@pytest.mark.parametrize(("told", "want"), KARPENTER.items(), ids=map(" ".join, KARPENTER))
def test_all_of_karpenters_gpus_are_known(told: tuple[str, str], want: str) -> None:
    got = read_labeled_gpus(labels(karpenter(*told)))
    assert got is not None
    assert (got.model.name, got.memory_mib) == (want, got.model.memory_mib)


@pytest.mark.parametrize(("told", "want"), GKE_NAMES.items())
def test_all_of_gkes_gpus_are_known(told: str, want: str) -> None:
    got = read_labeled_gpus(labels({GKE: told}))
    assert got is not None
    assert got.model.name == want


@pytest.mark.parametrize("shown", [{}, {TYPE: "m5.large"}, karpenter("radeon-pro-v520", maker="amd")])
def test_labels_that_tell_nothing(shown: dict[str, str]) -> None:
    assert read_labeled_gpus(labels(shown)) is None


@pytest.mark.parametrize(
    ("shown", "want"),
    [
        ({OWN: "X9", GFD: "NVIDIA-L4"}, "GPU model: 'X9'"),
        ({GFD: "NVIDIA-X9", GKE: "nvidia-x9"}, "GPU model: 'NVIDIA-X9'"),
        (karpenter("a100"), "did you mean A100-40GB or A100-80GB?"),
        (karpenter("a100", "24000"), "did you mean A100-40GB or A100-80GB?"),
    ],
)
def test_a_model_that_is_not_known(shown: dict[str, str], want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_labeled_gpus(labels(shown))
    assert want in str(caught.value)


def test_what_a_person_says_counts_before_all_labels() -> None:
    got = read_labeled_gpus(labels({OWN: "T4", TYPE: "g6f.2xlarge"}), model("L4"))
    assert got is not None
    assert (got.model.name, got.memory_mib) == ("L4", 5722)


@pytest.mark.parametrize(
    ("text", "want"),
    [("gpu-1=T4", {"gpu-1"}), ("gpu-*=T4", {"gpu-1", "gpu-2"}), ("pool=a=T4", {"gpu-2"}), ("pool==T4", set())],
)
def test_the_nodes_that_a_rule_means(text: str, want: set[str]) -> None:
    (rule,) = model_rules([text])
    nodes = {"gpu-1": {"pool": "b"}, "gpu-2": {"pool": "a"}, "cpu-1": {}}
    assert {name for name, shown in nodes.items() if rule.applies(name, shown)} == want
    assert rule.model == model("T4")


@pytest.mark.parametrize("text", ["T4", "=T4", "gpu-1=", "", "gpu-1=T44"])
def test_a_rule_without_a_node_or_a_known_model_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        model_rules(["gpu-1=T4", text])
    assert str(caught.value).startswith(f"--gpu-model '{text}': ")
