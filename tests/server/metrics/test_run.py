"""The process as a whole: ready when everything is there, its certificate known, and ended in order."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from harness.metricsserver import MetricsServer as Asked
from harness.metricsserver import front_proxy_config
from harness.serving import served
from tessera.certificates import Tls
from tessera.clients.kube import API_SERVICES, CONFIG_MAPS, SECRETS, MemoryKube
from tessera.clients.prometheus import HttpMetrics, MemoryMetrics
from tessera.errors import InvalidInput
from tessera.server.metrics.adaptermetrics import RulesFile, RulesSource
from tessera.server.metrics.run import MetricsServer, MetricsSettings
from tessera.server.metrics.samples import ScrapedSamples

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def running(
    kube: MemoryKube, tls: Tls, *, self_signed: bool = False, rules: RulesSource | None = None
) -> AsyncIterator[MetricsServer]:
    """Give a process that is ready."""
    settings = MetricsSettings(host="127.0.0.1", port=0, tls=tls, self_signed=self_signed)
    one = MetricsServer(settings, kube, ScrapedSamples(MemoryMetrics()), rules=rules)
    assert one.waiting_for() == "reading who kube-apiserver is"
    task = asyncio.create_task(one.run())
    try:
        await one.ready()
        yield one
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_it_answers_when_it_is_ready(certificates: Path) -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, front_proxy_config(certificates))
    tls = Tls(certificate=certificates / "server.crt", key=certificates / "server.key")
    async with running(kube, tls) as one:
        assert not one.waiting_for()
        code, found = await Asked(certificates, one.port).get("/apis/external.metrics.k8s.io/v1beta1")
        assert code == 200
        assert "tessera_replicas" in {each["name"] for each in found["resources"]}
        text = one.metrics().decode()
        for loop in ("reconcile", "front-proxy", "watch-pods"):
            assert f'tessera_loop_age_seconds{{loop="{loop}"}}' in text
        assert 'tessera_metrics_requests_total{code="200"} 1' in text
        assert "tessera_metrics_reconcile_duration_seconds_count 1" in text


async def test_rules_are_served_beside_its_own_metrics(certificates: Path, tmp_path: Path) -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, front_proxy_config(certificates))
    path = tmp_path / "rules.yaml"
    path.write_text("externalRules: [{seriesQuery: up, metricsQuery: up, resources: {namespaced: false}}]")
    answers = {
        "/api/v1/series": {"status": "success", "data": [{"__name__": "up"}]},
        "/api/v1/query": {"data": {"resultType": "scalar", "result": [1, "7"]}},
    }

    class Prometheus(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = msgspec.json.encode(answers[self.path.partition("?")[0]])
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Prometheus)) as prometheus:
        url = f"http://127.0.0.1:{prometheus.server_port}"
        rules = RulesSource(file=RulesFile(path), connect=HttpMetrics, url=url)
        tls = Tls(certificate=certificates / "server.crt", key=certificates / "server.key")
        async with running(kube, tls, rules=rules) as one:
            assert not one.waiting_for()
            client = Asked(certificates, one.port)
            _, found = await client.get("/apis/external.metrics.k8s.io/v1beta1")
            assert {"tessera_replicas", "up"} <= {each["name"] for each in found["resources"]}
            _, found = await client.get("/apis/external.metrics.k8s.io/v1beta1/namespaces/default/up")
            assert [each["value"] for each in found["items"]] == ["7"]
            assert 'tessera_loop_age_seconds{loop="rules"}' in one.metrics().decode()


async def test_a_certificate_of_its_own_is_known_to_the_api_server(certificates: Path, tmp_path: Path) -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, front_proxy_config(certificates))
    names = ("v1beta1.custom.metrics.k8s.io", "v1beta1.external.metrics.k8s.io")
    own = {"service": {"namespace": "tessera-system", "name": "tessera-metrics"}}
    for name in names:
        await kube.create(API_SERVICES, {"metadata": {"name": name}, "spec": own})
    tls = Tls(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    async with running(kube, tls, self_signed=True):
        secret = await kube.get(SECRETS, "tessera-metrics-certificate", "tessera-system")
        assert secret is not None
        assert base64.b64decode(secret["data"]["tls.crt"]) == tls.certificate.read_bytes()
        for name in names:
            found = await kube.get(API_SERVICES, name)
            assert found is not None
            assert found["spec"] == {**own, "caBundle": secret["data"]["ca.crt"]}


@pytest.mark.parametrize(
    "service",
    [
        {"namespace": "monitoring", "name": "prometheus-adapter"},
        {"namespace": "monitoring", "name": "tessera-metrics"},
        {"namespace": "tessera-system", "name": "adapter"},
        None,
    ],
)
async def test_an_api_that_somebody_else_serves_is_left_alone(
    certificates: Path, tmp_path: Path, service: dict[str, str] | None
) -> None:
    """A Prometheus adapter beside it has the custom metrics: its APIService keeps its own authority."""
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, front_proxy_config(certificates))
    theirs = {"service": service, "insecureSkipTLSVerify": True}
    await kube.create(API_SERVICES, {"metadata": {"name": "v1beta1.custom.metrics.k8s.io"}, "spec": theirs})
    tls = Tls(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    async with running(kube, tls, self_signed=True):
        found = await kube.get(API_SERVICES, "v1beta1.custom.metrics.k8s.io")
        assert found is not None
        assert found["spec"] == theirs


async def test_client_certificates_of_other_authorities_than_the_proxys_are_not_requested() -> None:
    tls = Tls(certificate=Path("a"), key=Path("b"), client_authority=Path("c"))
    with pytest.raises(InvalidInput, match="leave it out: kube-apiserver publishes it"):
        MetricsServer(MetricsSettings(tls=tls), MemoryKube(), ScrapedSamples(MemoryMetrics()))
