"""The process of the metrics APIs: measures model servers, and answers kube-apiserver."""

import asyncio
from functools import partial
from typing import Final

import msgspec

from tessera.certificates import Certificates, Tls
from tessera.clients.kube import Kube
from tessera.errors import InvalidInput, TesseraError
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.listening import HttpServer, listening
from tessera.server.metrics.access import MetricsAccess
from tessera.server.metrics.adaptermetrics import AdapterMetrics, RulesSource
from tessera.server.metrics.app import MetricsApp
from tessera.server.metrics.autoscaling import ModelServerAutoscaler
from tessera.server.metrics.requestqueues import RequestQueues
from tessera.server.metrics.samples import PodSamples
from tessera.server.metrics.servermetrics import ModelServerMetrics
from tessera.server.metrics.sources import JoinedSources
from tessera.server.selfsigned import METRICS, SelfSigned

__all__ = ["MetricsServer", "MetricsSettings"]

_CONNECTIONS: Final = 128
_STOP_S: Final = 10.0
_PROXY_S, _RETRY_S, _CERTIFICATE_S = 60.0, 1.0, 10.0


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of the metrics APIs."""

    host: str = "0.0.0.0"  # noqa: S104  # a Service leads here
    port: int = 8443
    """0 for any free port."""
    tls: Tls
    self_signed: bool = False
    """Whether the process creates the certificate itself and writes it to the files of `tls`."""


class MetricsServer:
    """The process.

    Args:
        settings: where it listens.
        kube: the Kubernetes API.
        samples: the counters of the pods.
        queues: requests queued for servers without a replica.
        rules: of prometheus-adapter, for more metrics; None for none.

    Attributes:
        port: the port it listens on; 0 before it does.

    """

    def __init__(
        self,
        settings: MetricsSettings,
        kube: Kube,
        samples: PodSamples,
        *,
        queues: RequestQueues | None = None,
        rules: RulesSource | None = None,
    ) -> None:
        if settings.tls.client_authority is not None:
            raise InvalidInput(
                "TLS", found="an authority for clients is given", hint="leave it out: kube-apiserver publishes it"
            )
        self._settings = settings
        self._log = logger()
        self._measures = Measures()
        self._access = MetricsAccess(kube)
        self._model_servers = ModelServerAutoscaler(kube, samples, self._log, queues=queues, measures=self._measures)
        own_metrics = ModelServerMetrics(self._model_servers)
        self._adapter = AdapterMetrics(rules, kube, self._log, self._measures, served=own_metrics) if rules else None
        sources = JoinedSources((own_metrics, self._adapter) if self._adapter else (own_metrics,))
        self._app = MetricsApp(sources, self._access, self._log, self._measures)
        own = SelfSigned(kube, settings.tls, self._log, authority=METRICS) if settings.self_signed else None
        self._self_signed = own
        self._complaint = ""
        self.port = 0

    def waiting_for(self) -> str:
        """What must be read before requests can be answered; empty when ready."""
        if not self._access.known.is_set():
            return f"reading who kube-apiserver is{self._complaint and f' ({self._complaint})'}"
        if self._self_signed is not None and not self._self_signed.ready.is_set():
            return f"making the certificate{self._self_signed.problem and f' ({self._self_signed.problem})'}"
        if self._adapter is not None and not self._adapter.tried.is_set():
            return "asking Prometheus which series there are for the rules"
        return self._model_servers.waiting_for

    def metrics(self) -> bytes:
        """Return the metrics of the process and of model servers, in Prometheus' text format."""
        return self._measures.render()

    async def ready(self) -> None:
        """Wait until requests can be answered."""
        await self._model_servers.passed.wait()
        await self._access.known.wait()
        if self._adapter is not None:
            await self._adapter.tried.wait()
        if self._self_signed is not None:
            await self._self_signed.ready.wait()

    async def run(self) -> None:
        """Serve until canceled.

        Raises:
            InvalidInput: the certificate files cannot be loaded.
            Unavailable: the port is in use.

        """
        if self._self_signed is not None:
            self._self_signed.begin()
        settings = self._settings
        http = HttpServer(self._app, settings.tls, stop_s=_STOP_S)
        assert http.tls is not None
        certificates = Certificates(settings.tls, http.tls, self._log)
        with listening(settings.host, settings.port, _CONNECTIONS) as listener:
            self.port = listener.getsockname()[1]
            self._log.info("listening", host=settings.host, port=self.port, tls=True, serves="metrics")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._model_servers.run())
                if self._adapter is not None:
                    tasks.create_task(self._adapter.run())
                tasks.create_task(self._follow_proxy(http))
                checked = partial(self._measures.turned, "certificate")
                tasks.create_task(certificates.follow(_CERTIFICATE_S, checked))
                if self._self_signed is not None:
                    shared = partial(self._measures.turned, "certificate-shared")
                    tasks.create_task(self._self_signed.follow(certificates, _CERTIFICATE_S, shared))
                tasks.create_task(http.serve(sockets=[listener]))

    async def _follow_proxy(self, http: HttpServer) -> None:
        """Read the CA of kube-apiserver's proxy at intervals: it is rotated now and then."""
        self._measures.started("front-proxy")
        while True:
            try:
                await self._access.read_proxy(http.trust)
                self._measures.turned("front-proxy")
                self._complaint = ""
            except TesseraError as error:
                if str(error) != self._complaint:
                    self._complaint = str(error)
                    self._log.warning("proxy_not_known", reason=self._complaint)
            await asyncio.sleep(_RETRY_S if self._complaint else _PROXY_S)
