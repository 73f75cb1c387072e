"""Policies side by side on one workload: each gets its own copy of the same fleet and the same arrivals."""

import random
from collections.abc import Callable

from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack import Packer
from tessera.sim.engine import Log, RunRules, run
from tessera.sim.workloads import Workload

__all__ = ["KNOW_THE_MIX", "simulate"]

KNOW_THE_MIX = frozenset({"fgd"})
"""Policies that know the mix of pods beforehand, as they were published; the others learn from arrivals."""


def simulate(
    workload: Workload, policy: str, rules: RunRules, *, progress: Callable[[int], None] = lambda _: None
) -> Log:
    """Return the log of one policy on a workload; the policy's own draws, if any, come from the workload's seed.

    Raises:
        InvalidInput: no policy of that name.

    """
    packer = Packer(
        Fleet.of(workload.snapshot),
        policy,
        rank=workload.rank,
        mix=workload.mix if policy in KNOW_THE_MIX else None,
        rng=random.Random(workload.seed),
    )
    return run(workload, packer, rules, policy=policy, progress=progress)
