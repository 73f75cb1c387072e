"""The last gate before a container gets a device: refuses one that a running pod uses.

`admit` is asked in `Allocate`, which names no pod; `start` in `PreStartContainer`, before each start of a container,
when the kubelet has recorded the pod. Both write the record before they return (docs/decisions/0014-last-gate.md).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from tessera.agent.nodeview import created_ns, is_ended, is_ending, uid_of
from tessera.api.containerlimits import asks_of, lasting_containers
from tessera.api.devicecheckpoint import Checkpointed
from tessera.clients.kube import Object, name_of
from tessera.core.advertise import SHARE_RESOURCES, DeviceKey, PluginDevice
from tessera.core.allocations import Allocation, Clash, Use, clashes, conflicts, uses_of_devices
from tessera.core.matching import Held
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger

__all__ = ["Gate", "PodsInView"]

_TERMINATION_WAIT_S = 5.0
"""How long a container waits for the processes of one that is ending; the kubelet kills them after two seconds at
least, and tries again what was refused."""
_AGAIN_S = 0.1
_UNCLAIMED_S = 60.0
"""An answer to `Allocate` that no container has used for so long was for a pod that the kubelet refused."""


class PodsInView(Protocol):
    """What the gate observes, as `NodeView` gives it."""

    def pods(self) -> Iterable[Object]:
        """Return the pods of this node."""

    def find(self, uid: str) -> Object | None:
        """Return the pod of this UID."""

    async def refresh(self) -> None:
        """Let `pods` show all that the kubelet can know."""

    async def allocated(self) -> tuple[Checkpointed, ...]:
        """Return what the kubelet recorded."""

    async def held(self) -> tuple[Held, ...]:
        """Return what containers hold by the kubelet's record."""

    def running(self, uids: Iterable[str]) -> frozenset[str]:
        """Return those of these pods of which processes run."""


