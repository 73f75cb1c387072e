"""A pass over a model server as it is logged: what is decided from the log is what was decided then."""

from collections.abc import Iterable, Iterator

import msgspec

from tessera.core.serving.autoscaling.decisions import ScalingDecision, ScalingState, decide_replicas
from tessera.core.serving.autoscaling.serverfacts import ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.load import Load

__all__ = ["RecordedPass", "replay"]


class RecordedPass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The input of a decision."""

    at_s: float
    facts: ServerFacts
    load: Load | None = None
    """None if it was not measured."""
    unmeasured: Unmeasured | None = None
    """Why it was not; None if it was."""

    @classmethod
    def of(cls, at_s: float, facts: ServerFacts, load: Load | Unmeasured) -> "RecordedPass":
        """Return the record of a pass."""
        if isinstance(load, Unmeasured):
            return cls(at_s=at_s, facts=facts, unmeasured=load)
        return cls(at_s=at_s, facts=facts, load=load)


def replay(passes: Iterable[RecordedPass]) -> Iterator[ScalingDecision]:
    """Yield the decision of each pass over a server, from the first one after a start of `tessera metrics` on."""
    state = ScalingState()
    for each in passes:
        load = each.load or each.unmeasured or Unmeasured("not recorded")
        state, decision = decide_replicas(state, each.facts, load, each.at_s)
        yield decision
