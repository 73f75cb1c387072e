"""Local PersistentVolumes and their StorageClass, as JSON for the Kubernetes API."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.core.storage.localvolumes import CreateVolume, LocalVolume, Phase

__all__ = ["STORAGE_CLASS", "persistent_volume", "read_volume", "storage_class", "volume_path"]

STORAGE_CLASS = "tessera-local"
_NODE = "tessera.dev/node"
"""Annotation: the node of a volume. A label is shorter than the name of a node may be."""
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
"""With it the controller of volumes leaves a released one to whoever erases it. Source: kubernetes v1.36
`pkg/controller/volume/persistentvolume/pv_controller.go` (`findDeletablePlugin`)."""
_HOSTNAME = "kubernetes.io/hostname"
_DIGITS = 10
_NUMBER = re.compile(r"[0-9]{1,4}")


class _Spec(msgspec.Struct, frozen=True):
    storageClassName: str = ""  # noqa: N815 as Kubernetes calls it


class _Status(msgspec.Struct, frozen=True):
    phase: Phase = "Pending"


class _Metadata(msgspec.Struct, frozen=True):
    name: str
    annotations: dict[str, str] = {}


class _Volume(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


def storage_class() -> dict[str, Any]:
    """Return the StorageClass of local volumes: a claim waits for its pod, whose node then decides the volume."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
    }


def volume_path(mount: str, number: int) -> str:
    """Return the folder of a volume on disks that are mounted there."""
    return f"{mount}/volumes/{number}"


def persistent_volume(volume: CreateVolume, node: str, hostname: str, mount: str) -> dict[str, Any]:
    """Return the PersistentVolume of a folder.

    Args:
        volume: its number and capacity.
        node: name of the Node.
        hostname: its label `kubernetes.io/hostname`, which need not be its name.
        mount: where the disks are mounted.

    """
    term = {"matchExpressions": [{"key": _HOSTNAME, "operator": "In", "values": [hostname]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": _name(node, volume.number),
            "annotations": {_NODE: node, _PROVISIONED_BY: "tessera.dev/local"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": f"{volume.capacity_bytes >> 20}Mi"},
            "local": {"path": volume_path(mount, volume.number)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": STORAGE_CLASS,
            "volumeMode": "Filesystem",
        },
    }


def read_volume(data: Mapping[str, Any], node: str) -> LocalVolume | None:
    """Return a PersistentVolume of this node that Tessera made; None for any other, and for one that cannot be read.

    A volume says by its name and annotation whose it is: both have to agree, for anybody may write either.
    """
    try:
        volume = msgspec.convert(data, _Volume)
    except msgspec.ValidationError:
        return None
    number = volume.metadata.name.rpartition("-")[2]
    ours = volume.spec.storageClassName == STORAGE_CLASS and volume.metadata.annotations.get(_NODE) == node
    if not ours or not _NUMBER.fullmatch(number) or volume.metadata.name != _name(node, int(number)):
        return None
    return LocalVolume(number=int(number), phase=volume.status.phase)


def _name(node: str, number: int) -> str:
    """Return a volume's name, which is short whatever the node's is."""
    return f"{STORAGE_CLASS}-{hashlib.sha256(node.encode()).hexdigest()[:_DIGITS]}-{number}"
