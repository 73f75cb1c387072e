"""The configuration file of NVIDIA's device plugin, version v1: how GPUs are shared and injected into containers.

What NVIDIA's plugin reads and ignores is honored here: `devices` and `rename` of a resource, so that devices of one
resource may have different numbers of replicas.

Source: NVIDIA/k8s-device-plugin `api/config/v1/{config,sharing,replicas,resources,flags,consts}.go`.
"""

import re

import msgspec

from tessera.api.documents import Document, Plain
from tessera.api.documents import write as write_document
from tessera.api.fields import Field
from tessera.core.gpu.sharing import Mode
from tessera.core.node.nodesharing import (
    AllocationPolicy,
    ListStrategy,
    NodeSharing,
    PluginOptions,
    SharingEntry,
    Strategy,
)
from tessera.core.workload.objectnames import is_qualified
from tessera.errors import InvalidInput

__all__ = ["read", "write"]

_VERSION = "v1"
_MAX_REPLICAS = 4096
_MAX_DEVICES = 1 << 20
_WAYS = {"timeSlicing": Mode.TIME_SLICING, "mps": Mode.MPS}
_KEYS = {mode: key for key, mode in _WAYS.items()}
_PREFIX = "nvidia.com/"
_SHARED = ".shared"
_MAX_NAME = 63
_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_DEVICE = re.compile(
    rf"[0-9]{{1,4}}(?::[0-9]{{1,4}})?|GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/[0-9]{{1,4}}/[0-9]{{1,4}}"
)
_DEVICES = "0 for a GPU, 0:1 for its MIG instance, or the UUID of a GPU or MIG instance"


def read(document: Document) -> NodeSharing:
    """Return the sharing settings of a device plugin configuration, and its device list strategy.

    Raises:
        InvalidInput: another version, an unknown field, time-slicing and MPS at once, fewer than two replicas.

    """
    root = Field(document, document.data).only("version", "flags", "resources", "sharing", "imex")
    if root.get("version").text(_VERSION) != _VERSION:
        raise root.get("version").refuse("a version this reader knows", _VERSION)
    flags = root.get("flags")
    declared = flags.get("migStrategy")
    strategy: Strategy = declared.choice("none", "single", "mixed", default="mixed")
    return NodeSharing(
        strategy=strategy if declared.present else None,
        entries=_entries(root.get("sharing").only(*_WAYS)),
        plugin=_options(flags, flags.get("plugin")),
        ignored=("resources: names for GPU and MIG patterns have no effect",)
        if root.get("resources").mapping()
        else (),
    )


def _options(flags: Field, plugin: Field) -> PluginOptions:
    default = PluginOptions()
    declared = plugin.get("sharedDevicesAllocationPolicy")
    policy: AllocationPolicy = declared.choice("distributed", "packed", default="distributed")
    return PluginOptions(
        list_strategies=_strategies(plugin.get("deviceListStrategy")),
        id_strategy=plugin.get("deviceIDStrategy").choice("uuid", "index", default=default.id_strategy),
        pass_device_specs=plugin.get("passDeviceSpecs").boolean(default=default.pass_device_specs),
        allocation_policy=policy if declared.present else None,
        cdi_annotation_prefix=plugin.get("cdiAnnotationPrefix").text(default.cdi_annotation_prefix),
        driver_root=flags.get("nvidiaDriverRoot").text(default.driver_root),
        container_driver_root=plugin.get("containerDriverRoot").text(default.container_driver_root),
    )


