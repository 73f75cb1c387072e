"""Tessera's own autoscaling of a model server: enough replicas by the time that new ones would be ready.

In each pass it forecasts the requests in flight one cold start ahead, from the arrivals of the last minutes and their
trend, and adds a margin: by how much its own forecasts of the last hour were too low. Bursty traffic is
hard to forecast and gets a large margin; smooth traffic a small one; nothing is tuned by hand. When more requests
arrive than chance explains, it uses the rate since then. Where requests will still wait by then, although replicas
start meanwhile, it adds what serves these within a minute. It scales up at once and down only after fewer replicas were
enough for a while. Its result drives a HorizontalPodAutoscaler through an external metric, so Kubernetes still does the
scaling.

Source of the jumps: a window that is cut where its newer part differs from the older one by more than their variance
allows (Bifet and Gavaldà, "Learning from Time-Changing Data with Adaptive Windowing", SDM 2007); the variance of counts
by their index of dispersion (Gusella, "Characterizing the Variability of Arrival Processes with Indexes of Dispersion",
IEEE JSAC 9(2), 1991); three standard deviations as in a control chart.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise, takewhile
from typing import Final

import msgspec

from tessera.core.serving.capacity import Capacity, measure, usable_slots
from tessera.core.serving.load import Load
from tessera.core.serving.passes import PASS_S, SUSTAINED_S
from tessera.core.serving.scaletozero import IDLE_S, awake

__all__ = ["AutoscalerState", "ReplicaProposal", "ScaledServer", "propose", "replicas_text", "serves"]

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
_ERRORS_S: Final = 3600
"""Forecasts are judged over this time."""
_QUANTILE: Final = 0.86
"""The margin covers the errors of this share of the moments. Few requests wait long in the rest: slots become free."""
_BURSTS: Final = 0.3
"""Moments are weighted by this power of their arrivals: with 0 all alike, with 1 as requests experience them."""
_ENOUGH: Final = 20
"""With fewer errors the guess below counts; with four times as many it is ignored."""
_GUESS: Final = math.sqrt(2.5)
"""The margin before that, in square roots of the forecast: arrivals twice as irregular as a Poisson process."""
_HOLD_S: Final = 720
"""Scale down only after fewer replicas were enough for this time."""
_BEGIN_S: Final = 300
"""The initial replicas are assumed to be needed for this time."""
_FULL: Final = 0.8
"""The part of a replica's slots that requests in flight for a minute may take."""
_MINUTE_S: Final = 60
_DRAIN_S: Final = 60
"""A queue is to be gone this long after replicas that are requested now are ready, if a request takes no longer."""
_LATE: Final = 2.0
"""A replica that is not ready after so many cold starts may never be, and others are requested in its place."""
_OVERLOAD: Final = 2
"""With so many times as many requests in flight as slots the minute is not awaited: as many wait as are served."""
_LEAST: Final = 0.5
"""The smallest margin, in square roots of the forecast."""


class ScaledServer(msgspec.Struct, frozen=True, kw_only=True):
    """The static properties of a model server."""

    slots: int
    """Most concurrent requests of a replica, by its spec; those that are measured may be fewer."""
    revision: str = ""
    """Identifies the pods' template: what was measured of another one is given up sooner."""
    cold_start_s: float
    """From requesting a replica until it is ready, as measured."""
    min_replicas: int = 1
    """With 0 the server scales to zero when it is idle."""
    idle_s: float = IDLE_S
    """It is idle after this long without a request or wake-up."""
    max_replicas: int = 16
    """At most what the user allows, and what the cluster has room for."""
    one_by_one: bool = False
    """Whether a replica starts only when all others are ready."""


class ReplicaProposal(msgspec.Struct, frozen=True):
    """The proposed replicas and the reason, as in an event."""

    replicas: int
    reason: str


class _Error(msgspec.Struct, frozen=True):
    """By how many slots a forecast was too low, and the weight of the moment."""

    at_s: float
    slots: float
    weight: float


