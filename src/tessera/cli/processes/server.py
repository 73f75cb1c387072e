"""`tessera server`: the scheduler extender and the dashboard page."""

import asyncio
import socket
import uuid
from pathlib import Path
from typing import Any

import click

from tessera.certificates import Tls
from tessera.cli.options import (
    PortNumber,
    Seconds,
    WholeNumber,
    health_option,
    kubeconfig_option,
    policy_option,
    refuse_without,
)
from tessera.cli.processes.logoptions import log_options
from tessera.cli.processes.metricsoptions import metrics_options, metrics_port
from tessera.cli.processes.prometheusoptions import prometheus_of, prometheus_options
from tessera.cli.signals import on_signal
from tessera.clients.kube import HttpKube
from tessera.clients.nodeusage import ProxiedUsage
from tessera.core.packing.pack import POLICIES
from tessera.errors import InvalidInput
from tessera.log import configure, logger
from tessera.processports import MetricsPort, serving_metrics, serving_probes
from tessera.server.page import AgentMetrics, PageMetrics, PrometheusMetrics
from tessera.server.run import Server
from tessera.server.settings import AdmissionSettings, Page, ServerLimits, ServerSettings, is_loopback

__all__ = ["server"]

_EPILOG = """
\b
Examples:
  tessera server
  tessera server --kubeconfig ~/.kube/config --port 39999
  tessera server --host 0.0.0.0 --tls-certificate tls.crt --tls-key tls.key \\
    --tls-client-authority ca.crt
  tessera server --admission-port 8443 --admission-self-signed /run/tessera
  tessera server --page-port 8085 --page-sign-in required
  tessera server --page-port 8085 --page-prometheus http://127.0.0.1:9090

RBAC: get, list and watch nodes and pods; create pods/binding; get, list, watch, create and
patch gpunodes.tessera.dev; in tessera-system get, create and patch the Secret tessera-assignment-key, and get, list,
watch, create and patch the ConfigMap tessera-assignment-keys. For metrics of quotas: list and watch resourcequotas and
clusterqueues.kueue.x-k8s.io. For the page: get, list and watch nodeimages; create tokenreviews and
subjectaccessreviews; without --page-prometheus also in tessera-system list pods and get pods/proxy.
"""

_SETTINGS, _LIMITS = ServerSettings(), ServerLimits()
_FILE = click.Path(path_type=Path)
_HISTORY_S = 3.0
"""How long the page waits for its Prometheus."""
_HISTORY_BYTES = 32 << 20
"""Largest answer; one of 10,000 pods has 1 MB."""
_WEEK_S, _WEEK_BYTES = 60.0, 64 << 20
"""The same for queries over a week, which run in the background."""
_POLICIES = tuple(name for name in POLICIES if name != "random")


