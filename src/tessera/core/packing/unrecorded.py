"""What is not recorded: which devices a running pod has, and which GPU of a node is which.

A record is taken as true, as by the scheduler's ledger: where records conflict, the GPU is closed to new pods, and has
those that are possible together, the first by pod name. An unrecorded pod counts with devices of its node as the packer
would choose them (the tightest GPU that fits, then the first), in order of pod name and after all recorded ones.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tessera.core.cluster.closing import closed, possible_together
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Running, Share, Snapshot
from tessera.core.gpu.sharing import names_device
from tessera.core.packing.fit import Fleet, impossible_share
from tessera.core.packing.pack.packer import Packer
from tessera.core.workload.need import Form, Need, Pod, PodKey
from tessera.errors import InvalidInput

__all__ = [
    "PodOnNode",
    "PodsOnNode",
    "Unrecorded",
    "UnrecordedCause",
    "unrecorded_nodes",
    "unused_record",
    "with_unrecorded_shares",
]


class PodOnNode(msgspec.Struct, frozen=True):
    """A pod on a node."""

    pod: Pod
    shares: tuple[Share, ...] | None = None
    """None if they are not recorded."""


class PodsOnNode(NamedTuple):
    """The pods of one node with their devices."""

    running: tuple[Running, ...]
    """Recorded ones first, each with those of its devices that are possible."""
    conflicts: frozenset[int]
    """GPUs whose recorded allocations conflict, by index: closed to new pods."""
    notes: tuple[str, ...]
    """The conflicts, and what is not counted, in sentences."""


class UnrecordedCause(enum.StrEnum):
    """Why the indices of a node's GPUs are guesses: what is not recorded."""

    PODS = "the GPUs of running pods are not recorded"
    ORDER = "labels do not show which GPU has which MIG instances"
    LOST = "the lost GPUs are not recorded"


class Unrecorded(msgspec.Struct, frozen=True, kw_only=True):
    """What is not recorded on one node."""

    cause: UnrecordedCause
    pods: tuple[PodKey, ...] = ()
    """Running pods whose GPUs or MIG instances are not recorded."""


def unrecorded_nodes(snapshot: Snapshot) -> Mapping[NodeName, Unrecorded]:
    """Return the nodes without a record of which GPU is used, which is which, or which is lost, in the same order.

    Not nodes with a single unpartitioned GPU, which can only be that one, nor those whose GPUs are all lost.
    """
    pods: dict[NodeName, list[PodKey]] = {}
    for running in snapshot.running:
        if running.unrecorded:
            pods.setdefault(running.assignment.node, []).append(running.pod.key)
    found: dict[NodeName, Unrecorded] = {}
    for node in snapshot.nodes:
        own = tuple(pods.get(node.name, ()))
        if not node.gpus or (len(node.gpus) == 1 and node.gpus[0].sharing.layout is None):
            continue
        if own:
            found[node.name] = Unrecorded(cause=UnrecordedCause.PODS, pods=own)
        elif not node.ordered:
            found[node.name] = Unrecorded(cause=UnrecordedCause.ORDER)
        elif 0 < node.lost < len(node.gpus):
            found[node.name] = Unrecorded(cause=UnrecordedCause.LOST)
    return found


def with_unrecorded_shares(node: Node, pods: Iterable[PodOnNode]) -> PodsOnNode:
    """Return the pods of one node, each with possible devices."""
    ordered = sorted(pods, key=lambda each: each.pod.key)
    recorded = {each.pod.key: each.shares for each in ordered if each.shares is not None}
    by_gpu: dict[int, dict[PodKey, list[Share]]] = {}
    for key, shares in recorded.items():
        for share in shares:
            by_gpu.setdefault(share.gpu, {}).setdefault(key, []).append(share)
    kept, conflicts, notes = _possible_holders(node, by_gpu)
    running = [
        _running(each.pod, node.name, tuple(share for share in each.shares if each.pod.key in kept[share.gpu]))
        for each in ordered
        if each.shares is not None
    ]
    unrecorded = [each.pod for each in ordered if each.shares is None]
    if any(pod.need.requests for pod in unrecorded):
        gpus = tuple(
            closed(gpu, [share for own in kept[gpu.index].values() for share in own]) if gpu.index in conflicts else gpu
            for gpu in node.gpus
        )
        notes += _place(msgspec.structs.replace(node, gpus=gpus), unrecorded, running)
    else:
        running += (_running(pod, node.name, ()) for pod in unrecorded)
    return PodsOnNode(tuple(running), conflicts, tuple(notes))


def unused_record(key: PodKey, error: InvalidInput) -> str:
    """Return that a pod's record does not count, and why."""
    return f"the devices recorded on pod {key} are not used: {error}"


def _possible_holders(
    node: Node, recorded: Mapping[int, Mapping[PodKey, Sequence[Share]]]
) -> tuple[dict[int, Mapping[PodKey, Sequence[Share]]], frozenset[int], list[str]]:
    """Return the holders of each GPU that are possible together, the GPUs whose holders conflict, and why."""
    gpus = {gpu.index: gpu for gpu in node.gpus}
    kept: dict[int, Mapping[PodKey, Sequence[Share]]] = dict(recorded)
    conflicts: list[int] = []
    notes: list[str] = []
    for index, holders in recorded.items():
        gpu, why = gpus.get(index), "it conflicts with what other pods have of it"
        if gpu is None:
            kept[index], why = {}, "the node does not have it"
        elif (fault := next(faults(GpuType.of(gpu), holders), None)) is not None:
            kept[index] = possible_together(gpu, holders)
            conflicts.append(index)
            notes.append(f"GPU {index} of {node.name} takes no new pods, as its allocations conflict: {fault.sentence}")
        gone = (pod for pod in holders if pod not in kept[index])
        notes.extend(unused_record(pod, impossible_share(pod, node.name, index, why)) for pod in gone)
    return kept, frozenset(conflicts), notes


def _place(node: Node, pods: Sequence[Pod], running: list[Running]) -> list[str]:
    """Put unrecorded pods after the running ones, with devices that fit beside these; return what is not counted."""
    notes: list[str] = []
    packer = Packer(Fleet.of(Snapshot(nodes=(_open(node),), running=tuple(running))), "first-fit")
    for pod in pods:
        requests = tuple(
            request for request in pod.need.requests if request.form is not Form.EXACT or names_device(request.resource)
        )
        choice = packer.place(packer.intern(Need(requests=requests))) if requests else None
        if requests and choice is None and not node.problem:
            notes.append(f"pod {pod.key} has devices that node {node.name} does not report; they are not counted")
        placed = _running(pod, node.name, choice.shares if choice else ())
        running.append(msgspec.structs.replace(placed, unrecorded=bool(requests)))
    return notes


def _open(node: Node) -> Node:
    """Return the node without anything that could exclude a pod that already runs there."""
    return msgspec.structs.replace(node, taints=(), unschedulable=False, max_pods=1 << 30)


def _running(pod: Pod, node: NodeName, shares: tuple[Share, ...]) -> Running:
    return Running(pod=pod, assignment=Assignment(pod=pod.key, node=node, shares=shares))
