"""What engines count of their requests, in one form for all."""

from typing import Final

import msgspec

__all__ = ["MOST_IN_FLIGHT", "MOST_RATE", "Counters", "Unmeasured", "went_back"]

MOST_IN_FLIGHT: Final = 100_000
"""Upper bound of the requests that plausibly wait in a pod, or are in service there, at a moment, of all its models."""
MOST_RATE: Final = 10_000
"""Upper bound of the requests that plausibly end in a pod in a second."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's metrics at a moment, in the terms that all engines share. Counters count since it started."""

    at_s: float
    started_s: float
    """Start of the process, by the kubelet."""
    queued_s: float
    """Sum of the waits in seconds."""
    dequeued: float
    """Number of requests in this sum."""
    served_s: float
    """Sum of the service times in seconds."""
    completed: float
    """Requests that ended, successfully or not."""
    waiting: float | None = None
    """Requests that are waiting now; None where the engine does not report it."""
    running: float | None = None
    """Requests in service now; None where the engine does not report it."""


class Unmeasured(msgspec.Struct, frozen=True):
    """Why nothing is known of a pod."""

    reason: str
    too_early: bool = False
    """Two samples are compared, and there is one so far."""


def went_back(former: Counters, now: Counters) -> bool:
    """Return whether a counter went back."""
    names = ("queued_s", "dequeued", "served_s", "completed")
    return any(getattr(now, each) < getattr(former, each) for each in names)
