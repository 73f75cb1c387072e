"""The last gate before a container gets a device: may it be allocated, and may the container start?

What may be allocated and what may start is decided by `core.deviceplugin.lastgate`; here the pods in the way are looked
at, and the record is on disk before an answer is given (docs/decisions/0014-last-gate.md).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from tessera.agent.deviceplugin.allocationrecord import AllocationRecord
from tessera.agent.deviceplugin.refusals import Refusals
from tessera.agent.pods.observing import PodObserver
from tessera.agent.pods.podsview import PodsInView, by_uid
from tessera.api.kubernetes.podstates import created_ns
from tessera.core.deviceplugin import lastgate
from tessera.core.deviceplugin.allocations import Allocation, Use, clashes, replaces
from tessera.core.deviceplugin.lastgate import GateDecision, ObservedPods
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.workload.resources import SHARE_RESOURCES
from tessera.errors import Conflict, Unavailable
from tessera.log import Logger

__all__ = ["Gate"]

_TERMINATION_WAIT_S = 5.0
"""How long a container waits for the processes of one that is ending; the kubelet kills them after two seconds at
least, and tries again what was refused."""
_RETRY_S = 0.1


class Gate:
    """Decides about each allocation, and about each start of a container.

    Args:
        view: the pods of this node.
        capacity: returns the memory in MiB that can be allocated of each device.
        log: where refusals are logged.
        file: keeps the record over a restart of the agent; None keeps nothing.
        now_ns: the time, in nanoseconds since 1970.
        clock_s: a monotonic clock, for how long something lasts.

    """

    def __init__(
        self,
        view: PodsInView,
        capacity: Callable[[], Mapping[DeviceId, int]],
        log: Logger,
        *,
        file: Path | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.view = view
        self._observer = PodObserver(view, log)
        self.record = AllocationRecord(self._observer, capacity, log, file=file, now_ns=now_ns, clock_s=clock_s)
        self.refusals = Refusals(self.record, view, capacity, clock_s)
        self._capacity = capacity
        self._log = log

    async def admit(self, resource: str, ids: Iterable[str], uses: tuple[Use, ...] = ()) -> None:
        """Record the allocation that `Allocate` is about to answer, or refuse it.

        Raises:
            Conflict: a pod that lives has one of them, or a device that overlaps.
            Unavailable: the record cannot be written.

        """
        guessed = resource in SHARE_RESOURCES
        new = Allocation(
            resource=resource, ids=tuple(sorted(ids)), uses=uses, at_ns=self.record.next_ns(), guessed=guessed
        )
        # 1. From now on it counts: to look at pods takes time.
        with self.record.admitting(new):
            # 2. Look at the pods in its way.
            observed = await self._observe_rivals(new, ids=True)
            # 3. Decide, and write that down.
            self._follow(lastgate.admit(self.record.entries, new, observed, self._capacity()), new)

    async def holder(self, resource: str, ids: Iterable[str]) -> Allocation:
        """Return for which container `PreStartContainer` is called with these ids, without what it uses.

        Raises:
            Conflict: the kubelet allocated them to two pods that live.
            Unavailable: its record does not show them.

        """
        desired = tuple(sorted(ids))
        # 1. Find the containers that the kubelet gave these ids; of two pods one may be about to end.
        found = await self._holders(resource, desired)
        # 2. Remember which of them came later: nobody can tell for whom the kubelet asks.
        created = {uid: created_ns(pod) for uid, pod in by_uid(self.view.pods()).items()}
        later = lastgate.later_holders(found, self.record.entries, created)
        self.refusals.note_duplicates(resource, desired, later)
        # 3. Answer if there is one.
        if not found:
            raise Unavailable(
                f"{len(desired)} devices of {resource}",
                found="the kubelet's checkpoint does not list these devices for any container yet",
                hint="the kubelet retries",
            )
        if later:
            raise Conflict(
                f"device {desired[0]} of {resource}",
                found=f"the kubelet allocated it to pods {' and '.join(sorted({each.pod for each in found}))}",
                hint=f"delete {' and '.join(sorted({each.pod for each, _ in later}))}, created later",
            )
        return found[0]

    async def start(self, holder: Allocation, uses: tuple[Use, ...], *, ids: bool) -> None:
        """Record what a container is about to use, or refuse it; waits a little for pods that are terminating.

        Args:
            holder: as `holder` gave it, with the pod's assignment where it goes by one.
            uses: the devices.
            ids: whether ids of others matter, which stand for devices and not for units.

        Raises:
            Conflict: a pod that lives has what it would use.
            Unavailable: the record cannot be written.

        """
        # 1. What starts again is not later than before.
        before_ns = (each.at_ns for each in self.record.entries if replaces(holder, each))
        new = msgspec.structs.replace(holder, uses=uses, at_ns=min(before_ns, default=self.record.next_ns()))
        # 2. Decide, a little later where who is in its way ends.
        loop = asyncio.get_running_loop()
        last_s = loop.time() + _TERMINATION_WAIT_S
        while True:
            observed = await self._observe_rivals(new, ids=ids)
            verdict = lastgate.start(self.record.entries, new, observed, self._capacity(), ids=ids)
            if not verdict.wait or loop.time() > last_s:
                break
            await asyncio.sleep(_RETRY_S)
        # 3. Write that down, without an await since the decision.
        if verdict.refused is not None:
            rival = "" if verdict.refused.other is None else verdict.refused.other.uid
            self.refusals.refuse(holder, verdict.refused.cause, rival)
        self._follow(verdict, new)
        self.refusals.forget(holder)

    async def _holders(self, resource: str, ids: tuple[str, ...]) -> tuple[Allocation, ...]:
        """Return the containers that the kubelet gave these ids; of several pods those that do not end soon."""
        loop = asyncio.get_running_loop()
        last_s = loop.time() + _TERMINATION_WAIT_S
        found = lastgate.holders(resource, ids, await self._observe())
        while len({each.uid for each in found}) != 1:
            await self._observer.refresh()
            found = lastgate.holders(resource, ids, await self._observe())
            if not found or loop.time() > last_s:
                break
            await asyncio.sleep(_RETRY_S)  # the one that ends is soon seen to have ended
        return found

    async def _observe_rivals(self, new: Allocation, *, ids: bool) -> ObservedPods:
        """Return what is seen of the pods that are in the way of an allocation; nothing where none is.

        Nobody else may be in its way when this returns: what was not looked for is not there.
        """
        observed, checked = ObservedPods(), frozenset[Allocation]()
        while not (rivals := self._rivals(new, ids=ids)) <= checked:
            running = await self._observer.running(frozenset(each.uid for each in rivals))
            observed, checked = await self._observe(running), rivals
        return observed

    def _rivals(self, new: Allocation, *, ids: bool) -> frozenset[Allocation]:
        found = clashes(self.record.entries, new, self._capacity(), ids=ids)
        return frozenset(each.other for each in found if each.other is not None)

    async def _observe(self, running: frozenset[str] = frozenset()) -> ObservedPods:
        return await self._observer.observe({each.uid for each in self.record.entries}, running)

    def _follow(self, verdict: GateDecision, new: Allocation) -> None:
        """Keep the record as it is to be, on disk before an answer is given.

        Raises:
            Conflict: the allocation is refused.
            Unavailable: the record cannot be written; it stays as it was.

        """
        clash = verdict.refused
        if clash is None:
            self.record.keep(verdict.record)
            return
        self.record.learn(verdict.record)
        self.refusals.note_survivor(clash)
        self._log.warning(
            "allocation_refused", pod=new.pod, resource=new.resource, device=clash.text, holder=clash.holder
        )
        raise Conflict(
            f"{new.resource} for {new.pod or 'a pod'}",
            found=clash.cause,
            hint="the kubelet retries a container; a pod that failed admission must be recreated",
        )
