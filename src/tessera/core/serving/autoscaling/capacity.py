"""How many requests a replica serves at once, as measured while requests wait.

The limit of the spec may be out of reach: the KV cache of a vLLM on part of a GPU is full long before as many sequences
run as `--max-num-seqs` allows. A replica in which requests wait serves what it can.

While none wait, nothing is measured. What was measured then grows by 2 % each hour, so that longer requests of the
past do not cost replicas for ever, and the replicas become fewer one by one until requests wait again; forgetting it
all at once would overload the server each time.

A new template of the pods usually serves as many as the former one, so the number is carried over. It may serve far
more, so once the rollout has ended a carried number grows by 20 % every ten minutes. Requests that wait begin the
growth again, and after a minute they measure the new template.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from tessera.core.serving.metrics.load import SUSTAINED_S, Load

__all__ = ["Capacity", "measure", "usable_slots"]

_MINUTE_S: Final = 60
"""Requests must wait for so long: a burst waits for a moment in a replica with free memory too."""
_GROWTH: Final = 1.02
_HOUR_S: Final = 3600
_CARRIED_GROWTH: Final = 1.2
_CARRIED_S: Final = 600


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The measured capacity of a replica."""

    at_s: float
    requests: float
    """Requests in service at once."""
    revision: str
    """Of the pods' template that was measured."""
    slots: int
    """Of the spec then."""
    carried: bool = False
    """Whether it was measured of an earlier template."""


def measure(former: Capacity | None, loads: Sequence[Load], *, revision: str, slots: int) -> Capacity | None:
    """Return the capacity of a replica, as measured now or before; None if requests never waited for a minute.

    A change of the spec's slots forgets what was measured; one of the template carries it over.

    Args:
        former: the result of the former pass.
        loads: of the last minutes, in order; at least one.
        revision: of the pods' template now; a load of another one, or of several, says nothing of it.
        slots: of the spec now.

    """
    now = loads[-1]
    if former is not None and former.slots != slots:
        former = None
    if former is not None and former.revision != revision:
        requests = _grow(former, now.at_s)
        former = Capacity(at_s=now.at_s, requests=requests, revision=revision, slots=slots, carried=True)
    if former is not None and former.carried and (now.revision != revision or now.queued):
        # While a rollout goes on a carried number does not grow; where requests wait its growth begins again.
        former = msgspec.structs.replace(former, at_s=now.at_s)
    recent = [each for each in loads if each.at_s >= now.at_s - _MINUTE_S]
    if now.at_s - recent[0].at_s < SUSTAINED_S:
        return former
    if any(each.revision != revision for each in recent):
        return former
    # 1. Requests waited in all loads of a minute, in pods of this template alone.
    saturated = [each.saturated for each in recent if each.saturated is not None]
    waited = len(saturated) == len(recent)
    found = median(saturated) if waited else 0.0
    # 2. They did not, but replicas serve more than was measured before.
    if former is not None and not found:
        serving = median((each.in_flight - each.waiting) / max(each.ready, 1) for each in recent)
        found = serving if serving > _grow(former, now.at_s) else 0.0
    # A replica that serves nothing while requests wait is broken, and more of them do not help.
    if found < 1:
        return former
    carried = former is not None and former.carried and not waited
    return Capacity(at_s=now.at_s, requests=found, revision=revision, slots=slots, carried=carried)


def usable_slots(capacity: Capacity | None, slots: int, now_s: float) -> int:
    """Return how many requests a replica serves at once: by its spec, or fewer where that was measured."""
    return slots if capacity is None else min(slots, max(1, math.floor(_grow(capacity, now_s))))


def _grow(capacity: Capacity, now_s: float) -> float:
    growth, each_s = (_CARRIED_GROWTH, _CARRIED_S) if capacity.carried else (_GROWTH, _HOUR_S)
    times = max(now_s - capacity.at_s, 0.0) / each_s
    return capacity.requests * math.pow(growth, min(times, 1000.0))
