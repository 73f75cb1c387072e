"""Which models nodes shall have, what they report, and which source a node checks next.

The controller writes the desired models, and the node reports its own. A revision that the kubelet may
allocate, or that a pod uses, stays; one that must go is withdrawn first.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from tessera.core.storage.backoff import back_off_s
from tessera.core.storage.models.packed import Pack

__all__ = [
    "MOST_OF_NODE",
    "DesiredCache",
    "DesiredModel",
    "ModelProblem",
    "ModelSummary",
    "NodeModels",
    "ObservedModel",
    "environment_name",
    "folder_name",
    "is_due",
    "models_of_nodes",
    "peers_of",
    "summary",
]

MOST_OF_NODE = 128
"""Most models of a node; the last in order are left out."""
_MOST_PROBLEMS = 16


class DesiredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model desired on a node."""

    name: str
    source: str
    endpoint: str = ""
    region: str = ""
    secret: str = ""
    revision: str = ""
    """The desired revision; empty for the source's."""
    interval_s: int = 0
    """Interval of checks of the source; 0 for once."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    priority: int = 0
    pinned: bool = False
    keep: int = 2
    pack: Pack = "Never"

    @property
    def identity(self) -> str:
        """Its identity while the same files are meant: a change of it is fetched at once."""
        rows = msgspec.json.encode(
            (self.source, self.endpoint, self.region, self.secret, self.revision, self.include, self.exclude)
        )
        return hashlib.sha256(rows).hexdigest()[:16]


class DesiredCache(msgspec.Struct, frozen=True):
    """A model, and the nodes that are selected for it."""

    model: DesiredModel
    nodes: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.name


class ObservedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A node's report of a model."""

    name: str
    state: Literal["Missing", "Fetching", "Ready", "Failed"] = "Missing"
    """Result of the last check of the source, or that it is running; with a revision the model is there in any case."""
    revision: str = ""
    """What new pods get; empty for none."""
    bytes: int = 0
    files: int = 0
    fetched_bytes: int = 0
    """Of the current fetch."""
    total_bytes: int = 0
    containers: int = 0
    """Containers that use it, in any revision."""
    identity: str = ""
    """Of the last fetch."""
    checked_s: float = 0.0
    """When the source was last observed to have this revision, in seconds since 1970."""
    failed_s: float = 0.0
    failures: int = 0
    """In a row."""
    reason: str = ""


class NodeModels(msgspec.Struct, frozen=True, kw_only=True):
    """A node, its former desired models and its report."""

    name: str
    ready: bool = True
    desired: tuple[DesiredModel, ...] | None = None
    """None where the controller has not written it yet."""
    observed: tuple[ObservedModel, ...] = ()
    reason: str = ""
    """Why the node cannot have any model."""
    peer: str = ""
    """Its address for peers; empty for none."""


class ModelProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node does not have a model, or not its source's current revision."""

    node: str
    reason: str


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A model on all nodes where it is desired, of bounded size."""

    nodes: int = 0
    ready: int = 0
    """Nodes that have it."""
    fetching: int = 0
    revision: str = ""
    """What most nodes have."""
    on_revision: int = 0
    """Nodes that have that one."""
    bytes: int = 0
    """Of that revision."""
    containers: int = 0
    pending_pods: int = 0
    problems: tuple[ModelProblem, ...] = ()
    """The first of them."""


# The controller


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
        chosen = (each.model for each in order if node.name in each.nodes)
        found[node.name] = (*kept, *chosen)[:MOST_OF_NODE]
    return found


def summary(cache: DesiredCache, nodes: Iterable[NodeModels], demand: Mapping[str, int]) -> ModelSummary:
    """Return the status of a model on its nodes."""
    mine = [each for each in nodes if each.name in cache.nodes]
    seen = {node.name: {each.name: each for each in node.observed}.get(cache.name) for node in mine}
    there = [each for each in seen.values() if each is not None]
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
        containers=sum(each.containers for each in there),
        pending_pods=demand.get(cache.name, 0),
        problems=tuple(_problems(cache.name, mine, seen))[:_MOST_PROBLEMS],
    )


def _problems(
    name: str, nodes: Iterable[NodeModels], seen: Mapping[str, ObservedModel | None]
) -> Iterable[ModelProblem]:
    for node in nodes:
        found, desired = seen[node.name], {each.name for each in node.desired or ()}
        if not node.ready:
            yield ModelProblem(node=node.name, reason="the node is not ready")
        elif node.reason:
            yield ModelProblem(node=node.name, reason=node.reason)
        elif found is not None and found.reason:
            yield ModelProblem(node=node.name, reason=found.reason)
        elif name not in desired and len(desired) >= MOST_OF_NODE:
            reason = f"it has {MOST_OF_NODE} models before this one, the most: remove one, or raise its priority"
            yield ModelProblem(node=node.name, reason=reason)


# The node


def is_due(model: DesiredModel, found: ObservedModel | None, now_s: float) -> bool:
    """Return whether a model's source is to be checked now."""
    if found is None or found.identity != model.identity:
        return True
    if found.failures:
        return now_s - found.failed_s >= back_off_s(found.failures)
    if not found.revision:
        return True
    return bool(model.interval_s) and not model.revision and now_s - found.checked_s >= model.interval_s


def peers_of(model: DesiredModel, nodes: Iterable[NodeModels]) -> tuple[str, ...]:
    """Return the addresses of the nodes with the same desired source."""

    def wants(node: NodeModels) -> bool:
        return any((each.source, each.endpoint) == (model.source, model.endpoint) for each in node.desired or ())

    return tuple(node.peer for node in nodes if node.peer and wants(node))


def environment_name(model: str) -> str:
    """Return the environment variable with a model's path."""
    return f"TESSERA_MODEL_{model.upper().replace('-', '_')}_PATH"


def folder_name(model: str) -> str:
    """Return a model's path in a container."""
    return f"/models/{model}"
