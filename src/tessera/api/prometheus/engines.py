"""The metrics of Triton and vLLM, as the counters that they have in common."""

import math
from collections.abc import Iterable, Sequence

from tessera.api.prometheus.samples import Sample, read_samples
from tessera.core.serving.metrics.counters import MOST_IN_FLIGHT, Counters
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS
from tessera.errors import InvalidInput

__all__ = ["counters_of", "read_counters"]

_ABSURD = 1e15
"""Upper bound of a plausible counter: 10,000 requests a second for 3,000 years."""
_CLOCKS_S = 60.0
"""Bound of how much clocks of nodes and of who scrapes plausibly differ."""


def read_counters(source: str, content: bytes, *, at_s: float, started_s: float) -> Counters:
    """Return the counters of a pod, summed over its models.

    Args:
        source: the pod, for errors.
        content: its metrics.
        at_s: when it was scraped.
        started_s: when its process began.

    Raises:
        InvalidInput: no series of an engine, or a part of them; one that is not in the text format, or a value that no
            counter has.

    """
    samples = read_samples(source, content, frozenset().union(*(each.series for each in ENGINE_METRICS)))
    return counters_of(source, samples, at_s=at_s, started_s=started_s)


def counters_of(source: str, samples: Sequence[Sample], *, at_s: float, started_s: float) -> Counters:
    """Return the counters of a pod by its samples of one moment; arguments and errors as in `read_counters`."""
    known = {each.name for each in samples}
    engine = next((each for each in ENGINE_METRICS if each.queued in known), None)
    if engine is None:
        known_names = " or ".join(f"{each.queued} ({each.name})" for each in ENGINE_METRICS)
        hint = "load models in Triton, and leave out counter_latencies=false"
        raise InvalidInput(
            source,
            found=f"it has no series of queue time, {known_names}",
            hint=hint,
        )
    for each in samples:
        if not 0 <= each.value < _ABSURD:
            raise InvalidInput(source, found=f"{each.name} is {each.value:g}, not from 0 to {_ABSURD:g}")
    in_flight = _sum(samples, (engine.waiting, engine.running))
    if in_flight >= MOST_IN_FLIGHT:
        raise InvalidInput(source, found=f"{in_flight:.0f} requests are in flight, not fewer than {MOST_IN_FLIGHT}")
    served_s, completed = _sum(samples, engine.served) * engine.seconds, _sum(samples, engine.completed)
    most_s = max(at_s - started_s, 0.0) + _CLOCKS_S
    if served_s > max(completed, 1.0) * most_s:
        found = f"{completed:.0f} requests were served for {served_s:.0f} s, on average longer than the pod runs"
        raise InvalidInput(source, found=found, expected=f"at most {most_s:.0f} s each")
    if missing := sorted(engine.required - known):
        found = f"it has {engine.queued}, and not {', '.join(missing)}: a part would look like an idle {engine.name}"
        raise InvalidInput(source, found=found, hint="let Prometheus keep all series of the engine, or update it")
    return Counters(
        at_s=at_s,
        started_s=started_s,
        queued_s=_sum(samples, (engine.queued,)) * engine.seconds,
        dequeued=_sum(samples, (engine.dequeued,)),
        served_s=served_s,
        completed=completed,
        waiting=_sum(samples, (engine.waiting,)) if engine.waiting in known else None,
        running=_sum(samples, (engine.running,)) if engine.running in known else None,
    )


def _sum(samples: Iterable[Sample], names: tuple[str, ...]) -> float:
    return math.fsum(each.value for each in samples if each.name in names)
