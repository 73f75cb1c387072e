"""Fleets: Tessera's fleet file, the short form, and what is refused where."""

import contextlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents
from tessera.api.tessera import fleets
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Snapshot, Taint
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement, is_legal
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.errors import InvalidInput

A100, H100 = model("A100-40GB"), model("H100-80GB")


def read(text: str) -> Snapshot:
    return fleets.read(documents.read("fleet.yaml", textwrap.dedent(text)))


def node(text: str) -> Node:
    return read(f"nodes: [{{name: a, {text}}}]").nodes[0]


def sharing(text: str, gpu_model: str = "A100-40GB") -> Sharing:
    return node(f"gpus: {gpu_model}, sharing: {text}").gpus[0].sharing


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
            ("nvidia.com/gpu.count", "4"),
            ("nvidia.com/gpu.present", "true"),
            ("zone", "z"),
        ),
        taints=(
            Taint(key="nvidia.com/gpu", value="present", effect="NoSchedule"),
            Taint(key="x", effect="NoExecute"),
            Taint(key="y", effect="PreferNoSchedule"),
        ),
    )


def test_a_node_with_nothing_but_a_name() -> None:
    got = node("count: 1")
    assert (got.name, got.gpus, got.cpu_milli, got.memory_mib, got.max_pods) == ("a-0", (), 4_096_000, 64 << 20, 110)
    assert dict(got.labels)["kubernetes.io/arch"] == "amd64"


def test_grace_nodes_are_arm() -> None:
    assert dict(node("gpus: 4xGB200-186GB").labels)["kubernetes.io/arch"] == "arm64"


def test_fleets_of_several_documents_are_one() -> None:
    got = read("nodes: [{name: a}]\n---\nkind: Node\nmetadata: {name: b}\n---\nkind: Service\nmetadata: {name: s}\n")
    assert [each.name for each in got.nodes] == ["a", "b"]
    assert got.notes == ("Service s is not read as part of a fleet",)


SHORT = {
    "eight GPUs": ("8xH100-80GB", (8, "H100-80GB")),
    "one GPU": ("T4", (1, "T4")),
    "spaces and another name": (" 2 X nvidia-tesla-a100 ", (2, "A100-40GB")),
}


@pytest.mark.parametrize(("text", "want"), SHORT.values(), ids=SHORT)
def test_the_short_form_is_one_node(text: str, want: tuple[int, str]) -> None:
    got = fleets.short(text, 3)
    assert (got.name, got.cpu_milli, got.max_pods) == ("node-3", 4_096_000, 12_288)
    assert (len(got.gpus), got.gpus[0].model.name) == want
    assert [gpu.index for gpu in got.gpus] == list(range(len(got.gpus)))


SHORT_REFUSED = {
    "no model": ("8x", "GPU model: found '8x', wanted a GPU model"),
    "no GPU": ("0xT4", "--gpus '0xT4': found '0xT4', wanted 1 to 256 GPUs of a model; accepted: 8xH100-80GB"),
    "too many": ("257xT4", "wanted 1 to 256 GPUs of a model"),
    "nothing": ("", "--gpus '': found '', wanted 1 to 256"),
    "fewer than no GPU": ("-8xT4", "found '-8xT4', wanted 1 to 256 GPUs of a model"),
    "more than can be counted": ("99999999999xT4", "found '99999999999xT4', wanted 1 to 256 GPUs of a model"),
    "an unknown model": ("8xH1000", "--gpus '8xH1000': GPU model: found 'H1000', wanted a GPU model that Tessera"),
}