def _strategies(field: Field) -> tuple[ListStrategy, ...]:
    fields = list(field.elements()) if isinstance(field.value, list) else [field] if field.present else []
    found: dict[ListStrategy, None] = {}
    for each in fields:
        strategy: ListStrategy = each.choice("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
        found[strategy] = None
    return tuple(found)


def _entries(sharing: Field) -> tuple[SharingEntry, ...]:
    ways = [key for key, way in sharing.members() if way.present]
    if len(ways) > 1:
        raise sharing.refuse(
            found="both timeSlicing and mps are set", hint="set one; a node policy has both on one node"
        )
    if not ways:
        return ()
    way = sharing.get(ways[0]).only("renameByDefault", "failRequestsGreaterThanOne", "resources")
    fields = list(way.get("resources").elements())
    if not fields:
        raise way.get("resources").refuse("at least one resource")
    fail = way.get("failRequestsGreaterThanOne")
    suffix = _SHARED if way.get("renameByDefault").boolean(default=False) else ""
    common = SharingEntry(
        resource="",
        mode=_WAYS[ways[0]],
        replicas=0,
        rename=suffix,
        single_request=fail.boolean() if fail.present else None,
    )
    entries = [_entry(field, common) for field in fields]
    _refuse_twice(fields, entries)
    return tuple(entries)


def _entry(field: Field, common: SharingEntry) -> SharingEntry:
    """Return one resource's settings; `common` has its mode, and the suffix of names as `rename`."""
    field.only("name", "rename", "devices", "replicas")
    name, rename = field.get("name"), ""
    if field.get("rename").present:
        rename = _resource(field.get("rename"))
    elif common.rename:
        rename = _resource(name, common.rename)
    count, devices = _devices(field.get("devices"))
    return msgspec.structs.replace(
        common,
        resource=_resource(name),
        replicas=field.get("replicas").integer(least=2, most=_MAX_REPLICAS),
        rename=rename,
        count=count,
        devices=devices,
    )


def _resource(field: Field, suffix: str = "") -> str:
    """Return a resource name; one without a domain is NVIDIA's, as the plugin takes it."""
    text = field.text()
    name = (text if "/" in text else f"{_PREFIX}{text}") + suffix
    if len(name) > _MAX_NAME or not is_qualified(name):
        raise field.refuse(f"a resource name of at most {_MAX_NAME - len(suffix)} characters", "nvidia.com/gpu")
    return name


def _devices(field: Field) -> tuple[int, tuple[str, ...]]:
    """Return how many devices are shared and which; zero and none for all."""
    if field.value in (None, "all"):
        return 0, ()
    if not isinstance(field.value, list):
        if isinstance(field.value, str):
            raise field.refuse("all, a number of devices or a list of devices", f"all; in a list {_DEVICES}")
        return field.integer(least=1, most=_MAX_DEVICES), ()
    found = [_device(each) for each in field.elements()]
    if not found or len(set(found)) < len(found):
        raise field.refuse("a list of devices, each once", _DEVICES)
    return 0, tuple(found)


def _device(field: Field) -> str:
    if isinstance(field.value, int):
        return str(field.integer(most=_MAX_DEVICES))
    text = field.text()
    if not _DEVICE.fullmatch(text):
        raise field.refuse("a device", _DEVICES)
    return text if "-" in text else ":".join(str(int(part)) for part in text.split(":"))


def _refuse_twice(fields: list[Field], entries: list[SharingEntry]) -> None:
    """Reject two entries for the same devices of one resource."""
    known: dict[tuple[str, str], SharingEntry] = {}
    for field, entry in zip(fields, entries, strict=True):
        for device in entry.devices or ("",):
            if (entry.resource, device) in known:
                where = field.get("devices") if device else field.get("name")
                raise where.refuse(
                    found=f"{device or entry.resource} is there twice",
                    hint="name each resource once, or each device of it once",
                )
            known[entry.resource, device] = entry


def write(node_sharing: NodeSharing) -> str:
    """Return the text of a device plugin configuration with the MIG strategy and the shared resources.

    Raises:
        InvalidInput: time-slicing and MPS at once, or a policy of single GPUs, which this format cannot say.

    """
    modes = {entry.mode for entry in node_sharing.entries}
    if len(modes) > 1 or node_sharing.policies:
        raise InvalidInput(
            "device plugin configuration",
            found="GPUs are shared in several ways, and the file has one for the node",
            hint="share all GPUs in one way",
        )
    data: dict[str, Plain] = {"version": _VERSION}
    if node_sharing.strategy is not None:
        data["flags"] = {"migStrategy": node_sharing.strategy}
    for mode in modes:
        entries = node_sharing.entries
        by_default = all(entry.rename == f"{entry.resource}{_SHARED}" for entry in entries)
        way: dict[str, Plain] = {"renameByDefault": by_default}
        if entries[0].single_request is not None:
            way["failRequestsGreaterThanOne"] = entries[0].single_request
        way["resources"] = [_written(entry, by_default=by_default) for entry in entries]
        data["sharing"] = {_KEYS[mode]: way}
    return write_document(data)


def _written(entry: SharingEntry, *, by_default: bool) -> Plain:
    resource: dict[str, Plain] = {"name": entry.resource}
    if entry.rename and not by_default:
        resource["rename"] = entry.rename
    if entry.devices:
        resource["devices"] = list(entry.devices)
    elif entry.count:
        resource["devices"] = entry.count
    return resource | {"replicas": entry.replicas}
