"""Local PersistentVolumes, as JSON for the Kubernetes API."""

import hashlib
import re
from collections.abc import Mapping
from posixpath import normpath
from typing import Any

import msgspec

from tessera.api.untyped import as_dict, as_list
from tessera.core.storage.disks.localvolumes import CreateVolume, LocalVolume, Phase
from tessera.core.workload.kubernetesnames import HOSTNAME

__all__ = ["STORAGE_CLASS", "names_folder", "persistent_volume", "read_volume", "volume_labels", "volume_path"]

STORAGE_CLASS = "tessera-local"
"""Its claims wait for their pod, whose node then selects the volume; it is in `deploy/chart`."""
_NODE = "tessera.dev/node"
"""Annotation of a local PersistentVolume: its node. Set by the disk agent; read by the disk agent."""
_LABEL = "tessera.dev/node-digest"
"""Label of a local PersistentVolume: its node as a digest, by which the volumes of a node are listed. Set by the disk
agent; read by the disk agent."""
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
"""With it the volume controller leaves a released volume to an external deleter. Source: kubernetes v1.36
`pkg/controller/volume/persistentvolume/pv_controller.go` (`findDeletablePlugin`)."""
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


def volume_labels(node: str) -> tuple[tuple[str, str], ...]:
    """Return the labels of a node's volumes; a label is shorter than a node's name may be."""
    return ((_LABEL, _digest(node)),)


def volume_path(mount: str, number: int) -> str:
    """Return the folder of a volume on disks that are mounted there."""
    return f"{mount}/volumes/{number}"


def persistent_volume(volume: CreateVolume, node: str, mount: str) -> dict[str, Any]:
    """Return the PersistentVolume of a folder.

    Args:
        volume: its number and capacity.
        node: name of the Node, which must equal its label `kubernetes.io/hostname`: a volume refers to that.
        mount: where the disks are mounted.

    """
    term = {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": _name(node, volume.number),
            "labels": dict(volume_labels(node)),
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
    """Return a PersistentVolume of this node created by Tessera; None for any other, and for an invalid one.

    Name and annotation of a volume must agree on its owner, because each may be written by other users.
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


def names_folder(data: Mapping[str, Any], node: str, mount: str, number: int) -> bool:
    """Return whether any PersistentVolume may expose a volume's folder to pods of a node.

    Name, path and node affinity are immutable, unlike the label and annotation by which `read_volume` knows ours.
    An unreadable one may expose it.
    """
    metadata, spec = as_dict(data.get("metadata")), as_dict(data.get("spec"))
    if metadata.get("name") == _name(node, number):
        return True
    folder = _steps(volume_path(mount, number))
    paths = [as_dict(spec.get(kind)).get("path") for kind in ("local", "hostPath") if kind in spec]
    shown = [_steps(each) for each in paths if isinstance(each, str)]
    meets = any(folder[: len(each)] == each[: len(folder)] for each in shown)
    terms = as_list(as_dict(as_dict(spec.get("nodeAffinity")).get("required")).get("nodeSelectorTerms"))
    elsewhere = bool(terms) and all(_excludes(as_dict(each), node) for each in terms)
    return (meets or len(shown) < len(paths)) and not elsewhere


def _steps(path: str) -> list[str]:
    return [each for each in normpath(path).split("/") if each]


def _excludes(term: Mapping[str, Any], node: str) -> bool:
    """Return whether a term names nodes and this one is not among them."""
    named = (("matchExpressions", HOSTNAME), ("matchFields", "metadata.name"))
    return any(
        each.get("key") == key and each.get("operator") == "In" and node not in as_list(each.get("values"))
        for part, key in named
        for each in map(as_dict, as_list(term.get(part)))
    )


def _name(node: str, number: int) -> str:
    """Return a volume's name, which is short whatever the node's is."""
    return f"{STORAGE_CLASS}-{_digest(node)}-{number}"


def _digest(node: str) -> str:
    return hashlib.sha256(node.encode()).hexdigest()[:_DIGITS]
