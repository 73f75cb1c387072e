"""Which models a node keeps on its disk: what it fetches next, what makes room, what pods are offered.

The controller writes the desired models, and the node reports its own. A revision that the kubelet may
allocate, or that a pod uses, stays; one that must go is withdrawn first.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from tessera.core.storage.models.packing import Pack
from tessera.core.storage.models.retention import Kept, freed_bytes, least_evicted
from tessera.errors import Unavailable

__all__ = [
    "MOST_OF_NODE",
    "CachedModel",
    "DesiredCache",
    "DesiredModel",
    "ModelProblem",
    "ModelSummary",
    "NodeModels",
    "ObservedModel",
    "Victim",
    "back_off_s",
    "environment_name",
    "folder_name",
    "models_of_nodes",
    "next_fetch",
    "peers_of",
    "summary",
    "victims",
]

MOST_OF_NODE = 128
"""Most models of a node; the last in order are left out."""
_FIRST_BACK_OFF_S, _LONGEST_BACK_OFF_S = 10.0, 600.0
_MOST_PROBLEMS = 16


class DesiredCache(msgspec.Struct, frozen=True, kw_only=True):
    """A model desired on some nodes."""

    name: str
    source: str
    nodes: frozenset[str] = frozenset()
    """The selected nodes."""
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


class DesiredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model desired on a node."""

    name: str
    source: str
    endpoint: str = ""
    region: str = ""
    secret: str = ""
    revision: str = ""
    interval_s: int = 0
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


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model on the disk, as a candidate to make room."""

    name: str
    current: str
    """The revision that new pods get; empty for none."""
    kept: tuple[Kept, ...]
    used: frozenset[str] = frozenset()
    """Revisions in use by pods."""
    priority: int = 0
    pinned: bool = False

    def may_go_for(self, other: "CachedModel") -> bool:
        """Return whether the revision that new pods get makes room for another model."""
        return not self.pinned and self.priority < other.priority and self.current not in self.used


class Victim(msgspec.Struct, frozen=True, kw_only=True):
    """A revision that makes room; if it is the current one of its model, it is withdrawn first."""

    model: str
    revision: str
    current: bool


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
    order = sorted(caches, key=lambda each: (-each.priority, -demand.get(each.name, 0), each.name))
    found = {}
    for node in nodes:
        kept = tuple(each for each in node.desired or () if each.name in unread)
        chosen = (
            msgspec.convert(each, DesiredModel, from_attributes=True) for each in order if node.name in each.nodes
        )
        found[node.name] = (*kept, *chosen)[:MOST_OF_NODE]
    return found


def summary(cache: DesiredCache, nodes: Iterable[NodeModels], demand: Mapping[str, int]) -> ModelSummary:
    """Return the status of a model on its nodes."""
    mine = [each for each in nodes if each.name in cache.nodes]
    seen = {node.name: {each.name: each for each in node.observed}.get(cache.name) for node in mine}
    there = [each for each in seen.values() if each is not None]
    have = [each for each in there if each.revision and cache.revision in ("", each.revision)]
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
        problems=tuple(_problems(mine, seen))[:_MOST_PROBLEMS],
    )


def _problems(nodes: Iterable[NodeModels], seen: Mapping[str, ObservedModel | None]) -> Iterable[ModelProblem]:
    for node in nodes:
        found = seen[node.name]
        if not node.ready:
            yield ModelProblem(node=node.name, reason="the node is not ready")
        elif node.reason:
            yield ModelProblem(node=node.name, reason=node.reason)
        elif found is not None and found.reason:
            yield ModelProblem(node=node.name, reason=found.reason)


# The node


def back_off_s(failures: int) -> float:
    """Return how long after failures in a row a model is not tried again."""
    return min(_FIRST_BACK_OFF_S * 2.0 ** min(failures - 1, 16), _LONGEST_BACK_OFF_S)


def next_fetch(
    desired: Iterable[DesiredModel], observed: Mapping[str, ObservedModel], now_s: float
) -> DesiredModel | None:
    """Return the first model whose source is to be checked now; None for none."""
    return next((each for each in desired if _is_due(each, observed.get(each.name), now_s)), None)


def _is_due(model: DesiredModel, found: ObservedModel | None, now_s: float) -> bool:
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


def victims(
    model: CachedModel, others: Iterable[CachedModel], *, missing_bytes: int, subject: str
) -> tuple[Victim, ...]:
    """Return which other models make room for one that lacks so many bytes.

    First what no new pod gets, least recently used first; then models of lower priority that are not pinned,
    the lowest first. A model never makes room for one of its own priority, so that two do not take turns.

    Raises:
        Unavailable: there would be too little room even then.

    """
    superseded, current = [], []
    for other in others:
        for each in other.kept:
            if each.revision != other.current and not each.protected:
                superseded.append(((each.last_used, other.name), other.name, each))
            elif each.revision == other.current and other.may_go_for(model):
                current.append(((other.priority, each.last_used, other.name), other.name, each))
    order = [
        (each, Victim(model=name, revision=each.revision, current=rows is current))
        for rows in (superseded, current)
        for _, name, each in sorted(rows, key=lambda row: row[0])
    ]
    chosen = [order[position] for position in least_evicted([each for each, _ in order], missing_bytes)]
    missing_bytes -= freed_bytes(each for each, _ in chosen)
    if missing_bytes > 0:
        raise Unavailable(
            subject,
            found=f"the disk for models has {-(-missing_bytes // 2**20)} MiB too little",
            hint="use a larger disk, fewer models on this node, or a higher priority than those present",
        )
    return tuple(victim for _, victim in chosen)
