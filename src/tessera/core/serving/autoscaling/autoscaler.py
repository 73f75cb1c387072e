"""Tessera's own autoscaling of a model server: enough replicas by the time that new ones would be ready.

In each pass it counts the replicas for the demand one cold start ahead (`forecast`), or for the requests that are in
flight now where these need more. It scales up at once and down only after fewer replicas were enough for a while. Its
result drives a HorizontalPodAutoscaler through an external metric, so Kubernetes still does the scaling.

How the constants were chosen: docs/decisions/0039-constants-of-the-autoscaler.md.
"""

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

import msgspec

from tessera.core.serving.autoscaling.capacity import Capacity, measure, usable_slots
from tessera.core.serving.autoscaling.forecast import (
    ERRORS_S,
    ForecastState,
    SlotDemand,
    forecast_demand,
    list_starting,
)
from tessera.core.serving.autoscaling.scaletozero import IDLE_S, is_awake
from tessera.core.serving.metrics.load import SUSTAINED_S, Load

__all__ = ["AutoscalerState", "ReplicaProposal", "ScaledServer", "propose", "replicas_text", "serves"]

_GAP_S: Final = 240
"""After so long without a load the policy begins anew."""
_HOLD_S: Final = 720
"""Scale down only after fewer replicas were enough for this time."""
_BEGIN_S: Final = 300
"""The initial replicas are assumed to be needed for this time."""
_FULL: Final = 0.8
"""The part of a replica's slots that requests in flight for a minute may take."""
_OVERLOAD: Final = 2
"""With so many times as many requests in flight as slots the minute is not awaited: as many wait as are served."""


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
    limited_because: str = ""
    """Why the cluster has room for fewer than the user allows; empty where it has not."""
    one_by_one: bool = False
    """Whether a replica starts only when all others are ready."""


class ReplicaProposal(msgspec.Struct, frozen=True):
    """The proposed replicas and the reason, as in an event."""

    replicas: int
    reason: str


class AutoscalerState(msgspec.Struct, frozen=True, kw_only=True):
    """The policy's state between passes. Losing it costs replicas for a while, and no request."""

    began_s: float = 0.0
    busy_s: float = 0.0
    """When the server last had requests, or may have had some."""
    loads: tuple[Load, ...] = ()
    forecast: ForecastState = ForecastState()
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
    # 3. Forecast the slots that are needed when a replica requested now is ready.
    slots = usable_slots(capacity, server.slots, load.at_s)
    forecast, demand = forecast_demand(state.forecast, loads, slots=slots, cold_start_s=server.cold_start_s)
    # 4. Count the replicas for these, or for the requests that are in flight now.
    begins = load.at_s < state.began_s + _BEGIN_S
    steps = _count_replicas(demand, loads, server, capacity, begins=begins, ready=load.ready)
    needed = steps[-1].replicas
    # 5. Scale up at once, down only after fewer were enough for a while.
    needs = *(each for each in state.needs if each[0] > load.at_s - _HOLD_S), (load.at_s, needed)
    replicas = needed
    if replicas < load.replicas:
        replicas = min(load.replicas, max(each for _, each in needs), server.max_replicas)
    reasons = [each.text for each in steps]
    if replicas > needed:
        reasons.append(f"{replicas} were needed within {_HOLD_S // 60} minutes")
    state = msgspec.structs.replace(state, forecast=forecast, needs=needs)
    return state, ReplicaProposal(replicas, "; ".join(reasons))


class _Step(msgspec.Struct, frozen=True):
    """One step of the count: the replicas after it, and its part of the reason."""

    replicas: int
    text: str


