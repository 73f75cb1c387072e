"""Fleets: Tessera's fleet file, the short form, and what is refused where."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.fleetfiles import OPERATORS, read
from tessera.api import documents
from tessera.api.kubernetes.labeledgpus import model_rules
from tessera.api.tessera.cluster import fleets
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Taint
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import counts_of
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.errors import InvalidInput

A100, H100 = model("A100-40GB"), model("H100-80GB")


def read_node(text: str) -> Node:
    return read(f"nodes: [{{name: a, {text}}}]").nodes[0]


def test_a_node_with_everything() -> None:
    got = read(
        """
        apiVersion: tessera.dev/v1alpha1
        kind: Fleet
        nodes:
        - name: dgx
          count: 2
          cpu: 111500m
          memory: 2000Gi
          pods: 250
          gpus:
          - 1xT4
          - {model: A100-40GB, count: 2, memory: 40000Mi, sharing: whole}
          - {model: H100-80GB, uuid: GPU-1}
          sharing: memory-share
          labels: {zone: z, kubernetes.io/arch: x}
          taints: [nvidia.com/gpu=present:NoSchedule, "x:NoExecute", {key: y, effect: PreferNoSchedule}]
        """
    )
    t4, share = model("T4"), Sharing(modes=(Mode.MEMORY_SHARE,))
    assert got.nodes[1] == Node(
        name=NodeName("dgx-1"),
        cpu_milli=111_500,
        memory_mib=2000 * 1024,
        max_pods=250,
        gpus=(
            Gpu(index=0, model=t4, memory_mib=t4.memory_mib, sharing=share),
            Gpu(index=1, model=A100, memory_mib=40_000, sharing=Sharing(modes=(Mode.WHOLE,))),
            Gpu(index=2, model=A100, memory_mib=40_000, sharing=Sharing(modes=(Mode.WHOLE,))),
            Gpu(index=3, model=H100, memory_mib=H100.memory_mib, sharing=share, uuid="GPU-1"),
        ),
        labels=(
            ("kubernetes.io/arch", "x"),
            ("kubernetes.io/hostname", "dgx-1"),
            ("kubernetes.io/os", "linux"),
            ("nvidia.com/gpu.compute.major", "8"),
            ("nvidia.com/gpu.compute.minor", "0"),
            ("nvidia.com/gpu.count", "2"),
            ("nvidia.com/gpu.family", "ampere"),
            ("nvidia.com/gpu.memory", "40960"),
            ("nvidia.com/gpu.present", "true"),
            ("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-40GB"),
            ("nvidia.com/gpu.replicas", "1"),
            ("nvidia.com/gpu.sharing-strategy", "none"),
            ("nvidia.com/mig.capable", "true"),
            ("nvidia.com/mig.strategy", "mixed"),
            ("nvidia.com/mps.capable", "false"),
            ("zone", "z"),
        ),
        taints=(
            Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),
            Taint(key="x", effect="NoExecute"),
            Taint(key="y", effect="PreferNoSchedule"),
        ),
    )


def test_a_node_with_nothing_but_a_name() -> None:
    got = read_node("count: 1")
    assert (got.name, got.gpus, got.cpu_milli, got.memory_mib, got.max_pods) == ("a-0", (), 4_096_000, 64 << 20, 110)
    assert dict(got.labels)["kubernetes.io/arch"] == "amd64"


def test_grace_nodes_are_arm() -> None:
    assert dict(read_node("gpus: 4xGB200-186GB").labels)["kubernetes.io/arch"] == "arm64"


def test_fleets_of_several_documents_are_one() -> None:
    got = read("nodes: [{name: a}]\n---\nkind: Node\nmetadata: {name: b}\n---\nkind: Service\nmetadata: {name: s}\n")
    assert [each.name for each in got.nodes] == ["a", "b"]
    assert got.notes == ("Service s is not read as part of a fleet",)


OTHERS = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plugin}
data: {config.yaml: 'version: v1', other: x}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: more}
data:
  config.yaml: |
    version: v1
    mig-configs:
      half-half: [{devices: all, mig-enabled: false}]
      all-1g.5gb:
      - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 3}}
"""


def instances(text: str) -> list[list[str]]:
    """Return the layout of each GPU of each node: its profiles, or the mode of one without."""
    return [
        [
            ", ".join(f"{count} x {name}" for name, count in counts_of(gpu.model, gpu.sharing.layout))
            if gpu.sharing.layout is not None
            else gpu.sharing.modes[0].value
            for gpu in each.gpus
        ]
        for each in read(text).nodes
    ]


