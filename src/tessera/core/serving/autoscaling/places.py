"""Places on GPUs for more replicas of model servers: for which servers they are counted, and who gets them.

A server that grows by one replica needs no count: one more than there is room for is requested anyway.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from tessera.core.serving.autoscaling.decisions import ScalingDecision
from tessera.core.serving.autoscaling.serverfacts import ServerFacts

__all__ = ["PlacesToCount", "order_in_turn", "promised_places", "to_count", "with_room"]

_MOST_COUNTED: Final = 64
"""Most places counted in a pass, for any metrics."""


class PlacesToCount(msgspec.Struct, frozen=True, kw_only=True):
    """The places to count for a server that grows by more than one replica."""

    more: int
    """For replicas beyond those desired now."""
    coming: int
    """For desired replicas that have no pod yet; the same places serve these first."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.more + self.coming


def to_count(facts: ServerFacts, decision: ScalingDecision) -> PlacesToCount | None:
    """Return the places to count before a decision is made; None if none or nothing uses it.

    Args:
        facts: of the server.
        decision: without regard to room.

    """
    if decision.replicas is None or decision.bad or facts.unschedulable or not facts.uses_decision:
        return None
    more = min(max(decision.replicas - facts.replicas - 1, 0), _MOST_COUNTED)
    return PlacesToCount(more=more, coming=min(max(facts.replicas - facts.pods, 0), more)) if more else None


def with_room(facts: ServerFacts, places: PlacesToCount, count: int | None) -> ServerFacts:
    """Return the facts with the room for more replicas: of the places that were found, those beyond the coming ones.

    Args:
        facts: of the server.
        places: that were counted.
        count: how many there are; None where that is unknown.

    """
    return msgspec.structs.replace(facts, room=None if count is None else max(count - places.coming, 0))


def promised_places(facts: ServerFacts, places: PlacesToCount, decision: ScalingDecision) -> int:
    """Return the places that a server gets by a decision with regard to room; others are not to count them."""
    if not facts.room or decision.replicas is None:
        return 0
    return places.coming + min(max(decision.replicas - facts.replicas, 0), facts.room)


def order_in_turn(
    servers: Iterable[tuple[str, str]], counted_s: Mapping[tuple[str, str], float]
) -> list[tuple[str, str]]:
    """Return the order in which to count places for servers, each its namespace and name.

    One of each namespace comes before a second of any; where one is to be chosen, the one counted longest ago.

    Args:
        servers: in any order.
        counted_s: when each was last counted.

    """
    before: dict[str, int] = {}
    places: dict[tuple[str, str], int] = {}
    for server in sorted(servers, key=lambda each: (counted_s.get(each, -math.inf), each)):
        places[server] = before.get(server[0], 0)
        before[server[0]] = places[server] + 1
    return sorted(places, key=places.__getitem__)