class _Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Slots for the time when a replica requested now is ready."""

    forecast: float
    margin: float
    draining: float
    """To drain the queue."""

    @property
    def slots(self) -> int:
        """All of them."""
        return math.ceil(self.forecast + self.margin + self.draining)

    def text(self, cold_start_s: float) -> str:
        """Return its parts as an event has them: whole numbers that add up."""
        forecast = round(self.forecast)
        margin = math.ceil(self.forecast + self.margin) - forecast
        draining = self.slots - forecast - margin
        expected = f"expects {_requests(forecast)} in flight in {cold_start_s:.0f} s, plus a margin of {margin}"
        return f"{expected}, plus {draining} to drain the queue" if draining else expected


class AutoscalerState(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's state between passes. Losing it costs replicas for a while, and no request."""

    began_s: float = 0.0
    busy_s: float = 0.0
    """When the server last had requests, or may have had some."""
    loads: tuple[Load, ...] = ()
    forecasts: tuple[tuple[float, float], ...] = ()
    """When a forecast was made, and its slots."""
    errors: tuple[_Error, ...] = ()
    needs: tuple[tuple[float, int], ...] = ()
    """Replicas needed, in each pass that still counts."""
    capacity: Capacity | None = None
    """Requests that a replica serves at once, as measured; None while unknown."""


def propose(state: AutoscalerState, load: Load, server: ScaledServer) -> tuple[AutoscalerState, ReplicaProposal]:
    """Return the desired replicas.

    Args:
        state: the state returned by the former pass; empty in the first.
        load: the server's current metrics; passes should be about 15 s apart.
        server: its static properties.

    Returns:
        The new state, and the replicas.

    """
    if server.min_replicas == 0 and not serves(state, load):
        return _without_replicas(state, load, server)
    # 1. Remember the load. If counters went back, or there was no load for long, start again.
    state = _with_load(state, load)
    # 2. Count as ready what was so a moment ago, and measure how many requests a replica serves at once, if some wait.
    loads = (*state.loads[:-1], _with_lately_ready(state.loads))
    capacity = measure(state.capacity, loads, revision=server.revision, slots=server.slots)
    state = msgspec.structs.replace(state, capacity=capacity)
    if server.min_replicas == 0 and load.at_s - state.busy_s >= server.idle_s and not _is_awake(load, server):
        return state, ReplicaProposal(0, f"no request for {server.idle_s:.0f} s, so no replica")
    # 3. Forecast the slots in use when a replica requested now is ready; take a margin from the errors of such
    #    forecasts, and add what drains the queue of then.
    forecast = _rate_ahead(loads, server.cold_start_s) * _service_s(loads)
    errors = _errors(state, loads, server.cold_start_s)
    slots = usable_slots(capacity, server.slots, load.at_s)
    draining = _draining(loads, forecast, slots=slots, cold_start_s=server.cold_start_s)
    demand = _Demand(forecast=forecast, margin=_margin(errors, forecast), draining=draining)
    # 4. Count the replicas for all three, or for the requests that are in flight now.
    begins = load.at_s < state.began_s + _BEGIN_S
    needed, reason = _needed(demand, loads, server, capacity=capacity, begins=begins)
    if server.one_by_one and needed > (max_replicas := _one_by_one(load, server)):
        needed, reason = (
            max_replicas,
            f"{reason}; {max_replicas} for now: replicas start one by one, and {_are(load.ready)} ready",
        )
    # 5. Scale up at once, down only after fewer were enough for a while.
    forecasts = *(each for each in state.forecasts if each[0] > load.at_s - _ERRORS_S), (load.at_s, forecast)
    needs = *(each for each in state.needs if each[0] > load.at_s - _HOLD_S), (load.at_s, needed)
    state = msgspec.structs.replace(state, forecasts=forecasts, errors=errors, needs=needs)
    return state, _proposal(needs, load, server, reason)


