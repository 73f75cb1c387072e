"""The repartition procedure against a GPU and a kubelet that fail in every way the events can tell."""

import itertools
import re
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.gpufacts import at
from judges.repartitions import ENDS, broken_invariants
from tessera.core.gpu.gpumodels import CATALOG, GpuModel, model
from tessera.core.gpu.mig import Layout, all_layouts, is_legal
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
    Repartition,
    Stage,
    StepDone,
    StepFailed,
    Taken,
    TimedOut,
    advance,
    plan_repartition,
    restorable,
    start,
)
from tessera.errors import Conflict

H100 = model("H100-80GB")
MIG_MODELS = tuple(each for each in CATALOG if each.memory_slices)


ONES = at(H100, ("1g.10gb", 0), ("1g.10gb", 1), ("1g.10gb", 2), ("3g.40gb", 4))
HALVES = at(H100, ("3g.40gb", 0), ("3g.40gb", 4))


def planned(gpu: GpuModel, present: Layout, used: Layout, target: Layout) -> Procedure:
    plan = plan_repartition(gpu, present, used, target)
    assert isinstance(plan, Repartition)
    return start(plan)


def run(procedure: Procedure, *events: Event) -> tuple[Procedure, tuple[Instruction, ...]]:
    """Return where the events lead, with the last instructions; checks all invariants on the way."""
    instructions: tuple[Instruction, ...] = ()
    for event in events:
        procedure, instructions = advance(procedure, event)
        assert broken_invariants(procedure) == ()
    return procedure, instructions


def done(*steps: Destroy | Create) -> tuple[Event, ...]:
    return tuple(StepDone(step) for step in steps)


DOOMED = tuple(Destroy(each) for each in ONES[:3])
NEW = Create(HALVES[0])


@pytest.mark.parametrize(
    ("events", "stage", "want"),
    [
        pytest.param((), Stage.OBSERVED, (), id="nothing happens before it begins"),
        pytest.param(
            (Begin(),),
            Stage.DRAINING,
            (OfferOnly(ONES[3:]), AwaitUnused(ONES[:3])),
            id="what must go is withdrawn first",
        ),
        pytest.param((Begin(), Drained()), Stage.DESTROYING, DOOMED[:1], id="then destroyed"),
        pytest.param((Begin(), Drained(), *done(*DOOMED[:2])), Stage.DESTROYING, DOOMED[2:], id="one after the other"),
        pytest.param((Begin(), Drained(), *done(*DOOMED)), Stage.CREATING, (NEW,), id="then the new ones are made"),
        pytest.param((Begin(), Drained(), *done(*DOOMED, NEW)), Stage.VERIFYING, (Observe(),), id="then it looks"),
        pytest.param(
            (Begin(), Drained(), *done(*DOOMED, NEW), LayoutObserved(HALVES, HALVES[1:])),
            Stage.DONE,
            (OfferOnly(HALVES),),
            id="and offers the target",
        ),
        pytest.param(
            (Begin(), Taken(ONES[0])), Stage.RESTORED, (OfferOnly(ONES),), id="a pod was quicker: nothing has changed"
        ),
        pytest.param((Begin(), TimedOut()), Stage.RESTORED, (OfferOnly(ONES),), id="users stay: nothing has changed"),
        pytest.param(
            (Begin(), Drained(), StepFailed(DOOMED[0], "busy")),
            Stage.RESTORING,
            (Observe(),),
            id="a failure: look first",
        ),
        pytest.param(
            (Begin(), Drained(), StepFailed(DOOMED[0], "busy"), LayoutObserved(ONES, ())),
            Stage.RESTORED,
            (OfferOnly(ONES),),
            id="a failure that changed nothing",
        ),
        pytest.param(
            (Begin(), Drained(), *done(*DOOMED), StepFailed(NEW, "no room"), LayoutObserved(ONES[3:], ())),
            Stage.RESTORING,
            (Create(ONES[0]),),
            id="the former layout is brought back",
        ),
        pytest.param(
            (
                *(Begin(), Drained(), *done(*DOOMED), StepFailed(NEW, "no room"), LayoutObserved(ONES[2:], ())),
                *(*done(Create(ONES[0]), Create(ONES[1])), LayoutObserved(ONES, ())),
            ),
            Stage.RESTORED,
            (OfferOnly(ONES),),
            id="and offered when a reading shows it",
        ),
        pytest.param(
            (Begin(), Drained(), *done(*DOOMED, NEW), LayoutObserved(ONES[3:], ())),
            Stage.RESTORING,
            (Create(ONES[0]),),
            id="a step that only seemed to work",
        ),
        pytest.param(
            (Begin(), Drained(), *done(*DOOMED, NEW), TimedOut(), LayoutObserved(HALVES, HALVES[:1])),
            Stage.RESTORED,
            (OfferOnly(HALVES),),
            id="restoring spares a user that appeared meanwhile",
        ),
        pytest.param(
            (Begin(), Drained(), TimedOut(), TimedOut()), Stage.FAILED, (OfferOnly(()),), id="the GPU cannot be read"
        ),
        pytest.param(
            (Begin(), Drained(), TimedOut(), LayoutObserved(ONES[3:], ()), StepFailed(Create(ONES[0]), "no room")),
            Stage.FAILED,
            (OfferOnly(()),),
            id="restoring fails too",
        ),
        pytest.param(
            (Begin(), Drained(), TimedOut(), LayoutObserved(HALVES[:1] + ONES[:1], ())),
            Stage.FAILED,
            (OfferOnly(()),),
            id="what exists is not what this GPU can hold",
        ),
        pytest.param(
            (Begin(), Drained(), TimedOut(), LayoutObserved(ONES[:1], ONES[1:2])),
            Stage.FAILED,
            (OfferOnly(()),),
            id="a used instance is not seen",
        ),
        pytest.param(
            (Begin(), Drained(), TimedOut(), TimedOut(), LayoutObserved(ONES, ())),
            Stage.RESTORED,
            (OfferOnly(ONES),),
            id="a later look recovers from failed",
        ),
    ],
)
def test_after(events: tuple[Event, ...], stage: Stage, want: tuple[Instruction, ...]) -> None:
    procedure, instructions = run(planned(H100, ONES, (), HALVES), *events)
    assert (procedure.stage, instructions) == (stage, want)
    assert len(procedure.story) == len(events)


