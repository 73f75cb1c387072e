"""Workloads for the simulator: traces, and the arrivals made of them."""

from tessera.sim.workloads.arrivals import departing, filling
from tessera.sim.workloads.records import MILLI, Arrival, PodDemand, Trace, Workload

__all__ = ["MILLI", "Arrival", "PodDemand", "Trace", "Workload", "departing", "filling"]
