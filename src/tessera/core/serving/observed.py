"""A model server as a whole: the sum of its pods' counters, across starts, restarts and ends of pods.

Sums do not decrease, whatever pods do, unless a sample was far too high. Requests of a deleted pod count as ended: pods
drain before they end. A pod that could not be read is assumed to be as busy as the others.
"""

import math
from collections.abc import Mapping
from statistics import mean

import msgspec

from tessera.core.serving.load import Load
from tessera.core.serving.queuetime import LONGEST_S, Counters, Missing, Window, between, went_back

__all__ = ["ServerMemory", "ServerObservation", "observe"]

_NOISE = 100.0
"""So many arrivals too many are no error: requests in service are estimated where an engine does not report them."""
_WRONG_S = 300.0
"""After so long with more arrivals than that, one of the samples was wrong."""
_ONCE = Missing("scraped once so far; the next scrape compares", early=True)


class ServerMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a model server between passes."""

    samples: tuple[tuple[str, Counters], ...] = ()
    """The last sample of each pod."""
    windows: tuple[tuple[str, Window], ...] = ()
    """The window before it, if there was a sample before: a pass that finds the same sample learns nothing."""
    resets: frozenset[str] = frozenset()
    """Pods whose counters went back, and whose status does not say yet when the new process started."""
    in_flight: tuple[tuple[str, float], ...] = ()
    """Requests of each pod as last observed."""
    arrived: float = 0.0
    ahead_s: float | None = None
    """Since when more have arrived than ended or are in flight by far; None if that is not so."""
    completed: float = 0.0
    served_s: float = 0.0


class ServerObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of a pass."""

    pods: Mapping[str, Window | Missing]
    load: Load | Missing
    """Missing if fewer than half of the ready pods could be read: too few to guess the rest."""

    @property
    def queue_time_s(self) -> float | Missing:
        """Average wait of a request in seconds, over the requests of all pods."""
        windows = self._windows()
        if isinstance(windows, Missing):
            return windows
        dequeued = sum(each.dequeued for each in windows)
        if dequeued:
            return sum(each.queued_s for each in windows) / dequeued
        return max(each.queue_time_s for each in windows)

    @property
    def waiting(self) -> float | Missing:
        """Requests that are waiting now."""
        windows = self._windows()
        return windows if isinstance(windows, Missing) else sum(each.waiting for each in windows)

    @property
    def in_flight(self) -> float | Missing:
        """Requests in service or waiting now."""
        windows = self._windows()
        return windows if isinstance(windows, Missing) else sum(each.in_flight for each in windows)

    def _windows(self) -> list[Window] | Missing:
        found = [each for each in self.pods.values() if isinstance(each, Window)]
        return found or _nothing(self.pods)


def observe(
    former: ServerMemory, pods: Mapping[str, Counters | Missing], *, at_s: float, replicas: int, ready: int
) -> tuple[ServerMemory, ServerObservation]:
    """Return the new state, and the observation.

    Args:
        former: the state returned by the former pass; empty in the first.
        pods: each pod's last sample, or why there is none. If scrapes are less frequent than passes, it is the same
            again.
        at_s: the time of the pass.
        replicas: desired.
        ready: number of ready pods.

    """
    # 1. Measure each pod since its former sample, and count what has completed, also of pods that are gone.
    known, last, busy = dict(former.samples), dict(former.windows), dict(former.in_flight)
    windows, completed, served_s = dict[str, Window | Missing](), former.completed, former.served_s
    for name, each in pods.items():
        before = known.get(name)
        windows[name] = window = _window(each, before, last.get(name, _ONCE), at_s, reset=name in former.resets)
        if isinstance(window, Window) and before != each:
            completed += window.completed
            served_s += window.served_s
    completed += sum(number for name, number in busy.items() if name not in pods)
    # 2. Count what is in flight, of all ready pods as of those that are measured; the arrivals never fall.
    in_flight = {
        name: window.in_flight if isinstance(window, Window) else busy[name]
        for name, window in windows.items()
        if isinstance(window, Window) or name in busy
    }
    measured = [window for window in windows.values() if isinstance(window, Window)]
    scale = max(ready, len(measured)) / len(measured) if measured else 0.0
    total = sum(window.in_flight for window in measured) * scale
    saturated = [window.running for window in measured if window.saturated]
    arrived, ahead_s = (
        _arrivals(former, completed + total, total, at_s) if measured else (former.arrived, former.ahead_s)
    )
    # 3. Return the load, if half of the pods are measured.
    load: Load | Missing
    if 2 * len(measured) < max(ready, 1):
        found = _nothing(windows)
        # Pods that are not ready yet need no metrics: a model loads for half an hour.
        load = Missing(found.reason, early=found.early or ready == 0)
    else:
        load = Load(
            at_s=at_s,
            arrived=math.floor(arrived),
            completed=math.floor(completed),
            served_s=served_s,
            in_flight=math.ceil(total),
            waiting=math.floor(sum(window.waiting for window in measured) * scale),
            saturated=mean(saturated) if saturated else None,
            replicas=replicas,
            ready=ready,
            unread=max(len(windows), ready) - len(measured),
        )
    # 4. Keep the samples, and the windows before them.
    return msgspec.structs.replace(
        _with_samples(former, pods, windows),
        in_flight=tuple(in_flight.items()),
        arrived=arrived,
        ahead_s=ahead_s,
        completed=completed,
        served_s=served_s,
    ), ServerObservation(pods=windows, load=load)


