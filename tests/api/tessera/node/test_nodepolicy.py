"""Node policies: what they say about each GPU, and what is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.nodefacts import gpu
from tessera.api import documents
from tessera.api.tessera.node import nodepolicy
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.node.nodesharing import GpuSettings, NodeSharing
from tessera.errors import InvalidInput

GPUS = (gpu(0, power_range_watts=(60, 70)), gpu(1, "A100-40GB"), gpu(2, "A100-40GB"))
HEAD = "apiVersion: tessera.dev/v1alpha1\nkind: NodePolicy\n"


def read(text: str) -> NodeSharing:
    return nodepolicy.read(documents.read("policy.yaml", f"{HEAD}{text}")[0], GPUS)


def policies(*sharings: tuple[int, Sharing | None]) -> tuple[GpuSettings, ...]:
    return tuple(GpuSettings(uuid=f"GPU-{index}", sharing=sharing) for index, sharing in sharings)


HALVES = (Placement(0, 4, "3g.20gb"), Placement(4, 4, "3g.20gb"))
MPS = Sharing(modes=(Mode.MPS,), replicas=(("", 4),))
SHARES = Sharing(modes=(Mode.MEMORY_SHARE,))

READ = {
    "nothing": ("", NodeSharing()),
    "strategy and unit": ("strategy: single\nunit: MiB\n", NodeSharing(strategy="single", unit_mib=1)),
    "all GPUs": ("gpus: [{sharing: memory-share}]\n", NodeSharing(policies=policies(*((i, SHARES) for i in range(3))))),
    "by index, by UUID and by model, the first that names a GPU decides": (
        (
            "gpus: [{devices: [0], sharing: {mps: 4}}, {devices: [GPU-1, '0'], sharing: auto}, "
            "{models: [A100-40GB], sharing: memory-share}]\n"
        ),
        NodeSharing(policies=policies((0, MPS), (1, AUTO), (2, SHARES))),
    ),
    "a device that is not there": (
        "gpus: [{devices: [0, 9], sharing: auto}]\n",
        NodeSharing(policies=policies((0, AUTO)), ignored=("node policy: this node has no GPU 9",)),
    ),
    "power and clocks alone leave the sharing to others": (
        "gpus: [{devices: [0], power-limit-watts: 65, clocks-mhz: [300, 1200]}, {devices: [1], clocks-mhz: 900}]\n",
        NodeSharing(
            policies=(
                GpuSettings(uuid="GPU-0", power_limit_watts=65, clocks_mhz=(300, 1200)),
                GpuSettings(uuid="GPU-1", clocks_mhz=(900, 900)),
            )
        ),
    ),
    "power of a GPU that does not tell its range": (
        "gpus: [{devices: [1], power-limit-watts: 5}]\n",
        NodeSharing(policies=(GpuSettings(uuid="GPU-1", power_limit_watts=5),)),
    ),
    "conflicts are only reported": ("evict-conflicts: false\n", NodeSharing(evict_conflicts=False)),
    "who allocates is kept where isolation is said": (
        "gpus: [{devices: [1], sharing: {whole: true, allocator: scheduler}, isolation: hardware}]\n",
        NodeSharing(policies=policies((1, Sharing(modes=(Mode.WHOLE,), allocator="scheduler")))),
    ),
    "a strategy of one GPU alone": (
        "strategy: mixed\ngpus: [{devices: [1], sharing: {mig: all-3g.20gb, strategy: single}}]\n",
        NodeSharing(
            strategy="mixed",
            policies=(
                GpuSettings(
                    uuid="GPU-1",
                    sharing=Sharing(modes=(Mode.MIG,), layout=HALVES, allow_repartition=False, strategy="single"),
                    strategy="single",
                ),
            ),
        ),
    ),
    "isolation takes away what enforces less": (
        "gpus: [{devices: [0], isolation: driver}]\n",
        NodeSharing(policies=policies((0, Sharing(modes=(Mode.WHOLE, Mode.MIG, Mode.MPS))))),
    ),
}


@pytest.mark.parametrize(("text", "want"), READ.values(), ids=READ)
def test_what_a_policy_says(text: str, want: NodeSharing) -> None:
    assert read(text) == want


REFUSED = {
    "an unknown field": ("gpu: []\n", "is an unknown field"),
    "an unknown field of an entry": ("gpus: [{share: auto}]\n", "gpus[0].share: it is an unknown field"),
    "no devices": ("gpus: [{devices: []}]\n", "devices: a list"),
    "no models": ("gpus: [{models: []}]\n", "models: a list is not at least one of models"),
    "an unknown model": ("gpus: [{models: [A1000-1GB]}]\n", "models[0]: GPU model: 'A1000-1GB'"),
    "MIG of a GPU that has none": (
        "gpus: [{devices: [0], sharing: {mig: all-1g.5gb}}]\n",
        "a MIG configuration of T4",
    ),
    "a sharing weaker than the isolation": (
        "gpus: [{sharing: {time-slicing: 4}, isolation: driver}]\n",
        "enforce less than isolation driver: choose other modes, or weaker isolation",
    ),
    "replicas of instances weaker than the isolation": (
        "gpus: [{devices: [1], sharing: {mig: all-1g.5gb, time-slicing: 4}, isolation: driver}]\n",
        "enforce less than isolation driver: choose other modes, or weaker isolation",
    ),
    "instances of several profiles under strategy single": (
        "strategy: single\ngpus: [{devices: [1], sharing: {mig: all-balanced}}]\n",
        "sharing: strategy single has instances of one profile, and there are several profiles: choose strategy mixed",
    ),
    "more power than the GPU takes": (
        "gpus: [{devices: [0], power-limit-watts: 71}]\n",
        "power-limit-watts: 71 is not an integer from 60 to 70",
    ),
    "clocks the wrong way round": ("gpus: [{clocks-mhz: [9, 3]}]\n", "the lowest and the highest clock"),
    "one clock in a list": ("gpus: [{clocks-mhz: [9]}]\n", "the lowest and the highest clock"),
}


@pytest.mark.parametrize(("text", "want"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert want in str(caught.value)


@pytest.mark.parametrize("head", ["kind: NodePolicy\n", "apiVersion: tessera.dev/v1alpha1\nkind: Fleet\n"])
def test_another_kind_is_refused(head: str) -> None:
    with pytest.raises(InvalidInput, match="one of the words accepted"):
        nodepolicy.read(documents.read("policy.yaml", head)[0], GPUS)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        read(f"gpus: [{{sharing: {text}}}]\n")