@pytest.mark.parametrize(("text", "want"), SHORT_REFUSED.values(), ids=SHORT_REFUSED)
def test_a_bad_short_form_is_refused(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        fleets.short(text, 0)
    assert want in str(caught.value)


def one_g(count: int) -> tuple[Placement, ...]:
    return tuple(Placement(start, 1, "1g.5gb") for start in range(count))


BALANCED = (*one_g(2), Placement(2, 2, "2g.10gb"), Placement(4, 4, "3g.20gb"))
SHARING = {
    "managed": ("auto", AUTO),
    "not said": ("", AUTO),
    "whole": ("whole", Sharing(modes=(Mode.WHOLE,))),
    "memory shares": ("memory-share", Sharing(modes=(Mode.MEMORY_SHARE,))),
    "some modes": ("{modes: [mps, whole]}", Sharing(modes=(Mode.WHOLE, Mode.MPS))),
    "time-slicing": ("{time-slicing: 14}", Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 14),))),
    "renamed MPS": ("{mps: 2, renamed: true}", Sharing(modes=(Mode.MPS,), replicas=(("", 2),), renamed=True)),
    "whole, said with its allocator": (
        "{whole: true, allocator: scheduler}",
        Sharing(modes=(Mode.WHOLE,), allocator="scheduler"),
    ),
    "time-slicing by the scheduler": (
        "{time-slicing: 14, allocator: scheduler}",
        Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", 14),), allocator="scheduler"),
    ),
    "MIG off by name, by the scheduler": (
        "{mig: all-disabled, allocator: scheduler}",
        Sharing(modes=(Mode.WHOLE,), allocator="scheduler"),
    ),
    "MIG by name, by the scheduler": (
        "{mig: all-1g.5gb, allocator: scheduler}",
        Sharing(modes=(Mode.MIG,), layout=one_g(7), recut=False, allocator="scheduler"),
    ),
    "MIG by name, by the kubelet as ever": (
        "{mig: all-1g.5gb, allocator: kubelet}",
        Sharing(modes=(Mode.MIG,), layout=one_g(7), recut=False),
    ),
    "MIG off by name": ("{mig: all-disabled}", Sharing(modes=(Mode.WHOLE,))),
    "MIG on without instances": ("{mig: all-enabled}", Sharing(modes=(Mode.MIG,), layout=(), recut=False)),
    "MIG by name": ("{mig: all-balanced}", Sharing(modes=(Mode.MIG,), layout=BALANCED, recut=False)),
    "MIG by counts": (
        "{mig: {1g.5gb: 2, nvidia.com/mig-2g.10gb: 1, 3g.20gb: 1}}",
        Sharing(modes=(Mode.MIG,), layout=BALANCED, recut=False),
    ),
    "MIG by placements": (
        "{mig: [3g.20gb@4, 1g.5gb@0]}",
        Sharing(modes=(Mode.MIG,), layout=(Placement(0, 1, "1g.5gb"), Placement(4, 4, "3g.20gb")), recut=False),
    ),
    "MIG that may be recut": ("{mig: all-1g.5gb, recut: true}", Sharing(layout=one_g(7))),
    "MIG advertised as GPUs": (
        "{mig: all-1g.5gb, strategy: single}",
        Sharing(modes=(Mode.MIG,), layout=one_g(7), recut=False, strategy="single"),
    ),
    "time-sliced instances": (
        "{mig: {1g.5gb: 7}, time-slicing: 4}",
        Sharing(modes=(Mode.MIG, Mode.MIG_TIME_SLICING), layout=one_g(7), recut=False, replicas=(("1g.5gb", 4),)),
    ),
    "instances under MPS, by profile": (
        "{mig: all-balanced, mps: {3g.20gb: 4, 1g.5gb: 1}, renamed: true}",
        Sharing(
            modes=(Mode.MIG, Mode.MIG_MPS),
            layout=BALANCED,
            recut=False,
            replicas=(("1g.5gb", 1), ("3g.20gb", 4)),
            renamed=True,
        ),
    ),
}


@pytest.mark.parametrize(("text", "want"), SHARING.values(), ids=SHARING)
def test_sharing(text: str, want: Sharing) -> None:
    assert sharing(text) == want


def test_a_card_that_cannot_limit_under_mps_is_not_offered_it() -> None:
    assert sharing("auto", "P100").modes == (Mode.WHOLE, Mode.MIG, Mode.MEMORY_SHARE)


