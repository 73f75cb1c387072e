"""The pods of this node with their assignments, including our own writes before the watch shows them."""

import asyncio
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

import msgspec

from tessera.agent.pods.assignmentkeys import Trust
from tessera.agent.pods.podsview import is_ended
from tessera.api.kubernetes.podspecs import ASSIGNMENT, SIGNATURE
from tessera.api.tessera.pods.assignedrequests import AssignedRequests, corrected, read_assigned_requests
from tessera.api.tessera.pods.signatures import is_signed, key_named
from tessera.clients.kube import Object, annotations_of, name_of, uid_of
from tessera.core.deviceplugin.allocations.agentallocations import Assigned, SignedAssignment, StartedPod
from tessera.core.deviceplugin.allocations.countedassignment import (
    AssignmentSource,
    PodAssignments,
    counted_assignment,
    counted_start,
)
from tessera.core.deviceplugin.allocations.kubeletallocations import RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest, Correction
from tessera.errors import Conflict, TesseraError
from tessera.loops import for_each

__all__ = ["AssignedPods", "StartedPods", "WritablePods"]


_PAUSE_S = 0.05
"""Pause before each signature that is renewed: when keys are lost, agents of all nodes have much to write at once."""


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """A pod after one of our writes."""

    before: Object
    """The object in the watch at that time."""
    after: Object
    stored: bool
    """Whether `after` is the API server's answer, with its version."""


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed Pod; objects are never changed in place, so the same object parses to the same."""

    pod: Object
    requests: tuple[AssignedRequest, ...]
    assigned: Object | None
    """The pod when its assignment last counted; None if it never did."""
    why: str
    """Why its assignment does not count; empty where it does."""
    recorded: bool = False
    """Whether `assigned` comes from the agent's record of what the pod's containers were started with."""


class WritablePods(Protocol):
    """The pods of a node, whose annotations may be set."""

    def pods(self) -> Iterable[Object]:
        """Return the pods as they are known."""
        ...

    async def annotate(self, pod: Object, annotations: Mapping[str, str]) -> Object | None:
        """Set annotations of this very pod, by UID; return it as stored, or None if the result is unknown."""
        ...


class StartedPods(Protocol):
    """What the containers of pods were started with; `AllocationRecord` is one."""

    def started_pod(self, uid: str) -> StartedPod | None:
        """Return what a pod's containers were started with; None for nothing."""


