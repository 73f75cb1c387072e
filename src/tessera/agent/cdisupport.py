"""Detects a node's CDI support: its Node object, the runtime's configuration, the driver's specification."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tessera.clients.kube import Object
from tessera.core.node.liststrategies import CdiSupport

__all__ = ["DRIVER_SPECS", "RUNTIME_CONFIG", "RuntimeConfig", "first_file", "observe_cdi", "read_runtime_config"]

DRIVER_SPECS = (Path("/etc/cdi/nvidia.yaml"), Path("/var/run/cdi/nvidia.yaml"))
"""CDI specifications of the driver's libraries: written by hand with `nvidia-ctk cdi generate`, or by the
service nvidia-cdi-refresh of NVIDIA's container toolkit since 1.18. Source: NVIDIA Container Toolkit documentation."""
RUNTIME_CONFIG = Path("/etc/containerd/config.toml")
_CRI = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
"""Tables of containerd's configuration with `enable_cdi`: version 3, and earlier.

Source: containerd/containerd `docs/cri/config.md`.
"""


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The CDI settings of containerd's configuration."""

    version: int = 0
    """Version of the configuration; 0 if it has none."""
    cdi: bool | None = None
    """Whether CDI is enabled; None if the file does not set it."""


def observe_cdi(
    node: Object, *, runtime_config: Path, driver_specs: Iterable[Path], driver_folder: str = ""
) -> CdiSupport:
    """Return a node's CDI support; reads one small file.

    Args:
        node: the Node object.
        runtime_config: containerd's; an unreadable one, as inside a container without the mount, counts as unset.
        driver_specs: possible paths of the driver's specification.
        driver_folder: the host folder that is mounted into containers instead; empty for none.

    """
    info = node.get("status", {}).get("nodeInfo", {})
    try:
        enabled = read_runtime_config(runtime_config).cdi
    except (OSError, ValueError):
        enabled = None
    return CdiSupport(
        runtime=info.get("containerRuntimeVersion", ""),
        kubelet=info.get("kubeletVersion", ""),
        enabled=enabled,
        driver_spec=bool(driver_folder) or first_file(driver_specs) is not None,
    )


def first_file(paths: Iterable[Path]) -> Path | None:
    """Return the first of these that exists."""
    return next((path for path in paths if path.is_file()), None)


def read_runtime_config(path: Path) -> RuntimeConfig:
    """Return the CDI settings of containerd's configuration.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not TOML.

    """
    config = tomllib.loads(path.read_text())
    version = config.get("version")
    return RuntimeConfig(version=version if isinstance(version, int) else 0, cdi=_switch(config))


def _switch(config: Mapping[str, Any]) -> bool | None:
    plugins = config.get("plugins")
    for name in _CRI:
        section = plugins.get(name) if isinstance(plugins, dict) else None
        if isinstance(section, dict) and isinstance(section.get("enable_cdi"), bool):
            return bool(section["enable_cdi"])
    return None
