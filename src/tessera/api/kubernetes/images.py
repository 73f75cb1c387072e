"""Images that objects name: those of containers, wherever a pod is described, and those that nodes hold."""

from collections.abc import Iterable

import msgspec

from tessera.api.documents import Plain
from tessera.api.fields import Field, checked_name

__all__ = ["NodeImages", "images_of", "node_images"]

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_ENDED = ("Succeeded", "Failed")


class NodeImages(msgspec.Struct, frozen=True):
    """A node and what it holds."""

    node: str
    platform: str
    """As `linux/amd64`; empty where the node does not say."""
    names: frozenset[str]
    """All names of its images, with tags and with digests. A kubelet reports its 50 largest images by default."""


def images_of(objects: Iterable[Field]) -> tuple[str, ...]:
    """Return the names of the images that objects run, each once, in the order written; pods that ended run none."""
    found: dict[str, None] = {}
    for each in objects:
        if each.get("kind").value == "Pod" and each.get("status", "phase").value in _ENDED:
            continue
        _collect(each.value, found)
    return tuple(found)


def _collect(value: Plain, found: dict[str, None]) -> None:
    if isinstance(value, dict):
        for key in _CONTAINERS:
            for one in _list(value.get(key)):
                if isinstance(one, dict) and isinstance(name := one.get("image"), str) and name:
                    found[name] = None
        for volume in _list(value.get("volumes")):
            source = volume.get("image") if isinstance(volume, dict) else None
            if isinstance(source, dict) and isinstance(name := source.get("reference"), str) and name:
                found[name] = None
    for inner in value.values() if isinstance(value, dict) else _list(value):
        _collect(inner, found)


def _list(value: Plain) -> list[Plain]:
    return value if isinstance(value, list) else []


def node_images(objects: Iterable[Field]) -> tuple[NodeImages, ...]:
    """Return what the nodes among objects hold.

    Raises:
        InvalidInput: a node's images have not the form of any.

    """
    return tuple(_node(each) for each in objects if each.get("kind").value == "Node")


def _node(field: Field) -> NodeImages:
    info = field.get("status", "nodeInfo")
    parts = (info.get("operatingSystem").text(""), info.get("architecture").text(""))
    names = (name.text() for one in field.get("status", "images").elements() for name in one.get("names").elements())
    return NodeImages(
        checked_name(field.get("metadata", "name")), "/".join(parts) if all(parts) else "", frozenset(names)
    )
