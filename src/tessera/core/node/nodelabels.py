"""Node labels that configure its GPUs, named by NVIDIA's components."""

from typing import Final

__all__ = ["MIG_CONFIG", "MIG_CONFIG_STATE", "PLUGIN_CONFIG"]

MIG_CONFIG: Final = "nvidia.com/mig.config"
"""Label of a node: the name of the desired MIG layout. Set by users; read by the agent. Source:
NVIDIA/mig-parted, cmd/nvidia-mig-manager/main.go."""
MIG_CONFIG_STATE: Final = "nvidia.com/mig.config.state"
"""Label of a node: `pending`, `rebooting`, `success` or `failed`, for that layout. Set by the agent; read by users and
`tessera doctor`. Source: as above."""
PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"
"""Label of a node: the file of the sharing directory that it uses. Set by users; read by the agent. Source:
NVIDIA/k8s-device-plugin README."""
