"""What a node offers the kubelet of a model: a resource of which each device is a mount of one revision."""

import re
from collections.abc import Iterable

import msgspec

from tessera.core.deviceplugin.advertise import ListedDevice
from tessera.core.workload.resources import MODEL_RESOURCE

__all__ = ["CLIENTS", "ModelOffer", "offer_of", "revisions_held"]

CLIENTS = 256
"""Containers of a node that can have one revision of a model; more than the pods that a kubelet takes by default."""
_REVISION_CHARACTERS = 48
"""Of a revision's 64 in the id of a device, which may have 63."""
_DEVICE = re.compile(r"([0-9a-f]{48})-[0-9]+")


class ModelOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The resource of a model: a revision, of which each device is a mount for one container."""

    name: str
    """Of the resource."""
    devices: tuple[ListedDevice, ...] = ()


def offer_of(model: str, revision: str) -> ModelOffer:
    """Return what the kubelet is offered of a model; nothing without a revision."""
    count = CLIENTS if revision else 0
    ids = (f"{revision[:_REVISION_CHARACTERS]}-{number}" for number in range(count))
    return ModelOffer(name=f"{MODEL_RESOURCE}{model}", devices=tuple(ListedDevice(id=each) for each in ids))


def revisions_held(ids: Iterable[str], revisions: Iterable[str]) -> frozenset[str]:
    """Return the revisions that devices of these ids are mounts of."""
    begin = {match[1] for each in ids if (match := _DEVICE.fullmatch(each))}
    return frozenset(each for each in revisions if each[:_REVISION_CHARACTERS] in begin)
