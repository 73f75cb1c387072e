"""The GPU driver of a node: NVML, and an in-memory one."""

from tessera.clients.gpu.memory import MemoryDriver
from tessera.clients.gpu.nvml import Deadlines, NvmlDriver
from tessera.clients.gpu.protocol import GpuDriver, GpuUtilization, MemoryLimit

__all__ = ["Deadlines", "GpuDriver", "GpuUtilization", "MemoryDriver", "MemoryLimit", "NvmlDriver"]
