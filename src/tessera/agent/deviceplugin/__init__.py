"""The device plugins of this node: advertise devices to the kubelet and hand them to containers.

`Plugins` is the entry point; its owner calls `offer` when GPUs, sharing or health change and keeps a task in `run`.
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
