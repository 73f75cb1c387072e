"""The load of a model server at a moment: the autoscaler's input, measured in each pass."""

from typing import Final

import msgspec

__all__ = ["PASS_S", "SUSTAINED_S", "Load"]

PASS_S: Final = 15
"""Between two passes, and two scrapes: the sync period of HorizontalPodAutoscalers."""
SUSTAINED_S: Final = 3 * PASS_S
"""From the first to the last of four passes: true in all of them counts as true for a minute."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A model server's metrics at a moment. Counters may start at any time."""

    at_s: float
    arrived: int
    """Requests that arrived."""
    completed: int
    """Requests that ended."""
    served_s: float
    """Sum of their service times in seconds, without the wait."""
    in_flight: int
    """Requests in service or waiting now."""
    replicas: int
    """Desired replicas."""
    ready: int
    """Ready replicas."""
    waiting: int = 0
    """Those of `in_flight` that wait, where the engine counts them."""
    unready_in_flight: int = 0
    """Those of `in_flight` in replicas that are not ready: these serve, although their probe fails."""
    saturated: float | None = None
    """Requests that a replica serves at once, where requests wait in half of the replicas or more; None elsewhere.
    Replicas that serve none are broken and do not count."""
    queued: bool = False
    """Whether requests wait in any of these replicas because it serves no more at once."""
    revision: str | None = ""
    """The template of its pods; None while a rollout replaces them."""
    unread: int = 0
    """Replicas whose load was not measured; they are assumed to be as busy as the others."""
    woken_s: float | None = None
    """When a wake-up was last requested; None for never."""
