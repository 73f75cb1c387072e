"""A model server as a whole: the sum of its pods' counters, across starts, restarts and ends of pods.

Sums do not decrease, whatever pods do, unless a sample was far too high. Requests of a deleted pod count as ended: pods
drain before they end. A ready pod that could not be read is assumed to serve as many requests as the others: they
count at once, and when it is read again only those beyond them do. So a scrape that fails changes no rate of arrivals.
"""

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from statistics import mean

import msgspec

from tessera.core.serving.metrics.counters import Counters, Unmeasured, went_back
from tessera.core.serving.metrics.load import Load
from tessera.core.serving.metrics.queuetime import LONGEST_S, Window, between

__all__ = ["ServerObservation", "ServerState", "observe"]

_NOISE = 100.0
"""So many arrivals too many are no error: requests in service are estimated where an engine does not report them."""
_SUDDEN, _ALWAYS = 2.0, 10.0
"""A gauge may rise to so many times the requests that the pod had and completed, plus its part of that noise or so many
as an allowance. A higher value counts after the next sample confirms it. Where one pod of ten reports far too many, one
replica at most is added, while no requests wait in the others."""
_ALIKE = 0.8
"""A replica that serves at least this part of what another one does is as full."""
_WRONG_S = 300.0
"""After so long with more arrivals than that, one of the samples was wrong."""
_REASONS = 5
"""So many reasons are named: each pod may give one of its own, and conditions of autoscalers repeat them."""
_ONCE = Unmeasured("scraped once so far; the next scrape compares", too_early=True)


class _Ended(msgspec.Struct, frozen=True):
    """Requests that ended, and the seconds that they were served."""

    completed: float = 0.0
    served_s: float = 0.0

    def beyond(self, other: "_Ended") -> "_Ended":
        """Return those beyond others."""
        return _Ended(max(self.completed - other.completed, 0.0), max(self.served_s - other.served_s, 0.0))


class _Present(msgspec.Struct, frozen=True):
    """Requests of a pod now."""

    waiting: float
    running: float


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a model server between passes."""

    samples: tuple[tuple[str, Counters], ...] = ()
    """The last sample of each pod."""
    windows: tuple[tuple[str, Window], ...] = ()
    """The window before it, if there was a sample before: a pass that finds the same sample learns nothing."""
    resets: frozenset[str] = frozenset()
    """Pods whose counters went back, and whose status does not say yet when the new process started."""
    in_flight: tuple[tuple[str, float], ...] = ()
    """Requests of each pod as last observed or assumed."""
    owed: tuple[tuple[str, _Ended], ...] = ()
    """What was assumed to have ended in pods that could not be read; what they report next pays it."""
    arrived: float = 0.0
    ahead_s: float | None = None
    """Since when more have arrived than ended or are in flight by far; None if that is not so."""
    completed: float = 0.0
    served_s: float = 0.0


class ServerObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of a pass."""

    pods: Mapping[str, Window | Unmeasured]
    load: Load | Unmeasured
    """Unmeasured if fewer than half of the ready pods could be read: too few to guess the rest."""

    @property
    def queue_time_s(self) -> float | Unmeasured:
        """Average wait of a request in seconds, over the requests of all pods."""
        windows = self._windows()
        if isinstance(windows, Unmeasured):
            return windows
        dequeued = sum(each.dequeued for each in windows)
        if dequeued:
            return sum(each.queued_s for each in windows) / dequeued
        return max(each.queue_time_s for each in windows)

    @property
    def waiting(self) -> float | Unmeasured:
        """Requests that are waiting now."""
        windows = self._windows()
        return windows if isinstance(windows, Unmeasured) else sum(each.waiting for each in windows)

    @property
    def in_flight(self) -> float | Unmeasured:
        """Requests in service or waiting now."""
        windows = self._windows()
        return windows if isinstance(windows, Unmeasured) else sum(each.in_flight for each in windows)

    def _windows(self) -> list[Window] | Unmeasured:
        found = [each for each in self.pods.values() if isinstance(each, Window)]
        return found or _unmeasured(self.pods)


