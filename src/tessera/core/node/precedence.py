"""Precedence of everything that configures a node's GPU sharing, and what is overridden.

docs/sharing.md and docs/policy.md have the order as a table.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import NodeSharing, Strategy, combined, desired_layouts, effective, shared_gpus

__all__ = ["ORDER", "DeclaredSources", "EffectiveSharing", "Overridden", "Statement", "decide"]

ORDER: Final = (
    "label `nvidia.com/mig.config`",
    "node policy file (`--node-policy`)",
    "GPUPolicy",
    "NVIDIA's sharing configuration",
    "label `gpushare=true`",
    "option `--strategy`",
    "default",
)
"""For each setting the first source that has it decides."""

_DEFAULT: Final[Strategy] = "mixed"
_SHARED_BY_MEMORY = Sharing(modes=(Mode.MEMORY_SHARE,))


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one source."""

    source: str
    """Its name for people: `GPUPolicy batch`, `label nvidia.com/device-plugin.config=time-sliced`."""
    node_sharing: NodeSharing = NodeSharing()


class DeclaredSources(msgspec.Struct, frozen=True, kw_only=True):
    """All sharing settings of one node, by source."""

    layout_label: str = ""
    """Value of the label `nvidia.com/mig.config`; empty for none."""
    node_policy: Statement | None = None
    gpu_policy: Statement | None = None
    """Overridden as a whole by a node policy file; then its content need not be known."""
    sharing_config: Statement | None = None
    unread_label: str = ""
    """The label `nvidia.com/device-plugin.config` where there is only one file to select."""
    memory_share: bool = False
    """Whether the node has the label `gpushare=true`."""
    strategy: Strategy | None = None
    """The option `--strategy`; None where it is not given."""

    @property
    def policy(self) -> Statement | None:
        """The policy that applies."""
        return self.node_policy or self.gpu_policy


class Overridden(msgspec.Struct, frozen=True, kw_only=True):
    """A setting without effect, because a source of higher precedence decides."""

    source: str
    by: str
    what: str
    """The overridden subject."""
    advice: str = ""

    def __str__(self) -> str:
        """Return it as a sentence."""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.source} has no effect on {self.what}: {self.by} decides{advice}"


