"""Executes a repartition: each instruction of the procedure on the driver, each outcome as its next event."""

import asyncio
import contextlib

import msgspec

from tessera.agent.partition.nodegpus import NodeGpus
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Layout
from tessera.core.node.layouts import DeviceUser
from tessera.core.node.repartition import (
    AwaitUnused,
    Begin,
    Create,
    Destroy,
    Drained,
    Event,
    Instruction,
    LayoutObserved,
    Observe,
    OfferOnly,
    Procedure,
    Stage,
    Step,
    StepDone,
    StepFailed,
    Taken,
    TimedOut,
    advance,
)
from tessera.errors import TesseraError

__all__ = ["Executed", "execute", "resume", "used_on"]


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """A procedure at its end, and what went wrong."""

    procedure: Procedure
    problem: str = ""
    """Why it turned back, for people, without full stop; empty where all went well."""
    incomplete: Layout = ()
    """Instances observed incomplete at the end."""

    @property
    def ended(self) -> str:
        """How it ended, for people, without full stop."""
        ended = _ENDED[self.procedure.stage]
        if self.incomplete and self.procedure.stage is Stage.RESTORED:
            places = ", ".join(f"{each.profile} at {each.start}" for each in self.incomplete)
            ended = f"{ended}, and without {places}, incomplete as before"
        return "; ".join(filter(None, (self.problem, ended)))


_ENDED = {
    Stage.OBSERVED: "nothing was changed",
    Stage.DONE: "the requested layout is in force nevertheless",
    Stage.RESTORED: "the previous layout is in force, except where used instances prevent it",
    Stage.FAILED: "the previous layout could not be restored; until it is, only devices in use are advertised",
}


async def execute(gpus: NodeGpus, gpu: str, procedure: Procedure, by_s: float) -> Executed:
    """Execute a procedure to its end; it ends whatever fails, at the latest `Timing.restore_s` after `by_s`.

    Args:
        gpus: the node's GPUs.
        gpu: UUID of the GPU.
        procedure: not begun yet.
        by_s: loop time at which it gives up and restores the former layout.

    """
    begins_with_offer = any(isinstance(step, Destroy) for step in procedure.todo)
    # Otherwise new instances would be advertised before it is known that they stay.
    if not begins_with_offer and not await gpus.offer_only(gpu, procedure.layout):
        return Executed(procedure=procedure, problem="the advertised devices could not be fixed")
    return await _Run(gpus, gpu, by_s).go(procedure, Begin())


async def resume(gpus: NodeGpus, gpu: str, failed: Procedure, by_s: float) -> Executed:
    """Try again to restore the former layout after a failed procedure."""
    return await _Run(gpus, gpu, by_s).again(failed)


def used_on(users: tuple[DeviceUser, ...], gpu: str, layout: Layout) -> Layout:
    """Return the used instances of a layout, sorted; all of them where that is unknown."""
    own = {user.device.placement for user in users if user.device.gpu == gpu}
    return tuple(sorted(layout if None in own else (each for each in layout if each in own)))


