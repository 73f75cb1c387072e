"""The procedure by which a node changes one GPU's layout: events in, instructions out, and recovery as a transition.

                     Begin           Drained           steps           steps         LayoutObserved
    observed ─────────────► draining ───────► destroying ───► creating ───► verifying ───► done
                               │ Taken             │ StepFailed  │  TimedOut   │ LayoutObserved, not the target
                               │ TimedOut          └─────────────┴──────┬──────┘
                               ▼                                        ▼  ◄──── LayoutObserved ────┐
                            restored ◄──────────── steps, LayoutObserved ── restoring ── StepFailed ──► failed

A procedure is a value; the node's shell executes the instructions that `advance` returns and reports each outcome as
an event. There is no other state: after a crash the shell observes the GPU and plans again.
"""

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.mig import Layout, Placement, why_illegal
from tessera.core.node.repartition.change import Destroy, Repartition, Step, restorable, steps_between
from tessera.errors import Conflict

__all__ = [
    "AwaitUnused",
    "Begin",
    "Drained",
    "Event",
    "Instruction",
    "LayoutObserved",
    "Observe",
    "OfferOnly",
    "Procedure",
    "Stage",
    "StepDone",
    "StepFailed",
    "Taken",
    "TimedOut",
    "advance",
    "start",
]


class Stage(enum.StrEnum):
    """The stage of a procedure."""

    OBSERVED = "observed"
    """The plan is made from a fresh observation and nothing has changed.
    Leaves when the shell begins; a plan without steps is done at once."""
    DRAINING = "draining"
    """Instances that must go are no longer advertised; they all still exist.
    Leaves when the kubelet has dropped all of them; a quicker pod, or the deadline, ends it, nothing changed."""
    DESTROYING = "destroying"
    """Unused instances are destroyed one after the other.
    Leaves when all are gone; any failure leads to restoring."""
    CREATING = "creating"
    """New instances are created one after the other; none is advertised yet.
    Leaves when all exist; any failure leads to restoring."""
    VERIFYING = "verifying"
    """All steps are reported done; the GPU is read again.
    Leaves for done if it matches the target, else for restoring."""
    DONE = "done"
    """The GPU has the target layout and all of it is advertised.
    The end."""
    RESTORING = "restoring"
    """A step failed; the GPU is read and the former layout is restored beside what is in use.
    Leaves when a reading shows it; a failure or the deadline leads to failed."""
    RESTORED = "restored"
    """The GPU has its former layout again, except where used instances block it, and all of it is advertised.
    The end; the plan may be made again from a new observation."""
    FAILED = "failed"
    """Restoring failed too, so the layout is uncertain and only instances in use are advertised.
    The end of this attempt; a new observation tries restoring again."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The shell starts the procedure."""


class Drained(msgspec.Struct, frozen=True, tag=True):
    """The kubelet's record shows that no pod has an instance that must go."""


class Taken(msgspec.Struct, frozen=True, tag=True):
    """A pod was allocated an instance that must go, before it was withdrawn."""

    placement: Placement


class StepDone(msgspec.Struct, frozen=True, tag=True):
    """The driver did a step."""

    step: Step


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """The driver rejected a step, or left it incomplete."""

    step: Step
    reason: str


class TimedOut(msgspec.Struct, frozen=True, tag=True):
    """The deadline has passed."""


class LayoutObserved(msgspec.Struct, frozen=True, tag=True):
    """An observation of driver and kubelet."""

    layout: Layout
    used: Layout
    incomplete: Layout = ()
    """Instances of the layout without the compute instance that fills them: they serve no pod."""


Event = Begin | Drained | Taken | StepDone | StepFailed | TimedOut | LayoutObserved


class OfferOnly(msgspec.Struct, frozen=True, tag=True):
    """Advertise exactly these instances from now on; pods keep their devices."""

    layout: Layout


class AwaitUnused(msgspec.Struct, frozen=True, tag=True):
    """Wait, with a deadline, until no pod has any of these; report Drained, Taken or TimedOut."""

    placements: Layout


