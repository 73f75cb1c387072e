"""Reaction of autoscaling policies to a step in load: seconds until enough replicas serve, over the least possible.

`scripts/bench reaction`

Requests come at a steady rate for an hour, then at a multiple of it. Enough are the replicas whose slots hold what the
new rate keeps in flight. The least possible is one look of the metrics and one start of a pod: 15 s and 120 s. The
simulated replicas are those of `tessera simulate serving`. The median of several seeds counts. Fails where Tessera's
policy takes longer than is declared for a step. A policy that had enough before reacts in 0 s; `before` is how many.
"""

import math
import sys
from statistics import median
from typing import NamedTuple

import numpy as np

from tessera.core.serving.metrics.load import PASS_S
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicamodel import ReplicaModel
from tessera.sim.serving.run import run

SEEDS = range(5)
STEADY_S, AFTER_S, SERVICE_S = 3600.0, 1800.0, 4.0
BASE_RATE, MOST = 3.0, 16
STEPS = ((3.0, 1.3), (4.0, 1.3), (6.0, 1.3))
"""Times the rate, and the floor of Tessera's policy in times the least possible."""


class Reaction(NamedTuple):
    """How a policy answers a step."""

    seconds: float
    """From the step until enough replicas serve; infinite where they never do."""
    before: int
    """Replicas that it asked for when the step came."""
    within_slo: float


def react(policy: str, factor: float, seed: int) -> Reaction:
    """Return the reaction of a policy to one step."""
    rng, model = np.random.default_rng(seed), ReplicaModel()
    parts = ((0.0, STEADY_S, BASE_RATE), (STEADY_S, STEADY_S + AFTER_S, BASE_RATE * factor))
    arrivals = np.sort(np.concatenate([rng.uniform(a, b, rng.poisson((b - a) * rate)) for a, b, rate in parts]))
    services = rng.exponential(SERVICE_S, len(arrivals))
    start = math.ceil(BASE_RATE * SERVICE_S / model.slots) + 1
    found = run(arrivals - arrivals[0], services, model, POLICIES[policy](model, MOST), start)
    enough = math.ceil(BASE_RATE * factor * SERVICE_S / model.slots)
    step_s = STEADY_S - float(arrivals[0])
    requested = [each for each in found.log if each.desired >= enough]
    before = [each for each in found.log if each.time_s <= step_s]
    if before[-1].desired >= enough:
        return Reaction(0.0, before[-1].desired, found.within_slo)
    at_s = next((each.time_s for each in requested if each.time_s > step_s), math.inf)
    return Reaction(at_s - step_s + model.cold_start_s, before[-1].desired, found.within_slo)


def main() -> int:
    """Print the table; return 1 where a floor is not kept."""
    least_s, failed = PASS_S + ReplicaModel().cold_start_s, 0
    print(f"least possible: {least_s:.0f} s")
    print(f"{'step':>6}{'policy':>12}{'before':>8}{'seconds':>10}{'x least':>9}{'within':>9}")
    for factor, most in STEPS:
        for policy in POLICIES:
            each = [react(policy, factor, seed) for seed in SEEDS]
            seconds, before, within = (median(one[place] for one in each) for place in range(3))
            slow = policy == "tessera" and seconds > most * least_s
            failed += slow
            cells = f"{before:8.0f}{seconds:10.0f}{seconds / least_s:9.2f}{within:9.2%}"
            print(f"{factor:5g}x{policy:>12}{cells}{f'  FAIL: at most {most}' if slow else ''}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