@given(st.dictionaries(st.sampled_from([each.name for each in H100.profiles]), st.integers(0, 8)))
def test_every_layout_read_is_legal(counts: dict[str, int]) -> None:
    with contextlib.suppress(InvalidInput):
        got = sharing(f"{{mig: {documents.write(dict(counts))}}}", "H100-80GB")
        assert got.layout is not None
        assert is_legal(H100, got.layout)
        assert len(got.layout) == sum(counts.values())


SHARING_REFUSED = {
    "an unknown word": ("half", "sharing: found 'half', wanted one of the words accepted"),
    "a list": ("[whole]", "sharing: found a list, wanted one of the words accepted"),
    "no way": ("{}", "wanted one way to share; accepted: modes, whole, mig, time-slicing or mps"),
    "not whole": ("{whole: false}", "sharing.whole: found false, wanted true"),
    "an allocator that is none": ("{whole: true, allocator: nobody}", "sharing.allocator: found 'nobody'"),
    "an allocator of what is managed": (
        "{modes: [mig, mps], allocator: kubelet}",
        "several modes leave the GPU to Tessera, so that the scheduler allocates there",
    ),
    "an allocator of what may be recut": (
        "{mig: all-1g.5gb, recut: true, allocator: scheduler}",
        "recut leaves the GPU to Tessera, so that the scheduler allocates there",
    ),
    "two ways": ("{mps: 2, time-slicing: 2}", "found time-slicing and mps, wanted one way to share"),
    "an unknown field": ("{mps: 2, replicas: 2}", "sharing.replicas: found an unknown field"),
    "one client": ("{time-slicing: 1}", "sharing.time-slicing: found 1, wanted an integer from 2 to 4096"),
    "no modes": ("{modes: []}", "sharing.modes: found a list, wanted at least one mode"),
    "a mode that is none": ("{modes: [time-slicing]}", "modes[0]: found 'time-slicing', wanted one of the words"),
    "an unknown configuration": (
        "{mig: all-9g.5gb}",
        "sharing.mig: found 'all-9g.5gb', wanted a MIG config",
    ),
    "a profile the model does not offer": (
        "{mig: {1g.10gb: 1, 1g.12gb: 1}}",
        "sharing.mig[1g.12gb]: MIG profile of A100-40GB: found '1g.12gb', wanted a profile this model offers",
    ),
    "a profile twice": ("{mig: {1g.5gb: 1, mig-1g.5gb: 1}}", "found 1g.5gb again, wanted each profile once"),
    "more than fits": ("{mig: {3g.20gb: 3}}", "found 3 x 3g.20gb, wanted instances that fit one A100-40GB together"),
    "half an instance": ("{mig: {3g.20gb: 0.5}}", "found 0.5, wanted an integer from 0 to 64"),
    "a negative count": ("{mig: {3g.20gb: -1}}", "found -1, wanted an integer"),
    "a placement without start": ("{mig: [3g.20gb]}", "mig[0]: found '3g.20gb', wanted a placement PROFILE@START"),
    "a placement of an unknown profile": ("{mig: [9g.20gb@0]}", "mig[0]: MIG profile of A100-40GB: found"),
    "placements that overlap": ("{mig: [3g.20gb@0, 1g.5gb@1]}", "wanted a legal layout of A100-40GB"),
    "a start that is not legal": ("{mig: [3g.20gb@1]}", "wanted a legal layout of A100-40GB"),
    "both kinds of replicas": ("{mig: all-1g.5gb, mps: 2, time-slicing: 2}", "found both, wanted one of time-slicing"),
    "replicas that may be recut": (
        "{mig: all-1g.5gb, mps: 2, recut: true}",
        "recut: found true, wanted a fixed",
    ),
    "replicas of what is not there": ("{mig: all-1g.5gb, mps: {3g.20gb: 2}}", "found 3g.20gb, wanted replicas of inst"),
    "several profiles as one": (
        "{mig: all-balanced, strategy: single}",
        "found 'single', wanted mixed where",
    ),
}


