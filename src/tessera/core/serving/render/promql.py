"""The queue time of model servers as PromQL expressions."""

from collections.abc import Callable
from typing import Final

from tessera.core.serving.engineflags import Engine
from tessera.core.serving.enginemetrics import ENGINE_METRICS, EngineMetrics
from tessera.core.serving.metricnames import SERVER

__all__ = ["WINDOW_S", "queue_time", "queue_time_query"]

WINDOW_S: Final = 120
"""Long enough for several samples at the scrape interval of 15 or 30 s."""


def queue_time_query(engine: Engine, server: str, namespace: str) -> str:
    """Return the average wait of a server's requests in seconds, as a PromQL expression."""
    series = next(each for each in ENGINE_METRICS if each.name == engine)
    where = f'{SERVER}="{server}"' + (f',namespace="{namespace}"' if namespace else "")
    return queue_time(series, lambda selected: f"sum({selected.replace('{}', f'{{{where}}}')})")


def queue_time(engine: EngineMetrics, total: Callable[[str], str]) -> str:
    """Return the average wait of requests in seconds, as a PromQL expression.

    `increase` handles restarts, and what has no requests has no wait; if requests wait and none was started, the wait
    is at least the window. What has no series has no value.

    Args:
        engine: the names of its series.
        total: returns the sum of an expression, and writes the labels of its series into `{}`.

    """
    waited, ended = (total(f"increase({name}{{}}[{WINDOW_S}s])") for name in (engine.queued, engine.dequeued))
    stuck = total(f"min_over_time({engine.waiting}{{}}[{WINDOW_S}s])")
    scale = "" if engine.seconds == 1 else f" * {engine.seconds:g}"
    return f"{waited}{scale} / ({ended} > 0) or {WINDOW_S} * ({stuck} > bool 0) or 0 * {ended}"