def test_without_steps_it_is_done_at_once() -> None:
    assert run(planned(H100, ONES, ONES, ONES), Begin())[0].stage is Stage.DONE


def test_with_nothing_to_destroy_nothing_is_drained() -> None:
    procedure, instructions = run(planned(H100, HALVES[1:], HALVES[1:], HALVES), Begin())
    assert (procedure.stage, instructions) == (Stage.CREATING, (NEW,))


@pytest.mark.parametrize(
    ("events", "want"),
    [
        pytest.param((Drained(),), "observed: Drained came instead of Begin: ", id="before it begins"),
        pytest.param((Begin(), Begin()), "Begin came instead of Drained or Taken or TimedOut: ", id="a second time"),
        pytest.param(
            (Begin(), Taken(HALVES[0])), "a pod uses 3g.40gb at 0 came instead of", id="taken what does not exist"
        ),
        pytest.param(
            (Begin(), Drained(), StepDone(DOOMED[1])),
            "destroy 1g.10gb at 1 done came instead of StepDone or StepFailed or TimedOut: observe the GPU "
            "again and plan again; so far: observed, Begin: draining; draining, Drained: destroying",
            id="another step than the one given out",
        ),
        pytest.param(
            (Begin(), Drained(), StepFailed(NEW, "late")), "create 3g.40gb at 0 failed, late", id="another fails"
        ),
        pytest.param(
            (Begin(), Drained(), TimedOut(), StepFailed(DOOMED[0], "late")),
            "destroy 1g.10gb at 0 failed, late came instead of LayoutObserved or",
            id="a failure reported after its deadline",
        ),
        pytest.param((Begin(), TimedOut(), Begin()), "instead of nothing more: ", id="after the end"),
    ],
)
def test_an_event_out_of_turn_is_a_conflict_that_tells_the_story(events: tuple[Event, ...], want: str) -> None:
    procedure, _ = run(planned(H100, ONES, (), HALVES), *events[:-1])
    with pytest.raises(Conflict, match=re.escape(want)):
        advance(procedure, events[-1])


