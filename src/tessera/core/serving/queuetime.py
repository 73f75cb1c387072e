"""How long requests wait at a model server's pod: from two samples of its counters.

A queue's counters move when a request ends, so the ratio of two increases is the mean wait of the requests that ended
between the samples. What the widely copied rule `delta(q) / (1 + delta(n))` gets wrong is right here: a restart resets
counters, an idle pod waits for nothing, and one request counts as one.
"""

from typing import Final

import msgspec

__all__ = ["LONGEST_S", "Counters", "Missing", "Window", "between"]

LONGEST_S: Final = 120.0
"""Samples that are farther apart say nothing about the wait now: eight looks that failed."""


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod exposes at a moment, in the words that all engines have in common. Counters count since it started."""

    at_s: float
    started_s: float
    """When the process began, as the kubelet says."""
    queued_s: float
    """Sum of the seconds that requests waited for."""
    dequeued: float
    """Requests that this sum is over."""
    served_s: float
    """Sum of the seconds that they were served for."""
    completed: float
    """Requests that ended, well or not."""
    waiting: float | None = None
    """Requests that wait now; None where the engine does not say."""
    running: float | None = None
    """Requests that are served now; None where the engine does not say."""


class Missing(msgspec.Struct, frozen=True):
    """Why nothing is known of a pod."""

    reason: str
    early: bool = False
    """Whether nothing is wrong: two samples are compared, and there is one so far."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What happened at a pod between two samples."""

    seconds: float
    queued_s: float
    dequeued: float
    served_s: float
    completed: float
    waiting: float
    """Requests that wait at its end."""
    running: float
    """Requests that are served at its end."""
    stuck: bool
    """Whether requests wait at both ends and none got its turn between them."""

    @property
    def queue_time_s(self) -> float:
        """Seconds that a request waits, on average; at least the window where none got its turn."""
        if self.dequeued > 0:
            return self.queued_s / self.dequeued
        return self.seconds if self.stuck else 0.0

    @property
    def in_flight(self) -> float:
        """Requests that are served or wait."""
        return self.waiting + self.running


def between(former: Counters | None, now: Counters) -> Window | Missing:
    """Return what happened since the former sample.

    Where the process restarted, or is that young that nothing came before, everything that it counted happened since.

    Args:
        former: the sample before; None for the first one of a pod.
        now: the sample.

    """
    begun = _new(now)
    if former is None and now.at_s - now.started_s > LONGEST_S:
        return Missing("seen for the first time; the next look compares", early=True)
    base = begun if former is None or _restarted(former, now) else former
    seconds = now.at_s - (former or begun).at_s
    if seconds <= 0:
        return Missing("its samples are not in order: a clock went back")
    if seconds > LONGEST_S:
        return Missing(f"no sample for {seconds:.0f} s before this one; the next look compares", early=True)
    served_s, queued_s = now.served_s - base.served_s, now.queued_s - base.queued_s
    dequeued = now.dequeued - base.dequeued
    return Window(
        seconds=seconds,
        queued_s=queued_s,
        dequeued=dequeued,
        served_s=served_s,
        completed=now.completed - base.completed,
        # Little's law: what is in a place on average is the time that was spent there by the time that went by.
        waiting=queued_s / seconds if now.waiting is None else now.waiting,
        running=served_s / seconds if now.running is None else now.running,
        stuck=dequeued == 0 and bool(now.waiting) and bool(base.waiting),
    )


def _new(now: Counters) -> Counters:
    """Return the counters of a process as it began."""
    return Counters(
        at_s=now.started_s, started_s=now.started_s, queued_s=0.0, dequeued=0.0, served_s=0.0, completed=0.0
    )


def _restarted(former: Counters, now: Counters) -> bool:
    """Return whether the process is another one: it began since, or a counter went back before the kubelet said so."""
    names = ("queued_s", "dequeued", "served_s", "completed")
    return now.started_s > former.at_s or any(getattr(now, each) < getattr(former, each) for each in names)