def _needed(
    demand: _Demand, loads: Sequence[Load], server: ScaledServer, *, capacity: Capacity | None, begins: bool
) -> tuple[int, str]:
    """Return the replicas that are needed, and why: each part of the text says what it makes of the former one."""
    now = loads[-1]
    slots = usable_slots(capacity, server.slots, now.at_s)
    needed = math.ceil(demand.slots / slots)
    source = ""
    if capacity is not None and slots < server.slots:
        source = "assumed from an earlier template" if capacity.carried else "measured while requests waited"
        source = f", {source} ({server.slots} by the spec)"
    reason = f"{demand.text(server.cold_start_s)}: {replicas_text(needed)} with {slots} slots{source}"
    # At the beginning a forecast is worth little; a queue is no forecast.
    first = max(now.replicas, needed) if demand.draining else now.replicas
    if begins and first != needed:
        needed, reason = first, f"{reason}; {first} in the first {_BEGIN_S // 60} minutes"
    # One more than are ready or late at most: those that start will serve these requests too.
    lately = _lately(loads)
    used, part, busy = max(
        (lately / _FULL, _FULL, f"{_requests(lately)} in flight for a minute"),
        (now.in_flight / _OVERLOAD, float(_OVERLOAD), f"{_requests(now.in_flight)} in flight now"),
    )
    full = math.ceil(used / slots)
    fill = "fills" if busy.startswith("1 ") else "fill"
    late = max(now.replicas - now.ready, 0) - len(_starting(loads, server.cold_start_s))
    one_more = min(now.ready, now.replicas) + late + 1
    present = min(full + late, one_more)
    if present > needed:
        needed = present
        reason += f"; {busy} {fill} {replicas_text(full)} to {100 * part:.0f} %"
        reason += f", and {late} replace replicas that are not ready" if late else ""
        reason += f"; {present} at first, one more than are ready" if full + late > one_more else ""
    bounded = min(max(needed, server.min_replicas), server.max_replicas)
    if bounded != needed:
        reason += f"; {'at least' if bounded > needed else 'at most'} {bounded}"
    return bounded, reason


def _proposal(needs: Sequence[tuple[float, int]], load: Load, server: ScaledServer, reason: str) -> ReplicaProposal:
    """Return the replicas last needed; of those that there are, as many as were needed in any pass that counts."""
    needed = needs[-1][1]
    proposed = needed
    if needed < load.replicas:
        proposed = min(load.replicas, max(replicas for _, replicas in needs), server.max_replicas)
    kept = f"; {proposed} were needed within {_HOLD_S // 60} minutes" if proposed > needed else ""
    return ReplicaProposal(proposed, reason + kept)


def _one_by_one(load: Load, server: ScaledServer) -> int:
    """Return the most replicas where they start one by one: one more than are ready, or those that there are.

    A rollout starts pods of its own, so none is added meanwhile. A replica that was ready a moment ago may start anew.
    """
    rolling = load.revision is None
    return max(load.replicas, server.min_replicas, 0 if rolling else load.ready + 1)


def replicas_text(replicas: int) -> str:
    """Return so many replicas in words."""
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def serves(state: AutoscalerState, load: Load) -> bool:
    """Return whether a replica serves: it is ready, was so in the last passes, or has requests whatever its probe says.

    A probe fails for a moment, and for longer where a replica is too busy to answer it.
    """
    lately = (each.ready for each in state.loads if each.at_s > load.at_s - SUSTAINED_S)
    return load.ready > 0 or (load.replicas > 0 and (load.unready_in_flight > 0 or any(lately)))


def _are(replicas: int) -> str:
    return "1 is" if replicas == 1 else f"{replicas} are"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _goes_on(last: Load, load: Load) -> bool:
    counted = load.arrived >= last.arrived and load.completed >= last.completed
    return counted and 0 < load.at_s - last.at_s <= _RECENT_S