def observe(
    former: ServerState,
    pods: Mapping[str, Counters | Unmeasured],
    *,
    at_s: float,
    replicas: int,
    ready: AbstractSet[str],
) -> tuple[ServerState, ServerObservation]:
    """Return the new state, and the observation.

    Args:
        former: the state returned by the former pass; empty in the first.
        pods: each pod's last sample, the same again if there is no new one; or why there is none.
        at_s: the time of the pass.
        replicas: desired.
        ready: the ready ones of the pods.

    """
    # 1. Measure each pod since its former sample.
    windows = _measure_windows(former, pods, at_s)
    measured = {name: window for name, window in windows.items() if isinstance(window, Window)}
    # 2. Count what has ended and what is in flight, also in ready pods that are not measured; the arrivals never fall.
    counted = _count_ended(former, pods, measured, ready)
    present = _present_requests(pods, measured, ready, at_s)
    in_flight = {name: each.waiting + each.running for name, each in present.items()}
    total = sum(in_flight.values())
    counted = _with_arrivals(counted, total, at_s) if measured else counted
    # 3. Return the load, if half of the pods are measured.
    load: Load | Unmeasured
    if 2 * len(measured) < max(len(ready), 1):
        found = _unmeasured(windows)
        # Pods that are not ready yet need no metrics: a model loads for half an hour.
        load = Unmeasured(found.reason, too_early=found.too_early or not ready)
    else:
        # A replica that serves nothing while requests wait in it is broken; one that ends may be of an old template.
        serving = [each for name, each in measured.items() if name in ready and each.running >= 1]
        load = Load(
            at_s=at_s,
            arrived=math.floor(counted.arrived),
            completed=math.floor(counted.completed),
            served_s=counted.served_s,
            in_flight=math.ceil(total),
            waiting=math.floor(sum(each.waiting for each in present.values())),
            unready_in_flight=math.ceil(sum(number for name, number in in_flight.items() if name not in ready)),
            saturated=_mean_saturation(serving),
            queued=any(each.saturated for each in serving),
            replicas=replicas,
            ready=len(ready),
            unread=len(windows.keys() | ready) - len(measured),
        )
    # 4. Keep the samples, and the windows before them.
    return _with_samples(counted, pods, windows, in_flight), ServerObservation(pods=windows, load=load)


def _measure_windows(
    former: ServerState, pods: Mapping[str, Counters | Unmeasured], at_s: float
) -> dict[str, Window | Unmeasured]:
    """Return the window of each pod since its former sample; gauges of a new sample are capped."""
    known, last = dict(former.samples), dict(former.windows)
    windows = {
        name: _measure_window(each, known.get(name), last.get(name, _ONCE), at_s, reset=name in former.resets)
        for name, each in pods.items()
    }
    return {
        name: each
        if pods[name] == known.get(name)
        else _cap_gauges(each, pods[name], known.get(name), last.get(name), len(pods))
        for name, each in windows.items()
    }


def _mean_saturation(serving: Sequence[Window]) -> float | None:
    """Return how many requests a replica serves at once while others wait; None where that is not known of most.

    Where requests wait in some replicas and the others serve as many, all are full. Where the others serve more or
    fewer, the first are not like them, unless they are most: a slow GPU, a long request, a client that keeps to one.
    """
    saturated = [each.running for each in serving if each.saturated]
    others = [each.running for each in serving if not each.saturated]
    if not saturated:
        return None
    found, usual = mean(saturated), mean(others or saturated)
    alike = _ALIKE <= usual / found <= 1 / _ALIKE
    # Of two equal halves the one that serves more shows what a replica can serve.
    most = len(saturated) > len(others) or (len(saturated) == len(others) and found > usual)
    return found if alike or most else None


def _count_ended(
    former: ServerState,
    pods: Mapping[str, Counters | Unmeasured],
    measured: Mapping[str, Window],
    ready: AbstractSet[str],
) -> ServerState:
    """Return the state with what has ended since the former pass, in all pods.

    A ready pod that is not measured is assumed to end as many requests as the measured ones on average, and owes them.
    Its next window pays what it owes first. Where a gap is too long for a window, neither counts.
    """
    known, owed = dict(former.samples), dict(former.owed)
    # 1. A sample that was counted before adds nothing.
    added = list[_Ended]()
    for name, window in measured.items():
        if known.get(name) != pods[name]:
            ended, debt = _Ended(window.completed, window.served_s), owed.get(name, _Ended())
            added.append(ended.beyond(debt))
            owed[name] = debt.beyond(ended)
    completed, served_s = sum(each.completed for each in added), sum(each.served_s for each in added)
    # 2. The first sample of a pod says that it has just begun.
    unread = [name for name in pods if name in ready and name not in measured]
    unread = [name for name in unread if name in owed or name in known or isinstance(pods[name], Unmeasured)]
    share = _Ended(completed / len(measured), served_s / len(measured)) if measured else _Ended()
    for name in unread:
        debt = owed.get(name, _Ended())
        owed[name] = _Ended(debt.completed + share.completed, debt.served_s + share.served_s)
    # 3. Windows begin at the last sample.
    late = {name for name in owed if name not in measured and _is_new(pods.get(name), known.get(name))}
    gone = sum(number for name, number in former.in_flight if name not in pods)
    return msgspec.structs.replace(
        former,
        completed=former.completed + completed + share.completed * len(unread) + gone,
        served_s=former.served_s + served_s + share.served_s * len(unread),
        owed=tuple((name, each) for name, each in owed.items() if name in pods.keys() - late and each != _Ended()),
    )


def _is_new(now: Counters | Unmeasured | None, former: Counters | None) -> bool:
    """Return whether a pod has a sample that is not the former one."""
    return isinstance(now, Counters) and now != former


