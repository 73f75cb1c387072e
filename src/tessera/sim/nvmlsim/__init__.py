"""Simulated GPUs: a `libnvidia-ml.so.1` built on demand, and the machine it shows to every process that loads it."""

from tessera.sim.nvmlsim.library import environment, library
from tessera.sim.nvmlsim.machine import Machine, Process, create_state
from tessera.sim.nvmlsim.products import SimulatedGpu, gpus_of

__all__ = ["Machine", "Process", "SimulatedGpu", "create_state", "environment", "gpus_of", "library"]