class Gate:
    """The record of what was allocated, and its keeper.

    Args:
        view: the pods of this node.
        capacity: returns the memory in MiB that can be granted of each device.
        log: where refusals are logged.
        file: keeps the record over a restart of the agent; None keeps nothing.
        now_ns: the time, in nanoseconds since 1970.

    """

    def __init__(
        self,
        view: PodsInView,
        capacity: Callable[[], Mapping[DeviceKey, int]],
        log: Logger,
        *,
        file: Path | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.view = view
        self._capacity = capacity
        self._log = log
        self._file = file
        self._now_ns = now_ns
        self._entries = list(self._read())

    @property
    def entries(self) -> tuple[Allocation, ...]:
        """What is allocated."""
        return tuple(self._entries)

    def taken(self, resource: str) -> frozenset[str]:
        """Return the ids of a resource that pods have or are being given.

        A kubelet that offers one of them has forgotten it, or never used it.
        """
        return frozenset(name for each in self._entries if each.resource == resource for name in each.ids)

    @property
    def by_name(self) -> frozenset[DeviceKey]:
        """The devices that pods were allocated by name, or are being allocated, until their last process has ended."""
        named = (each for each in self._entries if each.resource not in SHARE_RESOURCES)
        return frozenset(use.key for each in named for use in each.uses)

    def is_free(self, resource: str, device: PluginDevice) -> bool:
        """Return whether no pod has a device that is offered by name, under whatever name, nor one that overlaps it."""
        (use,) = uses_of_devices((device,))
        return not any(
            (each.resource == resource and device.id in each.ids) or any(use.excludes(other) for other in each.uses)
            for each in self._entries
        )

    def recorded(self, holder: Allocation) -> tuple[Use, ...]:
        """Return what a container uses that was started before; nothing of one that was not."""
        return next((each.uses for each in self._entries if _is_for(each, holder)), ())

    @property
    def resources(self) -> frozenset[str]:
        """The resources of which pods have something; their plugins are asked before each start of a container."""
        return frozenset(each.resource for each in self._entries)

    def held(self) -> tuple[Held, ...]:
        """Return what containers have by this record."""
        return tuple(
            Held(namespace=namespace, pod=pod, container=each.container, resource=each.resource, device_ids=each.ids)
            for each in self._entries
            for namespace, slash, pod in [each.pod.partition("/")]
            if slash
        )

    async def admit(self, resource: str, ids: Iterable[str], uses: tuple[Use, ...] = ()) -> None:
        """Record the allocation that `Allocate` is about to answer, or refuse it.

        Raises:
            Conflict: a pod that lives has one of them, or a device that overlaps.
            Unavailable: the record cannot be written.

        """
        new = Allocation(resource=resource, ids=tuple(sorted(ids)), uses=uses, at_ns=self._now_ns())
        cleared: list[Allocation] = []
        while (clash := next(self._clashes(new, ids=True, but=cleared), None)) is not None:
            other = clash.other
            if other is None or await self._blocks_allocate(other):
                raise self._refusal(new, clash)
            cleared.append(other)
        for other in cleared:
            if not other.uid:
                self._drop(other)
        self._put(new)

    async def holder(self, resource: str, ids: Iterable[str]) -> Allocation:
        """Return for which container `PreStartContainer` is called with these ids, without what it uses.

        Raises:
            Conflict: the kubelet allocated them to two pods that live.
            Unavailable: its record does not show them.

        """
        wanted = tuple(sorted(ids))
        loop = asyncio.get_running_loop()
        last_s = loop.time() + _TERMINATION_WAIT_S
        found = await self._recorded(resource, wanted)
        while len({each.uid for each in found}) != 1:
            await self.view.refresh()
            found = await self._recorded(resource, wanted)
            if not found or loop.time() > last_s:
                break
            await asyncio.sleep(_AGAIN_S)  # the one that ends is soon seen to have ended
        if not found:
            raise Unavailable(
                f"{len(wanted)} devices of {resource}",
                found="no container with these device ids in the kubelet's record",
                wanted="the container that is about to be created",
                accepted="another try by the kubelet",
            )
        pods = sorted({each.pod or each.uid for each in found})
        if len(pods) > 1:
            raise Conflict(
                f"device {wanted[0]} of {resource}",
                found=f"allocated by the kubelet to pods {' and '.join(pods)}",
                wanted="one pod",
                accepted="one of them deleted",
            )
        return found[0]

    async def _recorded(self, resource: str, ids: tuple[str, ...]) -> list[Allocation]:
        """Return the containers of living pods with these ids, those that last before those that come to an end."""
        found = []
        for each in await self.view.allocated():
            pod = self.view.find(each.uid)
            if (each.resource, each.device_ids) == (resource, ids) and pod is not None and not is_ended(pod):
                lasts = each.container in lasting_containers(pod)
                name = self._pod(each.uid)
                found.append((not lasts, each.uid, each.container, name))
        return [
            Allocation(resource=resource, ids=ids, uid=uid, pod=name, container=container)
            for _, uid, container, name in sorted(found)
        ]

    def _pod(self, uid: str) -> str:
        pod = self.view.find(uid)
        return "" if pod is None else "/".join(name_of(pod))

    async def start(self, holder: Allocation, uses: tuple[Use, ...], *, ids: bool) -> None:
        """Record what a container is about to use, or refuse it; waits a little for pods that are terminating.

        Args:
            holder: as `holder` gave it.
            uses: the devices.
            ids: whether ids of others matter, which stand for devices and not for units.

        Raises:
            Conflict: a pod that lives has what it would use.
            Unavailable: the record cannot be written.

        """
        new = msgspec.structs.replace(holder, uses=uses, at_ns=self._since_ns(holder))
        loop = asyncio.get_running_loop()
        last_s = loop.time() + _TERMINATION_WAIT_S
        while (clash := next(self._clashes(new, ids=ids), None)) is not None:
            other = clash.other
            if other is None or await self._blocks_start(other):
                ending = other is not None and bool(other.uid) and is_ending(self.view.find(other.uid))
                if not ending or loop.time() > last_s:
                    raise self._refusal(new, clash)
                await asyncio.sleep(_AGAIN_S)
            else:
                self._drop(other)
        self._put(new)

    def _since_ns(self, holder: Allocation) -> int:
        """Return when a container was allocated its devices first: what starts again is not later than before."""
        same = (each.at_ns for each in self._entries if _is_for(each, holder) or _becomes(each, holder))
        return min(same, default=self._now_ns())

    def _clashes(self, new: Allocation, *, ids: bool, but: Iterable[Allocation] = ()) -> Iterator[Clash]:
        left = [each for each in self._entries if each not in but]
        return clashes(left, new, self._capacity(), ids=ids)

    async def _blocks_allocate(self, other: Allocation) -> bool:
        """Return whether an allocation must not be given again while the kubelet allocates.

        It asks only when it has let the device go, has forgotten it, or gives a pod's later container what its init
        container had. A pod that ends may keep its processes for a moment; `start` waits for them.
        """
        await self._refreshed()
        if await self._is_being_admitted(other):
            return False
        if not other.uid:
            return await self._resolve_pod(other)
        if is_ending(self.view.find(other.uid)):
            return False
        return await self._in_checkpoint(other) or bool(self.view.running((other.uid,)))

    async def _is_being_admitted(self, other: Allocation) -> bool:
        """Return whether the pod of an allocation has containers that the kubelet has not allocated for yet.

        The kubelet admits one pod after the other. So it is this pod that it allocates for: containers are given what
        the pod's init containers had.
        """
        recorded = [each for each in await self.view.allocated() if each.resource == other.resource]
        for uid in {each.uid for each in recorded if set(each.device_ids) & set(other.ids)}:
            pod = self.view.find(uid)
            served = {each.container for each in recorded if each.uid == uid}
            if pod is not None and not is_ended(pod):
                asking = {container for container, resource, _ in asks_of(pod) if resource == other.resource}
                return bool(asking - served)
        return False

    async def _blocks_start(self, other: Allocation) -> bool:
        """Return whether a container that has these devices runs, or is going to."""
        if not other.uid:
            await self._refreshed()
            return await self._resolve_pod(other)
        if self.view.running((other.uid,)):
            return True
        await self._refreshed()
        return not is_ended(self.view.find(other.uid)) and await self._in_checkpoint(other)

    async def _resolve_pod(self, other: Allocation) -> bool:
        """Return whether a pod has what `Allocate` was answered for, and record which."""
        for each in await self.view.allocated():
            pod = self.view.find(each.uid)
            if (each.resource, each.device_ids) == (other.resource, other.ids) and not is_ended(pod):
                known = msgspec.structs.replace(other, uid=each.uid, pod=self._pod(each.uid), container=each.container)
                if other in self._entries:
                    self._entries[self._entries.index(other)] = known
                return True
        return False

    async def _refreshed(self) -> None:
        """Read the pods anew; without an answer what was seen last counts."""
        try:
            await self.view.refresh()
        except (TesseraError, TimeoutError) as error:
            self._log.warning("look_again", what="pods", reason=str(error))

    async def _in_checkpoint(self, other: Allocation) -> bool:
        """Return whether the kubelet's record has an allocation."""
        return any(
            (each.uid, each.resource) == (other.uid, other.resource) and set(each.device_ids) & set(other.ids)
            for each in await self.view.allocated()
        )

    def _refusal(self, new: Allocation, clash: Clash) -> Conflict:
        holder = "nobody else" if clash.other is None else clash.other.holder
        self._log.warning("allocation_refused", pod=new.pod, resource=new.resource, device=clash.text, holder=holder)
        return Conflict(
            f"{new.resource} for {new.pod or 'a pod'}",
            found=f"{clash.text}, used by {holder}",
            wanted="a device that no other pod uses",
            accepted="the kubelet's next try to start the container; a Job or Deployment replaces a pod that failed",
        )

    # The record

    def _put(self, new: Allocation) -> None:
        """Put an entry in place of what it replaces, and write the record."""
        before = self._entries
        kept = [each for each in before if not _is_for(each, new) and not _becomes(each, new)]
        self._entries = [*kept, new]
        try:
            self._write()
        except Unavailable:
            self._entries = before
            raise

    def _drop(self, entry: Allocation) -> None:
        if entry in self._entries:
            self._entries.remove(entry)

    def release(self) -> None:
        """Let go of what pods had that have ended, and none of whose processes is left.

        Raises:
            Unavailable: the record cannot be written.

        """
        ended = [each for each in self._entries if each.uid and is_ended(self.view.find(each.uid))]
        running = self.view.running({each.uid for each in ended})
        gone = [each for each in ended if each.uid not in running]
        if gone:
            self._entries = [each for each in self._entries if each not in gone]
            self._write()

    async def tidy(self, uses_of: Callable[[Held], tuple[Use, ...]]) -> None:
        """Let go of what ended pods had, and take in what pods have of which nothing is recorded.

        Args:
            uses_of: returns what a container uses by the ids it holds; nothing where that cannot be told yet.

        Raises:
            Unavailable: the kubelet's record cannot be read, or this one not be written.

        """
        held = await self.view.held()
        self.release()
        before = tuple(self._entries)
        late_ns = self._now_ns() - round(_UNCLAIMED_S * 1e9)
        for each in [each for each in self._entries if not each.uid and each.at_ns < late_ns]:
            if not await self._resolve_pod(each):
                self._drop(each)
        self._adopt(held, uses_of)
        if tuple(self._entries) != before:
            self._write()

    def _adopt(self, held: Iterable[Held], uses_of: Callable[[Held], tuple[Use, ...]]) -> None:
        known = {(each.uid, each.container, each.resource) for each in self._entries}
        pending = {(each.resource, each.ids) for each in self._entries if not each.uid}
        pods = {name_of(pod): pod for pod in self.view.pods()}
        for each in held:
            pod = pods.get((each.namespace, each.pod), {})
            uid = uid_of(pod)
            if not uid or (uid, each.container, each.resource) in known or (each.resource, each.device_ids) in pending:
                continue
            uses = uses_of(each)
            if uses:
                entry = Allocation(
                    resource=each.resource,
                    ids=each.device_ids,
                    uses=uses,
                    uid=uid,
                    pod=f"{each.namespace}/{each.pod}",
                    container=each.container,
                    at_ns=created_ns(pod) or self._now_ns(),
                )
                self._entries.append(entry)
                self._log.info("allocation_adopted", pod=entry.pod, resource=entry.resource, ids=entry.ids)

    def conflicts(self) -> tuple[tuple[Allocation, Clash], ...]:
        """Return what two pods have and cannot both have, each time the later one."""
        return conflicts(self._entries, self._capacity())

    def _read(self) -> tuple[Allocation, ...]:
        if self._file is None or not self._file.exists():
            return ()
        try:
            return _DECODER.decode(self._file.read_bytes())
        except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
            self._log.warning("allocations_forgotten", reason=f"{self._file}: {error}")
            return ()

    def _write(self) -> None:
        if self._file is None:
            return
        partial = self._file.with_suffix(".partial")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(msgspec.json.encode(self._entries))
            partial.rename(self._file)
        except OSError as error:
            raise Unavailable(
                f"record of allocations {self._file}",
                found=error.strerror or str(error),
                wanted="a file that can be written before a device is allocated",
                accepted="a --state-dir that the agent may write to, with room on its disk",
            ) from error


def _is_for(each: Allocation, new: Allocation) -> bool:
    """Return whether an entry is for the same container and resource."""
    names = (each.uid, each.container, each.resource)
    return bool(new.uid) and names == (new.uid, new.container, new.resource)


def _becomes(each: Allocation, new: Allocation) -> bool:
    """Return whether an entry is the answer to `Allocate` that a container has now."""
    return not each.uid and bool(new.uid) and (each.resource, each.ids) == (new.resource, new.ids)


_DECODER = msgspec.json.Decoder(tuple[Allocation, ...])