class EffectiveSharing(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force on a node."""

    node_sharing: NodeSharing
    """With the MIG strategy in it."""
    overridden: tuple[Overridden, ...] = ()
    """In order of the sources."""
    sharing_config: bool = False
    """Whether the sharing configuration has any effect."""


def decide(declared: DeclaredSources, gpus: Iterable[GpuFacts]) -> EffectiveSharing:
    """Return the settings in force for these GPUs, in the order of `ORDER`, and the overridden ones."""
    inventory = Inventory(gpus=tuple(gpus))
    policy, config = declared.policy, declared.sharing_config
    own = config.node_sharing if config else NodeSharing()
    strategies = tuple(_strategies(declared))
    strategy = strategies[0][1] if strategies else _DEFAULT
    node_sharing = combined(own, policy.node_sharing if policy else NodeSharing(), memory_share=declared.memory_share)
    node_sharing = msgspec.structs.replace(node_sharing, strategy=strategy)
    lost, kept = _entries(declared, inventory, node_sharing)
    overridden = (
        *_layouts(declared, inventory, node_sharing),
        *_policies(declared),
        *lost,
        *_unread(declared),
        *_labels(declared, inventory, node_sharing),
        *(
            Overridden(
                source=source,
                by=strategies[0][0],
                what=f"the MIG strategy, which is {strategy} and not {each}",
                advice="set both to the same value, or remove one",
            )
            for source, each in strategies
            if each != strategy
        ),
    )
    acts = bool(kept) or own.plugin != NodeSharing().plugin or own.strategy == strategy or not lost
    return EffectiveSharing(
        node_sharing=node_sharing, overridden=overridden, sharing_config=config is not None and acts
    )


def _strategies(declared: DeclaredSources) -> Iterator[tuple[str, Strategy]]:
    """Yield the sources of the MIG strategy, in order."""
    for each in (declared.policy, declared.sharing_config):
        if each is not None and each.node_sharing.strategy is not None:
            yield each.source, each.node_sharing.strategy
    if declared.strategy is not None:
        yield f"option --strategy {declared.strategy}", declared.strategy


def _layouts(declared: DeclaredSources, inventory: Inventory, node_sharing: NodeSharing) -> Iterator[Overridden]:
    """Yield that a policy's MIG layouts and managed GPUs are overridden by a label that sets the layouts."""
    if not declared.layout_label or declared.policy is None:
        return
    differing = {uuid for uuid, _ in desired_layouts(inventory, node_sharing)}
    # Under strategy `single` the label sets the instances of a managed GPU.
    policies = node_sharing.policies if node_sharing.strategy != "single" else ()
    managed = {each.uuid for each in policies if each.sharing is not None and each.sharing.managed}
    for uuids, what, advice in (
        (differing, "the MIG layout of {}", "remove the label, or the layout from the policy"),
        (
            managed,
            "the devices of {}, which Tessera does not manage",
            "remove the label, or leave sharing out of the policy's entries for these GPUs",
        ),
    ):
        if uuids:
            yield Overridden(
                source=declared.policy.source,
                by=f"label nvidia.com/mig.config={declared.layout_label}",
                what=what.format(_named(inventory, uuids)),
                advice=advice,
            )


def _policies(declared: DeclaredSources) -> Iterator[Overridden]:
    if declared.node_policy is not None and declared.gpu_policy is not None:
        yield Overridden(
            source=declared.gpu_policy.source,
            by=declared.node_policy.source,
            what="this node",
            advice="remove the file, or leave the node out of the policy's nodeSelector",
        )


def _entries(
    declared: DeclaredSources, inventory: Inventory, node_sharing: NodeSharing
) -> tuple[tuple[Overridden, ...], frozenset[str]]:
    """Return the overridden parts of the sharing configuration, and the UUIDs of GPUs that follow it."""
    config, policy = declared.sharing_config, declared.policy
    if config is None:
        return (), frozenset()
    alone = msgspec.structs.replace(config.node_sharing, strategy=node_sharing.strategy)
    named = shared_gpus(inventory, alone)
    lost = frozenset(named & _differing(inventory, alone, node_sharing))
    found = []
    if policy is not None and lost:
        found.append(
            Overridden(
                source=config.source,
                by=policy.source,
                what=f"the sharing of {_named(inventory, lost)}",
                advice=f"remove it, or leave sharing out of the entries of {policy.source} for these GPUs",
            )
        )
    return tuple(found), named - lost


def _unread(declared: DeclaredSources) -> Iterator[Overridden]:
    if declared.unread_label and declared.sharing_config is not None:
        yield Overridden(
            source=declared.unread_label,
            by=declared.sharing_config.source,
            what="which sharing configuration is in force",
            advice="give --sharing-config a folder of which the label can choose, or remove the label",
        )


def _labels(declared: DeclaredSources, inventory: Inventory, node_sharing: NodeSharing) -> Iterator[Overridden]:
    """Yield the sources that override the label `gpushare=true`."""
    if not declared.memory_share:
        return
    others = {
        gpu.uuid
        for gpu in effective(inventory, node_sharing)
        if msgspec.structs.replace(gpu.sharing, offers=(), strategy=_DEFAULT) != _SHARED_BY_MEMORY
    }
    policies = {each.uuid for each in node_sharing.policies if each.sharing is not None}
    for statement, gpus in (
        (declared.policy, others & policies),
        (declared.sharing_config, (others & shared_gpus(inventory, node_sharing)) - policies),
    ):
        if statement is not None and gpus:
            yield Overridden(
                source="label gpushare=true",
                by=statement.source,
                what=f"the sharing of {_named(inventory, gpus)}",
                advice=f"remove the label, or leave these GPUs out of {statement.source}",
            )


def _differing(inventory: Inventory, alone: NodeSharing, node_sharing: NodeSharing) -> frozenset[str]:
    """Return the UUIDs of the GPUs that are shared differently from one source alone."""
    pairs = zip(effective(inventory, alone), effective(inventory, node_sharing), strict=True)
    return frozenset(one.uuid for one, other in pairs if one.sharing != other.sharing)


def _named(inventory: Inventory, uuids: Iterable[str]) -> str:
    """Return GPUs in words: `GPU 3`, `GPUs 0, 1, 2`."""
    chosen = set(uuids)
    indices = [str(facts.index) for facts in inventory.gpus if facts.uuid in chosen]
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(indices)}"
