"""`tessera controller`: the cluster's control loop."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import click

from tessera.cli.options import Seconds, health_option, kubeconfig_option
from tessera.cli.processes.logoptions import log_options
from tessera.cli.processes.metricsoptions import metrics_options, metrics_port
from tessera.cli.signals import cancel_on_signal
from tessera.clients.kube import Election, HttpKube, Kube, LeaseLock
from tessera.controller.images import ImageWarmups
from tessera.controller.models import ModelCaches
from tessera.controller.modelservers import ModelServers
from tessera.controller.run import Controller
from tessera.controller.settings import ControllerSettings
from tessera.errors import TesseraError
from tessera.log import configure, logger
from tessera.measures import Measures
from tessera.processports import MetricsPort, serving_metrics, serving_probes

__all__ = ["controller"]

_EPILOG = """
\b
Examples:
  tessera controller
  tessera controller --kubeconfig ~/.kube/config --namespace tessera-system
  kubectl get gpupolicy

RBAC: get, list and watch nodes and pods; get, list, watch and patch gpunodes, nodeimages and nodemodels.tessera.dev;
get, list and watch gpupolicies, imagewarmups and modelcaches.tessera.dev, patch their status; get, create and patch
events; get, create and patch the Lease; get, list and watch the ConfigMap tessera-assignment-keys in tessera-system;
get, list and watch modelservers.tessera.dev, patch their status, and in each --model-servers namespace get, list,
watch, create and patch deployments, services, poddisruptionbudgets and horizontalpodautoscalers, get, create and
patch podmonitors and scaledobjects, delete the last three, list tessera_replicas.external.metrics.k8s.io.
"""

_SETTINGS = ControllerSettings(identity="")


@click.command(epilog=_EPILOG)
@kubeconfig_option
@click.option(
    "--namespace", default=_SETTINGS.namespace, show_default=True, metavar="NAME", help="Namespace of the Lease."
)
@click.option("--lease", default=_SETTINGS.lease, show_default=True, metavar="NAME", help="Lease for leader election.")
@click.option("--name", metavar="NAME", help="Identity in the Lease.  [default: host name]")
@click.option(
    "--interval-s",
    type=Seconds(0.1),
    default=_SETTINGS.interval_s,
    show_default=True,
    help="Longest time between two reconciliations.",
)
@click.option(
    "--model-servers",
    multiple=True,
    metavar="NAMESPACE",
    help="Namespace whose ModelServers are reconciled; repeatable.",
)
@click.option("--prometheus", default="", metavar="URL", help="Prometheus that KEDA queries for ModelServers.")
@health_option
@metrics_options
@log_options
def controller(**given: Any) -> None:
    """Run the controller: reconcile policies, caches and model servers; choose MIG instances.

    Run any number of replicas: the one that holds the Lease works, the others stand by. Stopping one is always safe.
    """
    configure(given["log_level"], given["log_format"])
    settings = ControllerSettings(
        namespace=given["namespace"],
        lease=given["lease"],
        identity=given["name"] or socket.gethostname(),
        interval_s=given["interval_s"],
    )

    def lead(kube: Kube, measures: Measures) -> Coroutine[Any, Any, None]:
        servers = ModelServers(kube, given["model_servers"], prometheus=given["prometheus"])
        return _lead(settings, kube, servers, measures)

    asyncio.run(_run(settings, lead, given["kubeconfig"], (given["health_port"], metrics_port(given))))


async def _run(
    settings: ControllerSettings,
    lead: Callable[[Kube, Measures], Coroutine[Any, Any, None]],
    kubeconfig: Path | None,
    ports: tuple[int | None, MetricsPort],
) -> None:
    """Run until SIGTERM or SIGINT; the ports are those for probes and for metrics."""
    cancel_on_signal()
    log = logger(controller=settings.identity)

    def not_elected(error: Exception) -> None:
        log.warning("not_elected_now", reason=str(error) if isinstance(error, TesseraError) else type(error).__name__)

    async with HttpKube.connect(kubeconfig) as kube:
        lock = LeaseLock(lease=settings.lease, namespace=settings.namespace)
        measures = Measures()
        answered = partial(measures.turned, "lease")
        election = Election(kube, lock, settings.identity, on_error=not_elected, on_answer=answered)
        with contextlib.suppress(asyncio.CancelledError):
            async with serving_probes(ports[0], lambda: election.problem), serving_metrics(ports[1], measures.render):
                await election.run(lambda: lead(kube, measures))


async def _lead(settings: ControllerSettings, kube: Kube, servers: ModelServers, measures: Measures) -> None:
    """Do the leader's work, until canceled."""
    leading = Controller(settings, kube, measures=measures)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(leading.run())
        tasks.create_task(ImageWarmups(kube, leading.nodes).run(measures))
        tasks.create_task(ModelCaches(kube, leading.nodes).run(measures))
        tasks.create_task(servers.run(measures))
