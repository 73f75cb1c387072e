"""Observes pods for the last gate: in the API server, the kubelet's record and the process table."""

import asyncio
from collections.abc import Container, Iterable

from tessera.agent.pods.podsview import PodsInView, observed_pod
from tessera.clients.kube import Object
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod
from tessera.errors import TesseraError
from tessera.log import Logger

__all__ = ["PodObserver"]


class PodObserver:
    """Observes pods by UID.

    Args:
        view: the pods of this node.
        log: for failed reads.

    """

    def __init__(self, view: PodsInView, log: Logger) -> None:
        self.view = view
        self._log = log
        self._observed: dict[str, tuple[Object, GatePod]] = {}
        """The last observation of each pod: an object is replaced, never changed, so it is read once."""

    def pods(self, uids: Container[str]) -> dict[str, GatePod]:
        """Return those of these pods that the API server has."""
        present, before = self.view.by_uid(), self._observed
        self._observed = {
            uid: before[uid] if uid in before and before[uid][0] is pod else (pod, observed_pod(pod))
            for uid, pod in present.items()
        }
        return {uid: observed for uid, (_, observed) in self._observed.items() if uid in uids}

    async def refresh(self) -> bool:
        """Read the pods again, and return whether that succeeded; if not, the last observation counts."""
        try:
            await self.view.refresh()
        except (TesseraError, TimeoutError) as error:
            self._log.warning("pods_not_read", reason=str(error))
            return False
        return True

    async def running(self, uids: frozenset[str], *, admitting: bool = False) -> frozenset[str]:
        """Return those of these pods that have processes; if some have none, all pods are read again.

        Args:
            uids: of the pods.
            admitting: whether they stand in the way of `Allocate`, whose refusal ends a pod: then all are read again
                in any case, because processes may be left of a pod that was deleted by force.

        """
        running = await asyncio.to_thread(self.view.running, uids)
        if admitting or not uids <= running:  # a container that is not started is tried again
            await self.refresh()
        return running

    async def running_containers(self, containers: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return those of these containers, by UID of the pod and name, that may run; all if not observed."""
        asked = frozenset(containers)
        return asked if self.view.blind or not asked else await asyncio.to_thread(self.view.running_containers, asked)

    async def observe(self, uids: Iterable[str], running: frozenset[str] = frozenset()) -> GateObservation:
        """Return the observations of these pods, and of those in the kubelet's record.

        Args:
            uids: of the pods.
            running: those observed to have processes, as far as that matters.

        """
        recorded = await self.view.allocated()
        pods = self.pods({each.uid for each in recorded}.union(uids))
        return GateObservation(pods=pods, running=running, blind=self.view.blind, recorded=recorded)
