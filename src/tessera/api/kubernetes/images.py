"""Images in objects: of containers, wherever a pod is described, and of nodes."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from tessera.api.documents import Plain
from tessera.api.fields import Field, checked_name
from tessera.api.kubernetes.podstates import is_finished
from tessera.api.oci.references import read_reference
from tessera.api.untyped import as_dict, as_list
from tessera.errors import InvalidInput

__all__ = ["ImagesOnNode", "images_of", "node_images", "pod_images", "reported_images"]

_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


class ImagesOnNode(msgspec.Struct, frozen=True):
    """A node and its images."""

    node: str
    platform: str
    """As `linux/amd64`; empty if the node does not report it."""
    names: frozenset[str]
    """All names of its images, with tags and with digests. A kubelet reports its 50 largest images by default."""


def images_of(objects: Iterable[Field]) -> tuple[str, ...]:
    """Return the names of the images that objects run, each once, in their order; pods that ended run none."""
    found: dict[str, None] = {}
    for each in objects:
        if each.get("kind").value == "Pod" and is_finished(each):
            continue
        _collect(each.value, found)
    return tuple(found)


def _collect(value: Plain, images: dict[str, None]) -> None:
    if isinstance(value, dict):
        for key in _CONTAINERS:
            for one in as_list(value.get(key)):
                if isinstance(one, dict) and isinstance(name := one.get("image"), str) and name:
                    images[name] = None
        for volume in as_list(value.get("volumes")):
            source = volume.get("image") if isinstance(volume, dict) else None
            if isinstance(source, dict) and isinstance(name := source.get("reference"), str) and name:
                images[name] = None
    for inner in value.values() if isinstance(value, dict) else as_list(value):
        _collect(inner, images)


def pod_images(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the full names of a pod's images; invalid names are left out."""
    spec = as_dict(pod.get("spec"))
    containers = [as_dict(each) for key in _CONTAINERS[:2] for each in as_list(spec.get(key))]
    return tuple(dict.fromkeys(_full_names(each.get("image") for each in containers)))


def reported_images(node: Mapping[str, Any]) -> dict[str, int]:
    """Return the images in a Node's status: the bytes of each, by each of its full names."""
    images = [as_dict(each) for each in as_list(as_dict(node.get("status")).get("images"))]
    sizes = ((each, size if isinstance(size := each.get("sizeBytes"), int) else 0) for each in images)
    return {name: size for each, size in sizes for name in _full_names(as_list(each.get("names")))}


def _full_names(names: Iterable[object]) -> Iterator[str]:
    return filter(None, (_full_name(each) for each in names if isinstance(each, str)))


@lru_cache(maxsize=1 << 12)
def _full_name(text: str) -> str:
    """Return the name of the pulled content; with a digest the tag is ignored. Empty for an invalid name."""
    try:
        found = read_reference(text)
    except InvalidInput:
        return ""
    return found.at(found.digest) if found.digest else found.name


def node_images(objects: Iterable[Field]) -> tuple[ImagesOnNode, ...]:
    """Return the images of the nodes among objects.

    Raises:
        InvalidInput: a node's images are malformed.

    """
    return tuple(_node(each) for each in objects if each.get("kind").value == "Node")


def _node(field: Field) -> ImagesOnNode:
    info = field.get("status", "nodeInfo")
    parts = (info.get("operatingSystem").text(""), info.get("architecture").text(""))
    names = (name.text() for one in field.get("status", "images").elements() for name in one.get("names").elements())
    return ImagesOnNode(
        checked_name(field.get("metadata", "name")), "/".join(parts) if all(parts) else "", frozenset(names)
    )