class _Run:
    """One procedure on one GPU."""

    def __init__(self, gpus: NodeGpus, gpu: str, by_s: float) -> None:
        self._gpus = gpus
        self._timing = gpus.timing
        self._gpu = gpu
        self._by_s = by_s
        self._problem = ""
        self._incomplete: Layout = ()
        self._restoring = False

    async def again(self, failed: Procedure) -> Executed:
        self._restoring = True
        observation = await self.observe()
        if isinstance(observation, LayoutObserved):
            return await self.go(failed, observation)
        return Executed(procedure=failed)

    async def go(self, procedure: Procedure, event: Event | None) -> Executed:
        while event is not None:
            self._note(procedure, event)
            before = procedure.stage
            procedure, instructions = advance(procedure, event)
            if procedure.stage is Stage.RESTORING and before is not Stage.RESTORING:
                self._by_s = _now() + self._timing.restore_s
                self._restoring = True
            event = await self._follow(instructions)
        return Executed(procedure=procedure, problem=self._problem, incomplete=self._incomplete)

    async def _follow(self, instructions: tuple[Instruction, ...]) -> Event | None:
        """Execute instructions in order; return the event of the last one, or at once that of a failure."""
        event: Event | None = None
        for instruction in instructions:
            match instruction:
                case OfferOnly(layout=layout):
                    offered = await self._gpus.offer_only(self._gpu, layout)
                    if not offered and len(instructions) > 1:
                        return TimedOut()
                case AwaitUnused(placements=doomed):
                    event = await self._drain(doomed)
                case Observe():
                    event = await self.observe()
                case Create() | Destroy():
                    event = await self._step(instruction)
        return event

    def _note(self, procedure: Procedure, event: Event) -> None:
        """Keep the first failure."""
        problem = ""
        match event:
            case StepFailed(step=step, reason=reason):
                problem = f"{_verb(step)} failed: {reason}"
            case Taken(placement=placement):
                problem = f"{placement.profile} at {placement.start} was allocated before it was withdrawn"
            case TimedOut():
                what = _verb(procedure.todo[0]) if procedure.todo and procedure.stage in _STEPPING else procedure.stage
                problem = f"{what} did not end in time"
            case LayoutObserved(layout=layout) if procedure.stage is Stage.VERIFYING and layout != procedure.target:
                problem = "the driver reports a layout other than the one created"
        self._problem = self._problem or problem

    async def observe(self) -> Event:
        facts, users = await self._facts()
        if self._restoring and facts is not None and facts.incomplete:
            await self._clean(facts, users)
            facts, users = await self._facts()
        if facts is None or facts.lost or facts.layout is None:
            return TimedOut()
        self._incomplete = facts.incomplete
        return LayoutObserved(facts.layout, used_on(users, self._gpu, facts.layout), facts.incomplete)

    async def _facts(self) -> tuple[GpuFacts | None, tuple[DeviceUser, ...]]:
        """Return the GPU and all users; None where it cannot be observed."""
        try:
            inventory, users = await self._gpus.observe()
        except (TesseraError, TimeoutError):
            return None, ()
        return next((each for each in inventory.gpus if each.uuid == self._gpu), None), users

    async def _clean(self, facts: GpuFacts, users: tuple[DeviceUser, ...]) -> None:
        """Destroy what a failed step left incomplete, so that the former instance can be created in its place."""
        if any(user.device.gpu == self._gpu and user.device.placement is None for user in users):
            return
        for place in facts.incomplete:
            with contextlib.suppress(TesseraError, TimeoutError):
                async with asyncio.timeout(self._timing.step_s):
                    await self._gpus.driver.destroy_instance(self._gpu, place)

    async def _drain(self, doomed: Layout) -> Event:
        """Wait until instances have been observed unused for a while."""
        end_s = min(_now() + self._timing.drain_s, self._by_s)
        calm_s: float | None = None
        while True:
            used = await self._used(doomed)
            if used:
                return Taken(used[0])
            calm_s = None if used is None else calm_s if calm_s is not None else _now()
            if calm_s is not None and _now() - calm_s >= self._gpus.settle_s(self._gpu):
                return Drained()
            if _now() >= end_s:
                return TimedOut()
            await asyncio.sleep(self._timing.poll_s)

    async def _used(self, layout: Layout) -> Layout | None:
        """Return which of these instances are used; None where that is unknown now."""
        facts, users = await self._facts()
        return None if facts is None else used_on(users, self._gpu, layout)

    async def _step(self, step: Step) -> Event:
        place = step.placement
        if isinstance(step, Destroy):
            used = await self._used((place,))
            if used is None:
                return StepFailed(step, "whether it is in use is unknown")
            if used:
                return StepFailed(step, "it has come into use")
        driver = self._gpus.driver
        try:
            async with asyncio.timeout_at(min(_now() + self._timing.step_s, self._by_s)):
                if isinstance(step, Destroy):
                    await driver.destroy_instance(self._gpu, place)
                else:
                    await driver.create_instance(self._gpu, place)
        except TimeoutError:
            return TimedOut()
        except TesseraError as error:
            return StepFailed(step, error.found)
        return StepDone(step)


_STEPPING = {Stage.DESTROYING, Stage.CREATING, Stage.RESTORING}


def _verb(step: Step) -> str:
    verb = "destroying" if isinstance(step, Destroy) else "creating"
    return f"{verb} {step.placement.profile} at {step.placement.start}"


def _now() -> float:
    return asyncio.get_running_loop().time()
