"""The wait of requests in a model server's pod: from two samples of its counters.

A queue's counters increase when a request ends, so the ratio of two increases is the mean wait of the requests that
ended between the samples. Unlike the widely copied rule `delta(q) / (1 + delta(n))` it is correct: a restart resets
counters, an idle pod has no wait, and one request counts as one.
"""

from typing import Final

import msgspec

from tessera.core.serving.metrics.counters import MOST_IN_FLIGHT, MOST_RATE, Counters, Unmeasured, went_back
from tessera.core.serving.metrics.load import PASS_S

__all__ = ["LONGEST_S", "Window", "between"]

LONGEST_S: Final = 120.0
"""Samples farther apart say nothing about the present wait: eight failed passes."""
_BATCHES: Final = 2
"""Where an engine does not report its requests in service, it may collect a batch while it serves another: up to this
many times the average number in service may wait although the engine could serve them at once."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The interval between two samples of a pod."""

    seconds: float
    queued_s: float
    dequeued: float
    served_s: float
    completed: float
    waiting: float
    """Requests waiting at its end."""
    running: float
    """Requests in service at its end."""
    stuck: bool
    """Whether requests waited at both ends and none was started in between."""
    saturated: bool
    """Whether requests wait at its end by the engine's own count, because no more can be served at once."""

    @property
    def queue_time_s(self) -> float:
        """Average wait of a request in seconds; at least the window if none was started."""
        if self.dequeued > 0:
            return self.queued_s / self.dequeued
        return self.seconds if self.stuck else 0.0

    @property
    def in_flight(self) -> float:
        """Requests in service or waiting."""
        return self.waiting + self.running


def between(former: Counters | None, now: Counters, *, reset: bool = False) -> Window | Unmeasured:
    """Return the window since the former sample.

    After a restart, or if the process is so young that nothing came before, everything that it counted happened since.

    Args:
        former: the sample before; None for the first one of a pod.
        now: the sample.
        reset: whether the process is known to be another one since before the former sample, though the start that
            came with it was the old one's: a kubelet reports a restart after the new process may be scraped.

    """
    begun = _new(now)
    if former is None and now.at_s - now.started_s > LONGEST_S:
        return Unmeasured("scraped once so far; the next scrape compares", too_early=True)
    base = begun if former is None or _has_restarted(former, now, reset=reset) else former
    seconds = now.at_s - (former or begun).at_s
    if seconds <= 0:
        return Unmeasured("its samples are not in order: a clock went back")
    if seconds > LONGEST_S:
        return Unmeasured(f"no sample for {seconds:.0f} s before this one; the next scrape compares", too_early=True)
    if former is not None and now.started_s <= former.started_s and went_back(former, now):
        # A restart that the kubelet reports later, or a model that was unloaded: what the others counted is not new.
        reason = "a counter went back, as after a restart or where a model was unloaded; the next scrape compares"
        return Unmeasured(reason, too_early=not reset)
    served_s, queued_s = now.served_s - base.served_s, now.queued_s - base.queued_s
    dequeued = now.dequeued - base.dequeued
    running = served_s / seconds if now.running is None else now.running
    if absurd := _absurdity(seconds, queued_s=queued_s, served_s=served_s, completed=now.completed - base.completed):
        return Unmeasured(absurd)
    return Window(
        seconds=seconds,
        queued_s=queued_s,
        dequeued=dequeued,
        served_s=served_s,
        completed=now.completed - base.completed,
        # Little's law: the average number in a place is the time that was spent there by the time that went by.
        waiting=queued_s / seconds if now.waiting is None else now.waiting,
        running=running,
        stuck=dequeued == 0 and bool(now.waiting) and bool(base.waiting),
        saturated=(now.waiting or 0.0) > (_BATCHES * running if now.running is None else 0.0),
    )


def _absurdity(seconds: float, *, queued_s: float, served_s: float, completed: float) -> str:
    """Return what no pod does between two samples; empty where nothing is wrong."""
    # The start of a process is known to the second.
    seconds = max(seconds, PASS_S)
    in_flight = (queued_s + served_s) / seconds
    if in_flight >= 2 * MOST_IN_FLIGHT:
        return f"its counters say {in_flight:.0f} requests in flight on average, not fewer than {2 * MOST_IN_FLIGHT}"
    if completed >= MOST_RATE * seconds:
        return f"its counters say {completed / seconds:.0f} requests a second, not fewer than {MOST_RATE}"
    return ""


def _new(now: Counters) -> Counters:
    """Return the counters of a process at its start."""
    return Counters(
        at_s=now.started_s, started_s=now.started_s, queued_s=0.0, dequeued=0.0, served_s=0.0, completed=0.0
    )


def _has_restarted(former: Counters, now: Counters, *, reset: bool) -> bool:
    """Return whether the process is another one: it started later, or a counter went back before that is known.

    The former sample may be the new process's already: a kubelet reports a restart late. Where the node's clock, which
    gives the start, hides that, too few requests are counted rather than some of them twice.
    """
    later = now.started_s > former.started_s and former.at_s <= now.started_s
    return went_back(former, now) or (later and not reset)
