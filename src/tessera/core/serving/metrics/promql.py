"""The metrics of model servers as PromQL expressions: the same as `queuetime` and `observed` compute of samples."""

from collections.abc import Callable
from typing import Final

from tessera.core.serving.engineflags import Engine
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS, EngineMetrics
from tessera.core.serving.metrics.metricnames import SERVER

__all__ = ["in_flight", "queue_time", "queue_time_query", "waiting"]

_WINDOW_S: Final = 120
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
    waited, ended = _increase(engine.queued, total), _increase(engine.dequeued, total)
    stuck = total(f"min_over_time({engine.waiting}{{}}[{_WINDOW_S}s])")
    scale = "" if engine.seconds == 1 else f" * {engine.seconds:g}"
    return f"{waited}{scale} / ({ended} > 0) or {_WINDOW_S} * ({stuck} > bool 0) or 0 * {ended}"


def waiting(engine: EngineMetrics, total: Callable[[str], str]) -> str:
    """Return the requests that wait, as `queue_time` does the wait; by Little's law where the engine does not say."""
    gauge = total(f"{engine.waiting}{{}}")
    return f"{gauge} or {_increase(engine.queued, total)} * {engine.seconds / _WINDOW_S:.12g}"


def in_flight(engine: EngineMetrics, total: Callable[[str], str]) -> str:
    """Return the requests that are served or wait, as `queue_time` does the wait."""
    if engine.running:
        running = total(f"{engine.running}{{}}")
    else:
        served = " + ".join(_increase(name, total) for name in engine.served)
        running = f"({served}) * {engine.seconds / _WINDOW_S:.12g}"
    return f"({waiting(engine, total)}) + ({running})"


def _increase(counter: str, total: Callable[[str], str]) -> str:
    return total(f"increase({counter}{{}}[{_WINDOW_S}s])")
