"""Workloads for the simulator: traces, and the arrivals made of them."""

from tessera.sim.workloads.arrivals import departing, filling
from tessera.sim.workloads.records import MILLI, Arrival, Demand, Trace, Workload

__all__ = ["MILLI", "Arrival", "Demand", "Trace", "Workload", "departing", "filling"]
