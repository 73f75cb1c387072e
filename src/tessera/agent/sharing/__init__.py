"""Enforces shares on a node: MPS daemons, memory limits by cgroup; also power limits and clocks."""

from tessera.agent.sharing.memorycaps import MemoryCaps, systemd_cgroups
from tessera.agent.sharing.mpsprocesses import MpsDaemons, MpsSettings
from tessera.agent.sharing.mpssupervisor import MpsSupervisor
from tessera.agent.sharing.power import PowerKeeper

__all__ = ["MemoryCaps", "MpsDaemons", "MpsSettings", "MpsSupervisor", "PowerKeeper", "systemd_cgroups"]
