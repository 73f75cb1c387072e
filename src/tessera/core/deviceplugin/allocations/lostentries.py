"""Entries of the record that cannot be read: which pods may use devices of which no record is left?"""

from collections.abc import Iterable
from typing import NamedTuple

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation

__all__ = ["LostEntry", "still_lost", "unknown_uses"]


class LostEntry(NamedTuple):
    """What is left of an entry that cannot be read."""

    uid: str
    """Of the pod."""
    container: str | None = None
    """None where no entry of the file can be read, so that all of the pod are recorded anew; empty if illegible."""
    resource: str | None = None


def still_lost(lost: Iterable[LostEntry], record: Iterable[AgentAllocation]) -> frozenset[LostEntry]:
    """Return the entries that were not recorded anew: of a living pod the kubelet's record has all of them.

    A pod of which another entry could be read is not known by that one.
    """
    known = {each.container_key for each in record if each.pod}
    pods = {uid for uid, _, _ in known}
    return frozenset(
        each for each in lost if each not in known and (each.container is not None or each.uid not in pods)
    )


def unknown_uses(lost: Iterable[str]) -> str:
    """Return why nothing is offered while lost pods run; empty where there are none."""
    return "; ".join(
        f"pod {uid}: it was deleted, its processes run, and the record of what it uses was unreadable: end them, or "
        "restart the node; no device is allocated before"
        for uid in sorted(lost)
    )