class Observe(msgspec.Struct, frozen=True, tag=True):
    """Read the layout from the driver and the used instances from the kubelet; report LayoutObserved or TimedOut."""


Instruction = OfferOnly | AwaitUnused | Step | Observe
"""A step has a deadline, and its result is reported as StepDone, StepFailed or TimedOut."""


class Procedure(msgspec.Struct, frozen=True, kw_only=True):
    """A repartition in progress."""

    model: GpuModel
    former: Layout
    target: Layout
    used: Layout
    """Instances in use, as last observed; never touched."""
    layout: Layout
    """The layout, as far as known."""
    stage: Stage = Stage.OBSERVED
    broken: Layout = ()
    """Instances of the former layout that were incomplete already; it is restored without them, too."""
    todo: tuple[Step, ...] = ()
    """Remaining steps of this stage and the next; the first one is in progress."""
    story: tuple[str, ...] = ()
    """The events so far, a line for each."""


Next = tuple[Procedure, tuple[Instruction, ...]]


def start(plan: Repartition, broken: Layout = ()) -> Procedure:
    """Return the procedure of a plan, not begun yet; `broken` are the incomplete instances."""
    return Procedure(
        model=plan.model,
        former=plan.present,
        target=plan.target,
        used=plan.used,
        layout=plan.present,
        broken=broken,
        todo=plan.steps,
    )


def advance(procedure: Procedure, event: Event) -> Next:
    """Return the procedure after an event, and the instructions for the shell, in order.

    Raises:
        Conflict: the event is not possible in this stage; the message has the events so far.

    """
    handle = _HANDLERS.get((procedure.stage, type(event)))
    if handle is None:
        raise _unexpected(procedure, event)
    after, instructions = handle(procedure, event)
    line = f"{procedure.stage}, {_describe(event)}: {after.stage}"
    return msgspec.structs.replace(after, story=(*procedure.story, line)), instructions


def _unexpected(procedure: Procedure, event: Event) -> Conflict:
    expected = [kind.__name__ for stage, kind in _HANDLERS if stage is procedure.stage]
    return Conflict(
        f"repartition of {procedure.model.name}, {procedure.stage}",
        found=f"{_describe(event)} came instead of {' or '.join(expected) or 'nothing more'}",
        hint=f"observe the GPU again and plan again; so far: {'; '.join(procedure.story) or 'nothing'}",
    )


def _describe(event: Event) -> str:
    match event:
        case StepDone(step=step):
            return f"{_name(step)} done"
        case StepFailed(step=step, reason=reason):
            return f"{_name(step)} failed, {reason}"
        case Taken(placement=placement):
            return f"a pod uses {placement.profile} at {placement.start}"
        case _:
            return type(event).__name__


def _name(step: Step) -> str:
    return f"{type(step).__name__.lower()} {step.placement.profile} at {step.placement.start}"


def _enter(procedure: Procedure, stage: Stage, *instructions: Instruction) -> Next:
    return msgspec.structs.replace(procedure, stage=stage), instructions


def _begin(procedure: Procedure, _event: Event) -> Next:
    doomed = tuple(step.placement for step in procedure.todo if isinstance(step, Destroy))
    if doomed:
        kept = tuple(each for each in procedure.layout if each not in doomed)
        return _enter(procedure, Stage.DRAINING, OfferOnly(kept), AwaitUnused(doomed))
    return _continue(procedure) if procedure.todo else _enter(procedure, Stage.DONE, OfferOnly(procedure.layout))


def _continue(procedure: Procedure, *_event: Event) -> Next:
    """Return the next step, or a check that all of them worked."""
    if not procedure.todo:
        return _enter(procedure, Stage.VERIFYING, Observe())
    first = procedure.todo[0]
    return _enter(procedure, Stage.DESTROYING if isinstance(first, Destroy) else Stage.CREATING, first)


