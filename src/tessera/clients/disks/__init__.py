"""The local disks of a node: the host's, and in-memory ones."""

from tessera.clients.disks.commands import command
from tessera.clients.disks.erofsmounts import ErofsMounts, HostErofsMounts, MemoryErofsMounts
from tessera.clients.disks.host import DiskPaths, HostDisks
from tessera.clients.disks.memory import MemoryDisks
from tessera.clients.disks.protocol import Disks

__all__ = [
    "DiskPaths",
    "Disks",
    "ErofsMounts",
    "HostDisks",
    "HostErofsMounts",
    "MemoryDisks",
    "MemoryErofsMounts",
    "command",
]