def test_a_conflict_before_the_first_event_says_that_nothing_happened() -> None:
    with pytest.raises(Conflict, match="so far: nothing"):
        advance(planned(H100, ONES, (), HALVES), Drained())


@pytest.mark.parametrize(
    ("broken", "events", "want"),
    [
        pytest.param((), (StepFailed(DOOMED[0], "busy"), LayoutObserved(ONES, (), ONES[:1])), Stage.FAILED, id="since"),
        pytest.param(
            ONES[:1], (StepFailed(DOOMED[0], "busy"), LayoutObserved(ONES, (), ONES[:1])), Stage.RESTORED, id="before"
        ),
        pytest.param(
            (),
            (StepFailed(DOOMED[0], "busy"), LayoutObserved(ONES, (), ONES[:1]), LayoutObserved(ONES, ())),
            Stage.RESTORED,
            id="no longer",
        ),
        pytest.param(
            (), (*done(*DOOMED, NEW), LayoutObserved(ONES, (), ONES[:1])), Stage.RESTORING, id="not yet cleared"
        ),
    ],
)
def test_a_layout_is_not_restored_while_an_instance_is_incomplete(
    broken: Layout, events: tuple[Event, ...], want: Stage
) -> None:
    procedure = msgspec.structs.replace(planned(H100, ONES, HALVES[1:], HALVES), used=(), broken=broken)
    for event in (Begin(), Drained(), *events):
        procedure, _ = advance(procedure, event)
    assert procedure.stage is want


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"used": ONES[:1]}, "a used instance is to be destroyed"),
        ({"layout": HALVES + ONES[:1], "stage": Stage.DESTROYING}, "the layout is not legal"),
        ({"used": HALVES[:1]}, "a used instance does not exist"),
        ({"layout": ONES[1:], "stage": Stage.DRAINING}, "something changed before it was drained"),
        ({"stage": Stage.CREATING}, "an instance remains to be destroyed during creation"),
        ({"stage": Stage.DONE, "todo": ()}, "it is done without the target"),
        ({"stage": Stage.RESTORED, "layout": ONES[1:], "todo": ()}, "it is restored without the former layout"),
        ({"stage": Stage.FAILED}, "it ended with steps left"),
    ],
)
def test_a_broken_procedure_is_reported(change: dict[str, object], want: str) -> None:
    broken = msgspec.structs.replace(planned(H100, ONES, (), HALVES), **change)
    assert broken_invariants(broken) == (want,)


class Machine:
    """A GPU and a kubelet that carry out instructions, and report what `fate` decides."""

    def __init__(self, procedure: Procedure, fate: Iterator[int]) -> None:
        self.gpu = procedure.model
        self.layout = set(procedure.layout)
        self.used = set(procedure.used)
        self.offered = set(procedure.layout)
        self.fate = fate

    def do(self, instruction: Instruction) -> Event | None:
        fate = next(self.fate, 0)
        match instruction:
            case OfferOnly(layout=layout):
                self.offered = set(layout)
                return None
            case AwaitUnused(placements=doomed):
                return (Drained(), TimedOut(), Taken(doomed[0]))[fate % 3]
            case Observe():
                if fate % 4 == 1:
                    return TimedOut()
                free = sorted(self.layout & self.offered - self.used)
                if fate % 4 == 2 and free:
                    self.used.add(free[0])
                return LayoutObserved(tuple(sorted(self.layout)), tuple(sorted(self.used)))
            case step:
                assert step.placement not in self.used
                assert step.placement not in self.offered
                works = fate % 5 in {0, 1, 2}
                if works:
                    self.layout ^= {step.placement}
                    assert is_legal(self.gpu, tuple(self.layout))
                return (StepDone(step), StepDone(step), TimedOut(), StepFailed(step, "fault"), TimedOut())[fate % 5]


