"""`tessera wake`: start a replica of servers that are scaled to zero."""

import asyncio
import datetime as dt
from pathlib import Path

import click

from tessera.api.kubernetes.times import time_text
from tessera.api.tessera.v1alpha1.modelservers import API_VERSION, KIND, read_model_server
from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options
from tessera.clients.kube import MODEL_SERVERS, Kube
from tessera.core.serving.annotations import WAKE
from tessera.errors import InvalidInput

__all__ = ["wake", "wake_server"]


@click.command(
    epilog="""
\b
Examples:
  tessera wake chat -n serving
  tessera wake chat embed -n serving
  kubectl annotate modelserver chat -n serving --overwrite \\
    serving.tessera.dev/wake=$(date -u +%Y-%m-%dT%H:%M:%SZ)

The last does the same, for programs. RBAC: get and patch modelservers.tessera.dev; the roles edit and admin have it.
"""
)
@click.argument("name", nargs=-1, required=True)
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="Their namespace.")
@kubeconfig_options
def wake(name: tuple[str, ...], namespace: str, kubeconfig: Path | None, context: str | None) -> None:
    """Wake the ModelServers NAME: each has a replica until it is idle again.

    Only for servers with replicas.min 0. Returns at once; requests are refused until the replica is ready.
    """
    asyncio.run(_wake(ClusterSource(kubeconfig=kubeconfig, context=context), name, namespace))


async def _wake(cluster: ClusterSource, names: tuple[str, ...], namespace: str) -> None:
    async with connected(cluster) as kube:
        for each in names:
            click.echo(await wake_server(kube, each, namespace, dt.datetime.now(dt.UTC)))


async def wake_server(kube: Kube, name: str, namespace: str, now: dt.datetime) -> str:
    """Wake a model server, and return the message about it.

    Raises:
        InvalidInput: it does not exist, or never scales to zero.
        TesseraError: it cannot be read or changed.

    """
    subject = f"modelserver {namespace}/{name}"
    found = await kube.get(MODEL_SERVERS, name, namespace)
    if found is None:
        hint = f"see kubectl get modelservers -n {namespace}"
        raise InvalidInput(subject, found="there is no such ModelServer", hint=hint)
    metadata = {key: each for key, each in found["metadata"].items() if key != "annotations"}
    server = read_model_server({**found, "metadata": metadata, "apiVersion": API_VERSION, "kind": KIND})
    if not server.scales_to_zero:
        why = f"it does not scale to zero: with replicas.min {server.min_replicas} it has a replica all the time"
        raise InvalidInput(subject, found=why, hint="set replicas.min to 0 where it should")
    patch = {"metadata": {"annotations": {WAKE: time_text(now.timestamp())}}}
    await kube.patch(MODEL_SERVERS, name, patch, namespace=namespace)
    ready = (found.get("status") or {}).get("readyReplicas", 0)
    if ready:
        return f"{namespace}/{name} is awake, for at least {server.spec.autoscaling.idle_seconds} s: {ready} ready"
    return f"woke {namespace}/{name}; it serves when `kubectl get modelserver {name} -n {namespace}` shows it as ready"
