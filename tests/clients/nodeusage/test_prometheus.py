"""Reports by what Prometheus remembers."""

from urllib.parse import urlencode

import pytest

from tessera.api.prometheus.usagehistory import history_queries
from tessera.clients.nodeusage import PrometheusUsage
from tessera.clients.prometheus import MemoryMetrics
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio
URL = "http://prometheus:9090/prefix"


async def test_an_answer_that_is_none_is_reported_with_the_address() -> None:
    metrics = MemoryMetrics()
    for each in history_queries("1d").values():
        metrics.contents[f"{URL}/api/v1/query?{urlencode({'query': each})}"] = b"<html>"
    usages = PrometheusUsage(metrics, f"{URL}/", "1d")
    with pytest.raises(Unavailable, match=f"Prometheus {URL}: .* is not an answer of"):
        await usages.read()
    await usages.close()
