"""`tessera wake`: start a replica of servers that are scaled to zero."""

import asyncio
from pathlib import Path
from typing import Final

import click

from tessera.api.kubernetes.times import read_time, time_text
from tessera.api.tessera.v1alpha1.modelservers import API_VERSION, KIND, read_model_server, without_bad_wake
from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options
from tessera.clients.kube import MODEL_SERVERS, SELF_SUBJECT_REVIEWS, Kube, version_of
from tessera.core.serving.annotations import WAKE
from tessera.errors import Conflict, InvalidInput, Unavailable

__all__ = ["wake", "wake_server"]

_TRIES: Final = 5
"""How often a server is read again that was written meanwhile, as by its controller."""


@click.command(
    epilog="""
\b
Examples:
  tessera wake chat -n serving
  tessera wake chat embed -n serving
  kubectl annotate modelserver chat -n serving --overwrite \\
    serving.tessera.dev/wake=$(date -u +%Y-%m-%dT%H:%M:%SZ)

The last does the same for programs, by their own clock.
RBAC: get and patch modelservers.tessera.dev; the roles edit and admin have it.
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
            click.echo(await wake_server(kube, each, namespace))


async def wake_server(kube: Kube, name: str, namespace: str) -> str:
    """Wake a model server, by the time of the API server, and return the message about it.

    Raises:
        InvalidInput: it does not exist, or never scales to zero.
        TesseraError: it cannot be read or changed.

    """
    subject = f"modelserver {namespace}/{name}"
    for _ in range(_TRIES):
        found = await kube.get(MODEL_SERVERS, name, namespace)
        if found is None:
            hint = f"see kubectl get modelservers -n {namespace}"
            raise InvalidInput(subject, found="there is no such ModelServer", hint=hint)
        usable, _ = without_bad_wake(found)
        server = read_model_server({**usable, "apiVersion": API_VERSION, "kind": KIND})
        if not server.scales_to_zero:
            why = f"it does not scale to zero: with replicas.min {server.min_replicas} it has a replica all the time"
            raise InvalidInput(subject, found=why, hint="set replicas.min to 0 where it should")
        # By version, and never an earlier time: a program may keep it awake until a future one.
        woken = time_text(max(await _server_s(kube), server.woken_s or 0.0))
        metadata = {"resourceVersion": version_of(found), "annotations": {WAKE: woken}}
        try:
            await kube.patch(MODEL_SERVERS, name, {"metadata": metadata}, namespace=namespace)
        except Conflict:
            continue
        ready = (found.get("status") or {}).get("readyReplicas", 0)
        if ready:
            return f"{namespace}/{name} is awake, for at least {server.spec.autoscaling.idle_seconds} s: {ready} ready"
        return (
            f"woke {namespace}/{name}; it serves when `kubectl get modelserver {name} -n {namespace}` shows it as ready"
        )
    raise Unavailable(subject, found="it changes all the time", hint="try again")


async def _server_s(kube: Kube) -> float:
    """Return the API server's time, since 1970. This machine's clock may be wrong by the idle time."""
    review = await kube.create(SELF_SUBJECT_REVIEWS, {"metadata": {}})
    try:
        return read_time(review["metadata"]["creationTimestamp"])
    except (KeyError, TypeError, ValueError) as error:
        found = "its answer to a SelfSubjectReview has no time"
        raise Unavailable("time of the API server", found=found, expected="a creationTimestamp") from error
