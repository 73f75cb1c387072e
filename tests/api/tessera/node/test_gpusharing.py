"""How a GPU is shared, as fleets and node policies say it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents
from tessera.api.tessera.cluster import fleets
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement, is_legal
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.errors import InvalidInput

A100, H100 = model("A100-40GB"), model("H100-80GB")


def sharing(text: str, gpu_model: str = "A100-40GB") -> Sharing:
    fleet = f"nodes: [{{name: a, gpus: {gpu_model}, sharing: {text}}}]"
    return fleets.read(documents.read("fleet.yaml", fleet)).nodes[0].gpus[0].sharing


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
        Sharing(modes=(Mode.MIG,), layout=one_g(7), allow_repartition=False, allocator="scheduler"),
    ),
    "MIG by name, by the kubelet as ever": (
        "{mig: all-1g.5gb, allocator: kubelet}",
        Sharing(modes=(Mode.MIG,), layout=one_g(7), allow_repartition=False),
    ),
    "MIG off by name": ("{mig: all-disabled}", Sharing(modes=(Mode.WHOLE,))),
    "MIG on without instances": ("{mig: all-enabled}", Sharing(modes=(Mode.MIG,), layout=(), allow_repartition=False)),
    "MIG by name": ("{mig: all-balanced}", Sharing(modes=(Mode.MIG,), layout=BALANCED, allow_repartition=False)),
    "MIG by counts": (
        "{mig: {1g.5gb: 2, nvidia.com/mig-2g.10gb: 1, 3g.20gb: 1}}",
        Sharing(modes=(Mode.MIG,), layout=BALANCED, allow_repartition=False),
    ),
    "MIG by placements": (
        "{mig: [3g.20gb@4, 1g.5gb@0]}",
        Sharing(
            modes=(Mode.MIG,), layout=(Placement(0, 1, "1g.5gb"), Placement(4, 4, "3g.20gb")), allow_repartition=False
        ),
    ),
    "MIG that may be allow-repartition": ("{mig: all-1g.5gb, allow-repartition: true}", Sharing(layout=one_g(7))),
    "MIG advertised as GPUs": (
        "{mig: all-1g.5gb, strategy: single}",
        Sharing(modes=(Mode.MIG,), layout=one_g(7), allow_repartition=False, strategy="single"),
    ),
    "time-sliced instances": (
        "{mig: {1g.5gb: 7}, time-slicing: 4}",
        Sharing(
            modes=(Mode.MIG, Mode.MIG_TIME_SLICING), layout=one_g(7), allow_repartition=False, replicas=(("1g.5gb", 4),)
        ),
    ),
    "instances under MPS, by profile": (
        "{mig: all-balanced, mps: {3g.20gb: 4, 1g.5gb: 1}, renamed: true}",
        Sharing(
            modes=(Mode.MIG, Mode.MIG_MPS),
            layout=BALANCED,
            allow_repartition=False,
            replicas=(("1g.5gb", 1), ("3g.20gb", 4)),
            renamed=True,
        ),
    ),
}


@pytest.mark.parametrize(("text", "want"), SHARING.values(), ids=SHARING)
def test_sharing(text: str, want: Sharing) -> None:
    assert sharing(text) == want


def test_a_gpu_that_cannot_limit_under_mps_is_not_offered_it() -> None:
    assert sharing("auto", "P100").modes == (Mode.WHOLE, Mode.MIG, Mode.MEMORY_SHARE)


@given(st.dictionaries(st.sampled_from([each.name for each in H100.profiles]), st.integers(0, 8)))
def test_every_layout_read_is_legal(counts: dict[str, int]) -> None:
    with contextlib.suppress(InvalidInput):
        got = sharing(f"{{mig: {documents.write(dict(counts))}}}", "H100-80GB")
        assert got.layout is not None
        assert is_legal(H100, got.layout)
        assert len(got.layout) == sum(counts.values())


SHARING_REFUSED = {
    "an unknown word": ("half", "sharing: 'half' is not one of the words accepted"),
    "a list": ("[whole]", "sharing: a list is not one of the words accepted"),
    "no way": ("{}", "one way to share: modes, whole, mig, time-slicing or mps"),
    "not whole": ("{whole: false}", "sharing.whole: false is not true"),
    "an allocator that is none": ("{whole: true, allocator: nobody}", "sharing.allocator: 'nobody'"),
    "an allocator of what is managed": (
        "{modes: [mig, mps], allocator: kubelet}",
        "several modes leave the GPU to Tessera, so that the scheduler allocates there",
    ),
    "an allocator of what may be allow-repartition": (
        "{mig: all-1g.5gb, allow-repartition: true, allocator: scheduler}",
        "allow-repartition leaves the GPU to Tessera, so that the scheduler allocates there",
    ),
    "two ways": ("{mps: 2, time-slicing: 2}", "time-slicing and mps"),
    "an unknown field": ("{mps: 2, replicas: 2}", "nodes[0].sharing.replicas: it is an unknown"),
    "one client": ("{time-slicing: 1}", "sharing.time-slicing: 1 is not an integer from 2 to 4096"),
    "no modes": ("{modes: []}", "sharing.modes: a list is not at least one mode"),
    "a mode that is none": ("{modes: [time-slicing]}", "modes[0]: 'time-slicing' is not one of the words"),
    "an unknown configuration": (
        "{mig: all-9g.5gb}",
        "sharing.mig: 'all-9g.5gb' is not a MIG config",
    ),
    "a profile the model does not offer": (
        "{mig: {1g.10gb: 1, 1g.12gb: 1}}",
        "sharing.mig[1g.12gb]: MIG profile of A100-40GB: '1g.12gb' is not a profile this model offers",
    ),
    "a profile twice": ("{mig: {1g.5gb: 1, mig-1g.5gb: 1}}", "1g.5gb is there twice: name each profile once"),
    "more than fits": ("{mig: {3g.20gb: 3}}", "one A100-40GB together: choose from `tessera profiles A100-40GB`"),
    "half an instance": ("{mig: {3g.20gb: 0.5}}", "0.5 is not an integer from 0 to 64"),
    "a negative count": ("{mig: {3g.20gb: -1}}", "-1 is not an integer"),
    "a placement without start": ("{mig: [3g.20gb]}", "mig[0]: '3g.20gb' is not a placement PROFILE@START"),
    "a placement of an unknown profile": ("{mig: [9g.20gb@0]}", "mig[0]: MIG profile of A100-40GB: '9g"),
    "placements that overlap": ("{mig: [3g.20gb@0, 1g.5gb@1]}", "a layout of A100-40GB"),
    "a start that is not legal": ("{mig: [3g.20gb@1]}", "a layout of A100-40GB"),
    "both kinds of replicas": ("{mig: all-1g.5gb, mps: 2, time-slicing: 2}", "nodes[0].sharing: both time-slicing"),
    "replicas that may be allow-repartition": (
        "{mig: all-1g.5gb, mps: 2, allow-repartition: true}",
        "allow-repartition: true is not a fixed",
    ),
    "replicas of what is not there": ("{mig: all-1g.5gb, mps: {3g.20gb: 2}}", "the layout has no instance 3g.20gb"),
    "several profiles as one": (
        "{mig: all-balanced, strategy: single}",
        "'single' is not mixed where",
    ),
}


@pytest.mark.parametrize(("text", "want"), SHARING_REFUSED.values(), ids=SHARING_REFUSED)
def test_bad_sharing_is_refused_with_its_place(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        sharing(text)
    assert want in str(caught.value)
    assert str(caught.value).startswith("fleet.yaml, document 1, line 1: nodes[0].")
