"""What the page shows by a real Prometheus, which has what agents, kube-state-metrics and our rules write."""

import time
from functools import partial
from pathlib import Path

import pytest

from builders.exposed import node_metrics
from harness.prometheusserver import history, serving_history
from harness.refreshes import refreshed
from tessera.cli.usage.prometheusclient import prometheus_client
from tessera.clients.prometheus import Prometheus
from tessera.core.usage.contention import Contention
from tessera.log import logger
from tessera.server.page import PrometheusMetrics

OTHERS = b"""# TYPE server:tessera_requests_in_flight:2m gauge
server:tessera_requests_in_flight:2m{namespace="ml",serving_tessera_dev_server="llm"} 7
# TYPE kube_deployment_spec_replicas gauge
kube_deployment_spec_replicas{namespace="ml",deployment="llm",pod="kube-state-metrics-1"} 3
kube_deployment_spec_replicas{namespace="ml",deployment="other"} 9
# TYPE kube_deployment_status_replicas_ready gauge
kube_deployment_status_replicas_ready{namespace="ml",deployment="llm",pod="kube-state-metrics-1"} 2
"""


@pytest.mark.anyio
async def test_busy_pods_and_the_last_hour_of_model_servers(tmp_path: Path) -> None:
    now_s = int(time.time())
    samples = history(node_metrics() + OTHERS, range(now_s - 7200, now_s + 1, 60))
    with serving_history(tmp_path, samples) as url:
        connect = partial(prometheus_client, url, None, None, deadline_s=30, most_bytes=1 << 20)
        prometheus = Prometheus(url=url, connect=connect)
        found = PrometheusMetrics(prometheus, prometheus, logger())
        await refreshed(found)
    assert {pod.rpartition("/")[2]: percent for (_, pod), percent in found.measured.activity.items()} == {
        "busy": 20,
        "idle": 0,
        "slice": 25,
    }
    assert {each.pod: (each.verdict.value, each.fits) for each in found.measured.recommendations} == {
        "idle": ("unused", ""),
        "busy": ("too-much", "1 GiB"),
        "slice": ("fits", ""),
    }
    both = ("team/busy/main", "team/idle/main")
    assert found.measured.contention == {
        ("n1", "GPU-0"): (
            Contention(cause="power-cap", caused_by=both[:1], affected=both[1:]),
            Contention(cause="thermal", affected=both, scope="node", nobody=True),
        )
    }
    (server,) = found.measured.model_servers
    assert (server.namespace, server.name) == ("ml", "llm")
    assert {(each.desired, each.ready, each.in_flight) for each in server.points} == {(3, 2, 7)}
    assert 55 <= len(server.points) <= 61


@pytest.mark.anyio
async def test_of_two_clusters_in_one_prometheus_the_page_shows_its_own(tmp_path: Path) -> None:
    """Names and UIDs are the same in both; the other one has more of everything."""
    now_s = int(time.time())
    own = node_metrics() + OTHERS
    other = node_metrics(1900).replace(b"} 20", b"} 90") + OTHERS.replace(b"} 7", b"} 8").replace(b"} 3", b"} 5")
    samples = "".join(
        history(text.replace(b"{", b'{cluster="%s",' % cluster), range(now_s - 7200, now_s + 1, 60))
        for cluster, text in ((b"a", own), (b"b", other))
    )
    with serving_history(tmp_path, samples) as url:
        connect = partial(prometheus_client, url, None, None, deadline_s=30, most_bytes=1 << 20)
        measured = []
        for cluster in ("a", "b"):
            prometheus = Prometheus(url=url, connect=connect, matchers=f'cluster="{cluster}"')
            found = PrometheusMetrics(prometheus, prometheus, logger())
            await refreshed(found)
            measured.append(found.measured)
    busy = [max(percent for (_, pod), percent in each.activity.items() if pod.endswith("/busy")) for each in measured]
    peaks = [{found.pod: found.peak_mib for found in each.recommendations}["busy"] for each in measured]
    servers = [{point.desired for point in each.model_servers[0].points} for each in measured]
    assert (busy, peaks, servers) == ([20, 90], [700, 1900], [{3}, {5}])