@pytest.mark.parametrize(("text", "want"), SHARING_REFUSED.values(), ids=SHARING_REFUSED)
def test_bad_sharing_is_refused_with_its_place(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        sharing(text)
    assert want in str(caught.value)
    assert str(caught.value).startswith("fleet.yaml, document 1, line 1: nodes[0].")


REFUSED = {
    "nothing": ("", "fleet: found no node, wanted at least one node"),
    "an empty fleet": ("nodes: []\n", "fleet.yaml, document 1, line 1: found no node, wanted at least one node"),
    "no name": ("nodes: [{cpu: 1}]\n", "nodes[0].name: found nothing, wanted a text"),
    "a bad name": ("nodes: [{name: ../a}]\n", "found '../a', wanted a name of lower-case letters"),
    "an unknown field": (
        "nodes: [{name: a, gpu: 1}]\n",
        "nodes[0].gpu: found an unknown field, wanted a known",
    ),
    "an unknown field of the fleet": ("nodes: []\nx: 1\n", "x: found an unknown field"),
    "another version": ("apiVersion: v1\nkind: Fleet\nnodes: []\n", "apiVersion: found 'v1', wanted one of the words"),
    "a name twice": ("nodes: [{name: a}, {name: a}]\n", "found node a again, wanted each node name once"),
    "a count of none": ("nodes: [{name: a, count: 0}]\n", "count: found 0, wanted an integer from 1 to 100000"),
    "too many nodes": ("nodes: [{name: a, count: 90000}, {name: b, count: 90000}]\n", "wanted at most 100000 nodes in"),
    "negative cpu": ("nodes: [{name: a, cpu: -1}]\n", "nodes[0].cpu: found -1, wanted a quantity of zero or more"),
    "memory that is none": ("nodes: [{name: a, memory: lots}]\n", "found 'lots', wanted a Kubernetes quantity"),
    "an unknown GPU": ("nodes: [{name: a, gpus: 8xH1000}]\n", "nodes[0].gpus: GPU model: found 'H1000', wanted a GPU"),
    "an unknown GPU in a list": ("nodes: [{name: a, gpus: [{model: B1}]}]\n", "gpus[0].model: GPU model: found 'B1'"),
    "no GPUs of a model": ("nodes: [{name: a, gpus: [{model: T4, count: 0}]}]\n", "found 0, wanted an integer from 1"),
    "one uuid for two": ("nodes: [{name: a, gpus: [{model: T4, count: 2, uuid: x}]}]\n", "found 2, wanted an integer"),
    "too many GPUs": ("nodes: [{name: a, gpus: [256xT4, T4]}]\n", "found 257 GPUs, wanted at most 256 GPUs in a node"),
    "GPU memory of none": ("nodes: [{name: a, gpus: [{model: T4, memory: 0}]}]\n", "wanted memory that a T4 can have"),
    "GPU memory beyond the card": ("nodes: [{name: a, gpus: [{model: T4, memory: 1Ti}]}]\n", "wanted memory that a T4"),
    "a taint without effect": ("nodes: [{name: a, taints: [x=y]}]\n", "taints[0]: found 'x=y', wanted a taint KEY"),
    "a taint with another effect": ("nodes: [{name: a, taints: ['x:No']}]\n", "found 'x:No', wanted a taint KEY"),
    "a taint without key": ("nodes: [{name: a, taints: ['=y:NoSchedule']}]\n", "wanted a taint KEY=VALUE:EFFECT"),
    "an unknown field of a taint": ("nodes: [{name: a, taints: [{key: x, efect: y}]}]\n", "efect: found an unknown"),
    "a label that is no text": ("nodes: [{name: a, labels: {x: 1}}]\n", "labels.x: found 1, wanted a text"),
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
        *("mig", "modes", "mps", "time-slicing", "recut", "1g.5gb"),
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
