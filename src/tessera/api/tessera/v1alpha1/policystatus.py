"""The status of a GPUPolicy: its nodes, the last decision, whether it is in force."""

import datetime as dt
from collections.abc import Iterable

import msgspec

from tessera.api.kubernetes.conditions import Finding, updated_conditions
from tessera.api.tessera.v1alpha1.gpupolicies import KIND, GpuPolicy, GpuPolicyStatus
from tessera.core.cluster.gpunodestate import Impairment

__all__ = ["PolicyFacts", "new_status"]

_DECISION_CHARACTERS = 1024
_NAMED = 3
"""Nodes that a message names before it counts the others."""


class PolicyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The observation of one policy."""

    nodes: int = 0
    """GPU nodes it applies to."""
    gpus: int = 0
    desired: int = 0
    """Devices desired on them for exact requests."""
    pending: int | None = None
    """Pods that wait for them; None if that was not observed."""
    decision: str = ""
    """The decision of this pass; empty for none, which keeps the last one."""
    behind: tuple[str, ...] = ()
    """Nodes whose agents have not acted on the policy yet."""
    impaired: tuple[tuple[str, Impairment], ...] = ()
    """Impairments reported by the agents of its nodes, by node."""


def new_status(policy: GpuPolicy, facts: PolicyFacts, now: dt.datetime) -> GpuPolicyStatus:
    """Return the status of a valid policy; the same facts give the same status."""
    generation = policy.metadata.generation
    found = (
        Finding("Accepted", "True", "Valid", "the spec is valid"),
        _ready(facts, policy.name),
        _overrides(facts, policy.name),
    )
    return GpuPolicyStatus(
        observed_generation=generation,
        nodes=facts.nodes,
        gpus=facts.gpus,
        desired_slices=facts.desired,
        pending_pods=policy.status.pending_pods if facts.pending is None else facts.pending,
        decision=facts.decision[:_DECISION_CHARACTERS] or policy.status.decision,
        conditions=updated_conditions(policy.status.conditions, found, now, generation=generation),
    )


def _ready(facts: PolicyFacts, name: str) -> Finding:
    if not facts.nodes:
        return Finding("Ready", "True", "NoNodes", "it applies to no node with GPUs and an agent")
    if facts.behind:
        return Finding("Ready", "False", "Applying", f"not yet in force on {_listed(facts.behind)}")
    own = [each for each in facts.impaired if each[1].kind != "Overridden" or each[1].subject == _named(name)]
    if own:
        return Finding("Ready", "False", own[0][1].kind, _reported(own))
    return Finding("Ready", "True", "InForce", f"in force on {facts.nodes} node{'s' if facts.nodes > 1 else ''}")


def _overrides(facts: PolicyFacts, name: str) -> Finding:
    """Return what the policy takes precedence over; docs/policy.md has the order."""
    others = [each for each in facts.impaired if each[1].kind == "Overridden" and each[1].by == _named(name)]
    if others:
        return Finding("Overrides", "True", "Overridden", _reported(others))
    return Finding("Overrides", "False", "Nothing", "nothing that labels, files and options of its nodes say")


def _named(name: str) -> str:
    return f"{KIND} {name}"


def _reported(impaired: Iterable[tuple[str, Impairment]]) -> str:
    """Return the agents' reports; equal ones of several nodes once."""
    nodes: dict[str, list[str]] = {}
    for node, each in impaired:
        nodes.setdefault(each.message, []).append(node)
    return "; ".join(f"on {_listed(names)}: {message}" for message, names in nodes.items())


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _NAMED
    return ", ".join(ordered[:_NAMED]) + (f" and {more} more" if more > 0 else "")
