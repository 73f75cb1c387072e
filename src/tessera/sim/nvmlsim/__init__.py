"""Simulated GPUs: a `libnvidia-ml.so.1` built on demand, and the machine it shows to every process that loads it."""

from tessera.sim.nvmlsim.building import environment, library
from tessera.sim.nvmlsim.machine import ANY, FOREVER, NO_INSTANCE, Machine, Process, create_state
from tessera.sim.nvmlsim.products import SimulatedGpu, gpus_of

__all__ = [
    "ANY",
    "FOREVER",
    "NO_INSTANCE",
    "Machine",
    "Process",
    "SimulatedGpu",
    "create_state",
    "environment",
    "gpus_of",
    "library",
]
