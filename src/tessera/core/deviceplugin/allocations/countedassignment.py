"""Which assignment of a pod counts: that of its annotations, the one before, or what its containers were started with.

A tenant who may write a pod's annotations can remove its assignment, replace it by one that nobody signed, or restore
one that the server signed for the same pod before. None of that changes what a started container has.
"""

import enum
from collections.abc import Callable, Iterable

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import StartedPod
from tessera.core.deviceplugin.allocations.matching import AssignedRequest

__all__ = ["AssignmentSource", "CountedAssignment", "PodAssignments", "counted_assignment", "counted_start"]


class AssignmentSource(enum.StrEnum):
    """Where a pod's assignment comes from."""

    PRESENT = "present"
    """Its annotations."""
    FORMER = "former"
    """Its annotations as they last counted for this agent."""
    RECORDED = "recorded"
    """The agent's record of what its containers were started with."""
    NONE = "none"


class PodAssignments(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a pod's assignment."""

    present: tuple[AssignedRequest, ...] = ()
    """By its annotations; empty where they do not count."""
    unknown_keys: tuple[str, ...] = ()
    """Ids of keys that signed them, but do not count."""
    former: bool = False
    """Whether an assignment of this very pod counted before, and the pod has not ended; asked where none is present."""
    former_is_signed: bool = False
    """Whether the signature of that still counts."""
    running: bool = False
    started: StartedPod | None = None
    """What its containers were started with, as far as it counts (`counted_start`); None for nothing."""
    recorded: tuple[AssignedRequest, ...] = ()
    """By the assignment of `started`."""


class CountedAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment that counts, and why not the present one."""

    source: AssignmentSource
    why: str = ""
    """Without the pod's name; empty where the annotations' reader says why."""


def counted_assignment(pod: PodAssignments, revoked: Callable[[str], bool]) -> CountedAssignment:
    """Return which assignment of a pod counts.

    Never another's, as each was signed for this pod. Once a container was started, none that differs from what it was
    started with, whether the agent runs on or starts again.

    Args:
        pod: its assignments.
        revoked: returns whether a key, by id, was revoked.

    """
    # 1. The present assignment counts, unless the containers were started with another.
    if pod.present and _agree(pod.present, pod.recorded, pod.started):
        return CountedAssignment(source=AssignmentSource.PRESENT)
    # 2. The former assignment counts while the pod runs, or its signature does.
    if not pod.present and pod.former and (pod.running or pod.former_is_signed):
        return CountedAssignment(source=AssignmentSource.FORMER)
    # 3. What the containers were started with counts, unless a revoked key signed what the pod has now.
    if pod.recorded and not any(map(revoked, pod.unknown_keys)):
        what = "replaced by an earlier one of this pod" if pod.present else "removed or replaced"
        return CountedAssignment(source=AssignmentSource.RECORDED, why=f"it was {what} since its containers started")
    return CountedAssignment(source=AssignmentSource.NONE)


def counted_start(started: StartedPod | None, revoked: Callable[[str], bool]) -> StartedPod | None:
    """Return what a pod's containers were started with; None if a key signed it that is revoked."""
    if started is None or not started.signed.assignment or revoked(started.signed.key):
        return None
    return started


def _agree(
    requests: Iterable[AssignedRequest], recorded: Iterable[AssignedRequest], started: StartedPod | None
) -> bool:
    """Return whether requests match what a pod's started containers were started with, by the pod's record."""
    shares = {each.key: each.shares for each in requests}
    containers = frozenset[tuple[str, str]]() if started is None else started.containers
    return all(
        shares.get(each.key) == each.shares
        for each in recorded
        if (each.key.container, each.key.resource) in containers
    )