def test_configurations_are_those_of_the_operators_config_map() -> None:
    fleet = """
nodes:
- {name: a, gpus: [2xA100-40GB, T4], sharing: {mig: half-half}}
- {name: b, gpus: [T4, {model: A100-40GB, sharing: {mig: half-half}}]}
- {name: c, gpus: A100-40GB, sharing: {mig: all-1g.5gb}}
- {name: d, gpus: A100-40GB, sharing: {mig: all-2g.10gb}}
"""
    assert instances(fleet + OPERATORS) == [
        ["2 x 1g.5gb, 1 x 2g.10gb", "whole", "whole"],
        ["whole", "whole"],
        ["3 x 1g.5gb"],  # the ConfigMap's comes before the one that mig-parted names
        ["3 x 2g.10gb"],
    ]
    assert read(fleet + OPERATORS).notes == ()


def test_a_configuration_that_no_config_map_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"'half' is not a MIG configuration of A100-40GB: .*half-half"):
        read("nodes: [{name: a, gpus: A100-40GB, sharing: {mig: half}}]" + OPERATORS)
    with pytest.raises(InvalidInput, match=r"sharing.mig: configuration half-half, GPU 0 \(H100-80GB\): '1g.5gb'"):
        read("nodes: [{name: a, gpus: H100-80GB, sharing: {mig: half-half}}]" + OPERATORS)


def test_a_configuration_of_two_config_maps_that_differ_is_not_read() -> None:
    got = read("nodes: [{name: a, gpus: A100-40GB, sharing: {mig: all-1g.5gb}}]" + OPERATORS + OTHERS)
    assert counts_of(got.nodes[0].gpus[0].model, got.nodes[0].gpus[0].sharing.layout or ()) == (("1g.5gb", 3),)
    assert got.notes == (
        "MIG configuration half-half is not read: two ConfigMaps differ on it",
        "ConfigMap plugin is not read as part of a fleet",
    )


SHORT = {
    "eight GPUs": ("8xH100-80GB", (8, "H100-80GB")),
    "one GPU": ("T4", (1, "T4")),
    "spaces and another name": (" 2 X nvidia-tesla-a100 ", (2, "A100-40GB")),
}


@pytest.mark.parametrize(("text", "want"), SHORT.values(), ids=SHORT)
def test_the_short_form_is_one_node(text: str, want: tuple[int, str]) -> None:
    (got,) = fleets.short([text])
    assert (got.name, got.cpu_milli, got.max_pods) == ("node-0", 4_096_000, 12_288)
    assert (len(got.gpus), got.gpus[0].model.name) == want
    assert [gpu.index for gpu in got.gpus] == list(range(len(got.gpus)))


SEVERAL = {
    "four nodes of eight": (["4x(8xH100-80GB)"], [8, 8, 8, 8]),
    "spaces": ([" 2 x ( T4 ) "], [1, 1]),
    "one in brackets": (["(8xT4)"], [8]),
    "several kinds": (["2x(4xL4)", "T4", "2xT4"], [4, 4, 1, 2]),
    "none": ([], []),
}


@pytest.mark.parametrize(("texts", "want"), SEVERAL.values(), ids=SEVERAL)
def test_short_forms_are_nodes_numbered_through(texts: list[str], want: list[int]) -> None:
    got = fleets.short(texts)
    assert [len(each.gpus) for each in got] == want
    assert [each.name for each in got] == [f"node-{n}" for n in range(len(want))]
    assert [dict(each.labels)["kubernetes.io/hostname"] for each in got] == [each.name for each in got]


SHORT_REFUSED = {
    "no node": ("0x(8xT4)", "1 to 100000 nodes"),
    "too many nodes": ("100001x(T4)", "1 to 100000 nodes"),
    "brackets in brackets": ("2x(2x(T4))", "H100-80GB"),
    "nothing in brackets": ("2x()", "1 to 256"),
    "no model": ("8x", "GPU model: '8x' is not a GPU model"),
    "no GPU": ("0xT4", "--gpus '0xT4': '0xT4' is not 1 to 256 GPUs of a model: 8xH100-80GB"),
    "too many": ("257xT4", "1 to 256 GPUs of a model"),
    "nothing": ("", "--gpus '': '' is not 1 to 256"),
    "fewer than no GPU": ("-8xT4", "'-8xT4' is not 1 to 256 GPUs of a model"),
    "more than can be counted": ("99999999999xT4", "'99999999999xT4' is not 1 to 256 GPUs of a model"),
    "many more": (f"1{'0' * 30}xT4", "xT4' is not 1 to 256 GPUs of a model"),
    "an unknown model": ("8xH1000", "--gpus '8xH1000': GPU model: 'H1000' is not a GPU model that Tessera"),
}