def _with_load(state: AutoscalerState, load: Load) -> AutoscalerState:
    """Return the state with this load, of the last hour; a new one if the load does not continue the former ones."""
    former = state if state.loads and _goes_on(state.loads[-1], load) else _begun(state, load)
    return msgspec.structs.replace(
        former,
        busy_s=load.at_s if _is_busy(former, load) else former.busy_s,
        loads=(*(each for each in former.loads if each.at_s > load.at_s - _ERRORS_S), load),
    )


def _begun(state: AutoscalerState, load: Load) -> AutoscalerState:
    return AutoscalerState(began_s=load.at_s, busy_s=load.at_s, capacity=state.capacity)


def _is_busy(former: AutoscalerState, load: Load) -> bool:
    """Return whether the server has requests, had some since the last pass, or it is unknown."""
    arrived = bool(former.loads) and load.arrived > former.loads[-1].arrived
    return load.in_flight > 0 or load.unread > 0 or arrived


def _is_awake(load: Load, server: ScaledServer) -> bool:
    return awake(load.woken_s, server.idle_s, load.at_s)


def _without_replicas(
    state: AutoscalerState, load: Load, server: ScaledServer
) -> tuple[AutoscalerState, ReplicaProposal]:
    """Return the replicas while none serves, so that nothing is measured.

    A starting replica is awaited, however long its model takes to load: removing it would waste its start. What was
    learned counts again if replicas that were ready before are so within minutes.
    """
    if load.replicas:
        waits = f"no replica is ready: {_are(load.replicas)} starting or unready"
        awaited = msgspec.structs.replace(state, busy_s=load.at_s)
        return awaited, ReplicaProposal(min(load.replicas, server.max_replicas), waits)
    begun = _begun(state, load)
    if load.in_flight:
        return begun, ReplicaProposal(1, f"{load.in_flight} waiting, and there is no replica")
    if _is_awake(load, server):
        return begun, ReplicaProposal(1, "woken")
    return begun, ReplicaProposal(0, "idle; nothing woke it")


def _with_lately_ready(loads: Sequence[Load]) -> Load:
    """Return the last load, with the most replicas that were ready in the last passes: a probe fails for a moment."""
    now = loads[-1]
    lately = takewhile(lambda each: each.at_s > now.at_s - SUSTAINED_S, reversed(loads))
    return msgspec.structs.replace(now, ready=max(now.ready, min(max(each.ready for each in lately), now.replicas)))


def _before(loads: Sequence[Load], seconds: float) -> Load:
    """Return the load of this long ago, or the first."""
    return next((each for each in reversed(loads) if each.at_s <= loads[-1].at_s - seconds), loads[0])


def _rate(since: Load, now: Load) -> float:
    return (now.arrived - since.arrived) / max(now.at_s - since.at_s, 1.0)


def _service_s(loads: Sequence[Load]) -> float:
    """Return the seconds that a request is served."""
    now, first = loads[-1], loads[0]
    completed = now.completed - first.completed
    return (now.served_s - first.served_s) / completed if completed else 1.0


def _rate_ahead(loads: Sequence[Load], cold_start_s: float) -> float:
    """Return the forecast of the requests a second one cold start from now."""
    jumped = _jumped(loads)
    if jumped is not None:
        return jumped
    now, recent, trend = loads[-1], _before(loads, _RECENT_S), _before(loads, _TREND_S)
    rate = _rate(recent, now)
    # The two rates are those of the middles of their times.
    apart_s = (recent.at_s - trend.at_s) / 2
    slope = (rate - _rate(trend, now)) / apart_s if apart_s >= _RECENT_S / 2 else 0.0
    ahead_s = cold_start_s + PASS_S + (now.at_s - recent.at_s) / 2
    return min(max(rate + _TREND * slope * ahead_s, rate / 2), rate * 2)