class AssignedPods:
    """The watched pods, and the writes of their annotations.

    A watch lags: until it shows our write or a later version, the written pod takes its place. Otherwise
    shares of one pod would count as free and be assigned to another. A running pod keeps its allocation even if
    its assignment is removed, spoiled, or replaced by a signed one that it had before (`counted_assignment`).

    Args:
        pods: those of this node, and their annotations.
        trust: the keys that count, and how assignments are signed.
        record: of what containers were started with.

    """

    def __init__(self, pods: WritablePods, trust: Trust, record: StartedPods) -> None:
        self._share_unit_mib = 1024
        self._pods = pods
        self._trust = trust
        self._keys = trust.keys
        self._record = record
        self._written: dict[tuple[str, str], _Written] = {}
        self._read: dict[tuple[str, str], _Known] = {}
        self._objects: tuple[Object, ...] = ()
        self._requests: tuple[AssignedRequest, ...] = ()

    def count_in(self, share_unit_mib: int) -> None:
        """Set the unit of `aliyun.com/gpu-mem`, in MiB."""
        if share_unit_mib != self._share_unit_mib:
            self._share_unit_mib = share_unit_mib
            self.read_again()

    def objects(self) -> Iterator[Object]:
        """Yield the pods with all our writes."""
        if not self._written:
            yield from self._pods.pods()
            return
        for pod in self._pods.pods():
            name = name_of(pod)
            written = self._written.get(name)
            if written is not None and _shows(pod, written):
                del self._written[name]
                written = None
            yield pod if written is None else written.after

    def assigned_requests(self) -> tuple[AssignedRequest, ...]:
        """Return the assignments of the pods."""
        objects, keys = tuple(self.objects()), self._trust.keys
        if keys is not self._keys:
            self._keys = keys
            self.read_again()
        elif len(objects) == len(self._objects) and all(map(operator.is_, objects, self._objects)):
            return self._requests
        read: dict[tuple[str, str], _Known] = {}
        for pod in objects:
            name = name_of(pod)
            known = self._read.get(name)
            read[name] = known if known is not None and known.pod is pod else self._known(pod, known)
        self._read, self._objects = read, objects
        self._requests = tuple(request for known in read.values() for request in known.requests)
        return self._requests

    async def refresh(self) -> None:
        """Reload the keys if assignments do not count: a server may have published a new one a moment ago.

        Raises:
            TesseraError: the API server does not answer.

        """
        if self.refused:
            await self._trust.refresh()

    @property
    def judges(self) -> bool:
        """Whether forged assignments can be recognized: a server's key is known."""
        return self._trust.knows_servers

    @property
    def refused(self) -> tuple[str, ...]:
        """Why assignments do not count, a sentence each."""
        self.assigned_requests()
        return tuple(known.why for known in self._read.values() if known.why)

    def with_refused(self, error: Conflict) -> Conflict:
        """Return the error with the reasons why pods have no assignment that counts, without the pods' names."""
        self.assigned_requests()
        refused = (known.why for known in self._read.values() if known.why and not known.requests)
        reasons = sorted({reason for _, _, reason in (each.partition(": ") for each in refused)})
        if not reasons:
            return error
        found = f"{error.found}; assignments not signed by Tessera: {'; '.join(reasons[:3])}"
        return Conflict(error.subject, found=found, hint=error.hint)

    def counts(self, uid: str, key: RequestKey) -> bool:
        """Return whether a container has an assignment that counts, known not from the agent's record alone."""
        pod, there = (key.namespace, key.pod), {(each.uid, each.key) for each in self.assigned_requests()}
        return (uid, key) in there and not self.by_record(pod) and not self.is_revoked(pod)

    def why(self, pod: tuple[str, str]) -> str:
        """Return why the assignment of a pod, by namespace and name, does not count; empty where it does."""
        self.assigned_requests()
        if self.is_revoked(pod):
            return f"assignment of pod {'/'.join(pod)}: the key that signed it was revoked"
        return self._read[pod].why if pod in self._read else ""

    def by_record(self, pod: tuple[str, str]) -> bool:
        """Return whether a pod's allocation comes from the agent's record, and not from its annotations."""
        self.assigned_requests()
        return pod in self._read and self._read[pod].recorded

    def is_revoked(self, pod: tuple[str, str]) -> bool:
        """Return whether a running pod's allocation was signed with a key that is revoked by now."""
        self.assigned_requests()
        assigned = self._read[pod].assigned if pod in self._read else None
        if assigned is None:
            return False
        started, revoked = self._record.started_pod(uid_of(assigned)), self._trust.revoked
        is_void = started is not None and counted_start(started, revoked) is None
        return is_void or revoked(self._signed(assigned).key)

    def revoked(self, key: str) -> bool:
        """Return whether the servers' key of this id is revoked."""
        return self._trust.revoked(key)

    def assignments(self, uid: str = "") -> Assigned:
        """Return the assignments of the pods, with the key of each; of one pod if a UID is given."""
        self.assigned_requests()
        assigned = (known.assigned for known in self._read.values() if known.assigned is not None)
        return {uid_of(each): self._signed(each) for each in assigned if not uid or uid_of(each) == uid}

    def _signed(self, assigned: Object) -> SignedAssignment:
        annotations, started = annotations_of(assigned), self._record.started_pod(uid_of(assigned))
        text, signature = annotations.get(ASSIGNMENT, ""), annotations.get(SIGNATURE, "")
        if started is not None and started.signed.assignment == text:
            return started.signed  # whoever signed the new one
        return SignedAssignment(assignment=text, key=key_named(signature), signature=signature)

    def read_again(self) -> None:
        """Parse every pod again; running pods whose assignment does not count keep their allocation."""
        self._read = {
            name: msgspec.structs.replace(known, pod={})
            for name, known in self._read.items()
            if known.assigned is not None
        }
        self._objects, self._requests = (), ()

    def _known(self, pod: Object, before: _Known | None) -> _Known:
        found = self._requests_of(pod)
        started = counted_start(self._record.started_pod(uid_of(pod)), self._trust.revoked)
        recorded = None if started is None else self._recorded(pod, started)
        own = () if recorded is None else self._requests_of(recorded).requests
        former = before.assigned if not found.requests and before is not None and _is_of(before, pod) else None
        counted = counted_assignment(
            PodAssignments(
                present=found.requests,
                unknown_keys=found.unknown,
                former=former is not None,
                former_is_signed=former is not None and bool(self._requests_of(former).requests),
                running=(pod.get("status") or {}).get("phase") == "Running",
                started=started,
                recorded=own,
            ),
            self._trust.revoked,
        )
        why = "; ".join(found.refused)
        if counted.source is AssignmentSource.FORMER and before is not None:
            return msgspec.structs.replace(before, pod=pod, why=why)
        if counted.source is AssignmentSource.RECORDED:
            namespace, name = name_of(pod)
            why = why or f"assignment of pod {namespace}/{name}: {counted.why}"
            return _Known(pod=pod, requests=own, assigned=recorded, why=why, recorded=True)
        return _Known(pod=pod, requests=found.requests, assigned=pod if found.requests else None, why=why)

    def _requests_of(self, pod: Object) -> AssignedRequests:
        return read_assigned_requests((pod,), share_unit_mib=self._share_unit_mib, keys=self._keys)

    def _recorded(self, pod: Object, started: StartedPod) -> Object:
        """Return a pod with the assignment it was started with, under its former signature, else this agent's."""
        signed = started.signed
        first = _annotated(pod, {ASSIGNMENT: signed.assignment, SIGNATURE: signed.signature})
        if is_signed(first, self._keys):
            return first
        return _annotated(pod, self._trust.sealed(pod, {ASSIGNMENT: signed.assignment}))

    async def correct(self, correction: Correction) -> None:
        """Write the assignment of a correction on its pod, if it differs and the pod exists.

        Raises:
            TesseraError: the API server rejects it.

        """
        name = (correction.request.key.namespace, correction.request.key.pod)
        before = next((pod for pod in self._pods.pods() if name_of(pod) == name), None)
        pod = next((pod for pod in self.objects() if name_of(pod) == name), None)
        if pod is None or before is None or uid_of(pod) != correction.request.uid:
            return
        self.assigned_requests()
        assigned = self._read[name].assigned or pod
        new = corrected(assigned, correction, share_unit_mib=self._share_unit_mib, keys=self._keys)
        present = annotations_of(pod)
        if all(present.get(key) == text for key, text in new.items()) and is_signed(pod, self._keys):
            return
        annotations = self._trust.sealed(pod, new)
        stored = await self._pods.annotate(pod, annotations)
        after = stored or _annotated(pod, annotations)
        self._written[name] = _Written(before=before, after=after, stored=stored is not None)

    async def repair(self, vouched: Callable[[AssignedRequest], bool]) -> None:
        """Restore the spoiled assignments of running pods: servers rely on annotations.

        Assignments signed by no published key are signed again. These, and assignments known only from the agent's
        record, are written only if a container was started with exactly them.

        Args:
            vouched: whether the agent's record has a container started with a request's shares, which it still has.

        Raises:
            TesseraError: the API server rejects one of them; the others were written.

        """
        self.assigned_requests()
        failed: list[TesseraError] = []
        await for_each(self._read.values(), partial(self._repair, vouched), lambda _, error: failed.append(error))
        if failed:
            raise failed[-1]

    @property
    def lapsed(self) -> bool:
        """Whether a lost signature is to be renewed."""
        self.assigned_requests()
        return any(map(self._is_lapsed, self._read.values()))

    def _is_lapsed(self, known: _Known) -> bool:
        return known.recorded or self._is_unpublished(known)

    def _is_unpublished(self, known: _Known) -> bool:
        return key_named(annotations_of(known.assigned or {}).get(SIGNATURE, "")) in self._trust.unpublished

    async def _repair(self, vouched: Callable[[AssignedRequest], bool], known: _Known) -> None:
        was, now = annotations_of(known.assigned or {}), annotations_of(known.pod)
        # The kubelet's record lacks init containers that were followed by others.
        lasting = [each for each in known.requests if not each.initial] or known.requests
        if self._is_lapsed(known) and all(map(vouched, lasting)):
            if self._is_unpublished(known):
                was = self._trust.sealed(known.pod, {ASSIGNMENT: was[ASSIGNMENT]})
            await asyncio.sleep(_PAUSE_S)
        elif known.recorded:
            return
        if any(was.get(key) != now.get(key) for key in (ASSIGNMENT, SIGNATURE) if key in was):
            await self._pods.annotate(known.pod, {key: was[key] for key in (ASSIGNMENT, SIGNATURE) if key in was})


def _annotated(pod: Object, annotations: Mapping[str, str]) -> Object:
    return {**pod, "metadata": {**pod["metadata"], "annotations": {**annotations_of(pod), **annotations}}}


def _is_of(before: _Known, pod: Object) -> bool:
    """Return whether an assignment counted before for this very pod, which has not ended."""
    return before.assigned is not None and uid_of(pod) == uid_of(before.assigned) and not is_ended(pod)


def _shows(pod: Object, written: _Written) -> bool:
    """Return whether the watch shows our write: a later version includes or supersedes it."""
    if pod is written.before:
        return False
    versions = [each["metadata"].get("resourceVersion") or "" for each in (pod, written.after)]
    if not written.stored or not all(version.isdecimal() for version in versions):
        return True
    return int(versions[0]) >= int(versions[1])
