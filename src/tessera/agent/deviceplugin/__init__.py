"""The device plugins of this node: advertise devices to the kubelet and hand them to containers.

`Plugins` is the entry point; its owner calls `offer` when GPUs, sharing or health change and keeps a task in `run`.
"""

from tessera.agent.deviceplugin.allocations.gate import Gate
from tessera.agent.deviceplugin.containers.assignedpods import AssignedPods
from tessera.agent.deviceplugin.containers.cdifolder import CdiFolder
from tessera.agent.deviceplugin.containers.devicemaker import GpuChanges, PluginPaths
from tessera.agent.deviceplugin.containers.shares import ShareAllocator
from tessera.agent.deviceplugin.offers.resource import OfferedResource
from tessera.agent.deviceplugin.plugins import Plugins

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