def _draining(loads: Sequence[Load], forecast: float, *, slots: int, cold_start_s: float) -> float:
    """Return the slots that drain the queue which there will be when a replica requested now is ready.

    Replicas that start meanwhile serve requests from when they are ready, so they are not requested twice.
    """
    now, service_s = loads[-1], _service_s(loads)
    starting = _starting(loads, cold_start_s)
    # What is served is no queue, and goes on where more replicas serve than are ready.
    served = max(slots * now.ready, now.in_flight - now.waiting)
    started_s = sum(min(each, cold_start_s) for each in starting)
    # In seconds of slots: what waits and comes, without what is served.
    queued = now.in_flight - served - slots * len(starting)
    left_s = queued * service_s + (forecast - served) * cold_start_s - slots * started_s
    return max(left_s, 0.0) / max(_DRAIN_S, service_s)


def _starting(loads: Sequence[Load], cold_start_s: float) -> list[float]:
    """Return for how many seconds each replica that starts has been requested; without those that are late."""
    now = loads[-1]
    late_s = min(_LATE * cold_start_s, _ERRORS_S - _MINUTE_S)
    requested = [_requested_s(loads, each) for each in range(now.ready + 1, now.replicas + 1)]
    return [each for each in requested if each <= late_s]


def _requested_s(loads: Sequence[Load], replicas: int) -> float:
    """Return for how many seconds so many replicas have been requested; in a rollout since so many were ready."""
    now = loads[-1]
    rolling = now.revision is None
    before = (each for each in reversed(loads) if each.replicas < replicas or (rolling and each.ready >= replicas))
    return now.at_s - next(before, loads[0]).at_s


def _lately(loads: Sequence[Load]) -> int:
    """Return how many requests were in flight for a minute at least; 0 where the loads do not go back so far."""
    last = loads[-1].at_s - SUSTAINED_S
    start = next((at for at in reversed(range(len(loads))) if loads[at].at_s <= last), None)
    return 0 if start is None else min(each.in_flight for each in loads[start:])


def _jumped(loads: Sequence[Load]) -> float | None:
    """Return the rate since the last moment after which more requests arrived than chance explains; None for none."""
    now, oldest = loads[-1], _before(loads, _RECENT_S)
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


def _errors(state: AutoscalerState, loads: Sequence[Load], cold_start_s: float) -> tuple[_Error, ...]:
    """Return the errors that still count, with that of the forecast made for now, if there is one."""
    now = loads[-1]
    kept = tuple(each for each in state.errors if each.at_s > now.at_s - _ERRORS_S)
    made = [forecast for at_s, forecast in state.forecasts if at_s <= now.at_s - cold_start_s - PASS_S]
    if not made:
        return kept
    weight = float(now.arrived - loads[-2].arrived) ** _BURSTS
    return (*kept, _Error(now.at_s, _offered(loads) - made[-1], weight))


def _offered(loads: Sequence[Load]) -> float:
    """Return the slots that requests would have in use now if there were enough.

    By Little's law as many are in service as arrive while one is served, at the rate of the last minute. What waits
    beyond that is a queue of the past: it needs replicas for a while, and says nothing of requests to come. How many
    slots there are does not matter, so an error does not depend on what was known of them.
    """
    now = loads[-1]
    arriving = _rate(_before(loads, _MINUTE_S), now) * _service_s(loads)
    return min(float(now.in_flight), max(now.in_flight - now.waiting, arriving))


def _margin(errors: Sequence[_Error], forecast: float) -> float:
    """Return the margin of slots above a forecast."""
    root = math.sqrt(max(forecast, 1.0))
    if len(errors) < _ENOUGH:
        return _GUESS * root
    sure = min(1.0, len(errors) / (4 * _ENOUGH))
    rising = sorted(errors, key=lambda each: each.slots)
    weights = [*accumulate(each.weight for each in rising)]
    covered = rising[bisect_left(weights, _QUANTILE * weights[-1])].slots
    return max(sure * covered + (1 - sure) * _GUESS * root, _LEAST * root)
