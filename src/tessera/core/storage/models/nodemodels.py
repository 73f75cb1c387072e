"""The models of nodes: desired by ModelCaches, reported by each node, and summarized for each model.

The controller writes the desired models of a node to its NodeModels, where the node reports its own.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from tessera.core.storage.models.syncplans import Pack
from tessera.core.storage.models.verifications import ChecksumRule

__all__ = [
    "MOST_OF_NODE",
    "DesiredCache",
    "DesiredModel",
    "ModelProblem",
    "ModelSummary",
    "NodeModels",
    "ObservedModel",
    "followed_models",
    "models_of_nodes",
    "unknown_model",
]

MOST_OF_NODE = 128
"""Most models of a node; the last in order are left out."""


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
    verification: ChecksumRule = "IfGiven"
    has_pending_pods: bool = False
    """Whether pods without a node request it, whatever else they need, and the node does not have it."""
    verify_interval_s: int = 0
    """Interval in which a revision on the disk is compared with its digests; 0 for never."""

    @property
    def urgency(self) -> tuple[int, bool]:
        """What may interrupt the fetch of a model of less urgency."""
        return self.priority, self.has_pending_pods

    @property
    def identity(self) -> str:
        """Its identity while the same files are meant: a change of it is fetched at once."""
        rows = (self.source, self.endpoint, self.region, self.secret, self.revision, self.include, self.exclude)
        # The default is left out: it is what nodes have fetched by since before there was a choice.
        rule = () if self.verification == "IfGiven" else (self.verification,)
        return hashlib.sha256(msgspec.json.encode(rows + rule)).hexdigest()[:16]


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
    unverified_bytes: int = 0
    """Of the files for which the source has no checksum."""
    verified_s: float = 0.0
    """When the revision was last compared with its digests, in seconds since 1970; when it was fetched counts."""
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
    unknown: Mapping[str, str] = {}
    """Further desired models, which this version of Tessera cannot read, each with the reason."""
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
    unverified_bytes: int = 0
    """Of that revision's files for which the source has no checksum."""
    containers: int = 0
    pending_pods: int = 0
    problems: tuple[ModelProblem, ...] = ()
    """The first of them."""


def models_of_nodes(
    caches: Sequence[DesiredCache],
    nodes: Sequence[NodeModels],
    demand: Mapping[str, int],
    invalid: Collection[str] = (),
) -> dict[str, tuple[DesiredModel, ...]]:
    """Return the desired models of each node, in fetching order: priority, pending pods, name.

    A node is left out where one of its former ones is both invalid and unknown, as after a downgrade: that one
    cannot be written back, so the node keeps all as they are.

    Args:
        caches: all valid ones.
        nodes: all with an agent.
        demand: number of pending pods by requested model.
        invalid: names of the others: nodes keep their former desired models.

    """
    order = sorted(caches, key=lambda each: (-each.model.priority, -demand.get(each.name, 0), each.name))
    found = {}
    for node in nodes:
        if not node.unknown.keys().isdisjoint(invalid):
            continue
        kept = tuple(each for each in node.desired or () if each.name in invalid)
        there = {each.name for each in node.observed if each.revision}
        chosen = (
            msgspec.structs.replace(each.model, has_pending_pods=bool(demand.get(each.name)) and each.name not in there)
            for each in order
            if node.name in each.nodes
        )
        found[node.name] = (*kept, *chosen)[:MOST_OF_NODE]
    return found


def followed_models(node: NodeModels, former: Mapping[str, DesiredModel]) -> dict[str, DesiredModel]:
    """Return the models that a node follows, in fetching order; unknown ones as last read, at the end."""
    known = {each.name: each for each in node.desired or ()}
    return known | {name: former[name] for name in node.unknown if name in former and name not in known}


def unknown_model(node: NodeModels, name: str) -> ObservedModel:
    """Return the report of an unknown model that a node never followed: no new pod gets it, and what it has stays."""
    former = next((each for each in node.observed if each.name == name), ObservedModel(name=name))
    return msgspec.structs.replace(
        former, state="Failed", reason=node.unknown[name], revision="", bytes=0, files=0, unverified_bytes=0
    )
