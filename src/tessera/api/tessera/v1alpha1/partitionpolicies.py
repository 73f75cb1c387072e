"""The partitioning settings of GPUPolicy objects, as values of the core."""

from tessera.api.tessera.v1alpha1.gpupolicies import GpuPolicy, selector_term
from tessera.core.packing.partitioning import ChangeBudget, PartitioningLimits, PartitioningPolicy

__all__ = ["partition_policy"]


def partition_policy(policy: GpuPolicy) -> PartitioningPolicy:
    """Return the partitioning settings of a policy's nodes."""
    spec, budget = policy.spec, policy.spec.disruption.budget
    return PartitioningPolicy(
        name=policy.name,
        term=selector_term(spec.node_selector),
        priority=spec.priority,
        allowed=spec.repartition.allowed,
        limits=PartitioningLimits(
            idle_s=spec.repartition.idle_seconds,
            longest_s=spec.repartition.longest_seconds,
            keep_s=spec.repartition.keep_idle_seconds,
            policy=spec.packing_policy or spec.strategy or "tessera",
        ),
        budget=ChangeBudget(gpus=budget)
        if isinstance(budget, int)
        else ChangeBudget(percent=int(budget.removesuffix("%"))),
    )
