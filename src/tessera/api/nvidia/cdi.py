"""Specifications of the Container Device Interface, as files in its folder.

Source: cncf-tags/container-device-interface `SPEC.md`, `specs-go/version.go`.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.documents import Document, Plain
from tessera.api.fields import Field
from tessera.core.deviceplugin.containerresponse import ContainerMount
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.errors import InvalidInput, shown

__all__ = ["NOTHING", "DriverEdits", "mounted_driver", "read_driver_edits", "write"]

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})\.(\d{1,3})", re.ASCII)
_PLAIN_VERSION = (0, 3, 0)
_DIGIT_VERSION = (0, 5, 0)
"""First version that allows device names to begin with a digit, and `hostPath`."""


class DriverEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Edits for every container with a GPU: the driver's libraries of `nvidia-ctk cdi generate`, or its folder."""

    version: tuple[int, int, int] = _PLAIN_VERSION
    edits: Mapping[str, Plain] = {}


NOTHING = DriverEdits()
"""Without such a specification: the runtime or the image provides the libraries."""


def read_driver_edits(document: Document) -> DriverEdits:
    """Return the container edits of a CDI specification for all its devices; the devices themselves are left out.

    Raises:
        InvalidInput: not a CDI specification.

    """
    root = Field(document, document.data)
    match = _VERSION.fullmatch(root.get("cdiVersion").text())
    if match is None:
        raise root.get("cdiVersion").refuse("a version", "0.5.0")
    major, minor, patch = (int(part) for part in match.groups())
    return DriverEdits(version=(major, minor, patch), edits=root.get("containerEdits").mapping())


def mounted_driver(mount: ContainerMount) -> DriverEdits:
    """Return the edits that mount the driver's folder."""
    return DriverEdits(edits=_edits(ShareEdits(mounts=(mount,)), ""))


def write(kind: str, devices: Mapping[str, ShareEdits], driver: DriverEdits = NOTHING, *, dev_root: str = "/") -> str:
    """Return the text of a specification, of the lowest version that runtimes need to read it.

    Args:
        kind: vendor and class, `tessera.dev/gpu`.
        devices: the edits of each device, by name.
        driver: the edits with any of them.
        dev_root: host folder that contains the driver's `/dev`.

    Raises:
        InvalidInput: a name that CDI does not allow.

    """
    for name in devices:
        if not _NAME.fullmatch(name):
            expected = "letters, digits and _ - . : between a letter or digit at both ends"
            raise InvalidInput(f"CDI device of {kind}", found=shown(name), expected=expected)
    root = dev_root.rstrip("/")
    newer = bool(root) or any(name[0].isdigit() for name in devices)
    version = max(driver.version, _DIGIT_VERSION if newer else _PLAIN_VERSION)
    spec: dict[str, Any] = {
        "cdiVersion": ".".join(map(str, version)),
        "kind": kind,
        "devices": [{"name": name, "containerEdits": _edits(each, root)} for name, each in devices.items()],
    }
    if driver.edits:
        spec["containerEdits"] = driver.edits
    return msgspec.json.format(msgspec.json.encode(spec), indent=2).decode()


def _edits(edits: ShareEdits, root: str) -> dict[str, Any]:
    nodes = [{"path": path, "hostPath": f"{root}{path}"} if root else {"path": path} for path in edits.device_nodes]
    mounts = [
        {
            "hostPath": each.host_path,
            "containerPath": each.container_path,
            "options": ["ro" if each.read_only else "rw", "rbind", "nosuid", "nodev"],
        }
        for each in edits.mounts
    ]
    parts = {"env": [f"{name}={value}" for name, value in edits.env], "deviceNodes": nodes, "mounts": mounts}
    return {key: part for key, part in parts.items() if part}
