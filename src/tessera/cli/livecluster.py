"""A cluster to read: live by its API, or saved in a file; the option that names a file, and its objects over time."""

import asyncio
from collections.abc import Callable
from typing import Any

import click

from tessera._planning import read_documents
from tessera.api.fields import objects
from tessera.api.tessera.cluster.clusters import PodMemory, as_fields, read_cluster
from tessera.api.tessera.pods.signatures import KEYS, Authority, published_keys
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.cli.clusteraccess import ClusterSource, kubeconfig_options
from tessera.cli.options import with_options
from tessera.clients.kube import (
    CONFIG_MAPS,
    EVENTS,
    GPU_NODES,
    NODES,
    PODS,
    Kind,
    Kube,
    Object,
    Selection,
    Store,
)
from tessera.core.cluster.cluster import Cluster
from tessera.errors import InvalidInput, TesseraError, Unavailable, Unsupported
from tessera.signing import verify

__all__ = [
    "authority_of",
    "cluster_options",
    "events_of",
    "follow",
    "observe",
    "place_of",
    "read_file",
]

_SETTLE_S = 0.5
"""Changes within this time are shown together."""


cluster_options = with_options(
    click.option(
        "--cluster",
        metavar="FILE",
        help="A saved cluster instead of a live one: `kubectl get nodes,pods,gpunodes -A -o json`; - is stdin.",
    ),
    kubeconfig_options,
)
"""Adds the options for the cluster."""


def place_of(given: Any) -> ClusterSource:
    """Return the source named by the options of `cluster_options`."""
    return ClusterSource(file=given["cluster"], kubeconfig=given["kubeconfig"], context=given["context"])


def read_file(filename: str) -> tuple[Cluster, tuple[Object, ...]]:
    """Return the cluster in a file, and all objects of the file.

    Raises:
        InvalidInput: it cannot be read, or has no node in it.

    """
    fields = [field for document in read_documents(filename) for field in objects(document)]
    found = read_cluster(fields)
    if not found.nodes:
        what = found.notes[0] if found.notes else "no Node object"
        accepted = "use the output of `kubectl get nodes,pods,gpunodes -A -o json`"
        raise InvalidInput(filename, found=what, hint=accepted)
    return found, tuple(field.mapping() for field in fields)


async def observe(kube: Kube, *more: Object) -> Cluster:
    """Return the current cluster, with further objects; without the GPUNode CRD it has none of these."""
    nodes, pods, reports = await asyncio.gather(_list(kube, NODES), _list(kube, PODS), _list(kube, GPU_NODES))
    return read_cluster(as_fields((*nodes, *pods, *reports, *more)), authority=await authority_of(kube))


async def authority_of(kube: Kube) -> Authority | None:
    """Return the servers' keys; None if there are none, or they may not be read: then signatures are not verified."""
    try:
        found = await kube.get(CONFIG_MAPS, KEYS, NAMESPACE)
    except Unavailable:
        return None
    return None if found is None else Authority(servers=published_keys(found), verify=verify)


async def _list(kube: Kube, kind: Kind) -> tuple[Object, ...]:
    try:
        return (await kube.list(kind)).objects
    except Unsupported:
        if kind is not GPU_NODES:
            raise
        return ()


async def events_of(kube: Kube, kind: Kind, name: str, namespace: str) -> tuple[Object, ...]:
    """Return the events about a namespaced object, in the API's order."""
    about = (("involvedObject.kind", kind.name), ("involvedObject.name", name))
    listing = await kube.list(EVENTS, Selection(namespace=namespace, fields=about))
    return listing.objects


async def follow(kube: Kube, show: Callable[[Cluster], None], on_error: Callable[[Exception], None]) -> None:
    """Pass on the cluster, and again after each change, until canceled; simultaneous changes once.

    Raises:
        TesseraError: the API cannot be read, or what `show` raised.

    """
    change, memory = asyncio.Event(), PodMemory()
    served = [NODES, PODS, *([GPU_NODES] if await _serves(kube, GPU_NODES) else [])]
    stores = [Store(kube, kind, wake=change.set, on_error=on_error) for kind in served]
    try:
        async with asyncio.TaskGroup() as group:
            for store in stores:
                group.create_task(store.run())
            for store in stores:
                await store.synced()
            while True:
                change.clear()
                fields = as_fields([each for store in stores for each in store.objects.values()])
                # Read each time, which is cheap enough for one user: one permission less than a watch.
                show(read_cluster(fields, memory=memory, authority=await authority_of(kube)))
                await change.wait()
                await asyncio.sleep(_SETTLE_S)
    except ExceptionGroup as raised:
        known = [error for error in raised.exceptions if isinstance(error, TesseraError)]
        raise known[0] if known else raised from raised


async def _serves(kube: Kube, kind: Kind) -> bool:
    try:
        await kube.list(kind)
    except Unsupported:
        return False
    return True
