"""The queue time of a model server as a PromQL expression."""

from typing import Final

from tessera.core.serving.engineflags import Engine
from tessera.core.serving.enginemetrics import ENGINE_METRICS

__all__ = ["queue_time_query"]

_WINDOW_S: Final = 120
"""Long enough for several samples at the scrape interval of 15 or 30 s."""


def queue_time_query(engine: Engine, server: str, namespace: str) -> str:
    """Return the average wait of a server's requests in seconds, as a PromQL expression.

    `increase` handles restarts, and a server without requests has no wait; if requests wait and none was started,
    the wait is at least the window. A server without series has no value.
    """
    series = next(each for each in ENGINE_METRICS if each.name == engine)
    waited, served, waiting, scale = series.queued, series.dequeued, series.waiting, series.seconds
    where = f'serving_tessera_dev_server="{server}"' + (f',namespace="{namespace}"' if namespace else "")
    seconds = f"sum(increase({waited}{{{where}}}[{_WINDOW_S}s]))" + (f" * {scale:g}" if scale != 1 else "")
    requests = f"sum(increase({served}{{{where}}}[{_WINDOW_S}s]))"
    stuck = f"sum(min_over_time({waiting}{{{where}}}[{_WINDOW_S}s])) > bool 0"
    return f"({seconds} / ({requests} > 0)) or ({_WINDOW_S} * ({stuck})) or (0 * {requests})"