def _count_replicas(
    demand: SlotDemand,
    loads: Sequence[Load],
    server: ScaledServer,
    capacity: Capacity | None,
    *,
    begins: bool,
    ready: int,
) -> list[_Step]:
    """Return the replicas for the demand, or for the requests in flight, within all bounds: the steps that change them.

    Args:
        demand: slots when a replica requested now is ready.
        loads: of the last hour; in the last one what was ready a moment ago counts as ready.
        server: its properties.
        capacity: of a replica, as measured.
        begins: whether these are the first minutes.
        ready: replicas that are ready now.

    """
    now, slots = loads[-1], usable_slots(capacity, server.slots, loads[-1].at_s)
    by_demand = _count_by_demand(demand, server, capacity, slots=slots)
    steps = [by_demand]
    # 1. At the beginning a forecast is worth little; a queue is no forecast.
    first = max(now.replicas, by_demand.replicas) if demand.draining else now.replicas
    if begins and first != by_demand.replicas:
        steps.append(_Step(first, f"{first} in the first {_BEGIN_S // 60} minutes"))
    # 2. One more than are ready or late at most for the requests in flight.
    in_flight = _count_in_flight(loads, slots=slots, cold_start_s=server.cold_start_s)
    if in_flight[-1].replicas > steps[-1].replicas:
        steps += in_flight
    # 3. The bounds of the user and of the cluster.
    needed = steps[-1].replicas
    bounded = min(max(needed, server.min_replicas), server.max_replicas)
    if bounded > needed:
        steps.append(_Step(bounded, f"at least {bounded}"))
    elif bounded < needed:
        limited = f"limited to {bounded}: {server.limited_because}" if server.limited_because else f"at most {bounded}"
        steps.append(_Step(bounded, limited))
    # 4. Where replicas start one by one, none while one starts. A rollout starts pods of its own; a replica that was
    #    ready a moment ago may start anew.
    most = max(now.replicas, server.min_replicas, 0 if now.revision is None else ready + 1)
    if server.one_by_one and steps[-1].replicas > most:
        steps.append(_Step(most, f"limited to {most}: replicas start one by one, and {_are_text(ready)} ready"))
    return steps


def _count_by_demand(demand: SlotDemand, server: ScaledServer, capacity: Capacity | None, *, slots: int) -> _Step:
    """Return the replicas for a demand; the text has it in whole numbers that add up."""
    forecast = round(demand.forecast)
    margin = math.ceil(demand.forecast + demand.margin) - forecast
    draining = demand.slots - forecast - margin
    expected = f"expects {_requests_text(forecast)} in flight in {server.cold_start_s:.0f} s, plus a margin of {margin}"
    expected += f", plus {draining} to drain the queue" if draining else ""
    source = ""
    if capacity is not None and slots < server.slots:
        source = "assumed from an earlier template" if capacity.carried else "measured while requests waited"
        source = f", {source} ({server.slots} by the spec)"
    replicas = math.ceil(demand.slots / slots)
    return _Step(replicas, f"{expected}: {replicas_text(replicas)} with {_slots_text(slots)}{source}")


def _count_in_flight(loads: Sequence[Load], *, slots: int, cold_start_s: float) -> list[_Step]:
    """Return the replicas for the requests that were in flight for a minute, or are many more now.

    In place of replicas that are not ready though they should be there are others, no more than the requests fill; and
    at most one more than are ready, since those that start will serve these requests too.
    """
    now, sustained = loads[-1], _sustained_requests(loads)
    requests, since, part = sustained, "for a minute", _FULL
    if sustained / _FULL < now.in_flight / _OVERLOAD:
        requests, since, part = now.in_flight, "now", float(_OVERLOAD)
    full = math.ceil(requests / part / slots)
    # Where a quota or a broken image keeps all further ones from becoming ready, more of them do not help.
    starting = sum(each.count for each in list_starting(loads, cold_start_s))
    late = min(max(now.replicas - now.ready, 0) - starting, full)
    text = f"{_requests_text(requests)} in flight {since}: {replicas_text(full)} at {100 * part:.0f} % of their slots"
    text += f", and {late} in place of replicas that are not ready" if late else ""
    steps = [_Step(full + late, text)]
    most = min(now.ready, now.replicas) + late + 1
    if full + late > most:
        steps.append(_Step(most, f"limited to {most}: one more than are ready"))
    return steps


