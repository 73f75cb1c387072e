"""Names of the metrics of model servers, as Prometheus takes them."""

import re

from tessera.core.serving.metrics.metricnames import SERVER, SERVING_METRICS, recorded_name


def test_prometheus_takes_every_name() -> None:
    """Source: Prometheus, data model: names of metrics, which recorded ones have a colon in, and of labels."""
    assert recorded_name("tessera_requests_waiting", "server") == "server:tessera_requests_waiting:2m"
    recorded = [recorded_name(each, level) for each in SERVING_METRICS for level in ("pod", "server")]
    assert len({*recorded}) == len(recorded)
    assert all(re.fullmatch("[a-zA-Z_:][a-zA-Z0-9_:]*", each) for each in (*recorded, *SERVING_METRICS))
    assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", SERVER)
