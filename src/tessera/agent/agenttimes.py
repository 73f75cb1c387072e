"""The agent's clocks, and how long a call of the kubelet waits for others."""

import time
from collections.abc import Callable

import msgspec

__all__ = ["AgentTimes"]


class AgentTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The kubelet waits as long as the plugin does: these are short."""

    clock_s: Callable[[], float] = time.monotonic
    """A monotonic clock for what is forgotten after a while: the wall clock may jump."""
    now_ns: Callable[[], int] = time.time_ns
    """The time of what is recorded, in nanoseconds since 1970."""
    termination_s: float = 5.0
    """How long a container waits for the processes of a terminating pod; the kubelet kills them after two seconds at
    least, and retries a refused container."""
    late_s: float = 3.0
    """How long an assignment may take from the API server to this agent after the kubelet has it."""
