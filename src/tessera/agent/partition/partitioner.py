"""Brings GPUs to their target layouts: one at a time, by the fewest changes, and back again after a failure."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import msgspec

from tessera.agent.partition.execute import Executed, execute, resume
from tessera.agent.partition.locks import NodeLocks
from tessera.agent.partition.nodegpus import NodeGpus
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.node.layouts import (
    AwaitReset,
    Blocked,
    ChangeInstances,
    DeviceUser,
    Impossible,
    LayoutTarget,
    Recorded,
    SetMode,
    change,
    exact,
    lost_targets,
    record,
    with_instance,
)
from tessera.core.node.repartition import Procedure, Repartition, Stage, start
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import logger

__all__ = ["Partitioner", "Remember"]

Remember = Callable[[tuple[Recorded, ...]], Awaitable[None]]
"""Records the node's MIG layout."""

_MOST_CHANGES = 8
"""Most changes of one GPU in a row: MIG off, incomplete instances destroyed, instances created; twice."""


async def _forget(_recorded: tuple[Recorded, ...]) -> None:
    """Record nothing."""


class Partitioner:
    """Changes the layouts of a node; calls for the same GPU wait for each other, and for other processes.

    Args:
        gpus: the node's GPUs.
        recorded: the layouts recorded by the former process.
        remember: records layouts; by default nothing is recorded.
        across: locks against other processes of the node; None if the caller has them.

    """

    def __init__(
        self,
        gpus: NodeGpus,
        recorded: tuple[Recorded, ...] = (),
        remember: Remember = _forget,
        across: NodeLocks | None = None,
    ) -> None:
        self.gpus = gpus
        self._recorded = recorded
        self._remember = remember
        self._across = across
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._writing = asyncio.Lock()
        self._unrestored: dict[str, Procedure] = {}
        self._to_advertise: set[str] = set()
        self._log = logger()
        self.outcomes = Counter[Stage](dict.fromkeys((Stage.DONE, Stage.RESTORED, Stage.FAILED), 0))
        """How many repartitions ended how: done, restored or failed."""

    async def restore(self, by_s: float) -> tuple[str, ...]:
        """Recreate recorded instances that are missing, as after a reboot; call it before anything is advertised.

        Returns:
            What could not be restored, a sentence for each.

        Raises:
            TesseraError: driver or kubelet cannot be read.
            TimeoutError: they do not answer in time.

        """
        inventory, _ = await self.gpus.observe()
        targets, notes = lost_targets(self._recorded, inventory)
        return (*notes, *await self.apply(targets, by_s))

    async def apply(self, targets: Iterable[LayoutTarget], by_s: float) -> tuple[str, ...]:
        """Apply to each GPU what its target needs and can be done now; a GPU that is blocked or needs a reset is left.

        Args:
            targets: the desired layouts.
            by_s: loop time at which it gives up and restores the former layout.

        Returns:
            The failures, a sentence for each GPU, without full stop.

        """
        # One after the other: the driver serves one call at a time, and an observation queued behind MIG mode
        # switches of other GPUs would miss its deadline.
        outcomes = [await self._apply_alone(target, by_s) for target in targets]
        return tuple(failed for failed in outcomes if failed)

    async def create_instance(self, gpu: str, placement: Placement, by_s: float) -> None:
        """Create one instance, switching MIG on and destroying unused instances in its way; idempotent.

        Raises:
            Conflict: a used instance is in the way, the GPU is used with MIG off or needs a reset, or the former
                layout was restored because a step failed; or another process changes the GPU's layout.
            Unavailable: driver or kubelet does not answer, the GPU is lost or has no MIG, or its layout is being
                changed until `by_s`.

        """
        where = f"GPU {gpu}, {placement.profile} at {placement.start}"
        async with self._alone(gpu, by_s):
            facts, users = await self._one(gpu)
            if facts is None or facts.lost or facts.mig is None:
                raise Unavailable(where, found="it is lost, missing, or has no MIG", hint="see `tessera doctor`")
            target = with_instance(facts, placement, users)
            failed = "" if target is None else await self._apply_target(target, by_s)
            after, users = await self._one(gpu)
        if after is None or placement not in {each.placement for each in after.instances}:
            found = failed or _why_not(after, target or exact(facts, (placement,)), users)
            raise Conflict(where, found=found, hint="the agent observes it again")

    async def disable_mig(self, gpu: str, by_s: float) -> None:
        """Switch MIG off for pods that use the whole GPU, destroying unused instances.

        Raises:
            Conflict: an instance is used, the GPU needs a reset, the switch failed, or another process changes
                the GPU's layout.
            Unavailable: as `create_instance`.

        """
        where = f"GPU {gpu} without MIG"
        async with self._alone(gpu, by_s):
            facts, users = await self._one(gpu)
            if facts is None or facts.lost:
                raise Unavailable(where, found="it is lost or missing", hint="see `tessera doctor`")
            if facts.layout is None:
                return
            target = exact(facts, None)
            failed = await self._apply_target(target, by_s)
            after, users = await self._one(gpu)
        if after is None or after.layout is not None:
            found = failed or _why_not(after, target, users)
            raise Conflict(where, found=found, hint="the agent observes it again")

    def busy(self, gpu: str) -> bool:
        """Return whether the layout of a GPU (UUID) is being changed."""
        return self._locks[gpu].locked()

    @contextlib.asynccontextmanager
    async def _alone(self, gpu: str, by_s: float) -> AsyncIterator[None]:
        """Wait until nothing else changes this GPU."""
        try:
            async with asyncio.timeout_at(by_s):
                await self._locks[gpu].acquire()
        except TimeoutError as error:
            raise Unavailable(
                f"GPU {gpu}", found="its layout is being changed", hint="try again when that has ended"
            ) from error
        try:
            async with self._locked(gpu, by_s):
                yield
        finally:
            self._locks[gpu].release()

    @contextlib.asynccontextmanager
    async def _locked(self, gpu: str, by_s: float) -> AsyncIterator[None]:
        """Lock this GPU against other processes; waits for one that changes it, but not for long."""
        if self._across is None:
            yield
            return
        former = self._across.problem
        async with self._across.hold(gpu, min(by_s, _now() + self.gpus.timing.observe_s)):
            if self._across.problem != former:
                self._log.warning("layout_not_locked", gpu=gpu, reason=self._across.problem)
            yield

    async def retry_unfinished(self, by_s: float) -> None:
        """Retry failed restores, and advertise withdrawn GPUs again; safe at any time."""
        for gpu in tuple(self._to_advertise):
            await self._advertise_again(gpu)
        for gpu in tuple(self._unrestored):
            with contextlib.suppress(Conflict):  # another process changes it: next time
                async with self._locks[gpu], self._locked(gpu, _now()):
                    await self._restore(gpu, by_s)
                    await self._advertise_again(gpu)

    async def write_down(self, inventory: Inventory, gpus: Iterable[str]) -> None:
        """Record the layouts of these GPUs (UUIDs), if they differ from the last record."""
        chosen = set(gpus)
        present = Inventory(gpus=tuple(gpu for gpu in inventory.gpus if gpu.uuid in chosen))
        async with self._writing:
            recorded = record(present, self._recorded)
            if recorded == self._recorded:
                return
            try:
                await self._remember(recorded)
            except TesseraError as error:
                self._log.warning("layout_not_recorded", reason=str(error))
                return
            self._recorded = recorded

    async def _one(self, gpu: str) -> tuple[GpuFacts | None, tuple[DeviceUser, ...]]:
        """Return a GPU and its users; None where the driver does not show it.

        Raises:
            Unavailable: driver or kubelet did not answer.

        """
        try:
            inventory, users = await self.gpus.observe()
        except TimeoutError as error:
            raise Unavailable(
                "GPU driver and kubelet",
                found="no answer in time",
                hint="try again; if it persists, see `tessera doctor`",
            ) from error
        facts = next((each for each in inventory.gpus if each.uuid == gpu), None)
        return facts, tuple(user for user in users if user.device.gpu == gpu)

    async def _apply_alone(self, target: LayoutTarget, by_s: float) -> str:
        try:
            async with self._locks[target.gpu], self._locked(target.gpu, by_s):
                failed = await self._apply_target(target, by_s)
        except Conflict as error:
            failed = f"GPU {target.index}: {error.found}"
        if failed:
            self._log.warning("layout_failed", gpu=target.index, reason=failed)
        return failed

    async def _apply_target(self, target: LayoutTarget, by_s: float) -> str:
        """Make one change after the other until the GPU matches its target, or something is in the way."""
        done: list[GpuFacts] = []
        try:
            failed = await self._change_until_reached(target, by_s, done)
        except TesseraError as error:
            failed = str(error)
        if failed and done and done[0].layout is None and target.mig:
            failed = f"{failed}; {await self._disable_mig_again(target)}"
        if done:
            await self._advertise_again(target.gpu)
        return failed and f"GPU {target.index}: {failed}"

    async def _change_until_reached(self, target: LayoutTarget, by_s: float, done: list[GpuFacts]) -> str:
        """Make changes, and add the GPU's former states to `done`; return the failure."""
        for _ in range(_MOST_CHANGES):
            facts, users = await self._one(target.gpu)
            if facts is None:
                return "the driver does not report it"
            needed = change(facts, target, users)
            if not isinstance(needed, ChangeInstances | SetMode):
                if done:
                    await self.write_down(Inventory(gpus=(facts,)), (facts.uuid,))
                return ""
            if _now() >= by_s:
                return "not done in time"
            done.append(facts)
            failed = await self._do(facts, needed, by_s)
            if failed:
                return failed
        return "the driver accepts every step and reports another layout"

    async def _disable_mig_again(self, target: LayoutTarget) -> str:
        """Switch MIG off again on a GPU that had it off, unless it has come into use; return the outcome."""
        off = LayoutTarget(gpu=target.gpu, index=target.index, mig=False)
        try:
            failed = await self._change_until_reached(off, _now() + self.gpus.timing.restore_s, [])
            facts, _ = await self._one(target.gpu)
        except TesseraError as error:
            failed, facts = str(error), None
        if facts is not None and facts.mig is not None and not facts.mig.current and not facts.mig.pending:
            return "MIG is off as before"
        return f"MIG stays on, {failed or 'because the GPU is in use'}"

    async def _do(self, facts: GpuFacts, needed: ChangeInstances | SetMode, by_s: float) -> str:
        """Make one change; return the failure, empty for none."""
        if isinstance(needed, SetMode):
            return await self._switch(facts, needed, by_s)
        executed = await self._repartition(facts, needed.plan, by_s)
        return "" if executed.procedure.stage is Stage.DONE else executed.ended

    async def _repartition(self, facts: GpuFacts, plan: Repartition, by_s: float) -> Executed:
        procedure = start(plan, facts.incomplete)
        return self._finish(facts.uuid, await execute(self.gpus, facts.uuid, procedure, by_s))

    def _finish(self, gpu: str, executed: Executed) -> Executed:
        """Keep a procedure that could not restore, to retry it."""
        if executed.procedure.stage is Stage.FAILED:
            self._unrestored[gpu] = executed.procedure
        else:
            self._unrestored.pop(gpu, None)
        self.outcomes[executed.procedure.stage] += 1
        self._log.info("layout_changed", gpu=gpu, phase=executed.procedure.stage.value, reason=executed.problem)
        return executed

    async def _advertise_again(self, gpu: str) -> None:
        """Advertise all of a GPU again, unless its layout is unknown."""
        if gpu not in self._unrestored and not await self.gpus.offer_only(gpu, None):
            self._to_advertise.add(gpu)
        else:
            self._to_advertise.discard(gpu)

    async def _switch(self, facts: GpuFacts, needed: SetMode, by_s: float) -> str:
        """Switch MIG mode of an unused GPU; destroyed instances come back if MIG stays on."""
        if facts.mig is not None and facts.mig.current == needed.on:
            return await self._set_mode(facts.uuid, by_s, on=needed.on)
        if not await self.gpus.offer_only(facts.uuid, ()):
            return "it could not be withdrawn from the pods"
        if needed.clear is not None:
            executed = await self._repartition(facts, needed.clear, by_s)
            if executed.procedure.stage is not Stage.DONE:
                return executed.ended
        failed = await self._vacant(facts.uuid, by_s) or await self._set_mode(facts.uuid, by_s, on=needed.on)
        return failed if needed.clear is None else await self._put_back(facts, needed.clear, failed)

    async def _put_back(self, facts: GpuFacts, clear: Repartition, failed: str) -> str:
        """Recreate destroyed instances if MIG is still on; return the failure with the outcome."""
        gpu = facts.uuid
        self._unrestored[gpu] = msgspec.structs.replace(
            start(clear, facts.incomplete), target=(), used=(), layout=(), todo=(), stage=Stage.FAILED
        )
        restored = await self._restore(gpu, _now() + self.gpus.timing.restore_s)
        if gpu in self._unrestored:
            return f"{failed or 'MIG is switched with the next reset'}; {restored}"
        return "; ".join(filter(None, (failed, restored))) if failed else ""

    async def _restore(self, gpu: str, by_s: float) -> str:
        """Restore what could not be restored before, unless MIG is off by now; return the outcome."""
        try:
            facts, _ = await self._one(gpu)
        except TesseraError as error:
            return f"its instances are unknown: {error}"
        if facts is not None and not facts.lost and facts.layout is None:
            del self._unrestored[gpu]
            return ""
        return self._finish(gpu, await resume(self.gpus, gpu, self._unrestored[gpu], by_s)).ended

    async def _vacant(self, gpu: str, by_s: float) -> str:
        """Wait until a withdrawn GPU has been observed unused for a while; return its users."""
        calm_s = _now()
        while _now() < by_s:
            try:
                _, users = await self._one(gpu)
            except TesseraError as error:
                return f"its users are unknown: {error}"
            if users:
                return f"{users[0].name} was admitted before MIG could be switched"
            if _now() - calm_s >= self.gpus.settle_s(gpu):
                return ""
            await asyncio.sleep(self.gpus.timing.poll_s)
        return "not done in time"

    async def _set_mode(self, gpu: str, by_s: float, *, on: bool) -> str:
        what = f"switching MIG {'on' if on else 'off'}"
        try:
            async with asyncio.timeout_at(min(_now() + self.gpus.timing.switch_s, by_s)):
                await self.gpus.driver.set_mig(gpu, enabled=on)
        except TimeoutError:
            return f"{what} did not end in time"
        except TesseraError as error:
            return f"{what} failed: {error.found}"
        return ""


def _why_not(facts: GpuFacts | None, target: LayoutTarget, users: Iterable[DeviceUser]) -> str:
    """Return why a GPU differs from its target though no step failed."""
    match None if facts is None else change(facts, target, users):
        case Blocked(reason=reason) | Impossible(reason=reason):
            return reason
        case AwaitReset():
            return "a GPU that switches MIG with its next reset"
    return "a layout other than the one created"


def _now() -> float:
    return asyncio.get_running_loop().time()
