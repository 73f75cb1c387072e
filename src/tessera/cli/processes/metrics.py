"""`tessera metrics`: the metrics APIs, and the autoscaler of model servers."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import click

from tessera.certificates import Tls
from tessera.cli.options import health_option, kubeconfig_option
from tessera.cli.processes.logoptions import log_options
from tessera.clients.kube import HttpKube
from tessera.clients.prometheus import HttpMetrics
from tessera.errors import InvalidInput
from tessera.log import configure
from tessera.probes import answering
from tessera.server.metrics.run import MetricsServer, Settings

__all__ = ["metrics"]

_EPILOG = """
\b
Examples:
  tessera metrics --self-signed /run/tessera/certificate
  tessera metrics --tls-certificate tls.crt --tls-key tls.key --port 9443
  kubectl get --raw /apis/external.metrics.k8s.io/v1beta1/namespaces/default/tessera_replicas

RBAC: get, list and watch pods, deployments.apps and horizontalpodautoscalers.autoscaling; list nodes and
gpunodes.tessera.dev; get, create and patch events; create tokenreviews and subjectaccessreviews; get the ConfigMap
extension-apiserver-authentication in kube-system; with --self-signed get, create and patch the Secret
tessera-metrics-certificate in tessera-system, and get and patch the APIServices of the metrics APIs.
"""
_FILE = click.Path(path_type=Path)


@click.command(epilog=_EPILOG)
@kubeconfig_option
@click.option("--host", default="0.0.0.0", show_default=True, help="Address.")  # noqa: S104  # a Service leads here
@click.option("--port", type=click.IntRange(0, 65535), default=8443, show_default=True, help="0 for any.")
@click.option("--tls-certificate", type=_FILE, help="Certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, help="Private key, PEM.")
@click.option(
    "--self-signed",
    type=_FILE,
    metavar="FOLDER",
    help="Make the certificate, renew it, and write it into the APIServices of the Helm chart; FOLDER gets the files.",
)
@health_option
@log_options
def metrics(**given: Any) -> None:
    """Serve the metrics APIs for model servers, and say how many replicas each needs.

    The APIs are custom.metrics.k8s.io and external.metrics.k8s.io, behind kube-apiserver. Pods with the label
    serving.tessera.dev/server are asked for their metrics every 15 seconds, without Prometheus. Run one: what it
    learned of the load is lost when it ends, and learned again.
    """
    configure(given["log_level"], given["log_format"])
    asyncio.run(_run(_settings(given), given["kubeconfig"], given["health_port"]))


def _settings(given: dict[str, Any]) -> Settings:
    certificate, key, folder = given["tls_certificate"], given["tls_key"], given["self_signed"]
    if bool(certificate) != bool(key) or bool(certificate) == bool(folder):
        found = "both ways" if certificate and folder else "no whole certificate"
        raise InvalidInput("TLS", found=found, expected="--tls-certificate and --tls-key, or --self-signed")
    if folder:
        certificate, key = folder / "tls.crt", folder / "tls.key"
    tls = Tls(certificate=certificate, key=key)
    return Settings(host=given["host"], port=given["port"], tls=tls, self_signed=bool(folder))


async def _run(settings: Settings, kubeconfig: Path | None, health_port: int | None) -> None:
    """Run until SIGTERM or SIGINT."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with HttpKube.connect(kubeconfig) as kube, HttpMetrics() as client:
        one = MetricsServer(settings, kube, client)
        with contextlib.suppress(asyncio.CancelledError):
            async with answering(health_port, one.waiting_for):
                await one.run()