@click.command(epilog=_EPILOG)
@kubeconfig_option
@click.option(
    "--host",
    metavar="ADDRESS",
    default=_SETTINGS.host,
    show_default=True,
    help="Address to listen on; beyond loopback only with TLS both ways.",
)
@click.option("--port", type=PortNumber(), default=_SETTINGS.port, show_default=True, help="Port; 0 for any free one.")
@click.option("--tls-certificate", type=_FILE, help="Certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, help="Private key, PEM.")
@click.option("--tls-client-authority", type=_FILE, help="CA of client certificates, PEM.")
@click.option("--admission-port", type=PortNumber(), help="Port of the admission webhook; none without.")
@click.option(
    "--admission-host",
    metavar="ADDRESS",
    default="0.0.0.0",  # noqa: S104
    show_default=True,
    help="Address of the webhook.",
)
@click.option("--admission-certificate", type=_FILE, help="Certificate chain, PEM.  [default: --tls-certificate]")
@click.option("--admission-key", type=_FILE, help="Private key, PEM.  [default: --tls-key]")
@click.option(
    "--admission-self-signed",
    type=_FILE,
    metavar="FOLDER",
    help="Make the certificate in FOLDER, renew it, and write it into the webhook of the Helm chart.",
)
@click.option("--page-port", type=PortNumber(), help="Port of the dashboard page; none without.")
@click.option(
    "--page-host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Its address; beyond loopback with TLS.",
)
@click.option("--page-certificate", type=_FILE, help="Certificate chain of the page, PEM.")
@click.option("--page-key", type=_FILE, help="Private key, PEM.")
@click.option(
    "--page-sign-in",
    type=click.Choice(["auto", "required", "none"]),
    default="auto",
    show_default=True,
    help="Whether viewers show a Kubernetes token, and see what they may list; auto: beyond loopback.",
)
@prometheus_options(
    "--page-prometheus",
    "Prometheus that the page queries for GPU utilization, the last hour of model servers and a week of memory in use.",
)
@policy_option(_POLICIES, default=_SETTINGS.policy)
@click.option("--replica", metavar="NAME", help="Identity in claims.  [default: host name and a number]")
@click.option(
    "--request-s", type=Seconds(0.1), default=_LIMITS.request_s, show_default=True, help="Deadline of a request."
)
@click.option(
    "--body-mib",
    type=WholeNumber(1),
    default=_LIMITS.body_bytes >> 20,
    show_default=True,
    help="Largest request body.",
)
@health_option
@metrics_options
@log_options
def server(**given: Any) -> None:
    """Run the scheduler extender: filter, score and bind pods that use GPUs, and choose preemption victims.

    A pod is bound with its device assignment. Run any number of replicas; stopping one is always safe. It serves the
    paths of gpushare's extender too, and can replace it.
    """
    configure(given["log_level"], given["log_format"])
    ports = given["health_port"], metrics_port(given)
    asyncio.run(_run(_settings(given), _history(given), given["kubeconfig"], ports))


def _settings(given: dict[str, Any]) -> ServerSettings:
    certificate, key = given["tls_certificate"], given["tls_key"]
    if bool(certificate) != bool(key) or (given["tls_client_authority"] and not certificate):
        raise InvalidInput(
            "TLS", found="only some of its options are given", hint="give --tls-certificate and --tls-key, or neither"
        )
    authority = given["tls_client_authority"]
    return ServerSettings(
        host=given["host"],
        port=given["port"],
        tls=Tls(certificate=certificate, key=key, client_authority=authority) if certificate else None,
        admission=_admission(given),
        page=_page(given),
        policy=given["policy"],
        freeze=True,
        replica=given["replica"] or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        limits=ServerLimits(request_s=given["request_s"], body_bytes=given["body_mib"] << 20),
    )


def _admission(given: dict[str, Any]) -> AdmissionSettings | None:
    port = given["admission_port"]
    certificate = given["admission_certificate"] or given["tls_certificate"]
    key = given["admission_key"] or given["tls_key"]
    if port is None:
        return None
    if folder := given["admission_self_signed"]:
        tls = Tls(certificate=folder / "tls.crt", key=folder / "tls.key")
        return AdmissionSettings(host=given["admission_host"], port=port, tls=tls, self_signed=True)
    if not certificate or not key:
        raise InvalidInput(
            "--admission-port",
            found="the API server calls webhooks over TLS only, and there is no certificate",
            hint="give --admission-certificate and --admission-key, or --admission-self-signed; "
            "or --tls-certificate and --tls-key, which then serve both",
        )
    return AdmissionSettings(host=given["admission_host"], port=port, tls=Tls(certificate=certificate, key=key))


def _page(given: dict[str, Any]) -> Page | None:
    if given["page_port"] is None:
        return None
    host, certificate, key = given["page_host"], given["page_certificate"], given["page_key"]
    if bool(certificate) != bool(key):
        raise InvalidInput(
            "TLS of the page",
            found="only one of its options is given",
            hint="give --page-certificate and --page-key, or neither",
        )
    sign_in = {"auto": not is_loopback(host), "required": True, "none": False}[given["page_sign_in"]]
    tls = Tls(certificate=certificate, key=key) if certificate else None
    return Page(host=host, port=given["page_port"], tls=tls, sign_in=sign_in)


def _agents(kube: HttpKube) -> PageMetrics:
    """Return the page's metrics if no Prometheus is named."""
    return AgentMetrics(ProxiedUsage(kube), logger())


def _history(given: dict[str, Any]) -> PageMetrics | None:
    """Return the page's metrics from a Prometheus, if one is named."""
    refuse_without("--page-prometheus", "--page-port")
    found = prometheus_of(given, "--page-prometheus", deadline_s=_HISTORY_S, most_bytes=_HISTORY_BYTES)
    patient = prometheus_of(given, "--page-prometheus", deadline_s=_WEEK_S, most_bytes=_WEEK_BYTES)
    return PrometheusMetrics(found, patient, logger()) if found and patient else None


async def _run(
    settings: ServerSettings,
    history: PageMetrics | None,
    kubeconfig: Path | None,
    ports: tuple[int | None, MetricsPort],
) -> None:
    """Run until SIGTERM or SIGINT; the ports are those for probes and for metrics."""
    async with HttpKube.connect(kubeconfig) as kube:
        one = Server(settings, kube, metrics=history or _agents(kube))
        on_signal(one.stop)
        async with serving_probes(ports[0], one.waiting_for), serving_metrics(ports[1], one.metrics):
            await one.run()
