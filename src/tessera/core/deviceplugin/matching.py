"""Which pod an allocation of a share belongs to, and how assignments are corrected to what the kubelet did.

The kubelet's `Allocate` names no pod. Shares that differ only in GPU and place are interchangeable until the kubelet's
record shows who has which device ids; then the assignments are exchanged so that they say what each holder was given.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.gpu.inventory import Inventory
from tessera.errors import Conflict

__all__ = [
    "ASSIGNED_HINT",
    "Answer",
    "AssignedRequest",
    "Correction",
    "Ids",
    "Reconciled",
    "misfit",
    "pick",
    "reconcile",
    "served",
]

ASSIGNED_HINT = "set schedulerName: tessera-scheduler, and recreate the pod; a static pod cannot have a share of a GPU"
"""For a pod that asks a share and was not assigned one."""
Ids: TypeAlias = frozenset[str]
"""Device ids of one resource, which no two containers hold at once."""


class AssignedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod's assignment says of one container's units of one resource."""

    key: RequestKey
    uid: str = ""
    """Of the pod: another may have its name later."""
    units: int
    """Device ids the kubelet will give."""
    shares: tuple[Share, ...]
    at: int = 0
    """Position of the first of them in the pod's assignment."""
    since_ns: int = 0
    """When the pod was assigned or created, in nanoseconds."""
    ending: bool = False
    """Whether the pod is being deleted; then it holds what it holds and gets nothing more."""

    running: bool = False
    """Whether the pod runs; then it holds its devices, also where the kubelet's record does not show it yet."""
    initial: bool = False
    """Whether the container comes to an end before the pod's others start: what it has is theirs afterwards."""
    ask: str = ""
    """What the container asked, as text, where any share that serves one such ask serves all; empty elsewhere."""
    memory_mib: int = 0
    """Memory that each GPU it is assigned has at least, where the pod asked for an amount of any GPU; else 0."""
    models: tuple[str, ...] = ()
    """GPU models of which it is; empty for any."""
    bound: str = ""
    """The pod, where the requests of its containers stand for one share of it and cannot be exchanged singly."""

    @property
    def specification(self) -> str:
        """What must be equal for requests to be interchangeable, as text: what was asked, else all but the place."""
        placed = ((share, None if share.start is None else 0) for share in self.shares)
        anywhere = [msgspec.structs.replace(share, gpu=0, start=start, container="") for share, start in placed]
        parts = (self.key.resource, self.units, self.bound, self.ask or anywhere)
        return msgspec.json.encode(parts).decode()


def misfit(request: AssignedRequest, inventory: Inventory) -> str:
    """Return why a GPU that an assignment names is not what the pod asked for; empty where all are.

    Assignments name GPUs by index, under which other hardware may be after a reboot, or in a node of the same name.
    """
    gpus = {facts.index: facts for facts in inventory.gpus}
    for share in request.shares:
        facts = gpus.get(share.gpu)
        if facts is None or facts.lost:
            continue  # who makes devices ready says so
        if request.models and facts.model.name not in request.models:
            models = " or ".join(request.models)
            return f"it is assigned GPU {facts.index}, which is {facts.model.name} and not {models}"
        if share.start is None and facts.memory_mib < request.memory_mib:
            return f"it is assigned GPU {facts.index}, which has {facts.memory_mib} MiB and not {request.memory_mib}"
    return ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What `Allocate` gave for some device ids, and the request it was meant for."""

    ids: Ids
    key: RequestKey
    specification: str
    shares: tuple[Share, ...]
    fixed: bool = True
    """Whether the answer said which devices it is, so that the container has them whatever is decided later."""


def served(
    requests: Iterable[AssignedRequest], held: Iterable[KubeletAllocation], answers: Iterable[Answer]
) -> frozenset[RequestKey]:
    """Return the requests that were answered: those that hold devices, and those meant by answers not yet in use."""
    holding = {each.key for each in held}
    known = {frozenset(each.device_ids) for each in held}
    meant = {answer.key for answer in answers if answer.ids not in known}
    return frozenset(each.key for each in requests if each.running or each.key in holding | meant)


def pick(
    requests: Iterable[AssignedRequest], resource: str, units: int, answered: frozenset[RequestKey]
) -> AssignedRequest:
    """Return the oldest unanswered request of so many units of a resource.

    Raises:
        Conflict: there is none; the text says what there is.

    """
    alike = [each for each in requests if each.key.resource == resource]
    waiting = [each for each in alike if each.key not in answered and not each.ending]
    fitting = [each for each in waiting if each.units == units]
    if fitting:
        return min(fitting, key=lambda each: (each.since_ns, each.key))
    sizes = ", ".join(f"{each.key} ({each.units} units)" for each in waiting[:3])
    found = "no pod of this node has an assignment that says which GPU they come from"
    if alike:
        have = f"all {len(alike)} assigned pods have theirs"
        found = f"assigned pods request other amounts: {sizes}" if waiting else have
    raise Conflict(
        f"{units} units of {resource}",
        found=found,
        hint=ASSIGNED_HINT,
    )


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A request and the shares its assignment must name instead."""

    request: AssignedRequest
    shares: tuple[Share, ...]


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What makes assignments and the kubelet's record agree."""

    corrections: tuple[Correction, ...] = ()
    refused: tuple[tuple[RequestKey, str], ...] = ()
    """Holders that were given what is not theirs, and why nothing can be exchanged."""