def replicas_text(replicas: int) -> str:
    """Return so many replicas in words."""
    return "1 replica" if replicas == 1 else f"{replicas} replicas"


def serves(state: AutoscalerState, load: Load) -> bool:
    """Return whether a replica serves: it is ready, was so in the last passes, or has requests whatever its probe says.

    A probe fails for a moment, and for longer where a replica is too busy to answer it.
    """
    lately = (each.ready for each in state.loads if each.at_s > load.at_s - SUSTAINED_S)
    return load.ready > 0 or (load.replicas > 0 and (load.unready_in_flight > 0 or any(lately)))


def _are_text(replicas: int) -> str:
    return "1 is" if replicas == 1 else f"{replicas} are"


def _slots_text(slots: int) -> str:
    return "1 slot each" if slots == 1 else f"{slots} slots"


def _wait_text(count: int) -> str:
    return f"{_requests_text(count)} wait{'s' if count == 1 else ''}"


def _requests_text(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _continues(last: Load, load: Load) -> bool:
    counted = load.arrived >= last.arrived and load.completed >= last.completed
    return counted and 0 < load.at_s - last.at_s <= _GAP_S


def _with_load(state: AutoscalerState, load: Load) -> AutoscalerState:
    """Return the state with this load, of the last hour; a new one if the load does not continue the former ones."""
    former = state if state.loads and _continues(state.loads[-1], load) else _begin_anew(state, load)
    return msgspec.structs.replace(
        former,
        busy_s=load.at_s if _is_busy(former, load) else former.busy_s,
        loads=(*(each for each in former.loads if each.at_s > load.at_s - ERRORS_S), load),
    )


def _begin_anew(state: AutoscalerState, load: Load) -> AutoscalerState:
    return AutoscalerState(began_s=load.at_s, busy_s=load.at_s, capacity=state.capacity)


def _is_busy(former: AutoscalerState, load: Load) -> bool:
    """Return whether the server has requests, had some since the last pass, or it is unknown."""
    arrived = bool(former.loads) and load.arrived > former.loads[-1].arrived
    return load.in_flight > 0 or load.unread > 0 or arrived


def _is_awake(load: Load, server: ScaledServer) -> bool:
    return is_awake(load.woken_s, server.idle_s, load.at_s)


def _without_replicas(
    state: AutoscalerState, load: Load, server: ScaledServer
) -> tuple[AutoscalerState, ReplicaProposal]:
    """Return the replicas while none serves, so that nothing is measured.

    A starting replica is awaited, however long its model takes to load: removing it would waste its start. What was
    learned counts again if replicas that were ready before are so within minutes.
    """
    if load.replicas:
        waits = f"no replica is ready: {_are_text(load.replicas)} starting or unready"
        awaited = msgspec.structs.replace(state, busy_s=load.at_s)
        return awaited, ReplicaProposal(min(load.replicas, server.max_replicas), waits)
    anew = _begin_anew(state, load)
    if load.in_flight:
        return anew, ReplicaProposal(1, f"{_wait_text(load.in_flight)}, and there is no replica")
    if _is_awake(load, server):
        return anew, ReplicaProposal(1, "woken")
    return anew, ReplicaProposal(0, "idle: no request and no wake-up")


def _with_lately_ready(loads: Sequence[Load]) -> Load:
    """Return the last load, with the most replicas that were ready in the last passes: a probe fails for a moment."""
    now = loads[-1]
    lately = takewhile(lambda each: each.at_s > now.at_s - SUSTAINED_S, reversed(loads))
    return msgspec.structs.replace(now, ready=max(now.ready, min(max(each.ready for each in lately), now.replicas)))


def _sustained_requests(loads: Sequence[Load]) -> int:
    """Return how many requests were in flight for a minute at least; 0 where the loads do not go back so far."""
    last = loads[-1].at_s - SUSTAINED_S
    start = next((at for at in reversed(range(len(loads))) if loads[at].at_s <= last), None)
    return 0 if start is None else min(each.in_flight for each in loads[start:])
