"""What goes into the ledger and comes out of it: pods with what they hold, filtered nodes, and what cannot be held."""

from typing import NamedTuple

import msgspec

from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.workload.need import Need, PodKey

__all__ = ["Clash", "Filtered", "Holder"]


class Holder(msgspec.Struct, frozen=True):
    """A pod on a node, with what it holds there; any pod counts, also one without GPU."""

    uid: str
    """Tells pods of one name apart; a pod put again under its uid replaces what was known of it."""
    key: PodKey
    node: NodeName
    need: Need
    shares: tuple[Share, ...] = ()
    priority: int = 0


class Filtered(NamedTuple):
    """The nodes asked about, each in one of three."""

    fitting: tuple[str, ...]
    """In the order asked."""
    failed: dict[str, str]
    """Nodes where the pod does not fit now, each with the reason."""
    hopeless: dict[str, str]
    """Nodes where it would not fit even if nothing ran there, each with the reason."""


class Clash(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """Something that is recorded as held and cannot be; while it lasts, its GPU is closed for new shares."""

    node: NodeName
    gpu: int
    """Index in the node."""
    pods: tuple[PodKey, ...]
    """The pods that hold it, sorted."""
    problem: str
    """What is wrong, without full stop."""
