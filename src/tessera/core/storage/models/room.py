"""How other models make room for those that do not fit on a node's disk."""

import math
from collections.abc import Iterator, Mapping

import msgspec

from tessera.core.storage.models.cachedmodels import (
    Fetching,
    ModelOnNode,
    offered_revision,
)
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.retention import RevisionOnDisk, freed_bytes, least_evicted

__all__ = ["EvictRevision", "RemoveStaged", "RoomForAll", "room_for_all"]


class RemoveStaged(msgspec.Struct, frozen=True):
    """Remove what the last fetch of a model has left unfinished, which makes room for a more urgent model."""

    model: str
    makes_room_for: str


class EvictRevision(msgspec.Struct, frozen=True):
    """Remove a revision of a model, perhaps the current one, which makes room for another one."""

    model: str
    revision: str
    makes_room_for: str


class RoomForAll(msgspec.Struct, frozen=True):
    """How room is made for all models that did not fit.

    Args:
        displaced: as in `CachePlan`.
        refused: as in `CachePlan`.
        stuck: as in `CachePlan`.
        removed: what no new pod gets.

    """

    displaced: Mapping[str, str]
    refused: Mapping[str, int]
    stuck: Mapping[str, frozenset[str]]
    removed: tuple[RemoveStaged | EvictRevision, ...]


def room_for_all(
    desired: Mapping[str, DesiredModel],
    observed: Mapping[str, ModelOnNode],
    fetching: Fetching,
    displaced: Mapping[str, str],
) -> RoomForAll:
    """Return which models make room: at once by what no new pod gets, by the rest once it is withdrawn.

    Args:
        desired: all of the node.
        observed: the models on its disk.
        fetching: the models that did not fit.
        displaced: models that make room by the former plan, for models that are still due.

    """
    # A model whose current revision a pod got before it could be withdrawn makes no room, nor one that is stuck.
    making_room = {
        name: other
        for name, other in displaced.items()
        for each in (observed.get(name),)
        if each is None or not (each.is_stuck or each.on_disk.current in each.used)
    }
    room = {name: _room_for(desired[name], desired, observed, fetching) for name in fetching.needs if name in desired}
    refused = {name: each.missing_bytes for name, each in room.items() if each.missing_bytes}
    making_room |= {other: name for name, each in room.items() for other in each.displaced}
    removed: dict[tuple[str, str], RemoveStaged | EvictRevision] = {}
    for step in (step for each in room.values() for step in each.removed):
        removed.setdefault((step.model, step.revision if isinstance(step, EvictRevision) else ""), step)
    return RoomForAll(
        displaced={name: other for name, other in making_room.items() if other not in refused},
        refused=refused,
        stuck={name: room[name].stuck for name in refused},
        removed=tuple(removed.values()),
    )


class _Room(msgspec.Struct, frozen=True):
    """How room is made for a model.

    Args:
        removed: what no new pod gets.
        displaced: models that are withdrawn.
        missing_bytes: too little even then, so that nothing goes.
        stuck: models that would make room if the disk removed anything of them.

    """

    removed: tuple[RemoveStaged | EvictRevision, ...] = ()
    displaced: tuple[str, ...] = ()
    missing_bytes: int = 0
    stuck: frozenset[str] = frozenset()


class _Candidate(msgspec.Struct, frozen=True):
    """What may make room.

    Args:
        order: the least goes first.
        model: whose it is.
        on_disk: what its removal frees.
        step: removes it; None for a revision that has to be withdrawn first.

    """

    order: tuple[float | str, ...]
    model: str
    on_disk: RevisionOnDisk
    step: RemoveStaged | EvictRevision | None = None


def _room_for(
    model: DesiredModel,
    desired: Mapping[str, DesiredModel],
    observed: Mapping[str, ModelOnNode],
    fetching: Fetching,
) -> _Room:
    """Return how other models make room for one.

    First what was fetched in part of models for which there is too little room, and of less urgent ones, the least
    urgent first; then what no new pod gets, least recently used first; then models of lower priority that are not
    pinned, the lowest first. A model never makes room for one of its own priority, so that two do not take turns.
    """
    history = fetching.history(model.name)
    missing_bytes = history.missing_bytes
    if history.room_backoff(fetching.now_s) is not None:
        return _Room(missing_bytes=missing_bytes)
    candidates = [
        each
        for name, on_disk in observed.items()
        if name != model.name
        for each in (
            *_staged(name, on_disk, desired.get(name), model, fetching),
            *_revisions(name, on_disk, desired.get(name), model),
        )
    ]
    stuck = frozenset(each.model for each in candidates if observed[each.model].is_stuck)
    order = sorted((each for each in candidates if each.model not in stuck), key=lambda each: each.order)
    chosen = [order[position] for position in least_evicted([each.on_disk for each in order], missing_bytes)]
    missing_bytes -= freed_bytes(each.on_disk for each in chosen)
    if missing_bytes > 0:
        return _Room(missing_bytes=missing_bytes, stuck=stuck)
    return _Room(
        tuple(each.step for each in chosen if each.step is not None),
        tuple(each.model for each in chosen if each.step is None),
    )


_STAGED, _SUPERSEDED, _CURRENT = range(3)
"""The order in which room is made."""


def _staged(
    name: str, observed: ModelOnNode, desired: DesiredModel | None, model: DesiredModel, fetching: Fetching
) -> Iterator[_Candidate]:
    """Yield what a model has not fetched completely, if it may make room for another one.

    That of a model for which there is too little room makes room for any.
    """
    if not observed.staged_bytes or name == fetching.running:
        return
    urgency: tuple[float, bool] = (-math.inf, False)
    if desired is not None and fetching.history(name).room != "Refused":
        urgency = desired.urgency
        if urgency >= model.urgency:
            return
    freed = RevisionOnDisk("", 0.0, observed.staged_bytes)
    yield _Candidate((_STAGED, *urgency, name), name, freed, RemoveStaged(name, model.name))


def _revisions(
    name: str, observed: ModelOnNode, desired: DesiredModel | None, model: DesiredModel
) -> Iterator[_Candidate]:
    """Yield the revisions of a model that may make room for another one."""
    offered = "" if desired is None else offered_revision(desired, observed.on_disk)
    readers = observed.used.union(observed.listed or (), {offered})
    may_be_withdrawn = desired is None or (not desired.pinned and desired.priority < model.priority)
    for each in observed.revisions:
        if each.protected:
            continue
        if each.revision != observed.on_disk.current:
            if each.revision not in readers:
                step = EvictRevision(name, each.revision, model.name)
                yield _Candidate((_SUPERSEDED, each.last_used, name), name, each, step)
        elif may_be_withdrawn and each.revision not in observed.used:
            own = model.priority - 1 if desired is None else desired.priority
            yield _Candidate((_CURRENT, own, each.last_used, name), name, each)
