"""What a node does next with the models on its disk: what it offers to pods, protects, removes and fetches.

A revision that a pod uses, or that the kubelet may still allocate to one, stays. What must go is withdrawn first, and
is removed when the kubelet cannot allocate it any longer and no pod uses it. A damaged revision is withdrawn, and its
source is fetched again.
"""

import math
from collections.abc import Iterator, Mapping

import msgspec

from tessera.core.storage.models.fetchhistory import FetchHistory, fetch_history
from tessera.core.storage.models.nodemodels import DesiredModel
from tessera.core.storage.models.retention import RevisionOnDisk, freed_bytes, least_evicted
from tessera.core.storage.models.verifications import Verification
from tessera.core.storage.retries import fetch_backoff_s, has_passed

__all__ = [
    "CachePlan",
    "CacheStep",
    "CancelFetch",
    "EvictRevision",
    "Fetching",
    "ModelOnDisk",
    "ModelOnNode",
    "RemoveModel",
    "RemoveStaged",
    "RemoveSuperseded",
    "VerifyRevision",
    "plan_cache",
    "unreadable_reason",
    "withheld_reason",
]


class ModelOnDisk(msgspec.Struct, frozen=True):
    """A model on the disk.

    Args:
        current: the revision that was fetched last; empty where that is not whole.
        revisions: all that are whole.
        verifications: when each of them was compared with its digests, and what is damaged.
        unverified: those with files that no checksum of their source verified.
        unreadable: those that cannot be read, each with the reason; they stay as they are.
        unreadable_current: that of them which was fetched last; empty for none.
        broken: those with a folder and no manifest that makes sense; they stay while pods have them.

    """

    current: str
    revisions: tuple[str, ...]
    verifications: Mapping[str, Verification] = {}
    unverified: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = {}
    unreadable_current: str = ""
    broken: frozenset[str] = frozenset()

    @property
    def examined(self) -> frozenset[str]:
        """Those whose pins are known to be right or wrong: all but the unreadable ones."""
        return self.broken.union(self.revisions)

    def verification(self, revision: str) -> Verification:
        """Return the last comparison of a revision."""
        return self.verifications.get(revision, Verification())


class ModelOnNode(msgspec.Struct, frozen=True):
    """A model on the disk, the pods that use it, and what the kubelet may still allocate.

    Args:
        on_disk: its revisions.
        used: those that pods have.
        listed: those that the kubelet may allocate to a pod, or may have allocated; None where it knows no resource of
            the model.
        revisions: all with what they free, where room is to be made; protected are those that a process reads.
        staged_bytes: of a fetch that was interrupted or failed, which the next one would use, where room is to be made.
        is_stuck: whether the disk refused to remove some of it; it makes no room for a while.

    """

    on_disk: ModelOnDisk
    used: frozenset[str] = frozenset()
    listed: frozenset[str] | None = None
    revisions: tuple[RevisionOnDisk, ...] = ()
    staged_bytes: int = 0
    is_stuck: bool = False


class Fetching(msgspec.Struct, frozen=True):
    """The fetches of a node.

    Args:
        now_s: seconds since 1970.
        running: the model that is fetched just now; empty for none.
        histories: what came of the fetches of the desired models, each of its present identity.
        failing: the models that an error of the disk keeps from being fetched.
        free_bytes: of the disk, above its reserve.

    """

    now_s: float = 0.0
    running: str = ""
    histories: Mapping[str, FetchHistory] = {}
    failing: frozenset[str] = frozenset()
    free_bytes: int = 0

    @property
    def needs(self) -> dict[str, int]:
        """The models that did not fit when they were fetched last, with the bytes that they lacked, undecided yet."""
        return {
            name: each.missing_bytes
            for name, each in self.histories.items()
            if each.room == "Needed" and name not in self.failing
        }

    def history(self, name: str) -> FetchHistory:
        """Return what came of the fetches of a model."""
        return self.histories.get(name) or fetch_history(name)


class CancelFetch(msgspec.Struct, frozen=True):
    """Cancel the fetch of a model that is no longer desired, or less urgent than one that is due."""

    model: str


class RemoveModel(msgspec.Struct, frozen=True):
    """Delete a model that is no longer desired or used."""

    model: str


class RemoveStaged(msgspec.Struct, frozen=True):
    """Remove what the last fetch of a model has left unfinished, which makes room for a more urgent model."""

    model: str
    makes_room_for: str


class EvictRevision(msgspec.Struct, frozen=True):
    """Remove a revision of a model, perhaps the current one, which makes room for another one."""

    model: str
    revision: str
    makes_room_for: str


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
    room = _make_room(desired, observed, fetching, {name: other for name, other in displaced.items() if other in due})
    # 2. New pods get what is desired and on the disk.
    offered = {
        name: "" if name in room.displaced or name not in observed else _revision(model, observed[name].on_disk)
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


class _RoomForAll(msgspec.Struct, frozen=True):
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


def _make_room(
    desired: Mapping[str, DesiredModel],
    observed: Mapping[str, ModelOnNode],
    fetching: Fetching,
    displaced: Mapping[str, str],
) -> _RoomForAll:
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
    return _RoomForAll(
        displaced={name: other for name, other in making_room.items() if other not in refused},
        refused=refused,
        stuck={name: room[name].stuck for name in refused},
        removed=tuple(removed.values()),
    )


def withheld_reason(model: DesiredModel, on_disk: ModelOnDisk) -> str:
    """Return why the revision of a model that new pods would get is withheld from them; empty if it is not."""
    revision = model.revision or on_disk.current
    problem = on_disk.verification(revision).damage
    if not problem and model.verification == "Required" and revision in on_disk.unverified:
        problem = "checksums of its source do not verify all of it, and spec.verification is Required"
    return f"revision {revision[:12]}: {problem}: fetched again" if problem else ""


def unreadable_reason(model: DesiredModel, on_disk: ModelOnDisk) -> str:
    """Return why the revision that new pods would get cannot be read; empty if it can, or there is none."""
    return on_disk.unreadable.get(model.revision or on_disk.unreadable_current, "")


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
    report = (history := fetching.history(model.name)).report
    if report.identity != model.identity or history.has_room(fetching.free_bytes):
        return True
    if report.failures:
        return has_passed(report.failed_s, fetch_backoff_s(report.failures), fetching.now_s)
    if observed is None or not (_revision(model, observed.on_disk) or unreadable_reason(model, observed.on_disk)):
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


def _revision(model: DesiredModel, on_disk: ModelOnDisk) -> str:
    """Return the revision of a model that new pods get; empty where it is not there, or withheld."""
    revision = model.revision if model.revision in on_disk.revisions else "" if model.revision else on_disk.current
    return "" if withheld_reason(model, on_disk) else revision


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
    offered = "" if desired is None else _revision(desired, observed.on_disk)
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
