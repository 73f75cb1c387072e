"""The law of Undo: after the last section of a page the cluster and its nodes are as before its first."""

import asyncio
from pathlib import Path

from kube.observing import mps_daemons
from tessera.clients.runtime import CriRuntime
from testbed.cluster import Cluster
from testbed.node import Node
from testbed.processes import until

__all__ = ["state_of_cluster", "until_undone"]

_UNDONE_S = 180
_PASSING = frozenset({"Event", "Lease", "CertificateSigningRequest", "EndpointSlice", "Endpoints", "PodMetrics"})
"""Kinds of objects that come and go by themselves."""
_NAMED = '{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.labels}{"\\n"}{end}'
_MODELS = "/var/lib/tessera/disk/models"


def until_undone(before: set[str], cluster: Cluster, folder: Path) -> None:
    """Wait until all is there that was, and nothing else; `before` is what `there` returned."""

    def changed() -> list[str]:
        return sorted(before ^ state_of_cluster(cluster, folder))

    until("all as it was before the page", lambda: not changed(), timeout_s=_UNDONE_S, found=lambda: str(changed()))


def state_of_cluster(cluster: Cluster, folder: Path) -> set[str]:
    """Return what Undo restores.

    Of the cluster: all objects by name, with their labels. Of a Node: annotations, taints, types of conditions,
    resources of which pods can get some. Of the node itself: models, pinned images, MPS daemons. Of the reader's
    folder: its files. Not MIG instances, which stay.
    """
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    named = cluster.kubectl("get", ",".join(kinds), "-A", f"--output=jsonpath={_NAMED}")
    found = {line for line in named.splitlines() if line.split()[0] not in _PASSING}
    for each in cluster.get("nodes")["items"]:
        name, status = each["metadata"]["name"], each["status"]
        found |= {f"{name} annotation {key}={value}" for key, value in each["metadata"].get("annotations", {}).items()}
        found |= {f"{name} taint {taint}" for taint in each["spec"].get("taints", ())}
        found |= {f"{name} condition {condition['type']}" for condition in status["conditions"]}
        found |= {f"{name} has {resource}" for resource, amount in status["allocatable"].items() if amount != "0"}
    for node in cluster.nodes:
        found |= {f"{node.name} model {path.name}" for path in node.path(_MODELS).glob("[!.]*")}
        found |= {f"{node.name} pinned image {image}" for image in asyncio.run(_pinned(node))}
        found |= {f"{node.name} MPS daemon {daemon}" for daemon in mps_daemons(node)}
    return found | {f"file {each.name}" for each in folder.iterdir() if not each.is_dir()}


async def _pinned(node: Node) -> frozenset[str]:
    runtime = CriRuntime(node.path("/run/containerd/containerd.sock"))
    try:
        return await runtime.pinned()
    finally:
        await runtime.close()
