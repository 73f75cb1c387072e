"""The Kubernetes API: read, follow and change objects; real and in memory."""

from tessera.clients.kube.follow import Change, Store, follow
from tessera.clients.kube.memory import MemoryKube
from tessera.clients.kube.protocol import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    EVENTS,
    EVERYTHING,
    NODES,
    PODS,
    Expired,
    Kind,
    Kube,
    Listing,
    Object,
    Selection,
    WatchEvent,
    annotations_of,
    labels_of,
    name_of,
)
from tessera.clients.kube.real import LightkubeKube

__all__ = [
    "CONFIG_MAPS",
    "DISRUPTION_BUDGETS",
    "EVENTS",
    "EVERYTHING",
    "NODES",
    "PODS",
    "Change",
    "Expired",
    "Kind",
    "Kube",
    "LightkubeKube",
    "Listing",
    "MemoryKube",
    "Object",
    "Selection",
    "Store",
    "WatchEvent",
    "annotations_of",
    "follow",
    "labels_of",
    "name_of",
]
