"""Clusters as people have them, one file each in tests/data/clusters: every one gives a plan or an error with a fix."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from tessera.cli import main

CLUSTERS = Path(__file__).parents[1] / "data" / "clusters"


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What is desired of a cluster's plan."""

    gpus: dict[str, int]
    """Number of GPUs by model and MiB."""
    placed: tuple[str, ...] = ()
    """Pods placed by the plan, each with node, GPUs and mode."""
    pending: dict[str, str] = {}
    """Words of the reason by pod."""
    guessed: tuple[str, ...] = ()
    """Nodes whose GPU indices are guesses."""
    skipped: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    """Words of notes and warnings."""


WANT = {
    "aks-mig-profile": Want(
        gpus={"A100-80GB 81920": 1},
        placed=("one aks-mig-vmss000000 [0] mig",),
        guessed=("aks-mig-vmss000000",),
    ),
    "aks-parts-of-a-gpu": Want(
        gpus={"A10 3814": 1, "A10 7629": 1},
        placed=("small aks-nv-vmss000000 [0] mps",),
        pending={"large": "1 x A10 of 3814 MiB"},
    ),
    "aks-without-discovery": Want(
        gpus={"A100-80GB 81920": 1, "H100-80GB 81559": 8, "T4 15360": 1},
        placed=("one aks-gpu-3-vmss000000 [0] whole",),
    ),
    "bare-metal-plugin-only": Want(
        gpus={"RTX-4090 24564": 2},
        placed=("four gpu-1 [0, 1] whole",),
        pending={"more": "the node's GPUs are unknown: "},
        skipped=("gpu-2",),
        told=("gpu-2 is left out", "--gpu-model gpu-2=MODEL"),
    ),
    "dra-driver": Want(
        gpus={"H100-80GB 81559": 2},
        placed=("one gpu-2 [0] whole",),
        pending={"waits": "single-gpu is a name of dynamic resource allocation, which Tessera does not read"},
        told=("gpu-1: it is labeled nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3 but advertises no GPU",),
    ),
    "eks-managed-nodes": Want(
        gpus={"A10G 23028": 4, "T4 15360": 1},
        placed=("next ip-10-0-0-12 [0] whole",),
        guessed=("ip-10-0-0-11",),
        told=("ip-10-0-0-11: the GPUs of running pods are not recorded",),
    ),
    "eks-time-slicing-without-discovery": Want(
        gpus={"T4 15360": 4}, placed=("notebook ip-10-0-0-21 [0] time-slicing",)
    ),
    "fake-gpu-operator": Want(
        gpus={"A100-40GB 40960": 2},
        placed=("one kind-worker [0] whole", "slice kind-worker [1] mig"),
    ),
    "finished-and-ending-pods": Want(
        gpus={"T4 15360": 4},
        pending={"one": "4 GPUs are allocated"},
        guessed=("gpu-1",),
        told=("gpu-1: the GPUs of running pods are not recorded",),
    ),
    "gke-autopilot-new-machine": Want(
        gpus={"B200-180GB 183359": 8, "RTX-PRO-6000-Blackwell-96GB 97887": 2},
        placed=("one gke-g4-1 [0] whole",),
    ),
    "gke-partitions": Want(gpus={"H100-80GB 81559": 8}, placed=("slice gke-a3-1 [0] mig",)),
    "gke-parts-of-a-gpu": Want(
        gpus={"RTX-PRO-6000-Blackwell-96GB 22888": 1},
        placed=("small gke-g4-1 [0] mps",),
        pending={"slice": "1 x RTX-PRO-6000-Blackwell-96GB without MIG"},
    ),
    "gke-time-sharing-and-mps": Want(
        gpus={"L4 23034": 1, "T4 15360": 2},
        placed=("shared gke-t4-1 [0] mps",),
    ),
    "gpushare": Want(
        gpus={"unknown 15360": 2},
        placed=("fits gpu-1 [0] memory-share",),
        pending={"too-large": "2 x unknown of 15360 MiB shared as memory-share"},
    ),
    "gpushare-mib": Want(gpus={"T4 15110": 4}, placed=("fits gpu-1 [0] memory-share",)),
    "grace-hopper": Want(
        gpus={"GB200-186GB 189471": 4, "H100-96GB 97871": 1},
        placed=("one gh-1 [0] whole",),
        pending={"five": "5 x nvidia.com/gpu requested", "intel": "has no label kubernetes.io/arch=amd64"},
    ),
    "hami": Want(
        gpus={"A100-40GB 40960": 2},
        placed=("one gpu-1 [0] whole",),
        pending={"two": "no room for nvidia.com/gpu"},
    ),
    "hami-older": Want(gpus={"T4 15360": 2}, placed=("one gpu-1 [0] whole",), pending={"two": "1 GPU is allocated"}),
    "kai-fractions": Want(
        gpus={"A100-80GB 81920": 2},
        placed=("one gpu-1 [1] whole",),
        pending={"quarter": "gpu-fraction is a name of KAI", "two": "no room for nvidia.com/gpu"},
        guessed=("gpu-1",),
        told=("gpu-1: the GPUs of running pods are not recorded",),
    ),
    "karpenter-eks": Want(
        gpus={"A100-40GB 40960": 8, "A100-80GB 81920": 8, "H100-80GB 81559": 8, "L4 23034": 1},
        placed=("whole ip-10-0-0-34 [0] whole",),
    ),
    "karpenter-parts-of-a-gpu": Want(
        gpus={"L4 5722": 1, "L4 11444": 1},
        placed=("small ip-10-0-0-41 [0] mps",),
        pending={"large": "1 x L4 of 5722 MiB"},
    ),
    "karpenter-unknown-gpu": Want(
        gpus={"L4 23034": 4},
        placed=("one ip-10-0-0-52 [0] whole",),
        skipped=("ip-10-0-0-51",),
        told=("'x900' is not a GPU model that Tessera knows", "--gpu-model ip-10-0-0-51=MODEL"),
    ),
    "koordinator": Want(
        gpus={"T4 15360": 1},
        placed=("one gpu-2 [0] whole",),
        pending={"next": "koordinator.sh/gpu is a name of Koordinator"},
        skipped=("gpu-1",),
        told=("--gpu-model gpu-1=MODEL",),
    ),
    "kubevirt-passthrough": Want(
        gpus={"A10 23028": 2},
        placed=("one gpu-1 [0] whole",),
        pending={"vm-next": "the node has no GPU (vm-host)"},
    ),
    "lost-gpu": Want(
        gpus={"L40S 46068": 4},
        placed=("whole gpu-1 [0] whole",),
        pending={"three": "3 x nvidia.com/gpu requested, 2 free"},
        guessed=("gpu-1",),
        told=("1 of its 4 GPUs is not offered (3 allocatable of 4)", "the lost GPUs are not recorded"),
    ),
    "lost-instance": Want(
        gpus={"A100-40GB 40960": 1},
        placed=tuple(f"slice-{number} gpu-1 [0] mig" for number in range(6)),
        pending={"slice-6": "1 GPU is allocated"},
        told=("1 of its 7 instances 1g.5gb is not offered (6 allocatable of capacity 7)",),
    ),
    "no-device-plugin": Want(
        gpus={"A10G 23028": 1},
        placed=("one ip-10-0-0-62 [0] whole",),
        pending={"two": "the node has no GPU (ip-10-0-0-61)"},
        told=("ip-10-0-0-61: it is labeled node.kubernetes.io/instance-type=g5.xlarge but advertises no GPU",),
    ),
    "no-gpus": Want(gpus={}, pending={"one": "the node has no GPU (cpu-1)"}),
    "nos-mps": Want(
        gpus={},
        pending={
            "next": "nvidia.com/gpu-10gb is a name of nos, which Tessera does not read: request tessera.dev/gpu-memory"
        },
        told=("gpu-1: it is labeled nvidia.com/gpu.product=NVIDIA-A100-PCIE-40GB but advertises no GPU",),
    ),
    "not-ready-and-cordoned": Want(
        gpus={"T4 15360": 4},
        placed=("one gpu-4 [0] whole",),
        pending={"two": "the pod does not tolerate the taint node.kubernetes.io/not-ready"},
    ),
    "oke": Want(gpus={"A10 23028": 2, "A100-40GB 40960": 8}, placed=("one 10.0.10.12 [0] whole",)),
    "operator-mig-invalid": Want(
        gpus={"T4 15360": 1},
        placed=("one gpu-2 [0] whole",),
        told=("gpu-1: it is labeled nvidia.com/gpu.product=NVIDIA-A100-SXM4-40GB-MIG-INVALID but advertises no GPU",),
    ),
    "operator-mig-mixed": Want(
        gpus={"A100-40GB 40960": 4},
        placed=("slice gpu-1 [0] mig",),
        guessed=("gpu-1",),
        told=("labels do not show which GPU has which MIG instances",),
    ),
    "operator-mig-single": Want(gpus={"A100-40GB 40960": 2}, placed=("slice gpu-1 [0] mig",)),
    "operator-mig-time-sliced": Want(gpus={"A100-80GB 81920": 1}, placed=("shared gpu-1 [0] mig-time-slicing",)),
    "operator-mps": Want(gpus={"L4 23034": 1}, placed=("shared gpu-1 [0] mps",)),
    "operator-time-slicing-renamed": Want(gpus={"T4 15360": 2}, placed=("shared gpu-1 [0] time-slicing",)),
    "operator-whole-gpus": Want(
        gpus={"H100-80GB 81559": 8},
        placed=("slice gpu-1 [6] mig",),
        guessed=("gpu-1",),
        told=("run `tessera agent` there",),
    ),
    "other-vendors": Want(
        gpus={"L40S 46068": 2},
        placed=("one gpu-1 [0] whole",),
        pending={"amd-next": "amd.com/gpu is a device of AMD", "tpu": "google.com/tpu is a device of Google's TPUs"},
    ),
    "volcano-vgpu": Want(
        gpus={"T4 15360": 1},
        placed=("one gpu-2 [0] whole",),
        pending={"next": "volcano.sh/vgpu-memory is a name of Volcano, which Tessera does not read"},
    ),
    "windows-and-virtual-nodes": Want(
        gpus={"T4 15360": 1},
        placed=("one aks-gpu-1-vmss000000 [0] whole",),
        pending={"two": "does not tolerate the taint sku=gpu:NoSchedule"},
        skipped=("virtual-node-aci-linux",),
        told=("--gpu-model virtual-node-aci-linux=MODEL",),
    ),
}
NO_JSON = "an object with apiVersion and kind: kubectl prints objects with -o yaml or -o json"
REFUSED = {
    "not-saved-as-json": NO_JSON,
    "pods-only": "it has no node: write nodes: in a fleet file, or Node objects, as in kubectl get nodes,pods",
    "unknown-gpus-only": "GPUs of an unknown model: set the label "
    "tessera.dev/gpu-model=MODEL, or pass --gpu-model gpu-1=MODEL",
    "vgpu-guests": "GPU model: 'NVIDIA-A16-16Q' is not a GPU model that Tessera knows: use T4, L4",
}
WITHOUT_USAGE = {
    "not-saved-as-json": NO_JSON,
    "pods-only": "use the output of `kubectl get nodes,pods,gpunodes -A -o json`",
}
UNKNOWN = {"unknown-gpus-only": {"gpu-1"}, "vgpu-guests": {"vm-1", "vm-2"}}
"""Nodes whose GPUs are not known, of clusters without a plan."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def path(name: str) -> str:
    return str(CLUSTERS / f"{name}.yaml")


def test_every_recorded_cluster_is_tried() -> None:
    assert {each.stem for each in CLUSTERS.glob("*.yaml")} == {*WANT, *REFUSED}


@pytest.mark.parametrize("name", WANT)
def test_a_recorded_cluster_gives_a_plan(name: str) -> None:
    want = WANT[name]
    result = run("--fleet", path(name), "-o", "json")
    assert result.exit_code == 0, result.output
    made: dict[str, Any] = msgspec.json.decode(result.stdout)
    assert Counter(f"{each['model']} {each['memory_mib']}" for each in made["layouts"]) == want.gpus
    assert tuple(map(placed, made["assignments"])) == want.placed
    assert {each["pod"].removeprefix("default/") for each in made["pending"]} == set(want.pending)
    for each in made["pending"]:
        assert want.pending[each["pod"].removeprefix("default/")] in each["reason"]
    assert tuple(sorted({each["node"] for each in made["layouts"] if each["guessed"]})) == want.guessed
    assert all(
        device.get("guessed", False) == (each["node"] in want.guessed)
        for each in made["assignments"]
        for device in each["devices"]
    )
    assert tuple(made["skipped"]) == want.skipped
    told = "\n".join((*made["notes"], *made["warnings"]))
    assert [words for words in want.told if words not in told] == []


@pytest.mark.parametrize("name", sorted({*WANT, *UNKNOWN}))
def test_the_usage_of_a_recorded_cluster_is_shown(name: str) -> None:
    result = CliRunner().invoke(main, ["inspect", "-o", "gpushare", "--cluster", path(name)])
    assert result.exit_code == 0, result.output
    sums = [(int(used), int(total)) for used, total in re.findall(r"\b(\d+)/(\d+)\b", result.stdout)]
    assert sums
    assert all(used <= total for used, total in sums)
    unknown = UNKNOWN.get(name) or {*WANT[name].skipped}
    rows = [line.split() for line in result.stdout.splitlines()]
    assert {row[0] for row in rows if row and row[-1] == "?/?"} == unknown
    assert all(f"note: node {node}: " in result.stderr for node in unknown)


def placed(assignment: dict[str, Any]) -> str:
    gpus = [device["gpu"] for device in assignment["devices"]]
    (mode,) = {device["mode"] for device in assignment["devices"]}
    return f"{assignment['pod'].removeprefix('default/')} {assignment['node']} {gpus} {mode}"


@pytest.mark.parametrize("name", WITHOUT_USAGE)
def test_what_is_no_cluster_has_no_usage_but_an_error_that_says_what_to_do(name: str) -> None:
    result = CliRunner().invoke(main, ["inspect", "-o", "gpushare", "--cluster", path(name)])
    assert result.exit_code == 2
    assert WITHOUT_USAGE[name] in result.stderr


@pytest.mark.parametrize("name", REFUSED)
def test_a_recorded_cluster_of_which_nothing_is_known_is_an_error_that_says_what_to_do(name: str) -> None:
    result = run("--fleet", path(name))
    assert result.exit_code == 2
    assert REFUSED[name] in result.stderr


def test_what_is_left_out_and_guessed_stands_in_the_table_and_the_closing_line() -> None:
    left_out = " ".join(run("--fleet", path("bare-metal-plugin-only")).stdout.split())
    assert "Warning: gpu-2 is left out, because its GPUs are not known" in left_out
    assert "1 node left out: GPUs not known" in left_out
    guessed = " ".join(run("--fleet", path("operator-whole-gpus")).stdout.split())
    assert "gpu-1 GPU 6?" in guessed
    assert "Warning: gpu-1: the GPUs of running pods are not recorded" in guessed


def test_the_drawing_marks_guesses_too(tmp_path: Path) -> None:
    run("--fleet", path("operator-whole-gpus"), "--draw", str(tmp_path / "plan.svg"))
    assert ">GPU 6?<" in (tmp_path / "plan.svg").read_text()


def test_explain_marks_guesses_too() -> None:
    result = CliRunner().invoke(main, ["explain", "slice", "--fleet", path("operator-whole-gpus")])
    assert "gpu-1 GPU 6?" in result.stdout


RULES = {
    "by name": "gpu-2=T4",
    "by pattern": "*-2=T4",
    "by label": "kubernetes.io/hostname=gpu-2=T4",
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_model_may_be_given(rule: str) -> None:
    made = msgspec.json.decode(run("--fleet", path("bare-metal-plugin-only"), "--gpu-model", rule, "-o", "json").stdout)
    assert Counter(each["model"] for each in made["layouts"]) == {"RTX-4090": 2, "T4": 2}
    assert made["skipped"] == []


WRONG_RULES = {
    "no node": ("gpu-9=T4", "--gpu-model gpu-9=T4: no Node object has this name, pattern or label"),
    "no model": ("gpu-2", "it names no node or no model"),
    "an unknown model": ("gpu-2=X9", "--gpu-model 'gpu-2=X9': GPU model: 'X9'"),
}


@pytest.mark.parametrize(("rule", "want"), WRONG_RULES.values(), ids=WRONG_RULES)
def test_a_rule_that_cannot_be_is_refused(rule: str, want: str) -> None:
    result = run("--fleet", path("bare-metal-plugin-only"), "--gpu-model", rule)
    assert result.exit_code == 2
    assert want in result.stderr


WRITES = {
    "GPUs that pods may use": (
        "operator-whole-gpus",
        "it is unknown which GPUs default/train-0, default/train-1 use",
    ),
    "GPUs that may be others": ("operator-mig-mixed", "it is unknown which GPU that is"),
}


@pytest.mark.parametrize(("name", "want"), WRITES.values(), ids=WRITES)
def test_no_files_partition_gpus_by_guess(name: str, want: str, tmp_path: Path) -> None:
    result = run("--fleet", path(name), "--write", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert want in result.stderr
    assert ": run `tessera agent` there, drain the node, or label it" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["eks-managed-nodes", "aks-mig-profile", "operator-mig-single"])
def test_files_that_partition_nothing_anew_are_written(name: str, tmp_path: Path) -> None:
    assert run("--fleet", path(name), "--write", str(tmp_path)).exit_code == 0
    assert (tmp_path / "node-labels.yaml").exists()


@pytest.mark.parametrize("arguments", [["explain", "four"], ["simulate", "manifests"], ["simulate", "synthetic"]])
def test_other_commands_name_nodes_whose_gpus_are_not_known(arguments: list[str]) -> None:
    result = CliRunner().invoke(main, [*arguments, "--fleet", path("bare-metal-plugin-only")])
    assert result.exit_code == 0, result.output
    assert "note: gpu-2 is left out, because its GPUs are not known: " in result.stderr
    given = CliRunner().invoke(main, [*arguments, "--fleet", path("bare-metal-plugin-only"), "--gpu-model", "gpu-2=T4"])
    assert given.exit_code == 0, given.output
    assert "left out" not in given.stderr
