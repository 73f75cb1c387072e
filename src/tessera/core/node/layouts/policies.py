"""Layouts fixed by the node policy: the targets, and whether to try them now."""

from collections.abc import Sequence

import msgspec

from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.node.layouts.configurations import LayoutTarget, exact
from tessera.core.node.layouts.layoutrequest import LayoutLimits
from tessera.core.node.nodesharing import NodeSharing, desired_layouts

__all__ = ["PolicyAttempt", "attempted", "policy_targets", "worth_trying"]


class PolicyAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The last attempt."""

    targets: tuple[LayoutTarget, ...]
    gpus: tuple[GpuFacts, ...]
    """The GPUs before it."""
    again_s: float
    """When it may be retried unchanged, on the caller's clock."""


def policy_targets(inventory: Inventory, node_sharing: NodeSharing) -> tuple[LayoutTarget, ...]:
    """Return the targets of the GPUs that differ from the node policy.

    Raises:
        InvalidInput: a layout that its GPU does not support.

    """
    facts = {gpu.uuid: gpu for gpu in inventory.gpus}
    return tuple(exact(facts[gpu], layout) for gpu, layout in desired_layouts(inventory, node_sharing))


def worth_trying(
    targets: tuple[LayoutTarget, ...], inventory: Inventory, last: PolicyAttempt | None, *, now_s: float
) -> bool:
    """Return whether to try these targets now: a failure waits, unless targets or GPUs changed."""
    if last is None or (last.targets, last.gpus) != (targets, inventory.gpus):
        return bool(targets)
    return bool(targets) and now_s >= last.again_s


def attempted(
    targets: tuple[LayoutTarget, ...],
    inventory: Inventory,
    failures: Sequence[str],
    limits: LayoutLimits,
    *,
    began_s: float,
) -> PolicyAttempt:
    """Return the record of an attempt that began at `began_s`, with the GPUs as in `inventory`."""
    again_s = began_s + limits.retry_s if failures else began_s
    return PolicyAttempt(targets=targets, gpus=inventory.gpus, again_s=again_s)
