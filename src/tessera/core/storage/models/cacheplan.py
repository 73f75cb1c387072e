"""What a node does next with the models on its disk: which revisions it offers to pods, protects and removes.

A revision that a pod has, or that the kubelet may still give to one, stays. What is to go is offered no more first, and
goes when the kubelet cannot choose it any longer and no pod has it.
"""

from collections.abc import Mapping

import msgspec

from tessera.core.storage.models.cache import DesiredModel

__all__ = [
    "AbandonFetch",
    "CachePlan",
    "CacheStep",
    "EvictRevision",
    "ModelOnNode",
    "OnDisk",
    "RemoveModel",
    "RemoveSuperseded",
    "deferred_fetches",
    "plan_cache",
    "waiting_for_room",
]


class OnDisk(msgspec.Struct, frozen=True):
    """A model on the disk: the revision that was fetched last, empty where that is not whole, and all that are."""

    current: str
    revisions: tuple[str, ...]


class ModelOnNode(msgspec.Struct, frozen=True):
    """A model on the disk, and who may read it.

    Args:
        there: its revisions.
        used: those that pods have.
        listed: those that the kubelet may give to a pod, or may have given; None where it knows no resource of the
            model.

    """

    there: OnDisk
    used: frozenset[str] = frozenset()
    listed: frozenset[str] | None = None


class AbandonFetch(msgspec.Struct, frozen=True):
    """Let the fetch of a model end, which nobody needs any more."""

    model: str


class RemoveModel(msgspec.Struct, frozen=True):
    """Remove all of a model, which nobody needs any more."""

    model: str


class EvictRevision(msgspec.Struct, frozen=True):
    """Remove the current revision of a model, which makes room for another one."""

    model: str
    revision: str
    makes_room_for: str


class RemoveSuperseded(msgspec.Struct, frozen=True):
    """Remove revisions of a model beyond the most recently used ones; protected ones count and stay."""

    model: str
    keep: int


CacheStep = AbandonFetch | RemoveModel | EvictRevision | RemoveSuperseded


class CachePlan(msgspec.Struct, frozen=True):
    """What is done in this order: make room no more, protect, offer, and take the steps.

    Args:
        displaced: models that make room still, each with the one that they make it for.
        protected: revisions that stay on the disk, and no others, by model.
        offered: the revision that new pods get of each desired model; empty for none.
        steps: what is removed.

    """

    displaced: Mapping[str, str]
    protected: Mapping[str, frozenset[str]]
    offered: Mapping[str, str]
    steps: tuple[CacheStep, ...]


def plan_cache(
    desired: Mapping[str, DesiredModel],
    found: Mapping[str, ModelOnNode],
    *,
    fetched: str,
    displaced: Mapping[str, str],
) -> CachePlan:
    """Return what a node does next with the models on its disk.

    Args:
        desired: all models that it shall have.
        found: the models on its disk.
        fetched: the model that is fetched just now; empty for none.
        displaced: models that make room, each with the one that they make it for.

    """
    # 1. What a pod got before it could be withdrawn makes no room: it is offered again, and others are chosen.
    making_room = {
        name: other
        for name, other in displaced.items()
        if other in desired and not (name in found and found[name].there.current in found[name].used)
    }
    # 2. New pods get what is desired and there.
    offered = {
        name: "" if name in making_room or name not in found else _revision(model, found[name].there)
        for name, model in desired.items()
    }
    # 3. What pods have or may get is protected.
    protected = {
        name: each.used.union(each.listed or (), {offered.get(name, "")}).intersection(each.there.revisions)
        for name, each in found.items()
    }
    # 4. What nobody needs, makes room or is superseded goes.
    steps = (
        _step(name, each, desired.get(name), protected[name], making_room.get(name, ""), is_fetched=name == fetched)
        for name, each in found.items()
    )
    return CachePlan(making_room, protected, offered, tuple(each for each in steps if each is not None))


def _revision(model: DesiredModel, there: OnDisk) -> str:
    """Return the revision of a model that new pods get; empty where it is not there."""
    if not model.revision:
        return there.current
    return model.revision if model.revision in there.revisions else ""


def _step(
    name: str,
    found: ModelOnNode,
    desired: DesiredModel | None,
    protected: frozenset[str],
    makes_room_for: str,
    *,
    is_fetched: bool,
) -> CacheStep | None:
    """Return what is removed of one model: one thing, because the next follows from what is there then."""
    there = found.there
    if desired is None:
        if is_fetched:
            return AbandonFetch(name)
        return None if found.listed is not None or found.used else RemoveModel(name)
    if makes_room_for and found.listed is None and there.current and there.current not in found.used:
        return EvictRevision(name, there.current, makes_room_for)
    superseded = set(there.revisions) - protected - {there.current}
    if superseded and not is_fetched and len(there.revisions) > desired.keep:
        return RemoveSuperseded(name, desired.keep)
    return None


def waiting_for_room(displaced: Mapping[str, str], found: Mapping[str, ModelOnNode]) -> dict[str, str]:
    """Return the models that are still to make room, each with the one that has to wait for it.

    Args:
        displaced: models that make room, each with the one that they make it for.
        found: the models on the disk.

    """
    return {name: other for name, other in displaced.items() if name in found and found[name].there.current}


def deferred_fetches(displaced: Mapping[str, str], found: Mapping[str, ModelOnNode]) -> frozenset[str]:
    """Return models that are not fetched now: those that make room, and those for which there is no room yet.

    The arguments are those of `waiting_for_room`.
    """
    return frozenset({*displaced, *waiting_for_room(displaced, found).values()})
