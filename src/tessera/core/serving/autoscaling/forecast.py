"""The forecast of a model server's demand: slots in use when a replica requested now would be ready.

It forecasts the requests in flight one cold start ahead, from the arrivals of the last minutes and their trend, and
adds a margin: by how much its own forecasts of the last hour were too low. Bursty traffic is hard to forecast and gets
a large margin; smooth traffic a small one; nothing is tuned by hand. When more requests arrive than chance explains, it
uses the rate since then. Where requests will still wait by then, although replicas start meanwhile, it adds what serves
these within a minute.

Source of the jumps: a window that is cut where its newer part differs from the older one by more than their variance
allows (Bifet and Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing", SDM 2007); the variance of counts
by their index of dispersion (Gusella, "Characterizing the Variability of Arrival Processes with Indexes of Dispersion",
IEEE JSAC 9(2), 1991); three standard deviations as in a control chart. How the other constants were chosen:
docs/decisions/0039-constants-of-the-autoscaler.md.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

import msgspec

from tessera.core.serving.metrics.load import PASS_S, Load

__all__ = [
    "ERRORS_S",
    "ForecastError",
    "ForecastState",
    "SlotDemand",
    "StartingReplicas",
    "forecast_demand",
    "list_starting",
]

_RECENT_S: Final = 240
"""The current rate is that of the last so many seconds."""
_TREND_S: Final = 1500
"""Its trend is relative to the rate of the last so many."""
_TREND: Final = 0.75
"""The part of a trend that is expected to continue."""
_JUMP_S: Final = 30
"""The shortest time in which a jump of the rate is recognized: two passes."""
_SURE: Final = 3.0
"""A jump is an excess of so many standard deviations. The new rate is taken one standard deviation lower."""
_DISPERSION: Final = 4.0
"""The index of dispersion of arrivals while it is unknown: gaps with a coefficient of variation of 2."""
_MINUTES: Final = 5
"""It is unknown with fewer minutes than this."""
ERRORS_S: Final = 3600
"""Forecasts are judged over this time."""
_QUANTILE: Final = 0.86
"""The margin covers the errors of this share of the moments. Few requests wait long in the rest: slots become free."""
_BURSTS: Final = 0.3
"""Moments are weighted by this power of their arrivals: with 0 all alike, with 1 as requests experience them."""
_ENOUGH: Final = 20
"""With fewer errors the guess below counts; with four times as many it is ignored."""
_GUESS: Final = math.sqrt(2.5)
"""The margin before that, in square roots of the forecast: arrivals twice as irregular as a Poisson process."""
_MINUTE_S: Final = 60
_DRAIN_S: Final = 60
"""A queue is to be gone this long after replicas that are requested now are ready, if a request takes no longer."""
_LATE: Final = 2.0
"""A replica that is not ready after so many cold starts may never be, and others are requested in its place."""
_LEAST: Final = 0.5
"""The smallest margin, in square roots of the forecast."""


class ForecastError(msgspec.Struct, frozen=True):
    """By how many slots a forecast was too low, and the weight of the moment."""

    at_s: float
    slots: float
    weight: float


class SlotDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Slots for the time when a replica requested now is ready."""

    forecast: float
    margin: float
    draining: float
    """To drain the queue."""

    @property
    def slots(self) -> int:
        """All of them."""
        return math.ceil(self.forecast + self.margin + self.draining)


class ForecastState(msgspec.Struct, frozen=True, kw_only=True):
    """The former forecasts, and how wrong they were."""

    forecasts: tuple[tuple[float, float], ...] = ()
    """When a forecast was made, and its slots."""
    errors: tuple[ForecastError, ...] = ()


