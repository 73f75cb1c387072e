"""The kubelet's device checkpoint, as a real one writes it and as nobody does."""

import json

import pytest

from tessera.api.kubernetes.devicecheckpoint import known_resources, read_checkpoint, read_responses
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.errors import InvalidInput

# As kubelet 1.36.3 wrote it, without the answers of plugins.
REAL = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"7a1","ContainerName":"main","ResourceName":"nvidia.com/gpu",'
    b'"DeviceIDs":{"-1":["GPU-1"],"0":["GPU-0"]},"AllocResp":"Cg=="}],'
    b'"RegisteredDevices":{"nvidia.com/gpu":["GPU-0","GPU-1"]}},"Checksum":3041437418}'
)
NONE = (b"", b"\xff", b"{", b"[]", b'{"Data": 1}', b'{"Data": {"PodDeviceEntries": [{}]}}')


def test_ids_of_all_numa_nodes_are_one_container_s() -> None:
    want = KubeletAllocation(uid="7a1", container="main", resource="nvidia.com/gpu", device_ids=("GPU-0", "GPU-1"))
    assert read_checkpoint("file", REAL) == (want,)


@pytest.mark.parametrize("data", [{"PodDeviceEntries": None}, {}, {"PodDeviceEntries": []}])
def test_a_kubelet_that_allocated_nothing_yet(data: object) -> None:
    assert read_checkpoint("file", json.dumps({"Data": data}).encode()) == ()


@pytest.mark.parametrize("ids", [None, {}, {"-1": None}])
def test_an_entry_without_ids(ids: object) -> None:
    entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", "DeviceIDs": ids}
    (got,) = read_checkpoint("file", json.dumps({"Data": {"PodDeviceEntries": [entry]}}).encode())
    assert got.device_ids == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"{", b'{"x": ' + b"[" * 100_000, b"[]", b'{"Data": 1}', b'{"Data": {"PodDeviceEntries": [{}]}}'],
)
def test_what_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"file: .*: only checkpoints that kubelets"):
        read_checkpoint("file", content)


def test_the_answers_of_plugins() -> None:
    assert read_responses(REAL) == {("7a1", "main", "nvidia.com/gpu"): b"\n"}
    without = REAL.replace(b'"Cg=="', b"null")
    assert read_responses(without) == {("7a1", "main", "nvidia.com/gpu"): b""}
    assert read_checkpoint("file", REAL.replace(b"Cg==", b"??"))[0].uid == "7a1", "allocations count all the same"


def test_the_resources_of_which_the_kubelet_admits_no_pod_without() -> None:
    assert known_resources(REAL) == {"nvidia.com/gpu"}
    entries = REAL.partition(b',"RegisteredDevices"')[0] + b"}}"
    assert known_resources(entries) == {"nvidia.com/gpu"}, "allocated, and not registered"
    registered = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"a/b":[],"c/d":null}}}'
    assert known_resources(registered) == {"a/b", "c/d"}


@pytest.mark.parametrize("content", [*NONE, b'{"Data":{"PodDeviceEntries":null}}'])
def test_no_resources_of_what_is_none(content: bytes) -> None:
    assert known_resources(content) == frozenset()


@pytest.mark.parametrize("content", [*NONE, REAL.replace(b"Cg==", b"??"), b'{"Data":{"PodDeviceEntries":null}}'])
def test_no_answers_of_what_is_none(content: bytes) -> None:
    assert read_responses(content) == {}