def _undrained(procedure: Procedure, event: Event) -> Next:
    used = procedure.used
    if isinstance(event, Taken):
        if event.placement not in procedure.layout:
            raise _unexpected(procedure, event)
        used = tuple(sorted({*used, event.placement}))
    calm = msgspec.structs.replace(procedure, used=used, todo=())
    return _enter(calm, Stage.RESTORED, OfferOnly(procedure.layout))


def _step_done(procedure: Procedure, event: Event) -> Next:
    return _continue(_take(procedure, event))


def _restored_step(procedure: Procedure, event: Event) -> Next:
    after = _take(procedure, event)
    return _enter(after, Stage.RESTORING, after.todo[0] if after.todo else Observe())


def _take(procedure: Procedure, event: Event) -> Procedure:
    """Return the procedure with its first step done."""
    assert isinstance(event, StepDone)
    _expect(procedure, event)
    layout = set(procedure.layout) ^ {event.step.placement}
    return msgspec.structs.replace(procedure, layout=tuple(sorted(layout)), todo=procedure.todo[1:])


def _expect(procedure: Procedure, event: Event) -> None:
    """Raise if the event reports another step than the current one."""
    if isinstance(event, StepDone | StepFailed) and event.step not in procedure.todo[:1]:
        raise _unexpected(procedure, event)


def _break_off(procedure: Procedure, event: Event) -> Next:
    _expect(procedure, event)
    return _enter(msgspec.structs.replace(procedure, todo=()), Stage.RESTORING, Observe())


def _verify(procedure: Procedure, event: Event) -> Next:
    assert isinstance(event, LayoutObserved)
    if set(event.layout) != set(procedure.target):
        # Incomplete instances are destroyed before the next observation.
        return _break_off(procedure, event) if event.incomplete else _restore(procedure, event)
    updated = msgspec.structs.replace(procedure, used=tuple(sorted(event.used)))
    return _enter(updated, Stage.DONE, OfferOnly(procedure.target))


def _restore(procedure: Procedure, event: Event) -> Next:
    assert isinstance(event, LayoutObserved)
    layout, used = tuple(sorted(event.layout)), tuple(sorted(event.used))
    lacks = not set(event.incomplete).issubset(procedure.broken)
    if lacks or why_illegal(procedure.model, layout) or not set(used).issubset(layout):
        return _give_up(procedure, event)
    goal = restorable(procedure.model, procedure.former, used)
    todo = steps_between(layout, goal)
    updated = msgspec.structs.replace(procedure, layout=layout, used=used, todo=todo)
    return _enter(updated, Stage.RESTORING, todo[0]) if todo else _enter(updated, Stage.RESTORED, OfferOnly(layout))


def _give_up(procedure: Procedure, event: Event) -> Next:
    _expect(procedure, event)
    return _enter(msgspec.structs.replace(procedure, todo=()), Stage.FAILED, OfferOnly(procedure.used))


_HANDLERS: Mapping[tuple[Stage, type[Event]], Callable[[Procedure, Event], Next]] = MappingProxyType(
    {
        (Stage.OBSERVED, Begin): _begin,
        (Stage.DRAINING, Drained): _continue,
        (Stage.DRAINING, Taken): _undrained,
        (Stage.DRAINING, TimedOut): _undrained,
        (Stage.DESTROYING, StepDone): _step_done,
        (Stage.DESTROYING, StepFailed): _break_off,
        (Stage.DESTROYING, TimedOut): _break_off,
        (Stage.CREATING, StepDone): _step_done,
        (Stage.CREATING, StepFailed): _break_off,
        (Stage.CREATING, TimedOut): _break_off,
        (Stage.VERIFYING, LayoutObserved): _verify,
        (Stage.VERIFYING, TimedOut): _break_off,
        (Stage.RESTORING, LayoutObserved): _restore,
        (Stage.RESTORING, StepDone): _restored_step,
        (Stage.RESTORING, StepFailed): _give_up,
        (Stage.RESTORING, TimedOut): _give_up,
        (Stage.FAILED, LayoutObserved): _restore,
    }
)
"""The allowed transitions; all others raise."""
