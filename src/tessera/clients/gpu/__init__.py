"""The GPU driver of a node: NVML, and an in-memory one."""

from tessera.clients.gpu.memory import MemoryDriver
from tessera.clients.gpu.nvml import Deadlines, NvmlDriver
from tessera.clients.gpu.protocol import GpuDriver, MemoryLimit, Use

__all__ = ["Deadlines", "GpuDriver", "MemoryDriver", "MemoryLimit", "NvmlDriver", "Use"]
