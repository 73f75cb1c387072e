"""What holds in every stage of a repartition, judged from its record."""

from tessera.core.gpu.mig import why_illegal
from tessera.core.node.repartition import Destroy, Procedure, Stage, restorable

__all__ = ["ENDS", "broken_invariants"]

ENDS = frozenset({Stage.DONE, Stage.RESTORED, Stage.FAILED})


def broken_invariants(procedure: Procedure) -> tuple[str, ...]:
    """Return the violated invariants of a procedure, a sentence for each; none after any legal sequence of events."""
    doomed = {step.placement for step in procedure.todo if isinstance(step, Destroy)}
    known = procedure.stage is not Stage.FAILED
    untouched = procedure.stage in {Stage.OBSERVED, Stage.DRAINING}
    rules = {
        "a used instance is to be destroyed": not doomed.intersection(procedure.used),
        "the layout is not legal": why_illegal(procedure.model, procedure.layout) is None,
        "a used instance does not exist": not known or set(procedure.used).issubset(procedure.layout),
        "something changed before it was drained": not untouched or procedure.layout == procedure.former,
        "an instance remains to be destroyed during creation": procedure.stage is not Stage.CREATING or not doomed,
        "it is done without the target": procedure.stage is not Stage.DONE or procedure.layout == procedure.target,
        "it is restored without the former layout": procedure.stage is not Stage.RESTORED
        or procedure.layout == restorable(procedure.model, procedure.former, procedure.used),
        "it ended with steps left": procedure.stage not in ENDS or not procedure.todo,
    }
    return tuple(sentence for sentence, holds in rules.items() if not holds)
