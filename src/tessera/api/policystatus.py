"""The status of a GPUPolicy: what it applies to, what was decided, whether it is in force."""

import datetime as dt
from collections.abc import Iterable

import msgspec

from tessera.api.conditions import Finding, settled
from tessera.api.gpupolicies import GpuPolicy, Status

__all__ = ["Facts", "new_status", "refused_status"]

_DECISION_CHARACTERS = 1024
_NAMED = 3
"""Nodes that a message names before it counts the others."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found about one policy."""

    nodes: int = 0
    """GPU nodes it applies to."""
    gpus: int = 0
    wanted: int = 0
    """Devices wanted on them for exact requests."""
    waiting: int | None = None
    """Pods that wait for them; None where that was not looked at."""
    decision: str = ""
    """What was decided in this look; empty for nothing, which leaves the last decision standing."""
    behind: tuple[str, ...] = ()
    """Nodes whose agents have not acted on what the policy says by now."""


def new_status(policy: GpuPolicy, facts: Facts, now: dt.datetime) -> Status:
    """Return the status of a policy that can be carried out; the same facts give the same status."""
    generation = policy.metadata.generation
    found = (
        Finding("Accepted", "True", "Valid", "the policy can be carried out"),
        _ready(facts),
    )
    return Status(
        observed_generation=generation,
        nodes=facts.nodes,
        gpus=facts.gpus,
        wanted_slices=facts.wanted,
        waiting_pods=policy.status.waiting_pods if facts.waiting is None else facts.waiting,
        decision=facts.decision[:_DECISION_CHARACTERS] or policy.status.decision,
        conditions=settled(policy.status.conditions, found, now, generation=generation),
    )


def refused_status(former: Status, generation: int, problem: str, now: dt.datetime) -> Status:
    """Return the status of a policy that cannot be read; what was in force before stays in force."""
    found = (Finding("Accepted", "False", "Invalid", problem),)
    return msgspec.structs.replace(
        former,
        observed_generation=generation,
        conditions=settled(former.conditions, found, now, generation=generation),
    )


def _ready(facts: Facts) -> Finding:
    if not facts.nodes:
        return Finding("Ready", "True", "NoNodes", "it applies to no node with GPUs and an agent")
    if facts.behind:
        return Finding("Ready", "False", "Applying", f"not yet in force on {_listed(facts.behind)}")
    return Finding("Ready", "True", "InForce", f"in force on {facts.nodes} node{'s' if facts.nodes > 1 else ''}")


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {more} more" if more > 0 else "")
