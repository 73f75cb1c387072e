"""Matches allocations of shares to pods, and corrects assignments to match the kubelet's choice.

The kubelet's `Allocate` names no pod. Shares that differ only in GPU and place are interchangeable until the kubelet's
record shows the holder of the ids; then the assignments are exchanged so that they match each holder's answer.
"""

import contextlib
import itertools
from collections.abc import Container, Iterable, Mapping
from typing import TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation, RequestKey
from tessera.core.gpu.inventory import Inventory
from tessera.errors import Conflict

__all__ = [
    "ASSIGNED_HINT",
    "Answer",
    "AssignedRequest",
    "Correction",
    "Ids",
    "Reconciled",
    "Units",
    "absent",
    "mismatch",
    "pick",
    "reconcile",
    "served",
    "unserved",
]

ASSIGNED_HINT = "set schedulerName: tessera-scheduler, and recreate the pod; a static pod cannot have a share of a GPU"
"""For a pod that requests a share and was not assigned one."""
Ids: TypeAlias = frozenset[str]
"""Device ids of one resource, which no two containers have at once."""
Units: TypeAlias = tuple[str, Ids]
"""A resource and ids of it: those of memory are the same for both of its resources."""


class AssignedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's assignment for one container's units of one resource."""

    key: RequestKey
    uid: str = ""
    """Of the pod: another may have its name later."""
    units: int
    """Number of device ids the kubelet allocates."""
    shares: tuple[Share, ...]
    at: int = 0
    """Position of the first of them in the pod's assignment."""
    since_ns: int = 0
    """When the pod was assigned or created, in nanoseconds."""
    created_ns: int = 0
    """When the pod was created, in nanoseconds."""
    ending: bool = False
    """Whether the pod is terminating; then it keeps its devices and gets no more."""

    running: bool = False
    """Whether the pod runs; then it has its devices, even if the kubelet's record does not show it yet."""
    ends: bool = False
    """Whether the pod ends with its containers, which are not all started again."""
    initial: bool = False
    """Whether the container ends before the pod's others start, which get its devices then."""
    request_text: str = ""
    """The container's request, as text, if any share that serves one such request serves all; empty elsewhere."""
    memory_mib: int = 0
    """Least memory of each assigned GPU, if the pod requested an amount of any GPU; else 0."""
    models: tuple[str, ...] = ()
    """GPU models that it allows; empty for any."""
    bound: str = ""
    """The pod, if its containers' requests stand for one share and cannot be exchanged singly."""

    @property
    def container_key(self) -> tuple[str, str, str]:
        """The container and the resource, as `AgentAllocation.container_key`."""
        return self.uid, self.key.container, self.key.resource

    @property
    def specification(self) -> str:
        """What must be equal for requests to be interchangeable, as text: the request, else all but the place."""
        placed = ((share, None if share.start is None else 0) for share in self.shares)
        anywhere = [msgspec.structs.replace(share, gpu=0, start=start, container="") for share, start in placed]
        parts = (self.key.resource, self.units, self.bound, self.request_text or anywhere)
        return msgspec.json.encode(parts).decode()


def mismatch(request: AssignedRequest, inventory: Inventory) -> str:
    """Return why a GPU of an assignment does not match the pod's request; empty where all do.

    Assignments name GPUs by index, which may be other hardware after a reboot, or in a recreated node.
    """
    gpus = {facts.index: facts for facts in inventory.gpus}
    for share in request.shares:
        facts = gpus.get(share.gpu)
        if facts is None or facts.lost:
            continue  # reported by `absent`
        if request.models and facts.model.name not in request.models:
            models = " or ".join(request.models)
            return f"it is assigned GPU {facts.index}, which is {facts.model.name} and not {models}"
        if share.start is None and facts.memory_mib < request.memory_mib:
            return f"it is assigned GPU {facts.index}, which has {facts.memory_mib} MiB and not {request.memory_mib}"
    return ""


