"""Guaranteed, used and borrowed GPU quota, as metrics."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from tessera.core.usage.families import Labels, Metric
from tessera.core.usage.ownmetrics import (
    QUOTA_BORROWED,
    QUOTA_GUARANTEED,
    QUOTA_LEFT_OUT,
    QUOTA_USED,
)

__all__ = ["QuotaUsage", "quota_metrics"]

_MOST: Final = 2048
"""Most amounts with series: users who create quotas must not fill Prometheus."""


class QuotaUsage(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One resource of GPUs under one quota."""

    kind: Literal["ClusterQueue", "ResourceQuota"]
    quota: str
    """Its name; a ResourceQuota's after its namespace and `/`."""
    cohort: str = ""
    """Cohort whose unused quota may be borrowed; empty for none."""
    flavor: str = ""
    """Flavor: kind of node; empty for all."""
    resource: str
    guaranteed: float
    used: float
    borrowed: float = 0


def quota_metrics(uses: Iterable[QuotaUsage]) -> Mapping[Metric, Mapping[Labels, float]]:
    """Return the values of each metric; without entries that have neither quota nor usage."""
    found = sorted(each for each in uses if each.guaranteed or each.used)
    shown = {tuple((name, getattr(each, name)) for name in QUOTA_USED.labels): each for each in found[:_MOST]}
    return {
        QUOTA_GUARANTEED: {labels: each.guaranteed for labels, each in shown.items()},
        QUOTA_USED: {labels: each.used for labels, each in shown.items()},
        QUOTA_BORROWED: {labels: each.borrowed for labels, each in shown.items() if each.cohort},
        QUOTA_LEFT_OUT: {(): len(found) - len(found[:_MOST])},
    }
