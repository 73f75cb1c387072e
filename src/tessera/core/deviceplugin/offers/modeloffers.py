"""A model as a device plugin resource, of which each device is a mount of one revision."""

import re
from collections.abc import Iterable

import msgspec

from tessera.core.deviceplugin.offers.advertise import ListedDevice
from tessera.core.workload.resources import MODEL_RESOURCE

__all__ = ["CLIENTS", "ModelOffer", "allocated_revisions", "model_offer", "mount_path", "path_variable"]

CLIENTS = 256
"""Containers of a node that can have one revision of a model; above the kubelet's default limit of pods."""
_REVISION_CHARACTERS = 48
"""Characters of a revision's 64 in a device id, which may have 63."""
_DEVICE = re.compile(r"([0-9a-f]{48})-[0-9]+")


class ModelOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The resource of a model: a revision, of which each device is a mount for one container."""

    name: str
    """Name of the resource."""
    devices: tuple[ListedDevice, ...] = ()


def model_offer(model: str, revision: str) -> ModelOffer:
    """Return what is advertised of a model; nothing without a revision."""
    count = CLIENTS if revision else 0
    ids = (f"{revision[:_REVISION_CHARACTERS]}-{number}" for number in range(count))
    return ModelOffer(name=f"{MODEL_RESOURCE}{model}", devices=tuple(ListedDevice(id=each) for each in ids))


def allocated_revisions(ids: Iterable[str], revisions: Iterable[str]) -> frozenset[str]:
    """Return the revisions of devices with these ids."""
    begin = {match[1] for each in ids if (match := _DEVICE.fullmatch(each))}
    return frozenset(each for each in revisions if each[:_REVISION_CHARACTERS] in begin)


def path_variable(model: str) -> str:
    """Return the environment variable with a model's path in a container."""
    return f"TESSERA_MODEL_{model.upper().replace('-', '_')}_PATH"


def mount_path(model: str) -> str:
    """Return a model's path in a container."""
    return f"/models/{model}"
