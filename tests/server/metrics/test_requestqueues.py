"""What waits in front of servers, by an expression that a real Prometheus evaluates."""

import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.prometheusserver import history, serving_history
from tessera.api.prometheus.pendingrequests import PendingRequests
from tessera.clients.prometheus import HttpMetrics, MemoryMetrics
from tessera.errors import InvalidInput, Unavailable
from tessera.server.metrics.requestqueues import PrometheusQueues

pytestmark = pytest.mark.anyio

QUERY = 'sum by (namespace, service) (last_over_time(gateway_queue{queue!=""}[2m]))'


async def test_an_expression_of_the_administrators(tmp_path: Path) -> None:
    now_s = time.time()
    text = b"# TYPE gateway_queue gauge\n" + b"".join(
        f'gateway_queue{{namespace="serving",service="{service}",queue="{queue}"}} {value}\n'.encode()
        for service, queue, value in (("llm", "a", 2), ("llm", "b", 1), ("embed", "a", 0))
    )
    with serving_history(tmp_path, history(text, (now_s - 50, now_s - 20))) as url:
        found = await PrometheusQueues(HttpMetrics, url, QUERY).read()
    assert found == PendingRequests({("serving", "llm"): 3.0})


async def test_a_prometheus_that_does_not_answer_says_so() -> None:
    metrics = MemoryMetrics()
    queues = PrometheusQueues(lambda: nullcontext(metrics), "http://prometheus:9090/", QUERY)
    with pytest.raises(Unavailable, match="no connection"):
        await queues.read()
    metrics.contents[queues.target] = b"<html>"
    with pytest.raises(InvalidInput, match="Prometheus http://prometheus:9090/, by --wake-query"):
        await queues.read()


async def test_files_that_are_gone_are_reported() -> None:
    def gone() -> nullcontext[MemoryMetrics]:
        raise FileNotFoundError(2, "No such file", "/token")

    with pytest.raises(Unavailable, match="the files of its options"):
        await PrometheusQueues(gone, "http://prometheus:9090", QUERY).read()
