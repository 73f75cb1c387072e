"""Ends what should not be: a device that two pods have, and pods that wait for devices nobody will ever assign them.

The later of two pods, and the pod without an assignment, is evicted, and events say why.
"""

import datetime as dt
from collections.abc import Callable, Mapping

from tessera.agent.deviceplugin.gate import Gate
from tessera.agent.pods.evictions import Evictions
from tessera.agent.pods.nodeview import is_ending
from tessera.api.tessera.nodereports import Report, Subject
from tessera.clients.kube import Kube, record_event, uid_of
from tessera.core.deviceplugin.allocations import Allocation, Clash
from tessera.core.node.layouts import User
from tessera.errors import TesseraError
from tessera.log import Logger

__all__ = ["Conflicts"]

_CONFLICT, _HELD_UP, _UNASSIGNED = "DeviceConflict", "DeviceInUse", "NotAssigned"
_REFUSED = "EvictionRefused"
_NO_ASSIGNMENT = (
    "so no GPU is assigned and no container is started: recreate the pod with schedulerName: tessera-scheduler and "
    "without nodeName"
)
_ANSWER_S = 10.0


class Conflicts:
    """Evicts the later of two pods that have one device, as far as their PodDisruptionBudgets allow.

    Args:
        kube: the Kubernetes API.
        node: the node's name.
        gate: knows what pods have.
        log: where it is logged.
        now: the clock.

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
        """UIDs of the pods that are to be evicted, by `namespace/name`."""
        self._reported: set[str] = set()
        self._refused: dict[str, str] = {}
        """Why pods are not evicted, as it was reported."""

    async def end(
        self, unassigned: Mapping[str, str], *, evict: bool, why: Callable[[str], str] = lambda _: ""
    ) -> tuple[str, ...]:
        """Report each such pod once by an event, and evict it where this is allowed; return conflicts and refusals.

        Args:
            unassigned: pods that no assignment was written for, by UID.
            evict: whether pods are evicted for it (`disruption.evictConflicts` of the GPUPolicy).
            why: returns why the assignment on a pod (`namespace/name`) does not count; nothing where there is none.

        """
        conflicts = {
            later.uid: (later.pod, _text(later, clash, evict=evict)) for later, clash in self._gate.conflicts()
        }
        found = {uid: (pod, _UNASSIGNED, _without(why(pod))) for uid, pod in unassigned.items()}
        found |= {
            uid: (pod, _HELD_UP, _waiting(text, evict=evict))
            for uid, (pod, text) in self._gate.refusals.held_up().items()
        }
        found |= {uid: (pod, _CONFLICT, text) for uid, (pod, text) in conflicts.items()}
        there = {uid: each for uid, each in found.items() if self._is_there(uid)}
        self._reported &= there.keys()
        for uid, (pod, reason, text) in there.items():
            if uid not in self._reported:
                self._reported.add(uid)
                await self._report(uid, pod, Report(reason=reason, message=text, warning=True))
        if evict:
            self._uids = {pod: uid for uid, (pod, _, _) in there.items()}
            await self._evictions.ask(User(gpu="", pod=pod) for pod in self._uids)
        refused = await self._report_refused() if evict else ()
        return (*(text for _, text in conflicts.values()), *refused)

    async def _report_refused(self) -> tuple[str, ...]:
        """Report once of each pod that it is not evicted after all, and return why, a sentence each."""
        texts = {pod: " ".join(self._evictions.refusals([User(gpu="", pod=pod)])) for pod in self._uids}
        refused = {
            pod: f"{text}; delete it, or let its PodDisruptionBudget allow it" for pod, text in texts.items() if text
        }
        self._refused = {pod: text for pod, text in self._refused.items() if refused.get(pod) == text}
        for pod, text in refused.items():
            if pod not in self._refused:
                self._refused[pod] = text
                await self._report(self._uids[pod], pod, Report(reason=_REFUSED, message=text, warning=True))
        return tuple(refused.values())

    async def _evict(self, name: str, namespace: str) -> None:
        await self._kube.evict(name, namespace, uid=self._uids[f"{namespace}/{name}"])

    def _is_there(self, uid: str) -> bool:
        """Return whether a pod has not ended and is not being deleted."""
        pod = self._gate.view.find(uid)
        return uid_of(pod or {}) == uid and not is_ending(pod)

    async def _report(self, uid: str, pod: str, report: Report) -> None:
        namespace, _, name = pod.partition("/")
        subject = Subject(kind="Pod", name=name, namespace=namespace, uid=uid, node=self._node)
        self._log.error("pod_in_conflict", pod=pod, event_reason=report.reason, reason=report.message)
        try:
            await record_event(self._kube, subject, report, self._now())
        except TesseraError as error:
            self._log.warning("event_not_written", pod=pod, reason=str(error))


def _without(why: str) -> str:
    reason = f"its assignment does not count ({why})" if why else "not scheduled by tessera-scheduler"
    return f"{reason}, {_NO_ASSIGNMENT}"


def _waiting(text: str, *, evict: bool) -> str:
    what = "evicting this pod, so that its controller makes another" if evict else "delete one of the two pods"
    return f"no container of this pod could start for a minute: {text}; {what}"


def _text(later: Allocation, clash: Clash, *, evict: bool) -> str:
    other = "another pod" if clash.other is None else f"pod {clash.other.pod}"
    what = f"evicting {later.pod}, which came later" if evict else "delete one of them"
    return f"pod {later.pod} and {other} both use {clash.text}: {what}"
