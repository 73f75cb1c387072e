"""What holds shares to their size on a node: MPS daemons, memory limits by cgroup; and power and clocks."""

from tessera.agent.sharing.mps import MpsSettings, MpsSupervisor

__all__ = ["MpsSettings", "MpsSupervisor"]
