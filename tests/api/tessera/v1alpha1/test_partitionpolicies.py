"""What GPUPolicies mean for partitioning."""

import pytest

from builders.policyobjects import gpu_policy
from tessera.api.tessera.v1alpha1.gpupolicies import read_gpu_policy
from tessera.api.tessera.v1alpha1.partitionpolicies import partition_policy
from tessera.core.packing.partitioning import ChangeBudget, PartitioningLimits, PartitioningPolicy
from tessera.core.workload.need import Requirement, SelectorTerm

POLICY = read_gpu_policy(gpu_policy({}))


def test_what_policies_mean_for_partitioning() -> None:
    """Seconds, packing policy, selector and budget are taken over as they are."""
    spec = {
        "nodeSelector": {"matchLabels": {"pool": "x"}},
        "priority": 5,
        "repartition": {"allowed": False, "idleSeconds": 1, "longestSeconds": 2, "keepIdleSeconds": 3},
        "disruption": {"budget": 4},
        "packingPolicy": "fgd",
    }
    term = SelectorTerm(expressions=(Requirement(key="pool", operator="In", values=("x",)),))
    want = PartitioningPolicy(
        name="test",
        term=term,
        priority=5,
        allowed=False,
        limits=PartitioningLimits(idle_s=1, longest_s=2, keep_s=3, policy="fgd"),
        budget=ChangeBudget(gpus=4),
    )
    assert partition_policy(read_gpu_policy(gpu_policy(spec))) == want
    assert partition_policy(POLICY).budget == ChangeBudget(percent=10)


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({}, "tessera"),
        ({"strategy": "fgd"}, "fgd"),
        ({"packingPolicy": "best-fit"}, "best-fit"),
        # The API server stored the default of the former name in objects of earlier versions.
        ({"packingPolicy": "fgd", "strategy": "tessera"}, "fgd"),
    ],
)
def test_the_packing_policy_is_read_by_its_former_name_too(spec: dict[str, str], want: str) -> None:
    assert partition_policy(read_gpu_policy(gpu_policy(spec))).limits.policy == want
