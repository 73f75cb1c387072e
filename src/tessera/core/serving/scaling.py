"""The desired replicas of a model server now: what the cluster reports of it, what was measured, and the policy.

It never asks for more replicas than there are while the scheduler has no place for one of them: what does not fit now
is not made to fit by more. Nor does it ask for more than one beyond those that find a place on GPUs as they are: for
that one MIG instances are created, or an autoscaler of nodes adds one.
"""

import math
from statistics import median
from typing import Final

import msgspec

from tessera.core.serving.autoscaler import Load, Memory, Proposal, Server, propose
from tessera.core.serving.decisions import Decided, ScalingDecision, decide
from tessera.core.serving.queuetime import Missing
from tessera.core.serving.scaletozero import IDLE_S

__all__ = ["Facts", "Remembered", "scale", "to_count"]

_COLD_START_S: Final = 120.0
"""Before one was measured. Source: llm-d measured 100 to 139 s for a vLLM with an 8B model."""
_MOST_COUNTED: Final = 64
"""Places counted at a look, whatever somebody's metrics ask for."""
_LEAST_COLD_START_S, _MOST_COLD_START_S = 5.0, 1800.0


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster says of a model server."""

    replicas: int
    """Asked for by its Deployment."""
    ready: int = 0
    """Pods that take requests."""
    least: int = 1
    """0 where it may be scaled to zero, by its HorizontalPodAutoscaler or by Tessera."""
    most: int | None = None
    """Of its HorizontalPodAutoscaler; None where it has none."""
    idle_s: float = IDLE_S
    """How long nothing must have been asked of it before it is scaled to zero."""
    woken_s: float | None = None
    """When it was last requested to be awake; None for never."""
    wanted: float = 0.0
    """Requests that wait in front of it, as somebody says who knows; they wake it."""
    slots: int | None = None
    """Requests that a replica serves at once; None where nobody says."""
    unschedulable: int = 0
    """Pods that the scheduler found no place for."""
    room: int | None = None
    """How many replicas more find a place; None where nobody counted."""
    cold_start_s: float | None = None
    """As its Deployment says; None to go by what is measured."""
    trouble: str = ""
    """What of its annotations cannot be read; empty for nothing."""
    started_s: tuple[float, ...] = ()
    """How long each of its pods took from being created to being ready."""


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a model server between looks."""

    memory: Memory = Memory()
    decided: Decided | None = None


def scale(former: Remembered, facts: Facts, load: Load | Missing, now_s: float) -> tuple[Remembered, ScalingDecision]:
    """Return what to remember, and how many replicas to ask for.

    Args:
        former: what the look before returned; an empty one at the first.
        facts: of the server.
        load: as measured, or why it was not.
        now_s: the time.

    """
    if facts.most is None:
        return Remembered(), _none("no HorizontalPodAutoscaler targets its Deployment, so there are no bounds")
    if facts.trouble:
        return Remembered(), ScalingDecision(replicas=None, reason=facts.trouble, bad=True)
    if facts.slots is None:
        return Remembered(), _none(
            "nothing says how many requests a replica serves at once; annotate its Deployment with "
            "serving.tessera.dev/slots"
        )
    if facts.replicas == 0 and facts.least > 0:
        return Remembered(), _none("its Deployment is scaled to zero by hand, and its autoscaler leaves it so")
    if facts.least == 0:
        load = _from_zero(facts, load, now_s)
    if isinstance(load, Missing):
        decided, decision = decide(former.decided, load, now_s)
        return Remembered(memory=former.memory, decided=decided), decision
    most, limit = _most(facts, facts.most)
    server = Server(
        slots=facts.slots,
        cold_start_s=_cold_start(facts),
        least=min(facts.least, most),
        idle_s=facts.idle_s,
        most=most,
    )
    memory, found = propose(former.memory, load, server)
    proposal = Proposal(found.replicas, found.reason + limit) if found.replicas == most else found
    decided, decision = decide(former.decided, proposal, now_s)
    return Remembered(memory=memory, decided=decided), decision


def _from_zero(facts: Facts, load: Load | Missing, now_s: float) -> Load | Missing:
    """Return the load of a server that may have no replica: without one nobody counts what waits but who says so."""
    if facts.ready == 0:
        wanted = math.ceil(facts.wanted)
        load = Load(
            at_s=now_s, arrived=0, completed=0, served_s=0.0, in_flight=wanted, replicas=facts.replicas, ready=0
        )
    return load if isinstance(load, Missing) else msgspec.structs.replace(load, woken_s=facts.woken_s)


def to_count(facts: Facts, decision: ScalingDecision) -> int:
    """Return for how many replicas more it is worth to count places, before a decision is taken; 0 for none."""
    if decision.replicas is None or decision.bad or facts.unschedulable:
        return 0
    return min(max(decision.replicas - facts.replicas - 1, 0), _MOST_COUNTED)


def _most(facts: Facts, most: int) -> tuple[int, str]:
    """Return how many replicas to ask for at the most, and what an event says where the cluster has no more."""
    there = max(facts.replicas, 1)
    if facts.unschedulable and there <= most:
        return there, f"; {facts.unschedulable} of them find no place now, so no more are asked for"
    if facts.room is not None and there + facts.room + 1 < most:
        return there + facts.room + 1, f"; GPUs have a place for {facts.room} more now, so no more are asked for"
    return most, ""


def _none(reason: str) -> ScalingDecision:
    return ScalingDecision(replicas=None, reason=reason)


def _cold_start(facts: Facts) -> float:
    usual = median(facts.started_s) if facts.started_s else _COLD_START_S
    return min(max(facts.cold_start_s or usual, _LEAST_COLD_START_S), _MOST_COLD_START_S)
