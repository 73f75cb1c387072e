"""What a node does next with the models on its disk: what it offers to pods, protects, removes and fetches.

A revision that a pod uses, or that the kubelet may still allocate to one, stays. What must go is withdrawn first, and
is removed when the kubelet cannot allocate it any longer and no pod uses it. A damaged revision is withdrawn, and its
source is fetched again.
"""

from collections.abc import Mapping

import msgspec

from tessera.core.storage.models.cachedmodels import Fetching, ModelOnNode, offered_revision, unreadable_reason
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.room import EvictRevision, RemoveStaged, room_for_all
from tessera.core.storage.retries import fetch_backoff_s, has_passed

__all__ = ["CachePlan", "CacheStep", "CancelFetch", "RemoveModel", "RemoveSuperseded", "VerifyRevision", "plan_cache"]


class CancelFetch(msgspec.Struct, frozen=True):
    """Cancel the fetch of a model that is no longer desired, or less urgent than one that is due."""

    model: str


class RemoveModel(msgspec.Struct, frozen=True):
    """Delete a model that is no longer desired or used."""

    model: str


class RemoveSuperseded(msgspec.Struct, frozen=True):
    """Remove revisions of a model beyond the most recently used ones; protected ones count and stay."""

    model: str
    keep: int


class VerifyRevision(msgspec.Struct, frozen=True):
    """Compare a revision on the disk with its digests."""

    model: str
    revision: str


CacheStep = CancelFetch | RemoveModel | RemoveStaged | EvictRevision | RemoveSuperseded


class CachePlan(msgspec.Struct, frozen=True):
    """What is done in this order: protect, offer, take the steps, fetch.

    Args:
        displaced: models that make room from now on, each with the one that they make it for.
        refused: models for which there would be too little room even then, with the missing bytes.
        stuck: models that would make room for the refused ones, but that the disk refuses to remove.
        protected: revisions that stay on the disk, and no others, by model.
        offered: the revision that new pods get of each desired model; empty for none.
        steps: what is removed.
        fetch: the model to fetch; None for none.
        verify: what to compare with its digests while nothing is fetched; None for nothing.

    """

    displaced: Mapping[str, str]
    refused: Mapping[str, int]
    protected: Mapping[str, frozenset[str]]
    offered: Mapping[str, str]
    steps: tuple[CacheStep, ...]
    fetch: DesiredModel | None
    verify: VerifyRevision | None = None
    stuck: Mapping[str, frozenset[str]] = {}


def plan_cache(
    desired: Mapping[str, DesiredModel],
    observed: Mapping[str, ModelOnNode],
    *,
    fetching: Fetching,
    displaced: Mapping[str, str],
) -> CachePlan:
    """Return what a node does next with the models on its disk.

    Args:
        desired: all of the node, in the order of fetching.
        observed: the models on its disk.
        fetching: what is fetched now, and came of it before.
        displaced: models that make room by the former plan, each with the one that they make it for.

    """
    # 1. Find the models that are due, and how room is made for those that did not fit.
    due = {name for name, each in desired.items() if _is_due(each, observed.get(name), fetching)}
    room = room_for_all(desired, observed, fetching, {name: other for name, other in displaced.items() if other in due})
    # 2. New pods get what is desired and on the disk.
    offered = {
        name: "" if name in room.displaced or name not in observed else offered_revision(model, observed[name].on_disk)
        for name, model in desired.items()
    }
    # 3. Protect what pods have or may get.
    protected = {
        name: each.used.union(each.listed or (), {offered.get(name, "")}).intersection(each.on_disk.examined)
        for name, each in observed.items()
    }
    # 4. Remove what is undesired, displaced or superseded, one thing per model.
    others = observed.keys() - {each.model for each in room.removed}
    steps = (
        _step(name, each, desired.get(name), protected[name], room.displaced.get(name, ""), fetching.running)
        for name, each in observed.items()
        if name in others
    )
    # 5. Fetch the first model that is due, unless it makes room or needs room that is not there yet.
    pending = {other for name, other in room.displaced.items() if name in observed and observed[name].on_disk.current}
    candidates = (each for name, each in desired.items() if name in due - {*room.displaced, *pending, *room.refused})
    first = next(candidates, None)
    fetch = None if fetching.running else first
    running = desired.get(fetching.running)
    canceled = first is not None and running is not None and _interrupts(first, running, offered, fetching)
    # 6. Compare with its digests what was compared longest ago, while nothing is fetched.
    return CachePlan(
        displaced=room.displaced,
        refused=room.refused,
        stuck=room.stuck,
        protected=protected,
        offered=offered,
        steps=(
            *((CancelFetch(fetching.running),) if canceled else ()),
            *room.removed,
            *(each for each in steps if each is not None),
        ),
        fetch=fetch,
        verify=None if fetch or fetching.running else _next_verification(desired, observed, fetching.now_s),
    )


def _next_verification(
    desired: Mapping[str, DesiredModel], observed: Mapping[str, ModelOnNode], now_s: float
) -> VerifyRevision | None:
    """Return the revision to compare with its digests: of those that are due, the one compared longest ago."""
    due = [
        (compared.at_s, name, revision)
        for name, model in desired.items()
        if model.verify_interval_s and name in observed
        for revision in observed[name].on_disk.revisions
        for compared in (observed[name].on_disk.verification(revision),)
        if not compared.damaged and has_passed(compared.at_s, model.verify_interval_s, now_s)
    ]
    return VerifyRevision(*min(due)[1:]) if due else None


def _is_due(model: DesiredModel, observed: ModelOnNode | None, fetching: Fetching) -> bool:
    """Return whether the source of a model is to be checked now.

    What cannot be read may be whole: the source is not checked for that.
    """
    if model.name in fetching.failing:
        return False
    history = fetching.history(model.name)
    report = history.report
    if report.identity != model.identity or history.has_room(fetching.free_bytes):
        return True
    if report.failures:
        return has_passed(report.failed_s, fetch_backoff_s(report.failures), fetching.now_s)
    if observed is None or not (
        offered_revision(model, observed.on_disk) or unreadable_reason(model, observed.on_disk)
    ):
        return True
    follows = model.interval_s and not model.revision
    return bool(follows) and has_passed(report.checked_s, model.interval_s, fetching.now_s)


def _interrupts(model: DesiredModel, running: DesiredModel, offered: Mapping[str, str], fetching: Fetching) -> bool:
    """Return whether the first model that is due is to be fetched before another one is complete.

    It has more urgency, and new pods get no revision of it. One whose fetch has failed waits for its turn: it would
    interrupt again and again.
    """
    report = fetching.history(model.name).report
    has_failed = report.identity == model.identity and report.failures > 0
    return model.urgency > running.urgency and not offered[model.name] and not has_failed


def _step(
    name: str,
    observed: ModelOnNode,
    desired: DesiredModel | None,
    protected: frozenset[str],
    makes_room_for: str,
    running: str,
) -> CacheStep | None:
    """Return what is removed of one model: one thing, because the next follows from what is there then."""
    on_disk = observed.on_disk
    if desired is None:
        if name == running:
            return CancelFetch(name)
        return None if observed.listed is not None or observed.used else RemoveModel(name)
    if makes_room_for and observed.listed is None and on_disk.current and on_disk.current not in observed.used:
        return EvictRevision(name, on_disk.current, makes_room_for)
    superseded = set(on_disk.revisions) - protected - {on_disk.current}
    if superseded and name != running and len(on_disk.revisions) > desired.keep:
        return RemoveSuperseded(name, desired.keep)
    return None
