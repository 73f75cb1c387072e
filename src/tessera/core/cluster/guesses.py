"""Guesses in a snapshot: nodes where it is not recorded which GPU a pod uses, or which GPU is which."""

import enum
from collections.abc import Mapping

import msgspec

from tessera.core.cluster.snapshot import NodeName, Snapshot
from tessera.core.workload.need import PodKey

__all__ = ["Guess", "GuessCause", "guesses"]


class GuessCause(enum.StrEnum):
    """Why the indices of a node's GPUs are guesses."""

    PODS = "the GPUs of running pods are not recorded"
    ORDER = "labels do not show which GPU has which MIG instances"
    LOST = "the lost GPUs are not recorded"


class Guess(msgspec.Struct, frozen=True, kw_only=True):
    """The guesses on one node."""

    cause: GuessCause
    pods: tuple[PodKey, ...] = ()
    """Running pods whose GPUs or MIG instances are guessed."""


def guesses(snapshot: Snapshot) -> Mapping[NodeName, Guess]:
    """Return the nodes whose GPUs are used, ordered or lost by guess, in the snapshot's order.

    A single unpartitioned GPU leaves nothing to guess, nor does a node whose GPUs are all lost.
    """
    pods: dict[NodeName, list[PodKey]] = {}
    for running in snapshot.running:
        if running.guessed:
            pods.setdefault(running.assignment.node, []).append(running.pod.key)
    found: dict[NodeName, Guess] = {}
    for node in snapshot.nodes:
        own = tuple(pods.get(node.name, ()))
        if not node.gpus or (len(node.gpus) == 1 and node.gpus[0].sharing.layout is None):
            continue
        if own:
            found[node.name] = Guess(cause=GuessCause.PODS, pods=own)
        elif not node.ordered:
            found[node.name] = Guess(cause=GuessCause.ORDER)
        elif 0 < node.lost < len(node.gpus):
            found[node.name] = Guess(cause=GuessCause.LOST)
    return found
