"""The container runtime of a node: its images, pulls and pins; real and in-memory."""

from tessera.clients.runtime.memory import MemoryRuntime
from tessera.clients.runtime.protocol import LocalImage, Runtime
from tessera.clients.runtime.real import CONTAINERD, CriRuntime

__all__ = ["CONTAINERD", "CriRuntime", "LocalImage", "MemoryRuntime", "Runtime"]
