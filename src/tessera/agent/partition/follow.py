"""Follows the node's label `nvidia.com/mig.config`: observe, decide by `core.node.layouts`, act, report."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from tessera.agent.partition.partitioner import Partitioner
from tessera.agent.partition.reboot import RebootRecord
from tessera.agent.pods.evictions import Evict, Evictions
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.layouts import (
    Attempted,
    DeviceUser,
    Group,
    LayoutCondition,
    LayoutEvent,
    LayoutLimits,
    LayoutRequest,
    LayoutState,
    NodeObserved,
    NodeUnobserved,
    NotRebooted,
    Outlook,
    advance,
    outlook,
    resumed,
)
from tessera.errors import InvalidInput, TesseraError
from tessera.log import logger

__all__ = ["ConfigLabel", "Follower"]


class ConfigLabel(Protocol):
    """The label: what it may name, and where its state is reported."""

    def configurations(self) -> Mapping[str, tuple[Group, ...]]:
        """Return the file's current configurations; raise InvalidInput where it is invalid."""

    async def report(self, request: LayoutRequest) -> None:
        """Set the state label, the condition and the event; called with each change, and again where it failed."""


class Follower:
    """One node's request; call `follow` with each change, and every few seconds.

    Args:
        partitioner: changes layouts.
        label: that is followed.
        limits: of time, and whether the node may be rebooted.
        evict: evicts pods in the way (the force option); None waits for them to end.
        reboot: reboots the node, if `limits.may_reboot`; raises Unavailable on failure.
        record: of the requested reboot; required with `reboot`.

    """

    def __init__(
        self,
        partitioner: Partitioner,
        label: ConfigLabel,
        limits: LayoutLimits,
        *,
        evict: Evict | None = None,
        reboot: Callable[[], Awaitable[None]] | None = None,
        record: RebootRecord | None = None,
    ) -> None:
        self.request = LayoutRequest()
        self._partitioner = partitioner
        self._gpus = partitioner.gpus
        self._label = label
        self._limits = limits
        self._reboot_node = reboot
        self._record = record
        self._reported: LayoutRequest | None = None
        self._rebooting = False
        self._withdrawn: set[str] = set()
        self._evictions = Evictions(evict, self._gpus.timing.observe_s)
        self._log = logger()

    def resume(self, name: str, state: str) -> None:
        """Resume the former agent's work: call it once, with both labels as they are when this one starts."""
        rebooted = self._record is not None and self._record.holds(name)
        self.request = resumed(name, state, _now(), self._limits, rebooted=rebooted)
        self._rebooting = self.request.state is LayoutState.REBOOTING

    async def follow(self, name: str) -> LayoutRequest:
        """Do what can be done now for the configuration of this name, and return the state.

        Args:
            name: value of the label; empty for none.

        """
        await self._partitioner.retry_unfinished(_now() + self._gpus.timing.restore_s)
        current = await self._advance(name)
        if self.request.acts and isinstance(current, NodeObserved):
            failed = await self._act(current)
            if failed:
                await self._report()
            else:
                await self._advance(name)
        return self.request

    async def _advance(self, name: str) -> LayoutEvent:
        """Observe, decide and report."""
        event, inventory = await self._observe(name)
        self.request = advance(self.request, event, _now(), self._limits)
        if not self.request.acts:
            self._evictions.begin_anew()
        if isinstance(event, NodeObserved):
            await self._withdraw(event.outlook, inventory)
            if self.request.state is LayoutState.SUCCESS:
                await self._partitioner.write_down(inventory, (gpu for gpu, _ in event.outlook.changes))
        if self._record and not self.request.rebooted:
            self._record.forget()
        await self._report()
        if self.request.state is not LayoutState.REBOOTING:
            self._rebooting = False
        elif isinstance(event, NodeObserved) and not self._rebooting and self._is_reported():
            self._rebooting = True
            await self._reboot(event.outlook)
        return event

    async def _reboot(self, current: Outlook) -> None:
        """Reboot the node, once the state is reported, unless a GPU has come into use meanwhile."""
        tried, failed = False, await self._in_use()
        try:
            if not failed and self._reboot_node and self._record:
                self._record.write(self.request.name)
                self._log.warning("node_reboots", reason=self.request.reason)
                tried = True
                await self._reboot_node()
        except TesseraError as error:
            failed = f"the reboot failed: {error}"
        if failed:
            event = NotRebooted(failed, current, tried)
            self.request = advance(self.request, event, _now(), self._limits)
            await self._report()

    async def _in_use(self) -> str:
        """Return what prevents a reboot; empty where all GPUs are withdrawn and unused for a while."""
        calm_s = _now()
        while True:
            try:
                inventory, users = await self._gpus.observe()
            except (TesseraError, TimeoutError) as error:
                return f"the users of the GPUs are unknown: {str(error) or 'no answer in time'}"
            if users:
                return f"{users[0].name} was admitted before the node could be rebooted"
            if any(gpu.uuid not in self._withdrawn for gpu in inventory.gpus):
                return "GPUs could not be withdrawn from the pods before the reboot"
            if _now() - calm_s >= self._gpus.timing.settle_s:
                return ""
            await asyncio.sleep(self._gpus.timing.poll_s)

    async def _observe(self, name: str) -> tuple[LayoutEvent, Inventory]:
        if not name:
            return NodeObserved("", Outlook(observed=())), Inventory(gpus=())
        try:
            inventory, users = await self._gpus.observe()
        except TimeoutError:
            return NodeUnobserved(name, "driver or kubelet do not answer in time"), Inventory(gpus=())
        except TesseraError as error:
            return NodeUnobserved(name, str(error)), Inventory(gpus=())
        return NodeObserved(name, self._outlook(name, inventory, users)), inventory

    def _outlook(self, name: str, inventory: Inventory, users: tuple[DeviceUser, ...]) -> Outlook:
        try:
            configurations = self._label.configurations()
        except InvalidInput as error:
            return Outlook(observed=(), invalid=str(error), idle=not users)
        current = outlook(name, configurations, inventory, users)
        refused = self._evictions.refusals(_in_the_way(current))
        return msgspec.structs.replace(current, notes=tuple(refused.values())) if refused else current

    async def _act(self, current: NodeObserved) -> bool:
        """Make the changes that can be made, and evict pods in the way of others; return whether any failed."""
        await self._evictions.request(_in_the_way(current.outlook))
        able = {gpu for gpu, _ in current.outlook.feasible}
        chosen = (target for target in current.outlook.targets if target.gpu in able)
        failures = await self._partitioner.apply(chosen, self.request.until_s)
        if not failures:
            return False
        event, _ = await self._observe(current.name)
        observed = event.outlook.observed if isinstance(event, NodeObserved) else ()
        self.request = advance(self.request, Attempted(failures, observed), _now(), self._limits)
        return True

    async def _withdraw(self, current: Outlook, inventory: Inventory) -> None:
        """Stop advertising instances that must go while their users are waited for; undo it when nothing changes.

        Before a reboot nothing at all is advertised.
        """
        waiting = {gpu: blocked.withdraw for gpu, blocked in current.blocked} if self.request.acts else {}
        changed = {gpu for gpu, _ in current.feasible} if self.request.acts else set()
        if self.request.state is LayoutState.REBOOTING:
            waiting = {gpu.uuid: gpu.layout or () for gpu in inventory.gpus}
        for gpu in inventory.gpus:
            if gpu.uuid in waiting:
                kept = tuple(each for each in gpu.layout or () if each not in waiting[gpu.uuid])
                if await self._gpus.offer_only(gpu.uuid, kept):
                    self._withdrawn.add(gpu.uuid)
        for uuid in self._withdrawn.difference(waiting, changed):
            if await self._gpus.offer_only(uuid, None):
                self._withdrawn.discard(uuid)

    async def _report(self) -> None:
        if self._is_reported():
            return
        try:
            async with asyncio.timeout(self._gpus.timing.observe_s):
                await self._label.report(self.request)
        except (TesseraError, TimeoutError) as error:
            self._log.warning("layout_not_reported", reason=str(error) or "no answer in time")
            return
        self._reported = self.request

    def _is_reported(self) -> bool:
        return self._reported is not None and _shown(self.request) == _shown(self._reported)


def _in_the_way(current: Outlook) -> tuple[str, ...]:
    """Return the pods in the way; "" for a process."""
    return tuple(user.pod for _, blocked in current.blocked for user in blocked.users)


def _shown(request: LayoutRequest) -> tuple[LayoutState | None, LayoutCondition | None]:
    """Return the reported state of a request."""
    return request.state, request.condition


def _now() -> float:
    return asyncio.get_running_loop().time()
