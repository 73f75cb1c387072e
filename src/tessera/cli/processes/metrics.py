"""`tessera metrics`: the metrics APIs, and the autoscaler of model servers."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import click
import msgspec

from tessera.certificates import Tls
from tessera.cli.options import PortNumber, health_option, kubeconfig_option, refuse_without
from tessera.cli.processes.logoptions import log_options
from tessera.cli.processes.metricsoptions import metrics_options, metrics_port
from tessera.cli.processes.prometheusoptions import prometheus_of, prometheus_options
from tessera.cli.signals import cancel_on_signal
from tessera.clients.kube import HttpKube
from tessera.clients.prometheus import HttpMetrics
from tessera.errors import InvalidInput
from tessera.log import configure
from tessera.processports import MetricsPort, serving_metrics, serving_probes
from tessera.server.metrics.adaptermetrics import RulesFile, RulesSource
from tessera.server.metrics.requestqueues import PrometheusQueues
from tessera.server.metrics.run import MetricsServer, MetricsSettings
from tessera.server.metrics.samples import PrometheusSamples, ScrapedSamples

__all__ = ["metrics"]

_EPILOG = """
\b
Examples:
  tessera metrics --self-signed /run/tessera/certificate
  tessera metrics --tls-certificate tls.crt --tls-key tls.key --port 9443
  tessera metrics --self-signed /run/tessera/certificate --metrics-port 9400
  tessera metrics --self-signed /run/tessera/certificate \\
    --prometheus http://prometheus.monitoring:9090
  tessera metrics --self-signed /run/tessera/certificate \\
    --prometheus http://prometheus.monitoring:9090 --adapter-rules config.yaml
  kubectl get --raw \\
    /apis/external.metrics.k8s.io/v1beta1/namespaces/default/tessera_replicas

RBAC: get, list and watch pods, deployments.apps and horizontalpodautoscalers.autoscaling; list nodes and
gpunodes.tessera.dev; get, create and patch events; create tokenreviews and subjectaccessreviews; get the ConfigMap
extension-apiserver-authentication in kube-system; with --self-signed get, create and patch the Secret
tessera-metrics-certificate in tessera-system, and get and patch the APIServices of the metrics APIs; with
--adapter-rules list what the rules are about, as services, namespaces and statefulsets.apps.
"""
_FILE = click.Path(path_type=Path)
_PROMETHEUS_S = 10.0
"""Less than the interval of passes."""
_PROMETHEUS_BYTES = 64 << 20
"""Largest answer; one of 200 pods of Triton with five models has 4 MB."""


@click.command(epilog=_EPILOG)
@kubeconfig_option
@click.option(
    "--host",
    metavar="ADDRESS",
    default="0.0.0.0",  # noqa: S104  # a Service leads here
    show_default=True,
    help="Address to listen on.",
)
@click.option("--port", type=PortNumber(), default=8443, show_default=True, help="Port; 0 for any free one.")
@click.option("--tls-certificate", type=_FILE, help="Certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, help="Private key, PEM.")
@click.option(
    "--self-signed",
    type=_FILE,
    metavar="FOLDER",
    help="Make the certificate in FOLDER, renew it, and write it into the APIServices of the Helm chart.",
)
@prometheus_options("--prometheus", "Read what this Prometheus scraped of the pods, instead of scraping each of them.")
@click.option(
    "--wake-query",
    metavar="PROMQL",
    help="PromQL query, by namespace and service: above 0 while requests wait for a server without a replica.",
)
@click.option(
    "--adapter-rules",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Serve what the rules of this file of prometheus-adapter find in it, too; read again when it changes.",
)
@health_option
@metrics_options
@log_options
def metrics(**given: Any) -> None:
    """Serve the metrics APIs for model servers, and compute the replicas that each needs.

    The APIs are custom.metrics.k8s.io and external.metrics.k8s.io, behind kube-apiserver. Pods with the label
    serving.tessera.dev/server are scraped every 15 seconds, or the Prometheus that scrapes them. Run
    one replica: its history of the load is in memory, and rebuilt after a restart.
    """
    configure(given["log_level"], given["log_format"])
    for option in ("--wake-query", "--adapter-rules"):
        refuse_without(option, "--prometheus")
    prometheus = prometheus_of(given, "--prometheus", deadline_s=_PROMETHEUS_S, most_bytes=_PROMETHEUS_BYTES)
    sources = _Sources(
        samples=PrometheusSamples(prometheus.connect, prometheus.url, prometheus.matchers) if prometheus else None,
        queues=PrometheusQueues(prometheus.connect, prometheus.url, given["wake_query"])
        if prometheus and given["wake_query"]
        else None,
        rules=RulesSource(file=RulesFile(given["adapter_rules"]), connect=prometheus.connect, url=prometheus.url)
        if prometheus and given["adapter_rules"]
        else None,
    )
    ports = given["health_port"], metrics_port(given)
    asyncio.run(_run(_settings(given), sources, given["kubeconfig"], ports))


class _Sources(msgspec.Struct, frozen=True, kw_only=True):
    """How model servers are measured."""

    samples: PrometheusSamples | None
    """None to scrape the pods."""
    queues: PrometheusQueues | None
    rules: RulesSource | None


def _settings(given: dict[str, Any]) -> MetricsSettings:
    certificate, key, folder = given["tls_certificate"], given["tls_key"], given["self_signed"]
    if bool(certificate) != bool(key) or bool(certificate) == bool(folder):
        found = "both ways" if certificate and folder else "no whole certificate"
        raise InvalidInput("TLS", found=found, hint="give --tls-certificate and --tls-key, or --self-signed")
    if folder:
        certificate, key = folder / "tls.crt", folder / "tls.key"
    tls = Tls(certificate=certificate, key=key)
    return MetricsSettings(host=given["host"], port=given["port"], tls=tls, self_signed=bool(folder))


async def _run(
    settings: MetricsSettings, sources: _Sources, kubeconfig: Path | None, ports: tuple[int | None, MetricsPort]
) -> None:
    """Run until SIGTERM or SIGINT; the ports are those for probes and for metrics."""
    cancel_on_signal()
    async with HttpKube.connect(kubeconfig) as kube, HttpMetrics() as client:
        samples = sources.samples or ScrapedSamples(client)
        one = MetricsServer(settings, kube, samples, queues=sources.queues, rules=sources.rules)
        with contextlib.suppress(asyncio.CancelledError):
            async with serving_probes(ports[0], one.waiting_for), serving_metrics(ports[1], one.metrics):
                await one.run()