def _present_requests(
    pods: Mapping[str, Counters | Unmeasured], measured: Mapping[str, Window], ready: AbstractSet[str], at_s: float
) -> dict[str, _Present]:
    """Return the requests now of each pod that is measured or ready; of none if no pod is measured.

    A ready pod with a single sample reports its own; one that could not be read has as many as the others.
    """
    found = {name: _Present(window.waiting, window.running) for name, window in measured.items()}
    if not found:
        return {}
    usual = _Present(mean(each.waiting for each in found.values()), mean(each.running for each in found.values()))
    for name in ready & pods.keys() - measured.keys():
        each = pods[name]
        if isinstance(each, Unmeasured) or at_s - each.at_s > LONGEST_S:
            found[name] = usual
        else:
            most = _gauge_limit(usual.waiting + usual.running, len(pods))
            found[name] = _Present(
                usual.waiting if each.waiting is None else min(each.waiting, most),
                usual.running if each.running is None else min(each.running, most),
            )
    return found


def _with_samples(
    former: ServerState,
    pods: Mapping[str, Counters | Unmeasured],
    windows: Mapping[str, Window | Unmeasured],
    in_flight: Mapping[str, float],
) -> ServerState:
    """Return the state with each pod's last sample, window and requests; deleted pods are forgotten."""
    known, last = dict(former.samples), dict(former.windows)
    samples = {name: known[name] for name in pods if name in known}
    samples |= {name: each for name, each in pods.items() if isinstance(each, Counters)}
    compared = {name: each for name, each in last.items() if not isinstance(pods.get(name), Counters)}
    compared |= {name: each for name, each in windows.items() if isinstance(each, Window)}
    known_in_flight = {name: number for name, number in former.in_flight if name in pods}
    return msgspec.structs.replace(
        former,
        samples=tuple(samples.items()),
        in_flight=tuple((known_in_flight | dict(in_flight)).items()),
        resets=frozenset(
            name for name, each in pods.items() if _is_reset(each, known.get(name), reset=name in former.resets)
        ),
        windows=tuple((name, each) for name, each in compared.items() if name in pods),
    )


def _with_arrivals(counted: ServerState, in_flight: float, at_s: float) -> ServerState:
    """Return the state with the requests that arrived: those that ended or are in flight.

    They do not decrease, unless a sample of requests in flight was far too high: then the policy starts again.
    """
    arrived, ahead_s = counted.completed + in_flight, None
    if counted.arrived > arrived + max(_NOISE, 2 * in_flight):
        since_s = at_s if counted.ahead_s is None else counted.ahead_s
        if at_s - since_s < _WRONG_S:
            arrived, ahead_s = counted.arrived, since_s
    else:
        arrived = max(arrived, counted.arrived)
    return msgspec.structs.replace(counted, arrived=arrived, ahead_s=ahead_s)


def _is_reset(now: Counters | Unmeasured, former: Counters | None, *, reset: bool) -> bool:
    """Return whether a pod's counters went back, now or before, while the start of its process remained the same."""
    if isinstance(now, Unmeasured) or former is None:
        return reset
    return now.started_s <= former.started_s and (reset or went_back(former, now))


def _measure_window(
    now: Counters | Unmeasured, former: Counters | None, last: Window | Unmeasured, at_s: float, *, reset: bool
) -> Window | Unmeasured:
    """Return the window before a pod's last sample; that of the former pass if it is the same sample."""
    if isinstance(now, Unmeasured):
        return now
    if at_s - now.at_s > LONGEST_S:
        return Unmeasured(f"its last sample is {at_s - now.at_s:.0f} s old")
    return last if now == former else between(former, now, reset=reset)


def _cap_gauges(
    window: Window | Unmeasured, now: Counters | Unmeasured, former: Counters | None, last: Window | None, pods: int
) -> Window | Unmeasured:
    """Return the window with its gauges capped at what may have arrived since the former sample.

    What an engine does not report and follows from its counters is capped by the former window, once there is one.
    """
    if isinstance(window, Unmeasured) or isinstance(now, Unmeasured):
        return window
    known = window.completed
    if former is not None:
        known += (last.waiting if last else 0.0) if former.waiting is None else former.waiting
        known += (last.running if last else 0.0) if former.running is None else former.running
    running, waiting = window.running, window.waiting
    if now.running is not None or last is not None:
        running = min(running, _gauge_limit(known, pods))
    if now.waiting is not None or last is not None:
        waiting = min(waiting, _gauge_limit(known + running, pods))
    return msgspec.structs.replace(window, running=running, waiting=waiting)


def _gauge_limit(requests: float, pods: int) -> float:
    """Return how many requests a gauge of one of so many pods may have, which had and ended so many."""
    return max(_NOISE / pods, _ALWAYS) + _SUDDEN * requests


def _unmeasured(pods: Mapping[str, Window | Unmeasured]) -> Unmeasured:
    """Return why nothing is known of a server: a few reasons of its pods, equal ones once."""
    missing = {name: each for name, each in sorted(pods.items()) if isinstance(each, Unmeasured)}
    reasons: dict[str, list[str]] = {}
    for name, each in missing.items():
        reasons.setdefault(each.reason, []).append(name)
    if not reasons:
        return Unmeasured("it has no running pod")
    texts = [f"{len(names)} of {len(pods)} pods ({names[0]}): {reason}" for reason, names in reasons.items()]
    if more := len(texts[_REASONS:]):
        texts[_REASONS:] = [f"{more} more reasons"]
    return Unmeasured("; ".join(texts), too_early=all(each.too_early for each in missing.values()))
