"""The container runtime of a node: images that it has, pulls and keeps; real and in memory."""

from tessera.clients.runtime.memory import MemoryRuntime
from tessera.clients.runtime.protocol import LocalImage, Runtime
from tessera.clients.runtime.real import CONTAINERD, CriRuntime

__all__ = ["CONTAINERD", "CriRuntime", "LocalImage", "MemoryRuntime", "Runtime"]
