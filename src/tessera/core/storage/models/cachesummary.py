"""The status of a ModelCache on its nodes."""

from collections import Counter
from collections.abc import Iterable, Mapping

from tessera.core.storage.models.nodemodels import (
    MOST_OF_NODE,
    DesiredCache,
    ModelProblem,
    ModelSummary,
    NodeModels,
    ObservedModel,
)

__all__ = ["summarize_cache"]

_MOST_PROBLEMS = 16


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
