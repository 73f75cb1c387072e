"""Local volumes as Kubernetes objects: they name their node, and only Tessera's own are read."""

from typing import Any

import pytest

from tessera.api.kubernetes.localvolumes import persistent_volume, read_volume, storage_class, volume_path
from tessera.core.storage.localvolumes import CreateVolume, LocalVolume

NODE = "node-" + "x" * 240


def made(**status: Any) -> dict[str, Any]:
    volume = persistent_volume(CreateVolume(3, (600 << 20) + 5), NODE, "host", "/mnt/disks/tessera")
    return volume | ({"status": status} if status else {})


def test_a_volume_is_bound_to_its_node_and_read_again() -> None:
    volume = made()
    spec = volume["spec"]
    assert spec["capacity"] == {"storage": "600Mi"}
    assert spec["local"]["path"] == volume_path("/mnt/disks/tessera", 3) == "/mnt/disks/tessera/volumes/3"
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["host"]}]
    assert spec["storageClassName"] == storage_class()["metadata"]["name"]
    assert len(volume["metadata"]["name"]) < 40
    assert read_volume(volume, NODE) == LocalVolume(number=3, phase="Pending")
    assert read_volume(made(phase="Released"), NODE) == LocalVolume(number=3, phase="Released")


def test_a_claim_waits_for_its_pod() -> None:
    assert storage_class()["volumeBindingMode"] == "WaitForFirstConsumer"


def without(path: str, value: Any) -> dict[str, Any]:
    volume = made(phase="Released")
    head, _, key = path.rpartition(".")
    part: Any = volume
    for each in head.split("."):
        part = part[each]
    part[key] = value
    return volume


@pytest.mark.parametrize(
    "volume",
    [
        without("spec.storageClassName", "other"),
        without("metadata.annotations", {"tessera.dev/node": "other"}),
        without("metadata.annotations", {}),
        without("metadata.name", "tessera-local-0123456789-3"),
        without("metadata.name", "tessera-local"),
        without("metadata.name", "tessera-local-\u0663"),
        without("metadata.name", f"tessera-local-0123456789-{'9' * 5000}"),
        without("metadata.name", 3),
        without("status.phase", "Erased"),
        {},
    ],
)
def test_what_is_not_of_tessera_and_this_node_is_not_read(volume: dict[str, Any]) -> None:
    assert read_volume(volume, NODE) is None