def absent(request: AssignedRequest, inventory: Inventory) -> str:
    """Return which GPU of an assignment is not on this node, or is lost to the driver; empty where all are there."""
    gpus = {facts.index: facts for facts in inventory.gpus}
    for share in request.shares:
        facts = gpus.get(share.gpu)
        if facts is None:
            return f"it is assigned GPU {share.gpu}, which is not on this node any more"
        if facts.lost:
            return f"it is assigned GPU {share.gpu}, a GPU that the driver has lost"
    return ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `Allocate` for some device ids, and the request it was meant for."""

    ids: Ids
    key: RequestKey
    specification: str
    shares: tuple[Share, ...]
    fixed: bool = True
    """Whether the answer named the devices, so that the container has them whatever is decided later."""

    @property
    def units(self) -> Units:
        """What the kubelet allocated."""
        return self.key.resource, self.ids


def served(
    requests: Iterable[AssignedRequest], allocated: Iterable[KubeletAllocation], answers: Iterable[Answer]
) -> frozenset[RequestKey]:
    """Return the answered requests: those with devices, and those meant by answers not yet in use."""
    holding = {each.key for each in allocated}
    known = {(each.resource, frozenset(each.device_ids)) for each in allocated}
    meant = {answer.key for answer in answers if answer.units not in known}
    return frozenset(each.key for each in requests if each.running or each.key in holding | meant)


def pick(
    requests: Iterable[AssignedRequest], resource: str, units: int, answered: frozenset[RequestKey]
) -> AssignedRequest:
    """Return the oldest unanswered request of this many units of a resource.

    Raises:
        Conflict: there is none; the message lists the others.

    """
    alike = [each for each in requests if each.key.resource == resource]
    waiting = [each for each in alike if each.key not in answered and not each.ending]
    fitting = [each for each in waiting if each.units == units]
    if fitting:
        return min(fitting, key=lambda each: (each.since_ns, each.key))
    sizes = ", ".join(f"{each.key} ({each.units} units)" for each in waiting[:3])
    found = "no pod of this node has an assignment for them"
    if alike:
        have = f"all {len(alike)} assigned pods already have their devices"
        found = f"assigned pods request other amounts: {sizes}" if waiting else have
    raise Conflict(
        f"{units} units of {resource}",
        found=found,
        hint=ASSIGNED_HINT,
    )


def unserved(
    requests: Iterable[AssignedRequest],
    units: tuple[str, int],
    allocated: Iterable[KubeletAllocation],
    answers: Iterable[Answer],
    unlikely: Container[RequestKey] = (),
) -> AssignedRequest:
    """Return the request to answer: one that was not answered yet, else one whose answer has no holder.

    The kubelet admits one pod after the other, so the pod of an answer without a holder was rejected. It names no pod:
    where one of equal pods cannot start, the kubelet may admit it first, and then the last of them cannot.

    Args:
        requests: of the pods.
        units: a resource, and how many of it are allocated.
        allocated: the kubelet's record.
        answers: those not yet in use.
        unlikely: requests that are answered where no others wait: their GPU is not there, or their containers run.

    Raises:
        Conflict: there is none; the message lists the others.

    """
    every, (resource, count) = tuple(requests), units
    likely = tuple(each for each in every if each.key not in unlikely)
    answered, recorded = served(every, allocated, answers), served(every, allocated, ())
    for some, done in ((likely, answered), (likely, recorded), (every, answered)):
        with contextlib.suppress(Conflict):
            return pick(some, resource, count, done)
    return pick(every, resource, count, recorded)


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """A request and the shares its assignment must name instead."""

    request: AssignedRequest
    shares: tuple[Share, ...]


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """The corrections that make assignments match the kubelet's record."""

    corrections: tuple[Correction, ...] = ()
    refused: tuple[tuple[RequestKey, str], ...] = ()
    """Holders with the wrong devices, and why nothing can be exchanged."""
    mistaken: frozenset[RequestKey] = frozenset()
    """Those of them whose devices differ in size or kind from their own: no exchange to come helps them."""


def reconcile(
    requests: Iterable[AssignedRequest], allocated: Iterable[KubeletAllocation], answers: Iterable[Answer]
) -> Reconciled:
    """Return the exchanges of assignments after which each holder's matches its answer.

    Only requests of equal specification are exchanged; together they name the same shares before and after, so that
    nothing is allocated twice. A holder without an answer, such as one served by CDI, keeps its own.
    """
    by_units = {answer.units: answer for answer in answers}
    answered = {each.key: by_units.get((each.resource, frozenset(each.device_ids))) for each in allocated}
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
    specifications = {each.key: each.specification for each in itertools.chain.from_iterable(kinds.values())}
    mistaken = frozenset(
        key for key, _ in refused if (each := answered[key]) and each.specification != specifications[key]
    )
    return Reconciled(corrections=tuple(corrections), refused=tuple(sorted(refused)), mistaken=mistaken)


def _allocated(
    kind: list[AssignedRequest], answered: Mapping[RequestKey, Answer | None]
) -> tuple[dict[RequestKey, tuple[Share, ...]], list[tuple[RequestKey, str]]]:
    """Return what holders among equal requests were answered and keep, and those with the wrong devices."""
    own = [(each.key, _unnamed(each.shares)) for each in kind]
    fixed = {key: shares for key, shares in own if key in answered and answered[key] is None}
    free = [shares for key, shares in own if key not in fixed]
    wrong: list[tuple[RequestKey, str]] = []
    for request in kind:
        answer = answered.get(request.key)
        if answer is None:
            continue
        shares = _unnamed(answer.shares)
        if answer.specification != request.specification:
            wrong.append(
                (request.key, f"it was started with the devices of {answer.key}, which differ in size or kind")
            )
        elif shares not in free:
            wrong.append(
                (
                    request.key,
                    f"it was started with the devices of {answer.key}, and no other pod is assigned those now",
                )
            )
        else:
            free.remove(shares)
            fixed[request.key] = shares
    return fixed, wrong


def _exchanged(kind: list[AssignedRequest], fixed: Mapping[RequestKey, tuple[Share, ...]]) -> list[Correction]:
    """Return the corrections that give each request in `fixed` its shares, and others their own or a free one."""
    own = [(each, _unnamed(each.shares)) for each in kind]
    free = [shares for _, shares in own]
    for shares in fixed.values():
        free.remove(shares)
    moved = []
    for request, shares in own:
        if request.key in fixed:
            continue
        if shares in free:
            free.remove(shares)
        else:
            moved.append(request)
    desired = dict(fixed) | {request.key: shares for request, shares in zip(moved, free, strict=True)}
    return [
        Correction(request=request, shares=_renamed(desired[request.key], request))
        for request, shares in own
        if desired.get(request.key, shares) != shares
    ]


def _unnamed(shares: tuple[Share, ...]) -> tuple[Share, ...]:
    """Return shares without the container's name, which stays with the request."""
    return tuple(msgspec.structs.replace(share, container="") for share in shares)


def _renamed(shares: tuple[Share, ...], request: AssignedRequest) -> tuple[Share, ...]:
    pairs = zip(shares, request.shares, strict=True)
    return tuple(msgspec.structs.replace(share, container=own.container) for share, own in pairs)
