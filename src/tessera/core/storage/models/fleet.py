"""The desired models of each node, and the status of a ModelCache on its nodes."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from tessera.core.storage.models.nodemodels import (
    MOST_OF_NODE,
    DesiredCache,
    DesiredModel,
    ModelProblem,
    ModelSummary,
    NodeModels,
    ObservedModel,
)

__all__ = ["models_of_nodes", "summarize_cache"]

_MOST_PROBLEMS = 16


def models_of_nodes(
    caches: Sequence[DesiredCache], nodes: Sequence[NodeModels], demand: Mapping[str, int], unread: Collection[str] = ()
) -> dict[str, tuple[DesiredModel, ...]]:
    """Return the desired models of each node, in fetching order: priority, pending pods, name.

    Args:
        caches: all valid ones.
        nodes: all with an agent.
        demand: number of pending pods by requested model.
        unread: names of invalid ones: nodes keep their former desired models.

    """
    order = sorted(caches, key=lambda each: (-each.model.priority, -demand.get(each.name, 0), each.name))
    found = {}
    for node in nodes:
        kept = tuple(each for each in node.desired or () if each.name in unread)
        there = {each.name for each in node.observed if each.revision}
        chosen = (
            msgspec.structs.replace(each.model, has_pending_pods=bool(demand.get(each.name)) and each.name not in there)
            for each in order
            if node.name in each.nodes
        )
        found[node.name] = (*kept, *chosen)[:MOST_OF_NODE]
    return found


def summarize_cache(cache: DesiredCache, nodes: Iterable[NodeModels], demand: Mapping[str, int]) -> ModelSummary:
    """Return the status of a model on its nodes."""
    mine = [each for each in nodes if each.name in cache.nodes]
    observed = {node.name: {each.name: each for each in node.observed}.get(cache.name) for node in mine}
    there = [each for each in observed.values() if each is not None]
    have = [each for each in there if each.revision and cache.model.revision in ("", each.revision)]
    known = Counter(each.revision for each in have)
    revision = min(known, key=lambda each: (-known[each], each), default="")
    return ModelSummary(
        nodes=len(mine),
        ready=len(have),
        fetching=sum(each.state == "Fetching" for each in there),
        revision=revision,
        on_revision=known[revision],
        bytes=next((each.bytes for each in have if each.revision == revision), 0),
        unverified_bytes=next((each.unverified_bytes for each in have if each.revision == revision), 0),
        containers=sum(each.containers for each in there),
        pending_pods=demand.get(cache.name, 0),
        problems=tuple(_problems(cache.name, mine, observed))[:_MOST_PROBLEMS],
    )


def _problems(
    name: str, nodes: Iterable[NodeModels], observed: Mapping[str, ObservedModel | None]
) -> Iterable[ModelProblem]:
    for node in nodes:
        found, desired = observed[node.name], {each.name for each in node.desired or ()}
        if not node.ready:
            yield ModelProblem(node=node.name, reason="the node is not ready")
        elif node.reason:
            yield ModelProblem(node=node.name, reason=node.reason)
        elif found is not None and found.reason:
            yield ModelProblem(node=node.name, reason=found.reason)
        elif name not in desired and len(desired) >= MOST_OF_NODE:
            reason = f"it has {MOST_OF_NODE} models before this one, the most: remove one, or raise its priority"
            yield ModelProblem(node=node.name, reason=reason)
