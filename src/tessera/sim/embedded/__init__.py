"""A cluster in this process: the real server, controller and agents on a Kubernetes API, kubelets and GPUs in memory.

What of Kubernetes they need beside it is here in small: a scheduler's queue, kubelets' pods, and workloads whose load
rises and falls.
"""

from tessera.sim.embedded.run import Embedded

__all__ = ["Embedded"]
