"""Device plugin configurations: what they say about sharing, what is refused, and what is written is read back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents, sharingconfig
from tessera.api.sharingconfig import SharingConfig
from tessera.core.sharing import Mode
from tessera.errors import InvalidInput


def read(text: str) -> SharingConfig:
    return sharingconfig.read(documents.read("plugin.yaml", text)[0])


READ = {
    "nothing but a version": ("version: v1\n", SharingConfig()),
    "no version is v1": ("flags: {migStrategy: mixed}\n", SharingConfig(mig_strategy="mixed")),
    "flags that are not about sharing": (
        "version: v1\nflags: {failOnInitError: true, plugin: {deviceIDStrategy: uuid}}\nimex: {required: false}\n",
        SharingConfig(),
    ),
    "time-slicing": (
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
        SharingConfig(mode=Mode.TIME_SLICING, replicas=(("nvidia.com/gpu", 4),)),
    ),
    "MPS with everything": (
        (
            "version: v1\nsharing:\n  mps:\n    renameByDefault: true\n    failRequestsGreaterThanOne: false\n"
            "    resources: [{name: nvidia.com/gpu, replicas: 2, devices: all}, {name: x.y/z, replicas: 3}]\n"
        ),
        SharingConfig(
            mode=Mode.MPS,
            renamed=True,
            fail_requests_greater_than_one=False,
            replicas=(("nvidia.com/gpu", 2), ("x.y/z", 3)),
        ),
    ),
    "what the plugin ignores is told": (
        (
            "version: v1\nresources: {gpus: [{pattern: '*', name: gpu}]}\n"
            "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, rename: x.y/z, devices: [0], replicas: 4}]}}\n"
        ),
        SharingConfig(
            mode=Mode.TIME_SLICING,
            replicas=(("nvidia.com/gpu", 4),),
            ignored=("resources", "rename of nvidia.com/gpu", "devices of nvidia.com/gpu"),
        ),
    ),
}


@pytest.mark.parametrize(("text", "want"), READ.values(), ids=READ)
def test_what_a_configuration_says(text: str, want: SharingConfig) -> None:
    assert read(text) == want


def sharing(text: str) -> str:
    return f"version: v1\nsharing: {text}\n"


REFUSED = {
    "another version": ("version: v2\n", "found 'v2', wanted a version this reader knows; accepted: v1"),
    "an unknown field": ("version: v1\nshare: {}\n", "share: found an unknown field"),
    "an unknown way": (sharing("{vgpu: {}}"), "sharing.vgpu: found an unknown field"),
    "both ways": (sharing("{mps: {}, timeSlicing: {}}"), "found both, wanted one of timeSlicing and mps"),
    "no resources": (sharing("{mps: {}}"), "resources: found nothing, wanted at least one resource"),
    "an unknown field of a resource": (sharing("{mps: {resources: [{count: 1}]}}"), "count: found an unknown field"),
    "no name": (sharing("{mps: {resources: [{replicas: 2}]}}"), "name: found nothing, wanted a text"),
    "one replica": (sharing("{mps: {resources: [{name: a, replicas: 1}]}}"), "found 1, wanted an integer from 2"),
    "a resource twice": (
        sharing("{mps: {resources: [{name: a, replicas: 2}, {name: a, replicas: 2}]}}"),
        "resources[1].name: found 'a', wanted each resource once",
    ),
    "an unknown strategy": (
        "version: v1\nflags: {migStrategy: all}\n",
        "found 'all', wanted one of",
    ),
}


@pytest.mark.parametrize(("text", "want"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert want in str(caught.value)


_SHARED = st.builds(
    SharingConfig,
    mig_strategy=st.sampled_from(["none", "single", "mixed"]),
    mode=st.sampled_from([Mode.TIME_SLICING, Mode.MPS]),
    replicas=st.dictionaries(
        st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"]), st.integers(2, 48), min_size=1
    ).map(lambda replicas: tuple(replicas.items())),
    renamed=st.booleans(),
    fail_requests_greater_than_one=st.none() | st.booleans(),
)


@given(_SHARED | st.builds(SharingConfig, mig_strategy=st.sampled_from(["none", "single", "mixed"])))
def test_what_is_written_is_read_back(config: SharingConfig) -> None:
    assert read(sharingconfig.write(config)) == config


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        read(sharing(text))
