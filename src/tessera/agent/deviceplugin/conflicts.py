"""Resolves conflicts: a device allocated to two pods, and pods whose devices will never be assigned.

The later of two pods, and a pod without an assignment, is evicted; events say why.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tessera.agent.deviceplugin.allocations.gate import Gate
from tessera.agent.pods.evictions import Evictions
from tessera.agent.pods.podsview import is_ending
from tessera.api.tessera.node.nodereports import Report, Subject
from tessera.clients.kube import Kube, record_event, uid_of
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.clashes import Clash
from tessera.errors import TesseraError
from tessera.log import Logger

__all__ = ["Conflicts"]

_CONFLICT, _IN_USE, _UNASSIGNED, _REFUSED = "DeviceConflict", "DeviceInUse", "NotAssigned", "EvictionRefused"
_NO_ASSIGNMENT = (
    "so no GPU is assigned and no container may start: recreate the pod with schedulerName: tessera-scheduler and "
    "without nodeName"
)
_ANSWER_S = 10.0
_WORTH = dt.timedelta(minutes=10)
"""How long an event about a deleted pod is retried."""
_AGAIN_S = 1800.0
"""After this an event is written again: the API server forgets one after an hour by default (`--event-ttl`)."""


class _Due(NamedTuple):
    """A pending event."""

    subject: Subject
    report: Report
    until: dt.datetime


class _Reported(NamedTuple):
    """A reported message, and when it was reported, on the monotonic clock."""

    text: str
    at_s: float


class Conflicts:
    """Evicts the later of two pods with the same device, as far as their PodDisruptionBudgets allow.

    Args:
        kube: the Kubernetes API.
        node: the node's name.
        gate: has the allocations.
        log: for conflicts.
        now: the wall clock.

    """

    def __init__(
        self,
        kube: Kube,
        node: str,
        gate: Gate,
        log: Logger,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._kube = kube
        self._node = node
        self._gate = gate
        self._log = log
        self._now = now
        self._evictions = Evictions(self._evict, _ANSWER_S)
        self._uids: dict[str, str] = {}
        """UIDs of the pods to evict, by `namespace/name`."""
        self._reported: dict[tuple[str, str], _Reported] = {}
        """By UID and reason."""
        self._due: list[_Due] = []

    async def end(
        self, unassigned: Mapping[str, str], *, evict: bool, why: Callable[[str], str] = lambda _: ""
    ) -> tuple[str, ...]:
        """Report each conflict by an event, and evict the pod if this is allowed.

        Failed events are retried, and do not delay evictions.

        Args:
            unassigned: pods without an assignment, by UID.
            evict: whether pods are evicted (`disruption.evictConflicts` of the GPUPolicy).
            why: returns why the assignment of a pod (`namespace/name`) does not count; empty where there is none.

        Returns:
            The conflicts in words, and those of the pods that are not evicted, with the reason.

        """
        # 1. Find the pods to evict; one with several reasons gets the gravest.
        conflicts = {
            later.uid: (later.pod, _text(later, clash, evict=evict))
            for later, clash in self._gate.refusals.double_allocations()
        }
        found = {uid: (pod, _UNASSIGNED, _without(why(pod))) for uid, pod in unassigned.items()}
        found |= {
            uid: (pod, _IN_USE, _waiting(text, evict=evict))
            for uid, (pod, text) in self._gate.refusals.blocked_pods().items()
        }
        found |= {uid: (pod, _CONFLICT, text) for uid, (pod, text) in conflicts.items()}
        there = {uid: each for uid, each in found.items() if self._is_there(uid)}
        self._reported = {key: last for key, last in self._reported.items() if key[0] in there}
        # 2. Report why, while they exist.
        for uid, (pod, reason, text) in there.items():
            if self._is_due(uid, reason):
                self._say(uid, pod, reason, text)
        await self._write_events()
        if not evict:
            return tuple(text for _, text in conflicts.values())
        # 3. Evict them, and report refused evictions.
        refusals = await self._request_evictions({pod: uid for uid, (pod, _, _) in there.items()})
        await self._write_events()
        return (*(text for _, text in conflicts.values()), *refusals)

    async def _request_evictions(self, uids: Mapping[str, str]) -> tuple[str, ...]:
        """Request evictions by `namespace/name`; return why some are refused."""
        self._uids = dict(uids)
        await self._evictions.request(uids)
        refusals = self._evictions.refusals(uids)
        for pod, text in refusals.items():
            if self._is_due(uids[pod], _REFUSED, text):
                self._say(uids[pod], pod, _REFUSED, text)
        return tuple(refusals.values())

    async def _evict(self, name: str, namespace: str) -> None:
        await self._kube.evict(name, namespace, uid=self._uids[f"{namespace}/{name}"])

    def _is_there(self, uid: str) -> bool:
        """Return whether a pod has not ended and is not terminating."""
        pod = self._gate.view.find(uid)
        return uid_of(pod or {}) == uid and not is_ending(pod)

    def _is_due(self, uid: str, reason: str, text: str = "") -> bool:
        """Return whether an event is to be written: it is new, has another text, or may be forgotten soon."""
        last = self._reported.get((uid, reason))
        return last is None or text not in ("", last.text) or self._gate.times.clock_s() - last.at_s >= _AGAIN_S

    def _say(self, uid: str, pod: str, reason: str, text: str) -> None:
        """Log what happens to a pod, and record an event."""
        self._reported[uid, reason] = _Reported(text, self._gate.times.clock_s())
        self._log.error("pod_in_conflict", pod=pod, event_reason=reason, reason=text)
        namespace, _, name = pod.partition("/")
        subject = Subject(kind="Pod", name=name, namespace=namespace, uid=uid, node=self._node)
        report = Report(reason=reason, message=text, warning=True)
        self._due.append(_Due(subject, report, self._now() + _WORTH))

    async def _write_events(self) -> None:
        """Write pending events; failed ones are retried while the pod exists, and for a while after."""
        due, self._due = self._due, []
        for each in due:
            try:
                await record_event(self._kube, each.subject, each.report, self._now())
            except (TesseraError, TimeoutError) as error:
                self._log.warning("event_not_written", pod=each.subject.name, reason=str(error))
                if self._is_there(each.subject.uid) or self._now() < each.until:
                    self._due.append(each)


def _without(why: str) -> str:
    reason = f"its assignment does not count ({why})" if why else "not scheduled by tessera-scheduler"
    return f"{reason}, {_NO_ASSIGNMENT}"


def _waiting(text: str, *, evict: bool) -> str:
    what = "evicting this pod, so that its controller makes another" if evict else "delete it, or the pod in its way"
    return f"no container of this pod can start: {text}; {what}"


def _text(later: AgentAllocation, clash: Clash, *, evict: bool) -> str:
    if clash.other is None:
        what = f"evicting {later.pod}" if evict else "delete it"
        return f"pod {later.pod} alone uses {clash.text}: {what}"
    what = f"evicting {later.pod}, created later" if evict else "delete one of them"
    how = "together" if clash.full else "both"
    return f"pod {later.pod} and pod {clash.other.pod} {how} use {clash.text}: {what}"
