"""A cluster in this process: the real server, controller and agents on in-memory Kubernetes, kubelets and GPUs.

The rest of Kubernetes that they need is simplified here: a scheduler's queue, kubelets' pods, and workloads whose load
rises and falls.
"""

from tessera.sim.embedded.run import Embedded

__all__ = ["Embedded"]
