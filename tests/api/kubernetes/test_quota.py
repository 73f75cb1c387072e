"""Quotas of a cluster, and what is used of them."""

from typing import Any

import msgspec
import pytest

from tessera.api.kubernetes.quota import read_cluster_queue, read_resource_quota
from tessera.core.usage.quotas import QuotaUsage
from tessera.errors import InvalidInput

GPUS = {"name": "gpus", "namespace": "team-a"}
MEMORY, COMPUTE = "tessera.dev/gpu-memory", "tessera.dev/gpu-compute"


def test_a_resource_quota_allows_what_is_enforced() -> None:
    found = read_resource_quota(
        {
            "metadata": GPUS,
            "spec": {"hard": {"requests.nvidia.com/gpu": "9"}},
            "status": {
                "hard": {f"requests.{MEMORY}": "160", f"requests.{COMPUTE}": "4e2", "requests.cpu": "8", "pods": "3"},
                "used": {f"requests.{MEMORY}": "12", "requests.cpu": "7"},
            },
        }
    )
    assert [*found] == [
        QuotaUsage(kind="ResourceQuota", quota="team-a/gpus", resource=MEMORY, guaranteed=160, used=12),
        QuotaUsage(kind="ResourceQuota", quota="team-a/gpus", resource=COMPUTE, guaranteed=400, used=0),
    ]


def test_a_resource_quota_that_no_controller_has_seen_allows_what_was_asked() -> None:
    (found,) = read_resource_quota({"metadata": GPUS, "spec": {"hard": {"requests.nvidia.com/mig-1g.5gb": "2"}}})
    assert found == QuotaUsage(
        kind="ResourceQuota", quota="team-a/gpus", resource="nvidia.com/mig-1g.5gb", guaranteed=2, used=0
    )


def test_names_that_are_only_forbidden_are_left_out() -> None:
    assert [*read_resource_quota({"metadata": GPUS, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}})] == []


QUEUE: dict[str, Any] = {
    "metadata": {"name": "team-a"},
    "spec": {
        "cohortName": "all-gpus",
        "resourceGroups": [
            {"flavors": [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "64"}]}]},
            {
                "flavors": [
                    {"name": "a100", "resources": [{"name": MEMORY, "nominalQuota": "160", "borrowingLimit": "80"}]},
                    {"name": "h100", "resources": [{"name": MEMORY, "nominalQuota": 80}]},
                ]
            },
        ],
    },
    "status": {
        "flavorsReservation": [{"name": "h100", "resources": [{"name": MEMORY, "total": "80"}]}],
        "flavorsUsage": [
            {"name": "a100", "resources": [{"name": MEMORY, "total": "200", "borrowed": "40"}]},
            {"name": "h100", "resources": [{"name": MEMORY, "total": "0", "borrowed": "0"}]},
        ],
    },
}


def test_a_cluster_queue_is_guaranteed_its_nominal_quota_and_may_borrow() -> None:
    a100, h100 = read_cluster_queue(QUEUE)
    assert a100 == QuotaUsage(
        kind="ClusterQueue",
        quota="team-a",
        cohort="all-gpus",
        flavor="a100",
        resource=MEMORY,
        guaranteed=160,
        used=200,
        borrowed=40,
    )
    assert h100 == msgspec.structs.replace(a100, flavor="h100", guaranteed=80, used=0, borrowed=0)


def test_a_cluster_queue_that_kueue_has_not_seen_uses_nothing() -> None:
    found = [*read_cluster_queue({"metadata": {"name": "team-a"}, "spec": QUEUE["spec"]})]
    assert [(each.guaranteed, each.used, each.borrowed) for each in found] == [(160, 0, 0), (80, 0, 0)]


BROKEN: dict[str, dict[str, Any]] = {
    "no name": {"metadata": {}},
    "a number for amounts": {"metadata": GPUS, "spec": {"hard": 1, "resourceGroups": 1}},
    "no quantity": {
        "metadata": GPUS,
        "spec": {
            "hard": {f"requests.{MEMORY}": "NaN"},
            "resourceGroups": [{"flavors": [{"name": "f", "resources": [{"name": MEMORY, "nominalQuota": []}]}]}],
        },
    },
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_refused_by_name(case: str) -> None:
    with pytest.raises(InvalidInput, match="ResourceQuota"):
        [*read_resource_quota(BROKEN[case])]
    with pytest.raises(InvalidInput, match="ClusterQueue"):
        [*read_cluster_queue(BROKEN[case])]