def _with_samples(
    former: ServerMemory, pods: Mapping[str, Counters | Missing], windows: Mapping[str, Window | Missing]
) -> ServerMemory:
    """Return the state with the last sample of each pod, and the window before it; deleted pods are forgotten."""
    known, last = dict(former.samples), dict(former.windows)
    samples = {name: known[name] for name in pods if name in known}
    samples |= {name: each for name, each in pods.items() if isinstance(each, Counters)}
    compared = {name: each for name, each in last.items() if not isinstance(pods.get(name), Counters)}
    compared |= {name: each for name, each in windows.items() if isinstance(each, Window)}
    return msgspec.structs.replace(
        former,
        samples=tuple(samples.items()),
        resets=frozenset(
            name for name, each in pods.items() if _is_reset(each, known.get(name), reset=name in former.resets)
        ),
        windows=tuple((name, each) for name, each in compared.items() if name in pods),
    )


def _arrivals(former: ServerMemory, counted: float, in_flight: float, at_s: float) -> tuple[float, float | None]:
    """Return the requests that arrived, and since when they are too many to be true.

    They do not decrease, unless a sample of requests in flight was far too high: then the policy starts again.
    """
    if former.arrived <= counted + max(_NOISE, 2 * in_flight):
        return max(former.arrived, counted), None
    ahead_s = at_s if former.ahead_s is None else former.ahead_s
    return (counted, None) if at_s - ahead_s >= _WRONG_S else (former.arrived, ahead_s)


def _is_reset(each: Counters | Missing, former: Counters | None, *, reset: bool) -> bool:
    """Return whether a pod's counters went back, now or before, while the start of its process remained the same."""
    if isinstance(each, Missing) or former is None:
        return reset
    return each.started_s <= former.started_s and (reset or went_back(former, each))


def _window(
    each: Counters | Missing, former: Counters | None, last: Window | Missing, at_s: float, *, reset: bool
) -> Window | Missing:
    """Return the window before a pod's last sample; that of the former pass if it is the same sample."""
    if isinstance(each, Missing):
        return each
    if at_s - each.at_s > LONGEST_S:
        return Missing(f"its last sample is {at_s - each.at_s:.0f} s old")
    return last if each == former else between(former, each, reset=reset)


def _nothing(pods: Mapping[str, Window | Missing]) -> Missing:
    """Return why nothing is known of a server: the reasons of its pods, the first of several equal ones."""
    missing = {name: each for name, each in sorted(pods.items()) if isinstance(each, Missing)}
    reasons: dict[str, list[str]] = {}
    for name, each in missing.items():
        reasons.setdefault(each.reason, []).append(name)
    if not reasons:
        return Missing("it has no running pod")
    texts = (f"{len(names)} of {len(pods)} pods ({names[0]}): {reason}" for reason, names in reasons.items())
    return Missing("; ".join(texts), early=all(each.early for each in missing.values()))
