"""Servers of metrics in this process."""

import pytest

from conformance.metricssuite import CONTENT, MetricsSuite
from tessera.clients.prometheus import MemoryMetrics, MetricsClient
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio
URL = "http://10.0.0.1:8002/metrics"


@pytest.fixture
def metrics() -> MemoryMetrics:
    memory = MemoryMetrics()
    memory.contents[URL] = CONTENT
    return memory


class TestMemoryMetrics(MetricsSuite):
    @pytest.fixture
    def url(self) -> str:
        return URL

    @pytest.fixture
    def metrics(self, metrics: MemoryMetrics) -> MetricsClient:
        return metrics


async def test_a_server_that_fails_on_demand(metrics: MemoryMetrics) -> None:
    metrics.contents[URL] = Unavailable(URL, found="no answer in 5 s", expected="metrics")
    with pytest.raises(Unavailable, match="no answer in 5 s"):
        await metrics.get(URL)