@pytest.mark.parametrize(("text", "want"), SHORT_REFUSED.values(), ids=SHORT_REFUSED)
def test_a_bad_short_form_is_refused(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fleets.short([text])
    assert want in str(caught.value)


REFUSED = {
    "nothing": ("", "fleet: it has no node"),
    "an empty fleet": ("nodes: []\n", "fleet.yaml, document 1, line 1: it has no node"),
    "no name": ("nodes: [{cpu: 1}]\n", "nodes[0].name: it is missing: write a"),
    "a bad name": ("nodes: [{name: ../a}]\n", "'../a' is not a name of lower-case letters"),
    "an unknown field": (
        "nodes: [{name: a, gpu: 1}]\n",
        "nodes[0].gpu: it is an unknown field: remove it, or write one of name",
    ),
    "an unknown field of the fleet": ("nodes: []\nx: 1\n", "x: it is an unknown field"),
    "another version": ("apiVersion: v1\nkind: Fleet\nnodes: []\n", "apiVersion: 'v1' is not one of the words"),
    "a name twice": ("nodes: [{name: a}, {name: a}]\n", "node a is there twice: name each once"),
    "a count of none": ("nodes: [{name: a, count: 0}]\n", "count: 0 is not an integer from 1 to 100000"),
    "too many nodes": (
        "nodes: [{name: a, count: 90000}, {name: b, count: 90000}]\n",
        "than 100000 in all",
    ),
    "negative cpu": ("nodes: [{name: a, cpu: -1}]\n", "nodes[0].cpu: -1 is not a quantity of zero or more"),
    "memory that is none": ("nodes: [{name: a, memory: lots}]\n", "'lots' is not a Kubernetes quantity"),
    "an unknown GPU": ("nodes: [{name: a, gpus: 8xH1000}]\n", "nodes[0].gpus: GPU model: 'H1000' is not a GPU"),
    "an unknown GPU in a list": ("nodes: [{name: a, gpus: [{model: B1}]}]\n", "gpus[0].model: GPU model: 'B1'"),
    "no GPUs of a model": ("nodes: [{name: a, gpus: [{model: T4, count: 0}]}]\n", "0 is not an integer from 1"),
    "one uuid for two": ("nodes: [{name: a, gpus: [{model: T4, count: 2, uuid: x}]}]\n", "2 is not an integer"),
    "too many GPUs": ("nodes: [{name: a, gpus: [256xT4, T4]}]\n", "257 GPUs are more than 256 in a node"),
    "GPU memory of none": (
        "nodes: [{name: a, gpus: [{model: T4, memory: 0}]}]\n",
        "memory that a T4 can have",
    ),
    "more memory than the GPU has": (
        "nodes: [{name: a, gpus: [{model: T4, memory: 1Ti}]}]\n",
        "memory that a T4",
    ),
    "a taint without effect": ("nodes: [{name: a, taints: [x=y]}]\n", "taints[0]: 'x=y' is not a taint KEY"),
    "a taint with another effect": ("nodes: [{name: a, taints: ['x:No']}]\n", "'x:No' is not a taint KEY"),
    "a taint without key": ("nodes: [{name: a, taints: ['=y:NoSchedule']}]\n", "a taint KEY=VALUE:EFFECT"),
    "an unknown field of a taint": ("nodes: [{name: a, taints: [{key: x, efect: y}]}]\n", "is an unknown"),
    "a label that is no text": ("nodes: [{name: a, labels: {x: 1}}]\n", "labels.x: 1 is not a text"),
}


@pytest.mark.parametrize(("text", "want"), REFUSED.values(), ids=REFUSED)
def test_a_bad_fleet_is_refused_with_its_place(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert want in str(caught.value)


_WORDS = st.sampled_from(["a", "1", "T4", "2xT4", "A100-40GB", "auto", "whole", "all-1g.5gb", "1g.5gb@0", "mixed"])
_KEYS = st.sampled_from(
    (
        *("name", "count", "cpu", "memory", "pods", "gpus", "sharing", "labels", "taints", "model"),
        *("mig", "modes", "mps", "time-slicing", "allow-repartition", "1g.5gb"),
    )
)
_VALUES: st.SearchStrategy[documents.Plain] = st.recursive(
    _WORDS | st.integers(-1, 9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(_VALUES, _VALUES)
def test_any_fleet_is_read_or_refused(entry: documents.Plain, value: documents.Plain) -> None:
    entries: list[documents.Plain] = [entry, {"name": "n", "gpus": "A100-40GB", "sharing": value}]
    document = documents.Document(source="f", number=1, data={"nodes": entries}, first_line=1)
    with contextlib.suppress(InvalidInput):
        fleets.read([document])


def test_a_rule_that_no_node_meets_is_refused_with_the_nodes_that_there_are() -> None:
    nodes = documents.read("n", "kind: Node\nmetadata: {name: a}\n---\nkind: Node\nmetadata: {name: b}\n")
    met, unmet = model_rules(["a=T4", "c=T4"])
    assert [each.name for each in fleets.read(nodes, gpu_models=[met]).nodes] == ["a", "b"]
    with pytest.raises(InvalidInput) as caught:
        fleets.read(nodes, gpu_models=[met, unmet])
    want = "--gpu-model c=T4: no Node object has this name, pattern or label: name one of the fleet's nodes: a, b"
    assert str(caught.value) == want
