"""The configuration file of NVIDIA's device plugin, version v1, as far as it says how GPUs are shared.

Source: NVIDIA/k8s-device-plugin `api/config/v1/{config,sharing,replicas,flags}.go`.
"""

from typing import Literal

import msgspec

from tessera.api.documents import Document, Plain
from tessera.api.documents import write as write_document
from tessera.api.fields import Field
from tessera.core.sharing import Mode

__all__ = ["SharingConfig", "read", "write"]

_VERSION = "v1"
_MAX_REPLICAS = 1 << 20
_WAYS = {"timeSlicing": Mode.TIME_SLICING, "mps": Mode.MPS}
_KEYS = {mode: key for key, mode in _WAYS.items()}

Strategy = Literal["none", "single", "mixed"]


class SharingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the device plugin of a node advertises its GPUs."""

    mig_strategy: Strategy = "none"
    mode: Mode | None = None
    """`Mode.TIME_SLICING` or `Mode.MPS`, of whole GPUs and MIG instances alike; None where nothing is shared."""
    replicas: tuple[tuple[str, int], ...] = ()
    """Clients of each device by resource name, at least 2."""
    renamed: bool = False
    """Whether shared resources get the suffix `.shared`."""
    fail_requests_greater_than_one: bool | None = None
    """None for the plugin's default: false under time-slicing, true under MPS."""
    ignored: tuple[str, ...] = ()
    """What the file says and the plugin ignores with a warning: renamed resources, lists of devices."""


def read(document: Document) -> SharingConfig:
    """Return what a device plugin configuration says about sharing.

    Raises:
        InvalidInput: another version, an unknown field, time-slicing and MPS at once, fewer than two replicas.

    """
    root = Field(document, document.data).only("version", "flags", "resources", "sharing", "imex")
    if root.get("version").text(_VERSION) != _VERSION:
        raise root.get("version").refuse("a version this reader knows", _VERSION)
    ignored = ("resources",) if root.get("resources").mapping() else ()
    strategy: Strategy = root.get("flags", "migStrategy").choice("none", "single", "mixed", default="none")
    sharing = root.get("sharing").only(*_WAYS)
    ways = [key for key, way in sharing.members() if way.given]
    if len(ways) > 1:
        raise sharing.refuse("one of timeSlicing and mps", found="both")
    if not ways:
        return SharingConfig(mig_strategy=strategy, ignored=ignored)
    way = sharing.get(ways[0]).only("renameByDefault", "failRequestsGreaterThanOne", "resources")
    fail = way.get("failRequestsGreaterThanOne")
    resources = list(way.get("resources").elements())
    if not resources:
        raise way.get("resources").refuse("at least one resource")
    return SharingConfig(
        mig_strategy=strategy,
        mode=_WAYS[ways[0]],
        replicas=_replicas(resources),
        renamed=way.get("renameByDefault").boolean(default=False),
        fail_requests_greater_than_one=fail.boolean() if fail.given else None,
        ignored=(*ignored, *_ignored(resources)),
    )


def _replicas(resources: list[Field]) -> tuple[tuple[str, int], ...]:
    replicas: dict[str, int] = {}
    for resource in resources:
        resource.only("name", "rename", "devices", "replicas")
        name = resource.get("name").text()
        if name in replicas:
            raise resource.get("name").refuse("each resource once")
        replicas[name] = resource.get("replicas").integer(least=2, most=_MAX_REPLICAS)
    return tuple(replicas.items())


def _ignored(resources: list[Field]) -> list[str]:
    found = [f"rename of {each.get('name').text()}" for each in resources if each.get("rename").given]
    devices = [each for each in resources if each.get("devices").value not in (None, "all")]
    return found + [f"devices of {each.get('name').text()}" for each in devices]


def write(config: SharingConfig) -> str:
    """Return the text of a device plugin configuration; what the plugin would ignore is left out."""
    data: dict[str, Plain] = {"version": _VERSION, "flags": {"migStrategy": config.mig_strategy}}
    if config.mode is not None:
        way: dict[str, Plain] = {"renameByDefault": config.renamed}
        if config.fail_requests_greater_than_one is not None:
            way["failRequestsGreaterThanOne"] = config.fail_requests_greater_than_one
        way["resources"] = [{"name": name, "replicas": replicas} for name, replicas in config.replicas]
        data["sharing"] = {_KEYS[config.mode]: way}
    return write_document(data)
