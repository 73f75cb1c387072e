"""Why a pod is pending: for each node the obstacle, and one sentence about all of them."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from tessera.core.cluster.snapshot import Node, NodeName, Snapshot
from tessera.core.packing.advertised import AdvertisedDevices
from tessera.core.packing.firstobstacle import first_obstacle, mixed
from tessera.core.packing.fit import Fleet
from tessera.core.packing.fit.mixednames import mixtures
from tessera.core.packing.ledger import Ledger
from tessera.core.packing.obstacles import Cause, Obstacle, Obstacles, describe, offer_of
from tessera.core.packing.pack import UNFIT
from tessera.core.packing.pack.policies import make_policy
from tessera.core.packing.pack.scores import Scores
from tessera.core.workload.foreignnames import foreign_names
from tessera.core.workload.need import Need
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.core.workload.texts import first_of, more
from tessera.core.workload.units import cores

__all__ = ["NodeFit", "Reasons", "describe_need", "summarize", "verdicts_by_ledger"]

_BY_TEXT = frozenset(cause for cause in Cause if cause.rank > Cause.DEVICES_FEW.rank) - {Cause.UNREADABLE}
"""Causes of which each text is an obstacle of its own; of the others the nearest miss is named."""
_EXAMPLES = 2
"""Nodes named for each obstacle; the others are counted."""


class NodeFit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one node could take a pod now."""

    node: NodeName
    obstacle: Obstacle | None = None
    """The obstacle; None for none."""
    detail: str = ""
    """What the node has instead, where it has no device for the pod."""


def describe_need(need: Need) -> str:
    """Return a need in words: its GPU requests, or cpu and memory if it requests no GPU; and its cached models."""
    cpu_memory = f"{cores(need.cpu_milli)} CPU and {need.memory_mib} MiB memory"
    requests = [describe(request) for request in need.requests] or [cpu_memory]
    return ", ".join((*requests, *(f"{MODEL_RESOURCE}{name}" for name in need.cached_models)))


class Reasons:
    """Why pods fit no node of a snapshot, beside all its running pods.

    Raises:
        InvalidInput: a running pod has what its node does not have.

    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._fleet = Fleet.of(snapshot)
        self._scores = Scores(self._fleet, make_policy("first-fit", self._fleet, None), mix=(), devices_only=True)

    def verdicts(self, need: Need) -> tuple[NodeFit, ...]:
        """Return for each node whether one more pod with this need could run there, or the obstacle."""
        kind = self._scores.intern(need)
        obstacles = Obstacles(self._fleet, self._scores.demand(kind))
        short = (self._scores.row(kind) == UNFIT).nonzero()[0]
        codes = dict(zip(short.tolist(), obstacles.codes(short).tolist(), strict=True)) if len(short) else {}
        found = {column: obstacles.of_code(code) for column, code in codes.items()}
        for column, request in mixtures(need, self._fleet, np.arange(len(self._fleet.nodes))).items():
            if column not in found or not found[column].cause.lasting:
                found[column] = mixed(request, need.models)
        return tuple(self._verdict(need, column, found.get(column)) for column in range(len(self._fleet.nodes)))

    def why(self, need: Need) -> tuple[Cause, str]:
        """Return the nearest miss, and in one sentence what a pod needs and the obstacles, the nearest miss first."""
        cause, summary = summarize(self.verdicts(need))
        return cause, "; ".join((f"needs {describe_need(need)}", summary, *foreign_names(need.requests)))

    def _verdict(self, need: Need, column: int, devices: Obstacle | None) -> NodeFit:
        cpu_milli, memory_mib, pods = self._fleet.room[:, column].tolist()
        planned = msgspec.structs.replace(self._fleet.nodes[column], advertised=None)  # agents may be yet to come
        return _verdict(need, planned, devices, (cpu_milli, memory_mib, pods))


def verdicts_by_ledger(
    ledger: Ledger, need: Need, nodes: Sequence[Node], advertised: AdvertisedDevices
) -> tuple[NodeFit, ...]:
    """Return for each of these nodes of a ledger whether a pod could run there, or the scheduler's first obstacle.

    A pod by name runs where enough devices of the name are left, whatever is known of the GPUs, and where they can be
    created; the ledger is one for such pods.
    """
    names = [node.name for node in nodes]
    unsuited = ledger.unsuited(need, names)
    devices = ledger.obstacles(need, names) | unsuited
    verdicts: list[NodeFit] = []
    for node in nodes:
        counted, obstacle = node, devices.get(node.name)
        if need.by_name and node.name not in unsuited and advertised.suffice(need, node.name):
            counted = msgspec.structs.replace(node, reported=True, problem="", withheld=(), advertised=None)
            obstacle = None
        elif need.by_name and obstacle is None:
            obstacle = advertised.missing(need, node.name)
        verdicts.append(_verdict(need, counted, obstacle, ledger.free_resources(node.name)))
    return tuple(verdicts)


def _verdict(need: Need, node: Node, devices: Obstacle | None, free: tuple[int, int, int]) -> NodeFit:
    first = first_obstacle(need, node, devices=devices, free=free)
    detail = _offers(need, node) if first is not None and first.cause is Cause.NO_DEVICE else ""
    return NodeFit(node=node.name, obstacle=first, detail=detail)


def summarize(verdicts: Sequence[NodeFit]) -> tuple[Cause, str]:
    """Return the nearest miss, and the obstacles of all nodes in one sentence, the nearest miss first."""
    alike = defaultdict[str, list[tuple[Obstacle, NodeFit]]](list)
    for verdict in verdicts:
        if verdict.obstacle is not None:
            cause = verdict.obstacle.cause
            alike[verdict.obstacle.text if cause in _BY_TEXT else cause].append((verdict.obstacle, verdict))
    ranked = sorted(alike.values(), key=lambda nodes: (nodes[0][0].cause.rank, -len(nodes)))
    summary = "; ".join(map(_summary, ranked)) or "there are no nodes"
    return ranked[0][0][0].cause if ranked else Cause.NO_GPU, summary


def _summary(nodes: Sequence[tuple[Obstacle, NodeFit]]) -> str:
    """Return the nearest miss among nodes with one cause, its node, and how many more nodes are similar."""
    nearest = max((obstacle for obstacle, _ in nodes), key=lambda obstacle: obstacle.near)
    same = [verdict for obstacle, verdict in nodes if obstacle.text == nearest.text]
    details = [f"{each.node}: {each.detail}" if each.detail else each.node for each in same]
    named = first_of(details, "node", most=_EXAMPLES)
    others = f"; {_alike(len(nodes) - len(same))}" if len(nodes) > len(same) else ""
    return f"{nearest.text} ({named}{others})"


def _alike(count: int) -> str:
    return f"{more(count, 'node')} {'has' if count == 1 else 'have'} the same problem"


def _offers(need: Need, node: Node) -> str:
    """Name what a node has instead: each kind of GPU once, with what it could provide for what none serves."""
    allowed = [gpu.healthy or gpu for gpu in node.gpus if not need.models or gpu.model.name in need.models]
    request = next(request for request in need.requests if not any(gpu.options(request) for gpu in allowed))
    kinds = Counter((gpu.model.name, offer_of(gpu, request)) for gpu in allowed)
    return ", ".join(f"{count} x {name}{offer}" for (name, offer), count in kinds.items())