def reconcile(
    requests: Iterable[AssignedRequest], held: Iterable[KubeletAllocation], answers: Iterable[Answer]
) -> Reconciled:
    """Return the exchanges of assignments after which each holder's says what it was given.

    Only requests of equal specification are exchanged; together they name the same shares before and after, so that
    nothing is granted twice. A holder without an answer, as one that was served by CDI, has its own and keeps it.
    """
    by_ids = {answer.ids: answer for answer in answers}
    answered = {each.key: by_ids.get(frozenset(each.device_ids)) for each in held}
    if not any(answered.values()):
        return Reconciled()
    kinds: dict[str, list[AssignedRequest]] = {}
    for request in sorted(requests, key=lambda each: (each.since_ns, each.key)):
        kinds.setdefault(request.specification, []).append(request)
    corrections: list[Correction] = []
    refused: list[tuple[RequestKey, str]] = []
    for kind in kinds.values():
        fixed, wrong = _allocated(kind, answered)
        refused += wrong
        corrections += _exchanged(kind, fixed)
    return Reconciled(corrections=tuple(corrections), refused=tuple(sorted(refused)))


def _allocated(
    kind: list[AssignedRequest], answered: Mapping[RequestKey, Answer | None]
) -> tuple[dict[RequestKey, tuple[Share, ...]], list[tuple[RequestKey, str]]]:
    """Return what holders among equal requests were given and keep, and those who were given what is not theirs."""
    fixed = {each.key: _unnamed(each.shares) for each in kind if each.key in answered and answered[each.key] is None}
    free = [_unnamed(each.shares) for each in kind if each.key not in fixed]
    wrong: list[tuple[RequestKey, str]] = []
    for request in kind:
        answer = answered.get(request.key)
        if answer is None:
            continue
        shares = _unnamed(answer.shares)
        if answer.specification != request.specification:
            wrong.append((request.key, f"it was given what {answer.key} is assigned, which is another size or kind"))
        elif shares not in free:
            wrong.append((request.key, f"it was given what {answer.key} was assigned, and no other pod has that now"))
        else:
            free.remove(shares)
            fixed[request.key] = shares
    return fixed, wrong


def _exchanged(kind: list[AssignedRequest], fixed: Mapping[RequestKey, tuple[Share, ...]]) -> list[Correction]:
    """Return the changes that give each request in `fixed` its shares, and the others their own or what remains."""
    free = [_unnamed(each.shares) for each in kind]
    for shares in fixed.values():
        free.remove(shares)
    moved = []
    for request in (each for each in kind if each.key not in fixed):
        if _unnamed(request.shares) in free:
            free.remove(_unnamed(request.shares))
        else:
            moved.append(request)
    desired = dict(fixed) | {request.key: shares for request, shares in zip(moved, free, strict=True)}
    return [
        Correction(request=request, shares=_renamed(desired[request.key], request))
        for request in kind
        if desired.get(request.key, _unnamed(request.shares)) != _unnamed(request.shares)
    ]


def _unnamed(shares: tuple[Share, ...]) -> tuple[Share, ...]:
    """Return shares without the container's name, which stays with the request."""
    return tuple(msgspec.structs.replace(share, container="") for share in shares)


def _renamed(shares: tuple[Share, ...], request: AssignedRequest) -> tuple[Share, ...]:
    pairs = zip(shares, request.shares, strict=True)
    return tuple(msgspec.structs.replace(share, container=own.container) for share, own in pairs)
