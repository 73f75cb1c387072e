"""Ends what should never be: a device that two pods have. The later pod is evicted, and events say why."""

import datetime as dt
from collections.abc import Callable, Iterable

from tessera.agent.deviceplugin import Gate
from tessera.agent.nodeview import uid_of
from tessera.agent.partition.evictions import Evictions
from tessera.api.nodereports import Report, Subject
from tessera.clients.kube import Kube, record_event
from tessera.core.allocations import Allocation, Clash
from tessera.core.layouts import User
from tessera.errors import TesseraError
from tessera.log import Logger

__all__ = ["Conflicts"]

_REASON = "DeviceConflict"
_ANSWER_S = 10.0


class Conflicts:
    """Evicts the later of two pods that have one device, as far as their PodDisruptionBudgets allow.

    Args:
        kube: the Kubernetes API.
        node: the node's name.
        gate: tells what pods have.
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
        self._evictions = Evictions(kube.evict, _ANSWER_S)
        self._reported: set[tuple[str, str]] = set()

    async def end(self, *, evict: bool) -> tuple[str, ...]:
        """Report each conflict on its later pod, and evict that pod where this is allowed; return them in words.

        Args:
            evict: whether pods are evicted for it (`disruption.evictConflicts` of the GPUPolicy).

        """
        found = self._gate.conflicts()
        texts = tuple(_text(later, clash, evict=evict) for later, clash in found)
        self._reported &= {(later.uid, text) for (later, _), text in zip(found, texts, strict=True)}
        for (later, _), text in zip(found, texts, strict=True):
            if (later.uid, text) not in self._reported:
                self._reported.add((later.uid, text))
                await self._report(later, text)
        if evict:
            await self._evictions.ask(self._users(later for later, _ in found))
        return texts

    def _users(self, entries: Iterable[Allocation]) -> Iterable[User]:
        """Return the pods that are still there under the UID that has the device."""
        for each in entries:
            pod = self._gate.view.find(each.uid)
            if pod is not None and uid_of(pod) == each.uid and not pod["metadata"].get("deletionTimestamp"):
                yield User(gpu=each.uses[0].gpu if each.uses else "", pod=each.pod)

    async def _report(self, later: Allocation, text: str) -> None:
        namespace, _, name = later.pod.partition("/")
        subject = Subject(kind="Pod", name=name, namespace=namespace, uid=later.uid, node=self._node)
        self._log.error("device_conflict", pod=later.pod, reason=text)
        try:
            await record_event(self._kube, subject, Report(reason=_REASON, message=text, warning=True), self._now())
        except TesseraError as error:
            self._log.warning("event_not_written", pod=later.pod, reason=str(error))


def _text(later: Allocation, clash: Clash, *, evict: bool) -> str:
    other = "another pod" if clash.other is None else clash.other.holder
    what = "it is evicted" if evict else "delete one of them"
    return f"pod {later.pod} was allocated {clash.text}, which {other} was allocated before: {what}"
