"""Explains one workload: its needs, how each kind of GPU could serve it, where it goes, what prevents the rest."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from tessera.core.cluster.snapshot import Assignment, Gpu, Node, NodeName, Snapshot
from tessera.core.gpu.sharing import Option
from tessera.core.packing.obstacles import describe
from tessera.core.packing.plan import Plan, applied, plan
from tessera.core.packing.reasons import NodeFit, Reasons, describe_need
from tessera.core.workload.foreignnames import foreign_names
from tessera.core.workload.need import Need, Pod, PodKey

__all__ = ["MOST_ROOM", "Explanation", "RequestOption", "explain", "ways"]


MOST_ROOM: Final = 100
"""Counting stops at this many pods."""


class RequestOption(msgspec.Struct, frozen=True, kw_only=True):
    """A way to serve one request on GPUs of one kind, the preferred first."""

    request: str
    model: str
    gpus: int
    """GPUs of the fleet that are alike in model, memory and sharing."""
    option: Option


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for the pods with one need when the whole snapshot is planned."""

    need: str
    pods: tuple[PodKey, ...]
    ways: tuple[RequestOption, ...]
    placed: tuple[Assignment, ...]
    unrecorded: tuple[NodeName, ...] = msgspec.field(default=(), name="guessed")
    """Nodes of these pods whose GPU indices are guesses."""
    pending: tuple[PodKey, ...]
    foreign: tuple[str, ...] = ()
    """Names in the need that belong to other systems, each with Tessera's form for the same."""
    nodes: tuple[NodeFit, ...]
    """For each node after the plan: whether it fits one more such pod, and the obstacle if not."""
    room: int
    """How many more such pods fit after the plan, up to `MOST_ROOM`."""


def explain(snapshot: Snapshot, pods: Sequence[Pod], *, policy: str = "tessera") -> tuple[Explanation, ...]:
    """Return one explanation for each distinct need among `pods`, all pending pods of the snapshot being planned."""
    planned = plan(snapshot, policy=policy)
    after = applied(snapshot, planned)
    reasons = Reasons(after)
    by_need: dict[Need, list[PodKey]] = {}
    for pod in pods:
        by_need.setdefault(pod.need, []).append(pod.key)
    return tuple(
        _explain(after, planned, need, tuple(keys), reasons, _room(after, need, policy))
        for need, keys in by_need.items()
    )


def _room(after: Snapshot, need: Need, policy: str) -> int:
    """Return how many more pods of a need fit, ignoring pending pods of other needs."""
    more = tuple(Pod(key=PodKey(f"one-more/{number}"), need=need) for number in range(MOST_ROOM))
    return len(plan(msgspec.structs.replace(after, pending=more), policy=policy).assignments)


def _explain(
    after: Snapshot, planned: Plan, need: Need, pods: tuple[PodKey, ...], reasons: Reasons, room: int
) -> Explanation:
    placed = tuple(assignment for assignment in planned.assignments if assignment.pod in set(pods))
    nodes = {assignment.node for assignment in placed}
    going = {assignment.pod for assignment in placed}
    return Explanation(
        need=describe_need(need),
        pods=pods,
        ways=ways(after.nodes, need),
        placed=placed,
        unrecorded=tuple(
            dict.fromkeys(each.node for each in planned.layouts if each.unrecorded and each.node in nodes)
        ),
        pending=tuple(pod for pod in pods if pod not in going),
        foreign=foreign_names(need.requests),
        nodes=reasons.verdicts(need),
        room=room,
    )


def ways(nodes: Iterable[Node], need: Need) -> tuple[RequestOption, ...]:
    """Return how each kind of GPU of these nodes could serve each request of a need, the preferred way first."""
    kinds: dict[Gpu, int] = {}
    for node in nodes:
        for gpu in node.gpus:
            if not need.models or gpu.model.name in need.models:
                alike = msgspec.structs.replace(gpu, index=0, uuid="")
                kinds[alike] = kinds.get(alike, 0) + 1
    return tuple(
        RequestOption(request=describe(request), model=gpu.model.name, gpus=count, option=option)
        for request in need.requests
        for gpu, count in kinds.items()
        for option in gpu.options(request)
    )
