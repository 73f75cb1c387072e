"""The local disks of a node: the host's, and in-memory ones."""

from tessera.clients.disks.commands import command
from tessera.clients.disks.host import DiskPaths, HostDisks
from tessera.clients.disks.images import HostImages, Images, MemoryImages
from tessera.clients.disks.memory import MemoryDisks
from tessera.clients.disks.protocol import Disks

__all__ = ["DiskPaths", "Disks", "HostDisks", "HostImages", "Images", "MemoryDisks", "MemoryImages", "command"]
