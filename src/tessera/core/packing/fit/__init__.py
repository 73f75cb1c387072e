"""What fits where: the fleet's working state, the filter over all nodes, the exact answer for one, and the reasons."""

from tessera.core.packing.fit.demand import Demand
from tessera.core.packing.fit.fleet import CLOSED, CPU, MEMORY, OPEN, PODS, UNHEALTHY, Fleet, impossible_share
from tessera.core.packing.fit.mixednames import mixtures, restricts
from tessera.core.packing.fit.onenode import Preference, Tightest, serve

__all__ = [
    "CLOSED",
    "CPU",
    "MEMORY",
    "OPEN",
    "PODS",
    "UNHEALTHY",
    "Demand",
    "Fleet",
    "Preference",
    "Tightest",
    "impossible_share",
    "mixtures",
    "restricts",
    "serve",
]
