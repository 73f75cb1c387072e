"""The packing policies by name."""

import random
from collections.abc import Callable, Mapping
from typing import Final

from tessera.core.fit import Fleet
from tessera.core.pack.policy import Mix, Policy, Uniform
from tessera.errors import InvalidInput

__all__ = ["POLICIES", "make_policy"]

Maker = Callable[[Fleet, Mix | None, random.Random | None], Policy]


def _uniform(fleet: Fleet, mix: Mix | None, rng: random.Random | None) -> Policy:
    del mix
    if rng is None:
        raise InvalidInput("policy random", found="no generator", wanted="a generator of random numbers to draw from")
    return Uniform(fleet, rng)


POLICIES: Final[Mapping[str, Maker]] = {
    "random": _uniform,
    "first-fit": lambda fleet, _mix, _rng: Policy(fleet),
}
"""Makers of policies: of a fleet, a known mix of needs (None: learned from arrivals), and a generator for `random`."""


def make_policy(name: str, fleet: Fleet, mix: Mix | None, rng: random.Random | None) -> Policy:
    """Return the policy of that name for a fleet. Raises: InvalidInput naming the known policies."""
    if name not in POLICIES:
        raise InvalidInput("policy", found=name, wanted="the name of a policy", accepted=", ".join(POLICIES))
    return POLICIES[name](fleet, mix, rng)
