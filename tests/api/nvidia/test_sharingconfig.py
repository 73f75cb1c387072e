"""Device plugin configurations: what they say about sharing, what is refused, and what is written is read back."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents
from tessera.api.nvidia import sharingconfig
from tessera.core.gpu.sharing import Mode
from tessera.core.node.nodesharing import GpuSettings, NodeSharing, PluginOptions, SharingEntry, Strategy
from tessera.errors import InvalidInput

UUID = "00000000-1111-2222-3333-444444444444"


def read(text: str) -> NodeSharing:
    return sharingconfig.read(documents.read("plugin.yaml", text)[0])


def sliced(resource: str, replicas: int, rename: str = "") -> SharingEntry:
    return SharingEntry(resource=resource, mode=Mode.TIME_SLICING, replicas=replicas, rename=rename)


READ = {
    "nothing but a version": ("version: v1\n", NodeSharing()),
    "no version is v1": ("flags: {migStrategy: mixed}\n", NodeSharing(strategy="mixed")),
    "flags that are not about sharing": (
        "version: v1\nflags: {failOnInitError: true, gfd: {oneshot: true}}\nimex: {required: false}\n",
        NodeSharing(),
    ),
    "how devices are handed out": (
        (
            "version: v1\nflags:\n  nvidiaDriverRoot: /run/nvidia/driver\n  plugin:\n    passDeviceSpecs: true\n"
            "    deviceListStrategy: [cdi-cri, envvar, cdi-cri]\n    deviceIDStrategy: index\n"
            "    cdiAnnotationPrefix: x/\n    containerDriverRoot: /d\n    sharedDevicesAllocationPolicy: packed\n"
        ),
        NodeSharing(
            plugin=PluginOptions(
                list_strategies=("cdi-cri", "envvar"),
                id_strategy="index",
                pass_device_specs=True,
                allocation_policy="packed",
                cdi_annotation_prefix="x/",
                driver_root="/run/nvidia/driver",
                container_driver_root="/d",
            )
        ),
    ),
    "one list strategy": (
        "version: v1\nflags: {plugin: {deviceListStrategy: volume-mounts}}\n",
        NodeSharing(plugin=PluginOptions(list_strategies=("volume-mounts",))),
    ),
    "time-slicing": (
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
        NodeSharing(entries=(sliced("nvidia.com/gpu", 4),)),
    ),
    "MPS with everything": (
        (
            "version: v1\nsharing:\n  mps:\n    renameByDefault: true\n    failRequestsGreaterThanOne: false\n"
            "    resources: [{name: gpu, replicas: 2, devices: all}, {name: x.y/z, replicas: 3, rename: w}]\n"
        ),
        NodeSharing(
            entries=(
                SharingEntry(
                    resource="nvidia.com/gpu",
                    mode=Mode.MPS,
                    replicas=2,
                    rename="nvidia.com/gpu.shared",
                    single_request=False,
                ),
                SharingEntry(resource="x.y/z", mode=Mode.MPS, replicas=3, rename="nvidia.com/w", single_request=False),
            )
        ),
    ),
    "devices by number, index, MIG index and UUID": (
        (
            "version: v1\nresources: {gpus: [{pattern: '*', name: gpu}]}\n"
            "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, devices: 3, replicas: 4}, "
            "{name: nvidia.com/mig-1g.5gb, replicas: 2, "
            f"devices: [0, '01', '0:1', GPU-{UUID}, MIG-GPU-{UUID}/3/0]}}]}}}}\n"
        ),
        NodeSharing(
            entries=(
                SharingEntry(resource="nvidia.com/gpu", mode=Mode.TIME_SLICING, replicas=4, count=3),
                SharingEntry(
                    resource="nvidia.com/mig-1g.5gb",
                    mode=Mode.TIME_SLICING,
                    replicas=2,
                    devices=("0", "1", "0:1", f"GPU-{UUID}", f"MIG-GPU-{UUID}/3/0"),
                ),
            ),
            ignored=("resources: names for GPU and MIG patterns have no effect",),
        ),
    ),
    "one resource with different replicas": (
        (
            "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, devices: ['0'], replicas: 2}, "
            "{name: gpu, devices: ['1'], replicas: 8, rename: nvidia.com/gpu-small}, {name: gpu, replicas: 4}]}}\n"
        ),
        NodeSharing(
            entries=(
                SharingEntry(resource="nvidia.com/gpu", mode=Mode.TIME_SLICING, replicas=2, devices=("0",)),
                SharingEntry(
                    resource="nvidia.com/gpu",
                    mode=Mode.TIME_SLICING,
                    replicas=8,
                    devices=("1",),
                    rename="nvidia.com/gpu-small",
                ),
                sliced("nvidia.com/gpu", 4),
            )
        ),
    ),
}


@pytest.mark.parametrize(("text", "want"), READ.values(), ids=READ)
def test_what_a_configuration_says(text: str, want: NodeSharing) -> None:
    assert read(text) == want


def sharing(text: str) -> str:
    return f"version: v1\nsharing: {text}\n"


REFUSED = {
    "another version": ("version: v2\n", "'v2' is not a version this reader knows: v1"),
    "an unknown field": ("version: v1\nshare: {}\n", "is an unknown field"),
    "an unknown way": (sharing("{vgpu: {}}"), "sharing.vgpu: it is an unknown field"),
    "both ways": (
        sharing("{mps: {}, timeSlicing: {}}"),
        "both timeSlicing and mps are set: set one; a node policy has both on one node",
    ),
    "no resources": (sharing("{mps: {}}"), "sharing.mps.resources: it is missing: write at least one resource"),
    "an unknown field of a resource": (sharing("{mps: {resources: [{count: 1}]}}"), "is an unknown field"),
    "no name": (
        sharing("{mps: {resources: [{replicas: 2}]}}"),
        "sharing.mps.resources[0].name: it is missing: write a text",
    ),
    "one replica": (sharing("{mps: {resources: [{name: a, replicas: 1}]}}"), "1 is not an integer from 2"),
    "a resource twice": (
        sharing("{mps: {resources: [{name: a, replicas: 2}, {name: a, replicas: 2}]}}"),
        "resources[1].name: nvidia.com/a is there twice: name each resource once, or each device of it once",
    ),
    "a device of a resource twice": (
        sharing("{mps: {resources: [{name: a, devices: [0], replicas: 2}, {name: a, devices: ['0'], replicas: 2}]}}"),
        "sharing.mps.resources[1].devices: 0 is there twice: name each",
    ),
    "a device twice in one list": (
        sharing("{mps: {resources: [{name: a, devices: [0, '0'], replicas: 2}]}}"),
        "devices: a list is not a list of devices, each once",
    ),
    "no devices": (sharing("{mps: {resources: [{name: a, devices: [], replicas: 2}]}}"), "a list of devices"),
    "a word for devices": (
        sharing("{mps: {resources: [{name: a, devices: some, replicas: 2}]}}"),
        "devices: 'some' is not all, a number of devices or a list",
    ),
    "zero devices": (
        sharing("{mps: {resources: [{name: a, devices: 0, replicas: 2}]}}"),
        "devices: 0 is not an integer from 1",
    ),
    "a device that is none": (
        sharing("{mps: {resources: [{name: a, devices: [GPU-0], replicas: 2}]}}"),
        "devices[0]: 'GPU-0' is not a device: 0 for a GPU",
    ),
    "a name that Kubernetes refuses": (
        sharing("{mps: {resources: [{name: a_/b, replicas: 2}]}}"),
        "name: 'a_/b' is not a resource name",
    ),
    "a name too long with its suffix": (
        sharing(f"{{mps: {{renameByDefault: true, resources: [{{name: {'a' * 50}, replicas: 2}}]}}}}"),
        "a resource name of at most 56 characters",
    ),
    "an unknown list strategy": (
        "version: v1\nflags: {plugin: {deviceListStrategy: [cdi]}}\n",
        "deviceListStrategy[0]: 'cdi' is not one of",
    ),
    "an unknown strategy": (
        "version: v1\nflags: {migStrategy: all}\n",
        "'all' is not one of",
    ),
}


@pytest.mark.parametrize(("text", "want"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert want in str(caught.value)


_NAMES = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"])
_DEVICES = st.lists(st.sampled_from(["0", "1", "0:1", f"GPU-{UUID}"]), min_size=1, unique=True).map(tuple)


@st.composite
def configurations(draw: st.DrawFn) -> NodeSharing:
    mode, single = draw(st.sampled_from([Mode.TIME_SLICING, Mode.MPS])), draw(st.none() | st.booleans())
    entries = [
        SharingEntry(
            resource=name,
            mode=mode,
            replicas=draw(st.integers(2, 48)),
            rename=draw(st.sampled_from(["", f"{name}.shared", "nvidia.com/other"])),
            single_request=single,
            count=(count := draw(st.integers(0, 2))),
            devices=() if count else draw(st.just(()) | _DEVICES),
        )
        for name in draw(st.lists(_NAMES, unique=True))
    ]
    strategies: tuple[Strategy | None, ...] = (None, "none", "single", "mixed")
    strategy = draw(st.sampled_from(strategies))
    return NodeSharing(strategy=strategy, entries=tuple(entries))


@given(configurations())
def test_what_is_written_is_read_back(config: NodeSharing) -> None:
    assert read(sharingconfig.write(config)) == config


@pytest.mark.parametrize(
    "config",
    [
        NodeSharing(entries=(sliced("a/b", 2), SharingEntry(resource="c/d", mode=Mode.MPS, replicas=2))),
        NodeSharing(policies=(GpuSettings(uuid="GPU-0"),)),
    ],
)
def test_what_the_format_cannot_say_is_not_written(config: NodeSharing) -> None:
    with pytest.raises(InvalidInput, match="one for the node"):
        sharingconfig.write(config)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidInput):
        read(sharing(text))
