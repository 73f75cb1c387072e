"""The devices that a running pod is assumed to have where none is recorded, and which of contradicting records count.

An unrecorded pod is assumed to have devices of its node as the packer would choose them (the tightest GPU that fits,
then the first), in order of pod name and after all recorded ones.
"""

from collections.abc import Iterable, Sequence

import msgspec

from tessera.core.cluster.snapshot import Assignment, Node, NodeName, Running, Share, Snapshot
from tessera.core.gpu.sharing import names_device
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack.packer import Packer
from tessera.core.workload.need import Form, Need, Pod, PodKey
from tessera.errors import InvalidInput

__all__ = ["PodOnNode", "unused_record", "with_assumed_shares"]


class PodOnNode(msgspec.Struct, frozen=True):
    """A pod on a node."""

    pod: Pod
    shares: tuple[Share, ...] | None = None
    """None if they are not recorded."""


def with_assumed_shares(node: Node, pods: Iterable[PodOnNode]) -> tuple[list[Running], list[str]]:
    """Return the pods of one node, each with possible devices and recorded ones first; and what is not counted.

    Of records that are impossible together the first by pod name count; the other pods count as unrecorded.
    """
    ordered = sorted(pods, key=lambda each: each.pod.key)
    recorded = [_running(each.pod, node.name, each.shares) for each in ordered if each.shares is not None]
    running, refused = _possible_together(node, recorded)
    notes = [unused_record(pod.key, error) for pod, error in refused]
    unrecorded = [each.pod for each in ordered if each.shares is None] + [pod for pod, _ in refused]
    unrecorded.sort(key=lambda pod: pod.key)
    if not any(pod.need.asks for pod in unrecorded):
        return [*running, *(_running(pod, node.name, ()) for pod in unrecorded)], notes
    packer = Packer(Fleet.of(Snapshot(nodes=(_open(node),), running=tuple(running))), "first-fit")
    for pod in unrecorded:
        asks = tuple(ask for ask in pod.need.asks if ask.form is not Form.EXACT or names_device(ask.resource))
        choice = packer.place(packer.intern(Need(asks=asks))) if asks else None
        if asks and choice is None and not node.problem:
            notes.append(f"pod {pod.key} has devices that node {node.name} does not report; they are not counted")
        held = _running(pod, node.name, choice.shares if choice else ())
        running.append(msgspec.structs.replace(held, guessed=bool(asks)))
    return running, notes


def unused_record(key: PodKey, error: InvalidInput) -> str:
    """Return that a pod's record does not count, and why."""
    return f"the devices recorded on pod {key} are not used: {error}"


def _possible_together(node: Node, recorded: Sequence[Running]) -> tuple[list[Running], list[tuple[Pod, InvalidInput]]]:
    """Return the pods whose records are possible together, and the others, each with the conflict."""
    if _conflict(node, recorded) is None:
        return list(recorded), []
    kept: list[Running] = []
    refused: list[tuple[Pod, InvalidInput]] = []
    for held in recorded:
        error = _conflict(node, [*kept, held])
        if error is None:
            kept.append(held)
        else:
            refused.append((held.pod, error))
    return kept, refused


def _conflict(node: Node, running: Sequence[Running]) -> InvalidInput | None:
    """Return the impossible shares; None for none."""
    try:
        Fleet.of(Snapshot(nodes=(node,), running=tuple(running)))
    except InvalidInput as error:
        return error
    return None


def _open(node: Node) -> Node:
    """Return the node without anything that could exclude a pod that already runs there."""
    return msgspec.structs.replace(node, taints=(), unschedulable=False, max_pods=1 << 30)


def _running(pod: Pod, node: NodeName, shares: tuple[Share, ...]) -> Running:
    return Running(pod=pod, assignment=Assignment(pod=pod.key, node=node, shares=shares))
