"""The GPU driver by NVML, NVIDIA's management library: the only package that imports pynvml."""

from tessera.clients.gpu.nvml.driver import Deadlines, NvmlDriver

__all__ = ["Deadlines", "NvmlDriver"]
