"""The kubelet's checkpoint, read where it lies, and again only when it was written."""

import base64
import json
import os
from pathlib import Path

import pytest

from tessera.clients.kubelet import DeviceCheckpoint
from tessera.clients.kubelet.wire import deviceplugin_v1beta1_pb2 as wire
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.errors import Unavailable

NAME = "kubelet_internal_checkpoint"


def written(folder: Path, uid: str) -> None:
    entry = f'{{"PodUID":"{uid}","ContainerName":"c","ResourceName":"r","DeviceIDs":{{"-1":["d"]}},"AllocResp":""}}'
    text = f'{{"Data":{{"PodDeviceEntries":[{entry}],"RegisteredDevices":{{}}}},"Checksum":1}}'
    (folder / "new").write_text(text)
    (folder / "new").replace(folder / NAME)


def test_what_was_written_since_is_read(tmp_path: Path) -> None:
    checkpoint = DeviceCheckpoint(tmp_path)
    assert checkpoint.read() == ()
    written(tmp_path, "a")
    assert [each.uid for each in checkpoint.read()] == ["a"]
    assert checkpoint.read() is checkpoint.read(), "it was not written since"
    written(tmp_path, "b")
    assert [each.uid for each in checkpoint.read()] == ["b"]
    (tmp_path / NAME).unlink()
    assert checkpoint.read() == ()


def test_a_file_that_is_empty_was_not_written_yet(tmp_path: Path) -> None:
    (tmp_path / NAME).touch()
    assert DeviceCheckpoint(tmp_path).read() == ()


def test_the_kubelet_started_when_it_made_its_socket(tmp_path: Path) -> None:
    checkpoint = DeviceCheckpoint(tmp_path)
    assert checkpoint.kubelet_started_ns() is None
    (tmp_path / "kubelet.sock").touch()
    os.utime(tmp_path / "kubelet.sock", ns=(1, 2))
    assert checkpoint.kubelet_started_ns() == 2


@pytest.mark.parametrize("content", [b"{", b'{"Data": 1}'])
def test_a_form_that_is_not_known_is_said_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(Unavailable, match="mount the kubelet's folder"):
        DeviceCheckpoint(tmp_path).read()


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(Unavailable, match="Is a directory"):
        DeviceCheckpoint(tmp_path).read()


def test_what_was_answered_for_a_container(tmp_path: Path) -> None:
    checkpoint, key = DeviceCheckpoint(tmp_path), ("u", "c", "r")
    assert checkpoint.responses() == {}
    answer = wire.ContainerAllocateResponse(envs={"A": "1"}, cdi_devices=[wire.CDIDevice(name="k=n")])
    for data, want in (
        (answer.SerializeToString(), {key: ContainerResponse(env=(("A", "1"),), cdi_devices=("k=n",))}),
        (b"", {key: ContainerResponse()}),
        (b"\xff", {}),
    ):
        entry = {"PodUID": "u", "ContainerName": "c", "ResourceName": "r", "AllocResp": base64.b64encode(data).decode()}
        (tmp_path / NAME).write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
        assert checkpoint.responses() == want
