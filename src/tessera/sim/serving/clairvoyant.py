"""A plan by a planner that knows the future: how few replicas would have done.

For each step of time the fewest replicas are tried by which few enough of its requests wait too long, given what the
steps before left behind; starts cost no time and draining nothing. A bound for policies, not the optimum: a plan that
spent its late requests where they save most could be a little cheaper.
"""

import math
from typing import Final

import msgspec
import numpy as np

from tessera.sim.serving.replicamodel import ReplicaModel, Replicas
from tessera.sim.serving.traces import Floats

__all__ = ["ClairvoyantPlan", "clairvoyant"]

_LATE: Final = 0.01
"""Share of all requests that may wait too long."""
_TRIES: Final = 4
"""Plans, each with another share of late requests that a single step may have."""
_WARM_S: Final = 600
"""Policies begin with what the plan needs within the first so many seconds."""
_SHORT_S: Final = 7200


class ClairvoyantPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas for each step."""

    step_s: float
    replicas: tuple[int, ...]
    replica_hours: float
    within_slo: float
    """Share of the requests that wait no longer than the objective, from 0 to 1."""

    @property
    def warm(self) -> int:
        """The most replicas of the first ten minutes, with which every policy begins."""
        return max(self.replicas[: max(1, round(_WARM_S / self.step_s))])


def clairvoyant(arrival_s: Floats, service_s: Floats, model: ReplicaModel, most: int) -> ClairvoyantPlan:
    """Return the cheapest plan found that keeps 99 % of the requests within the objective.

    Args:
        arrival_s: when each request comes, in order, the first at 0.
        service_s: how long each takes in its slot.
        model: of the replicas.
        most: replicas.

    """
    best = _plan(arrival_s, service_s, model, most, late=_LATE)
    low, high = _LATE, 20 * _LATE
    for _ in range(_TRIES):
        middle = (low + high) / 2
        found = _plan(arrival_s, service_s, model, most, late=middle)
        if found.within_slo >= 1 - _LATE:
            low = middle
            best = min(best, found, key=lambda each: each.replica_hours)
        else:
            high = middle
    return best


def _plan(arrival_s: Floats, service_s: Floats, model: ReplicaModel, most: int, *, late: float) -> ClairvoyantPlan:
    span_s = float(arrival_s[-1])
    step_s = 60.0 if span_s <= _SHORT_S else 300.0
    edges = np.arange(0, max(span_s, 1.0) + step_s, step_s)  # one step at least, of a single request too
    cuts = [0, *np.searchsorted(arrival_s, edges[1:], side="right").tolist()]
    times, services = arrival_s.tolist(), service_s.tolist()
    replicas, chosen, hours, missed = Replicas(model, 0), [], 0.0, 0
    for start_s, begin, end in zip(edges.tolist(), cuts, cuts[1:], strict=False):
        half = math.floor(sum(services[begin:end]) / step_s / model.slots / 2)
        # Where requests may wait for a later step, fewer replicas than for half of the step's load may be enough.
        count = 1 if model.slo_s > step_s else max(1, min(half, most))
        while True:
            tried = replicas.copy()
            tried.advance_to(start_s)
            tried.scale(start_s, count, start_s=0.0)
            for at in range(begin, end):
                tried.put(times[at], services[at])
                if tried.late > late * (end - begin) and count < most:
                    break
            else:
                break  # so many are enough
            count += 1
        replicas, missed = tried, missed + tried.late
        chosen.append(count)
        hours += count * min(step_s, span_s - start_s) / 3600
    within = 1 - missed / len(times)
    return ClairvoyantPlan(step_s=step_s, replicas=tuple(chosen), replica_hours=hours, within_slo=within)
