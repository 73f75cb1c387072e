"""The packing policies by name."""

import random
from collections.abc import Callable, Mapping
from typing import Final

from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack.fgd import Fgd
from tessera.core.packing.pack.policy import Policy, Uniform
from tessera.core.packing.pack.published import BestFit, Clustering, DotProduct, Packing
from tessera.core.packing.pack.slicescores import Cutting
from tessera.core.packing.pack.tessera import Tessera
from tessera.errors import InvalidInput

__all__ = ["POLICIES", "make_policy"]

Maker = Callable[[Fleet, random.Random | None], Policy]


def _uniform(fleet: Fleet, rng: random.Random | None) -> Policy:
    if rng is None:
        raise InvalidInput("policy random", found="it has no generator of random numbers", hint="give one")
    return Uniform(fleet, rng)


def _plain(policy: Callable[[Fleet], Policy]) -> Maker:
    return lambda fleet, _: policy(fleet)


POLICIES: Final[Mapping[str, Maker]] = {
    "random": _uniform,
    "first-fit": _plain(Policy),
    "best-fit": _plain(BestFit),
    "dot-product": _plain(DotProduct),
    "gpu-packing": _plain(Packing),
    "gpu-clustering": _plain(Clustering),
    "fgd": _plain(Fgd),
    "fragmentation-min": _plain(Cutting),
    "tessera": _plain(Tessera.fastest),
}
"""Constructors of policies by name, each from a fleet and a generator, which only `random` uses."""


def make_policy(name: str, fleet: Fleet, rng: random.Random | None) -> Policy:
    """Return the policy of that name for a fleet. Raises: InvalidInput naming the known policies."""
    if name not in POLICIES:
        raise InvalidInput("policy", found=name, expected="the name of a policy", hint=", ".join(POLICIES))
    return POLICIES[name](fleet, rng)
