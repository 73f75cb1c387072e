"""Input and output of the ledger: pods with their shares, filtered nodes, and impossible allocations."""

import enum
from typing import NamedTuple, TypeAlias

import msgspec

from tessera.core.cluster.cluster import ObservedPod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.workload.need import Need, PodKey

__all__ = ["Filtered", "ImpossibleShares", "LedgerEntry", "LedgerKey", "Purpose", "PurposeKey", "ledger_key"]


class Purpose(enum.StrEnum):
    """Why shares are in the ledger that are no pod's assignment."""

    CLAIM = "claim"
    """A claim on the GPUNode, for a pod that is not bound yet."""
    CHOICE = "choice"
    """A claim that is being written."""
    NOMINATION = "nomination"
    """A pod that kube-scheduler is about to bind."""
    EXCHANGE = "exchange"
    """A former assignment that the agent has corrected: another pod's correction is pending."""
    TRIAL = "trial"
    """A pod placed in a trial."""
    RESERVATION = "reservation"
    """Withheld from new pods on a node."""


class PurposeKey(msgspec.Struct, frozen=True):
    """The key of an entry that is in the ledger for another purpose than an assignment."""

    purpose: Purpose
    uid: str
    """Of the pod; for trials and reservations a number."""
    node: str = ""
    attempt: str = ""


LedgerKey: TypeAlias = str | PurposeKey
"""A pod's UID, if the shares are its assignment; else the purpose."""


class LedgerEntry(msgspec.Struct, frozen=True):
    """What a pod is allocated of a node, or is about to be; pods without GPU count, too."""

    id: LedgerKey
    """Distinguishes entries of the same pod; putting an id again replaces its former entry."""
    key: PodKey
    node: NodeName
    need: Need
    shares: tuple[Share, ...] = ()
    priority: int = 0
    doubted: bool = False
    """Whether the shares are unverified. They are kept free if they fit beside what
    else is in use, and never conflict with it."""

    @classmethod
    def of(cls, pod: ObservedPod, node: NodeName) -> "LedgerEntry":
        """Return the entry of a pod of a live cluster, on its node."""
        return cls(ledger_key(pod), pod.pod.key, node, pod.pod.need, pod.shares, pod.pod.priority)


def ledger_key(pod: ObservedPod) -> str:
    """Return the ledger's key of a pod of a live cluster."""
    return pod.uid or pod.pod.key


class Filtered(NamedTuple):
    """The answer of filter: each node fits, does not fit now, or never can."""

    fitting: tuple[str, ...]
    """In the requested order."""
    failed: dict[str, str]
    """Nodes where the pod does not fit now, each with the obstacle."""
    hopeless: dict[str, str]
    """Nodes where it would not fit even if they were empty, each with the obstacle."""


class ImpossibleShares(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Shares of a GPU that are impossible together; while they last, its GPU is closed for new shares."""

    node: NodeName
    gpu: int
    """Index in the node."""
    pods: tuple[PodKey, ...]
    """Its pods, sorted."""
    problem: str
    """Why it is impossible, without full stop."""