def forecast_demand(
    state: ForecastState, loads: Sequence[Load], *, slots: int, cold_start_s: float
) -> tuple[ForecastState, SlotDemand]:
    """Return the new state, and the slots for the time when a replica requested now is ready.

    Args:
        state: the state returned by the former pass; empty in the first.
        loads: of the last hour, in order; at least one.
        slots: requests that a replica serves at once.
        cold_start_s: from requesting a replica until it is ready.

    """
    # 1. Forecast the slots in use, from the rate then and the time that a request is served.
    forecast = _forecast_rate(loads, cold_start_s) * _service_s(loads)
    # 2. Take a margin from the errors of such forecasts, and add what drains the queue of then.
    errors = _add_error(state, loads, cold_start_s)
    draining = _slots_to_drain(loads, forecast, slots=slots, cold_start_s=cold_start_s)
    demand = SlotDemand(forecast=forecast, margin=_margin(errors, forecast), draining=draining)
    # 3. Remember the forecast until it is judged.
    now_s = loads[-1].at_s
    forecasts = *(each for each in state.forecasts if each[0] > now_s - ERRORS_S), (now_s, forecast)
    return ForecastState(forecasts=forecasts, errors=errors), demand


def _forecast_rate(loads: Sequence[Load], cold_start_s: float) -> float:
    """Return the forecast of the requests a second one cold start from now."""
    jumped = _rate_after_jump(loads)
    if jumped is not None:
        return jumped
    now, recent, trend = loads[-1], _load_before(loads, _RECENT_S), _load_before(loads, _TREND_S)
    rate = _rate(recent, now)
    # The two rates are those of the middles of their times.
    apart_s = (recent.at_s - trend.at_s) / 2
    slope = (rate - _rate(trend, now)) / apart_s if apart_s >= _RECENT_S / 2 else 0.0
    ahead_s = cold_start_s + PASS_S + (now.at_s - recent.at_s) / 2
    return min(max(rate + _TREND * slope * ahead_s, rate / 2), rate * 2)


def _rate_after_jump(loads: Sequence[Load]) -> float | None:
    """Return the rate since the last moment after which more requests arrived than chance explains; None for none."""
    now, oldest = loads[-1], _load_before(loads, _RECENT_S)
    dispersion, usual = _dispersion(loads), _rate(oldest, now)
    for since in reversed(loads):
        new_s, old_s = now.at_s - since.at_s, since.at_s - oldest.at_s
        if new_s < _JUMP_S or old_s <= 0:
            continue
        # The counts of both parts vary. With hardly any requests one more or less is no jump.
        deviation = math.sqrt(dispersion * max(usual * new_s, 1.0) * (1 + new_s / old_s))
        if now.arrived - since.arrived - new_s * _rate(oldest, since) > _SURE * deviation:
            return _rate(since, now) - deviation / new_s
    return None


def _dispersion(loads: Sequence[Load]) -> float:
    """Return the index of dispersion of arrivals: the variance of the counts of minutes over their mean, at least 1.

    Each minute is compared with the next one, so a rate that changes slowly is not dispersion. 1 is a Poisson process.
    """
    marks = [loads[-1]]
    for each in reversed(loads):
        if each.at_s <= marks[-1].at_s - _MINUTE_S:
            marks.append(each)
    counts = [newer.arrived - older.arrived for newer, older in pairwise(marks)]
    total = sum(a + b for a, b in pairwise(counts))
    if len(counts) < _MINUTES or not total:
        return _DISPERSION
    return max(sum((a - b) ** 2 for a, b in pairwise(counts)) / total, 1.0)


def _slots_to_drain(loads: Sequence[Load], forecast: float, *, slots: int, cold_start_s: float) -> float:
    """Return the slots that drain the queue which there will be when a replica requested now is ready.

    Replicas that start meanwhile serve requests from when they are ready, so they are not requested twice.
    """
    now, service_s = loads[-1], _service_s(loads)
    begun = list_starting(loads, cold_start_s)
    replicas = sum(each.count for each in begun)
    # What is served is no queue, and goes on where more replicas serve than are ready.
    served = max(slots * now.ready, now.in_flight - now.waiting)
    started_s = sum(each.count * min(each.requested_s, cold_start_s) for each in begun)
    # In seconds of slots: what waits and comes, without what is served.
    queued = now.in_flight - served - slots * replicas
    left_s = queued * service_s + (forecast - served) * cold_start_s - slots * started_s
    return max(left_s, 0.0) / max(_DRAIN_S, service_s)


