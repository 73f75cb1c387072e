"""What goes into the ledger and comes out of it: pods with what they hold, filtered nodes, and what cannot be held."""

import enum
from typing import NamedTuple, TypeAlias

import msgspec

from tessera.core.cluster.cluster import SeenPod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.workload.need import Need, PodKey

__all__ = ["Filtered", "GpuConflict", "Hold", "Holder", "HolderId", "Purpose", "holder_id"]


class Purpose(enum.StrEnum):
    """What shares are held for that are no pod's assignment."""

    CLAIM = "claim"
    """A claim on the GPUNode, for a pod that is not bound yet."""
    CHOICE = "choice"
    """A claim that is being written."""
    NOMINATION = "nomination"
    """A pod that kube-scheduler is about to bind."""
    EXCHANGE = "exchange"
    """What an assignment named before the agent corrected it: another pod's correction is to come."""
    TRIAL = "trial"
    """A pod that is placed to see what else would fit."""
    RESERVATION = "reservation"
    """What a node keeps from new pods."""


class Hold(msgspec.Struct, frozen=True):
    """Identifies what is held for a purpose other than an assignment."""

    purpose: Purpose
    uid: str
    """Of the pod; for trials and reservations a number."""
    node: str = ""
    attempt: str = ""


HolderId: TypeAlias = str | Hold
"""A pod's UID, where the shares are its assignment, or a hold."""


class Holder(msgspec.Struct, frozen=True):
    """A pod on a node, with what it holds there; any pod counts, also one without GPU."""

    id: HolderId
    """Tells holders of one name apart; what is put again under its id replaces what was known of it."""
    key: PodKey
    node: NodeName
    need: Need
    shares: tuple[Share, ...] = ()
    priority: int = 0
    doubted: bool = False
    """Whether nobody knows yet that the shares were granted. They are kept free where they can be held beside what
    else is held, and are never in conflict with it."""

    @classmethod
    def of(cls, pod: SeenPod, node: NodeName) -> "Holder":
        """Return a pod of a live cluster, which is on that node."""
        return cls(holder_id(pod), pod.pod.key, node, pod.pod.need, pod.shares, pod.pod.priority)


def holder_id(pod: SeenPod) -> str:
    """Return what identifies a pod of a live cluster in the ledger."""
    return pod.uid or pod.pod.key


class Filtered(NamedTuple):
    """The nodes asked about, each in one of three."""

    fitting: tuple[str, ...]
    """In the order asked."""
    failed: dict[str, str]
    """Nodes where the pod does not fit now, each with the reason."""
    hopeless: dict[str, str]
    """Nodes where it would not fit even if nothing ran there, each with the reason."""


class GpuConflict(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Something that is recorded as held and cannot be; while it lasts, its GPU is closed for new shares."""

    node: NodeName
    gpu: int
    """Index in the node."""
    pods: tuple[PodKey, ...]
    """The pods that hold it, sorted."""
    problem: str
    """What is wrong, without full stop."""
