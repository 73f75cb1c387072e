"""NVIDIA mig-parted's configuration file, version v1: the MIG manager's layouts for the GPUs of a node.

Source: NVIDIA/mig-parted `api/spec/v1/spec.go`, `pkg/types/mig_config.go`; rejects what that program rejects. The
GPU operator has the file in a ConfigMap: NVIDIA/gpu-operator `assets/state-mig-manager/0400_configmap.yaml`.
"""

import re
from collections.abc import Mapping

from tessera.api import documents
from tessera.api.documents import Document, Plain
from tessera.api.documents import write as write_document
from tessera.api.fields import Field
from tessera.core.node.layouts import Group

__all__ = ["Group", "read", "read_config_map", "write"]

_VERSION = "v1"
_PROFILE = re.compile(r"[1-9][0-9]?(c\.[1-9][0-9]?)?g\.[1-9][0-9]{0,3}gb([+-][a-z]+(\.[a-z]+)*)*")
_MAX_INDEX = 1024
_CONFIGURATIONS = "mig-configs"
_KEY = "config.yaml"
"""Key of the ConfigMap where the MIG manager finds the file."""


def read(document: Document) -> dict[str, tuple[Group, ...]]:
    """Return the configurations of a mig-parted file by name; also of one in a ConfigMap, as the GPU operator has it.

    Raises:
        InvalidInput: another version, an unknown or missing field, no configuration, an empty one, MIG devices without
            MIG, an invalid profile name; a ConfigMap without the key `config.yaml`.

    """
    if isinstance(document.data, dict) and document.data.get("kind") == "ConfigMap":
        text = Field(document, document.data).get("data", _KEY).text()
        document = documents.one(f"{document.source}, data[{_KEY}]", text)
    root = Field(document, document.data).only("version", _CONFIGURATIONS)
    if root.get("version").text() != _VERSION:
        raise root.get("version").refuse("a version this reader knows", _VERSION)
    configs = root.get(_CONFIGURATIONS)
    if not configs.mapping():
        raise configs.refuse("at least one configuration")
    return {name: _groups(config) for name, config in configs.members()}


def read_config_map(field: Field) -> dict[str, tuple[Group, ...]]:
    """Return the configurations of a ConfigMap among other objects; none where it holds no mig-parted file.

    Raises:
        InvalidInput: the file cannot be read.

    """
    text = field.get("data", _KEY).value
    if not isinstance(text, str) or _CONFIGURATIONS not in text:
        return {}
    return read(documents.one(f"{field.place}, data[{_KEY}]", text))


def _groups(config: Field) -> tuple[Group, ...]:
    groups = tuple(_group(element) for element in config.elements())
    if not groups:
        raise config.refuse("at least one group of GPUs")
    return groups


def _group(field: Field) -> Group:
    field.only("device-filter", "devices", "mig-enabled", "mig-devices")
    enabled, instances = field.get("mig-enabled").boolean(), field.get("mig-devices")
    if enabled and not instances.present:
        raise instances.refuse("the instances, {} for none, where mig-enabled is true")
    counts = tuple((_profile(count, name), count.integer()) for name, count in instances.members())
    if counts and not enabled:
        raise instances.refuse(found="there are instances where mig-enabled is false", hint="take them out")
    if counts and not any(count for _, count in counts):
        raise instances.refuse(found="all counts are 0", hint="write at least one instance, or {}")
    return Group(
        devices=_devices(field.get("devices")),
        enabled=enabled,
        instances=counts,
        filters=_filters(field.get("device-filter")),
    )


def _profile(field: Field, name: str) -> str:
    if not _PROFILE.fullmatch(name):
        raise field.refuse("a MIG profile", "1g.10gb, 1g.10gb+me", found=name)
    return name


def _devices(field: Field) -> tuple[int, ...] | None:
    if field.value == "all":
        return None
    if not isinstance(field.value, list):
        raise field.refuse("all, or a list of GPU indices")
    return tuple(element.integer(most=_MAX_INDEX) for element in field.elements())


def _filters(field: Field) -> tuple[str, ...]:
    if isinstance(field.value, str):
        return (field.value,) if field.value else ()
    return tuple(element.text() for element in field.elements())


def write(configs: Mapping[str, tuple[Group, ...]]) -> str:
    """Return the text of a mig-parted file with these configurations, in the order given."""
    data: Plain = {
        "version": _VERSION,
        _CONFIGURATIONS: {name: [_plain(group) for group in groups] for name, groups in configs.items()},
    }
    return write_document(data)


def _plain(group: Group) -> Plain:
    filters: dict[str, Plain] = {"device-filter": list(group.filters)} if group.filters else {}
    return filters | {
        "devices": "all" if group.devices is None else list(group.devices),
        "mig-enabled": group.enabled,
        "mig-devices": dict(group.instances),
    }
