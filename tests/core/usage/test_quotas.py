"""Metrics of quotas: what is guaranteed, used and borrowed, and how many series there are at the most."""

import msgspec

from tessera.core.usage.families import Labels
from tessera.core.usage.ownmetrics import QUOTA_BORROWED, QUOTA_GUARANTEED, QUOTA_LEFT_OUT, QUOTA_USED
from tessera.core.usage.quotas import QuotaUsage, quota_metrics

MEMORY = "tessera.dev/gpu-memory"
QUEUE = QuotaUsage(
    kind="ClusterQueue", quota="a", cohort="all", flavor="a100", resource=MEMORY, guaranteed=160, used=200, borrowed=40
)
HARD = QuotaUsage(kind="ResourceQuota", quota="ns/gpus", resource=MEMORY, guaranteed=8, used=2)


def labels(kind: str, quota: str, cohort: str = "", flavor: str = "") -> Labels:
    return ("kind", kind), ("quota", quota), ("cohort", cohort), ("flavor", flavor), ("resource", MEMORY)


def test_each_quota_has_its_amounts_and_borrows_in_a_cohort_alone() -> None:
    queue, hard = labels("ClusterQueue", "a", "all", "a100"), labels("ResourceQuota", "ns/gpus")
    assert quota_metrics([HARD, QUEUE]) == {
        QUOTA_GUARANTEED: {queue: 160, hard: 8},
        QUOTA_USED: {queue: 200, hard: 2},
        QUOTA_BORROWED: {queue: 40},
        QUOTA_LEFT_OUT: {(): 0},
    }


def test_what_only_forbids_has_no_series_and_what_is_used_beyond_nothing_has() -> None:
    none = msgspec.structs.replace(HARD, guaranteed=0, used=0)
    over = msgspec.structs.replace(HARD, quota="ns/late", guaranteed=0)
    assert quota_metrics([none, over])[QUOTA_USED] == {labels("ResourceQuota", "ns/late"): 2}


def test_series_are_bounded_and_what_is_left_out_is_counted() -> None:
    found = quota_metrics(msgspec.structs.replace(HARD, quota=f"ns/{number}") for number in range(2050))
    assert (len(found[QUOTA_USED]), found[QUOTA_LEFT_OUT]) == (2048, {(): 2})
