"""Policies under one trace, side by side, with the clairvoyant plan as their bound: as rows and as a log."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from tessera.sim.serving.clairvoyant import ClairvoyantPlan, clairvoyant
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicamodel import ReplicaModel
from tessera.sim.serving.run import ServingRun, run
from tessera.sim.serving.traces import Requests

__all__ = ["HEADER", "ComparedRow", "Comparison", "compare", "log_lines", "rows"]

HEADER: Final = ("policy", "replica-hours", "x clairvoyant", "within SLO", "changes", "lost")


class ComparedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy, as JSON has it."""

    policy: str
    replica_hours: float
    clairvoyant_replica_hours: float
    within_slo: float
    changes: int
    lost: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one trace under each policy."""

    plan: ClairvoyantPlan
    runs: tuple[tuple[str, ServingRun], ...]
    requests: Requests


def compare(
    requests: Requests,
    model: ReplicaModel,
    policies: Sequence[str],
    most: int,
    report: Callable[[str, int, int], None] = lambda _step, _done, _total: None,
) -> Comparison:
    """Return what becomes of a trace under policies.

    Args:
        requests: the trace.
        model: of the replicas.
        policies: names from `POLICIES`.
        most: replicas.
        report: called with the step, how many requests of it are done, and of how many.

    """
    service_s = model.service_s(requests.context, requests.generated)
    total = len(requests.arrival_s)
    report("clairvoyant plan", 0, 0)
    plan = clairvoyant(requests.arrival_s, service_s, model, most)
    runs = []
    for name in policies:
        scaler = POLICIES[name](model, most)

        def step(done: int, name: str = name) -> None:
            report(name, done, total)

        runs.append((name, run(requests.arrival_s, service_s, model, scaler, min(plan.warm, most), step)))
    return Comparison(plan=plan, runs=tuple(runs), requests=requests)


def rows(comparison: Comparison) -> tuple[ComparedRow, ...]:
    """Return a row for each policy."""
    return tuple(
        ComparedRow(
            policy=name,
            replica_hours=round(each.replica_hours, 3),
            clairvoyant_replica_hours=round(comparison.plan.replica_hours, 3),
            within_slo=round(each.within_slo, 6),
            changes=each.changes,
            lost=each.lost,
        )
        for name, each in comparison.runs
    )


def log_lines(comparison: Comparison) -> Iterator[str]:
    """Yield one JSON object for each change of a policy's replicas, the first at 0 s, each with its line end."""
    for name, each in comparison.runs:
        for change in each.log:
            yield json.dumps({"policy": name, **msgspec.structs.asdict(change)}) + "\n"