class StartingReplicas(msgspec.Struct, frozen=True):
    """Replicas that start, and that were requested at the same time."""

    count: int
    requested_s: float
    """For so many seconds."""


def list_starting(loads: Sequence[Load], cold_start_s: float) -> list[StartingReplicas]:
    """Return the replicas that start, without those that are late; in a rollout they start when others were ready.

    Costs one step for each load, however many replicas are requested.
    """
    now = loads[-1]
    late_s = min(_LATE * cold_start_s, ERRORS_S - _MINUTE_S)
    # Those from `low` to `high` were requested since the loads that were looked at.
    low, high = now.ready + 1, now.replicas
    found = list[StartingReplicas]()
    for each in reversed(loads):
        below = min(high, max(each.replicas, low - 1))
        above = min(max(low, each.ready + 1), below + 1) if now.revision is None else low
        found.append(StartingReplicas(high - below + above - low, now.at_s - each.at_s))
        low, high = above, below
    found.append(StartingReplicas(high - low + 1, now.at_s - loads[0].at_s))
    return [each for each in found if each.count > 0 and each.requested_s <= late_s]


def _add_error(state: ForecastState, loads: Sequence[Load], cold_start_s: float) -> tuple[ForecastError, ...]:
    """Return the errors that still count, with that of the forecast made for now, if there is one."""
    now = loads[-1]
    kept = tuple(each for each in state.errors if each.at_s > now.at_s - ERRORS_S)
    made = [forecast for at_s, forecast in state.forecasts if at_s <= now.at_s - cold_start_s - PASS_S]
    if not made:
        return kept
    weight = float(now.arrived - loads[-2].arrived) ** _BURSTS
    return (*kept, ForecastError(now.at_s, _offered_slots(loads) - made[-1], weight))


def _offered_slots(loads: Sequence[Load]) -> float:
    """Return the slots that requests would have in use now if there were enough.

    By Little's law as many are in service as arrive while one is served, at the rate of the last minute. What waits
    beyond that is a queue of the past: it needs replicas for a while, and says nothing of requests to come. How many
    slots there are does not matter, so an error does not depend on what was known of them.
    """
    now = loads[-1]
    arriving = _rate(_load_before(loads, _MINUTE_S), now) * _service_s(loads)
    return min(float(now.in_flight), max(now.in_flight - now.waiting, arriving))


def _margin(errors: Sequence[ForecastError], forecast: float) -> float:
    """Return the margin of slots above a forecast."""
    root = math.sqrt(max(forecast, 1.0))
    if len(errors) < _ENOUGH:
        return _GUESS * root
    sure = min(1.0, len(errors) / (4 * _ENOUGH))
    rising = sorted(errors, key=lambda each: each.slots)
    weights = [*accumulate(each.weight for each in rising)]
    covered = rising[bisect_left(weights, _QUANTILE * weights[-1])].slots
    return max(sure * covered + (1 - sure) * _GUESS * root, _LEAST * root)


def _load_before(loads: Sequence[Load], seconds: float) -> Load:
    """Return the load of this long ago, or the first."""
    return next((each for each in reversed(loads) if each.at_s <= loads[-1].at_s - seconds), loads[0])


def _rate(since: Load, now: Load) -> float:
    return (now.arrived - since.arrived) / max(now.at_s - since.at_s, 1.0)


def _service_s(loads: Sequence[Load]) -> float:
    """Return the seconds that a request is served."""
    now, first = loads[-1], loads[0]
    completed = now.completed - first.completed
    return (now.served_s - first.served_s) / completed if completed else 1.0
