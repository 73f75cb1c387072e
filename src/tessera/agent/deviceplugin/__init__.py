"""Device plugins: what this node offers is advertised to the kubelet, and handed to containers.

`Plugins` is the whole; its owner calls `offer` whenever GPUs, sharing or health changed and keeps one task in `run`.
"""

from tessera.agent.deviceplugin.assignedpods import AssignedPods
from tessera.agent.deviceplugin.cdifolder import CdiFolder
from tessera.agent.deviceplugin.devicemaker import GpuChanges, PluginPaths
from tessera.agent.deviceplugin.gate import Gate
from tessera.agent.deviceplugin.plugins import Plugins
from tessera.agent.deviceplugin.resource import OfferedResource
from tessera.agent.deviceplugin.shares import ShareAllocator

__all__ = [
    "AssignedPods",
    "CdiFolder",
    "Gate",
    "GpuChanges",
    "OfferedResource",
    "PluginPaths",
    "Plugins",
    "ShareAllocator",
]
