"""The queue time of a model server as a PromQL expression."""

from typing import Final

from tessera.core.serving.engineflags import Engine

__all__ = ["queue_time_query"]

# Source: triton-inference-server/server docs/user_guide/metrics.md; vllm 0.33.0 `vllm/v1/metrics/loggers.py`.
_COUNTERS: Final = {
    "triton": (
        "nv_inference_queue_duration_us",
        "nv_inference_request_success",
        "nv_inference_pending_request_count",
        1e-6,
    ),
    "vllm": (
        "vllm:request_queue_time_seconds_sum",
        "vllm:request_queue_time_seconds_count",
        "vllm:num_requests_waiting",
        1,
    ),
}
_WINDOW_S: Final = 120
"""Long enough for several samples at the scrape interval of 15 or 30 s."""


def queue_time_query(engine: Engine, server: str, namespace: str) -> str:
    """Return the average wait of a server's requests in seconds, as a PromQL expression.

    `increase` handles restarts, and a server without requests has no wait; if requests wait and none was started,
    the wait is at least the window. A server without series has no value.
    """
    waited, served, waiting, scale = _COUNTERS[engine]
    where = f'serving_tessera_dev_server="{server}"' + (f',namespace="{namespace}"' if namespace else "")
    seconds = f"sum(increase({waited}{{{where}}}[{_WINDOW_S}s]))" + (f" * {scale:g}" if scale != 1 else "")
    requests = f"sum(increase({served}{{{where}}}[{_WINDOW_S}s]))"
    stuck = f"sum(min_over_time({waiting}{{{where}}}[{_WINDOW_S}s])) > bool 0"
    return f"({seconds} / ({requests} > 0)) or ({_WINDOW_S} * ({stuck})) or (0 * {requests})"
