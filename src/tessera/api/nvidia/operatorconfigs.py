"""The GPU operator's ConfigMaps for a fleet file, which refers to their configurations: MIG layouts, and sharing."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from tessera.api import documents
from tessera.api.fields import Field, in_place
from tessera.api.nvidia import sharingconfig
from tessera.api.nvidia.gpulabels import described
from tessera.api.nvidia.migparted import Group, read_config_map
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Counts
from tessera.core.node.layouts import configuration_names, resolve
from tessera.core.node.nodesharing import effective, notes

__all__ = ["OperatorConfigs", "mig_counts", "read_configs", "with_plugin"]


class OperatorConfigs(msgspec.Struct, frozen=True, kw_only=True):
    """The configurations of the ConfigMaps, by name."""

    mig: Mapping[str, tuple[Group, ...]]
    """Without those on which two ConfigMaps differ."""
    plugin: Mapping[str, tuple[Field, ...]]
    """The texts of each key that is not a mig-parted file; those that a node names are the device plugin's."""
    notes: tuple[str, ...] = ()


def read_configs(fields: Iterable[Field]) -> OperatorConfigs:
    """Return the configurations in the ConfigMaps among the objects of a fleet.

    Raises:
        InvalidInput: a mig-parted file that cannot be read.

    """
    mig: dict[str, tuple[Group, ...]] = {}
    plugin: dict[str, tuple[Field, ...]] = {}
    disputed: set[str] = set()
    for field in (each for each in fields if each.get("kind").value == "ConfigMap"):
        found = read_config_map(field)
        disputed.update(name for name, groups in found.items() if mig.setdefault(name, groups) != groups)
        for key, text in () if found else field.get("data").members():
            plugin[key] = (*plugin.get(key, ()), text)
    return OperatorConfigs(
        mig={name: groups for name, groups in mig.items() if name not in disputed},
        plugin=plugin,
        notes=tuple(f"MIG configuration {name} is not read: two ConfigMaps differ on it" for name in sorted(disputed)),
    )


def mig_counts(sharing: Field, gpu: Gpu, configs: OperatorConfigs) -> dict[str, Counts | None]:
    """Return the MIG configuration named by a GPU's sharing; all, for the error's fix, if there is none."""
    name = sharing.value.get("mig") if isinstance(sharing.value, dict) else None
    if not isinstance(name, str) or not configs.mig:
        return {}
    node, found = Inventory(gpus=(described(gpu),)), dict[str, Counts | None]()
    possible = (name,) if name in configs.mig else configuration_names(configs.mig, node)
    for each in possible:
        targets = in_place(sharing.get("mig"), partial(resolve, each, configs.mig, node))
        found[each] = next((target.counts for target in targets if target.mig), None)
    return found


def with_plugin(named: Field, gpus: Sequence[Gpu], configs: OperatorConfigs) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """Return a node's GPUs with the device plugin's sharing by a configuration, and its settings without effect.

    Args:
        named: the name of the configuration: a key of the ConfigMap.
        gpus: whole, or with the instances of a fixed layout.
        configs: to find the name in.

    Raises:
        InvalidInput: no ConfigMap has it, two differ on it, or its text is not a configuration of the device plugin.

    """
    texts = configs.plugin.get(named.text(), ())
    if not texts:
        known = ", ".join(sorted(configs.plugin)) or "there is none"
        hint = f"keys of the ConfigMaps here: {known}"
        raise named.refuse(found=f"{named.text()} is no key of a ConfigMap among the fleet's files", hint=hint)
    if len({text.text() for text in texts}) > 1:
        raise named.refuse(found=f"two ConfigMaps differ on {named.text()}", hint="keep the device plugin's")
    text = texts[0]
    settings = sharingconfig.read(documents.one(text.subject, text.text()))
    node = Inventory(
        gpus=tuple(described(msgspec.structs.replace(gpu, uuid=gpu.uuid or f"GPU-{gpu.index}")) for gpu in gpus)
    )
    shared = zip(gpus, effective(node, settings), strict=True)
    return tuple(msgspec.structs.replace(gpu, sharing=each.sharing) for gpu, each in shared), notes(node, settings)
