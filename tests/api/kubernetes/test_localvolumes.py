"""Local volumes as Kubernetes objects: they name their node, and only Tessera's own are read."""

from typing import Any

import pytest

from tessera.api.kubernetes.localvolumes import (
    STORAGE_CLASS,
    names_folder,
    persistent_volume,
    read_volume,
    volume_labels,
    volume_path,
)
from tessera.core.storage.disks.localvolumes import CreateVolume, LocalVolume

NODE = "node-" + "x" * 240


def made(**status: Any) -> dict[str, Any]:
    volume = persistent_volume(CreateVolume(3, (600 << 20) + 5), NODE, "/mnt/disks/tessera")
    return volume | ({"status": status} if status else {})


def test_a_volume_is_bound_to_its_node_and_read_again() -> None:
    volume = made()
    spec = volume["spec"]
    assert spec["capacity"] == {"storage": "600Mi"}
    assert spec["local"]["path"] == volume_path("/mnt/disks/tessera", 3) == "/mnt/disks/tessera/volumes/3"
    (term,) = spec["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]
    assert spec["storageClassName"] == STORAGE_CLASS
    assert len(volume["metadata"]["name"]) < 40
    assert volume["metadata"]["labels"] == dict(volume_labels(NODE))
    assert all(len(value) < 64 for _, value in volume_labels(NODE))
    assert read_volume(volume, NODE) == LocalVolume(number=3, phase="Pending")
    assert read_volume(made(phase="Released"), NODE) == LocalVolume(number=3, phase="Released")


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


MOUNT = "/mnt/disks/tessera"
ELSEWHERE = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["other"]}]}
NAMED: dict[str, dict[str, Any]] = {
    "ours": made(),
    "ours without what it is known by": without("metadata.annotations", {}) | {"status": {"phase": "Erased"}},
    "another with that path": {"spec": {"local": {"path": f"{MOUNT}/x/..//volumes/3/"}}},
    "one above": {"spec": {"hostPath": {"path": "/mnt/disks"}}},
    "one below": {"spec": {"hostPath": {"path": f"{MOUNT}/volumes/3/a"}}},
    "a path that is none": {"spec": {"local": {"path": 3}}},
    "of this node or another": {
        "spec": {
            "local": {"path": f"{MOUNT}/volumes/3"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [ELSEWHERE, {"matchExpressions": [{"key": "zone"}]}]}},
        }
    },
}
NOT_NAMED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a volume of a server": {"metadata": {"name": "nfs"}, "spec": {"nfs": {"path": f"{MOUNT}/volumes/3"}}},
    "a folder beside": {"spec": {"local": {"path": f"{MOUNT}/volumes/33"}}},
    "another node's": {
        "spec": {
            "local": {"path": f"{MOUNT}/volumes/3"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [ELSEWHERE]}},
        }
    },
    "another node's, by its name": {
        "spec": {
            "hostPath": {"path": "/"},
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["other"]}]}
                    ]
                }
            },
        }
    },
}


@pytest.mark.parametrize("case", [*NAMED, *NOT_NAMED])
def test_who_names_a_folder_is_known_by_what_cannot_be_changed(case: str) -> None:
    assert names_folder((NAMED | NOT_NAMED)[case], NODE, MOUNT, 3) == (case in NAMED)
