"""What containers used of their devices since they were first observed: a short history, for right-sizing."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from tessera.core.gpu.deviceids import DeviceId
from tessera.core.usage.activity import IDLE_PERCENT
from tessera.core.usage.attribution import GpuUsage

__all__ = ["Histories", "HistoryKey", "UsageHistory", "update_histories"]

_LONGEST_S = 60.0
"""An observation speaks for so long before it at most: what was between two that are further apart is unknown."""

HistoryKey: TypeAlias = tuple[tuple[str, str], DeviceId]
"""A container, by UID of its pod and name, and its device."""


class UsageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What a container used of a device since it was first observed."""

    last_s: float
    """When it was last observed, on the caller's clock."""
    peak_mib: int | None = None
    """None if its memory was never known."""
    known_s: float = 0.0
    """For how long its memory was known."""
    load_known_s: float = 0.0
    """For how long its load was known."""
    percent_sum: float = 0.0
    percent_count: int = 0

    @property
    def mean_percent(self) -> float | None:
        """Its average load; None if it was never known."""
        return self.percent_sum / self.percent_count if self.percent_count else None


Histories: TypeAlias = Mapping[HistoryKey, UsageHistory]


def update_histories(former: Histories, uses: Iterable[GpuUsage], now_s: float) -> Histories:
    """Return the histories after an observation; those of deleted containers are forgotten.

    Where processes that have exited used a shared device, it is unknown how much of it each container used: only its
    peak counts, which is at least that of the processes that run.
    """
    found: dict[HistoryKey, UsageHistory] = {}
    for device in (device for gpu in uses for device in gpu.devices):
        for each in device.containers:
            key = each.allocation.key, device.device
            history = former.get(key, UsageHistory(last_s=now_s))
            explained = (device.ended_percent or 0.0) < IDLE_PERCENT
            percent = each.busy_percent if explained else None
            passed_s = min(now_s - history.last_s, _LONGEST_S)
            known = [mib for mib in (history.peak_mib, each.memory_mib) if mib is not None]
            found[key] = msgspec.structs.replace(
                history,
                last_s=now_s,
                known_s=history.known_s + (passed_s if explained and each.memory_mib is not None else 0.0),
                load_known_s=history.load_known_s + (0.0 if percent is None else passed_s),
                peak_mib=max(known, default=None),
                percent_sum=history.percent_sum + (percent or 0.0),
                percent_count=history.percent_count + (percent is not None),
            )
    return found