def execute(procedure: Procedure, machine: Machine) -> Procedure:
    """Run a procedure to its end; checks all invariants after every event."""
    event: Event | None = Begin()
    while event is not None:
        procedure, instructions = run(procedure, event)
        reports = [machine.do(instruction) for instruction in instructions]
        event = next((report for report in reports if report is not None), None)
    assert procedure.stage in ENDS
    return procedure


@st.composite
def cases(draw: st.DrawFn) -> Procedure:
    gpu = draw(st.sampled_from(MIG_MODELS))
    layouts = st.sampled_from(all_layouts(gpu))
    present, target = draw(layouts), draw(layouts)
    shared = [each for each in present if each in target]
    used = tuple(itertools.compress(shared, draw(st.tuples(*(st.booleans() for _ in shared)))))
    return planned(gpu, present, used, target)


@settings(max_examples=300)
@given(cases(), st.lists(st.integers(0, 59), max_size=40))
def test_whatever_fails_no_used_instance_is_touched_and_the_end_is_what_it_says(
    procedure: Procedure, fate: list[int]
) -> None:
    machine = Machine(procedure, iter(fate))
    after = execute(procedure, machine)
    layout = tuple(sorted(machine.layout))
    assert set(procedure.used) <= machine.used <= machine.layout
    if after.stage is Stage.DONE:
        assert layout == procedure.target
    if after.stage is Stage.RESTORED:
        assert layout == restorable(procedure.model, procedure.former, after.used)
    if after.stage is Stage.FAILED:
        assert machine.offered == set(after.used)
    else:
        assert machine.offered == machine.layout


@settings(max_examples=200)
@given(cases())
def test_each_failing_step_leads_back_to_the_former_layout(procedure: Procedure) -> None:
    """One failure at each step in turn, of each kind; everything else works."""
    drains = 2 if any(isinstance(step, Destroy) for step in procedure.todo) else 0
    for number, kind in itertools.product(range(len(procedure.todo)), (2, 3, 4)):
        machine = Machine(procedure, iter([*[0] * (drains + number), kind]))
        after = execute(procedure, machine)
        assert after.stage is Stage.RESTORED
        assert tuple(sorted(machine.layout)) == procedure.former


@settings(max_examples=200)
@given(cases())
def test_when_nothing_fails_the_target_is_reached(procedure: Procedure) -> None:
    machine = Machine(procedure, iter(()))
    assert execute(procedure, machine).stage is Stage.DONE
    assert tuple(sorted(machine.layout)) == procedure.target


@settings(max_examples=200)
@given(cases(), st.lists(st.integers(0, 59), max_size=12))
def test_after_a_crash_planning_anew_reaches_the_target(procedure: Procedure, fate: list[int]) -> None:
    """A crash after any event: the next observation is enough to go on, whatever was done already."""
    machine = Machine(procedure, iter(fate))
    event: Event | None = Begin()
    for _ in fate:
        if event is None:
            break
        procedure, instructions = run(procedure, event)
        reports = [machine.do(instruction) for instruction in instructions]
        event = next((report for report in reports if report is not None), None)
    present, used = tuple(sorted(machine.layout)), tuple(sorted(machine.used))
    plan = plan_repartition(procedure.model, present, used, procedure.target)
    if isinstance(plan, Repartition):
        again = Machine(start(plan), iter(()))
        assert execute(start(plan), again).stage is Stage.DONE
        assert tuple(sorted(again.layout)) == procedure.target
    else:
        assert not set(used) <= set(procedure.target)


@pytest.mark.parametrize("stage", [Stage.DONE, Stage.RESTORED])
@pytest.mark.parametrize(
    "event",
    [Begin(), Drained(), Taken(ONES[0]), StepDone(NEW), StepFailed(NEW, "late"), TimedOut(), LayoutObserved(ONES, ())],
    ids=lambda event: type(event).__name__,
)
def test_after_a_good_end_nothing_more_is_expected(stage: Stage, event: Event) -> None:
    procedure = msgspec.structs.replace(planned(H100, ONES, (), HALVES), stage=stage)
    with pytest.raises(Conflict, match="nothing more"):
        advance(procedure, event)
