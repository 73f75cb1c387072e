"""Named configurations, from a mig-parted file or by mig-parted's own names, as a target for each GPU of a node."""

import re
from collections import Counter
from collections.abc import Mapping

import msgspec

from tessera.core.gpu.gpumodels import GpuModel, profile
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Counts, Layout, counts_of, layouts_with, named_layouts, why_illegal
from tessera.errors import InvalidInput, shown

__all__ = ["Group", "LayoutTarget", "as_groups", "configuration_names", "exact", "resolve", "unseen_gpus"]

_ALL = "all-"
_DIGITS = re.compile(r"[0-9A-Za-z_]+", re.ASCII)
_OCTAL = re.compile(r"0[0-9_]+", re.ASCII)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The desired MIG layouts of some GPUs of a node."""

    devices: tuple[int, ...] | None = None
    """GPU indices; None for all GPUs."""
    enabled: bool
    """Whether MIG is on."""
    instances: tuple[tuple[str, int], ...] = ()
    """Instances by profile name; none where MIG is off."""
    filters: tuple[str, ...] = ()
    """PCI ids the group is limited to, `0x20B010DE` or with the subsystem `0x20B010DE:0x145F10DE`; empty for any."""


class LayoutTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The desired layout of one GPU."""

    gpu: str
    """UUID."""
    index: int
    mig: bool
    counts: Counts = ()
    """Instances by profile, in the order of the model's profiles; none where MIG is off."""
    layout: Layout | None = None
    """The placements, if they are fixed too; otherwise any with these counts will do."""
    mode_only: bool = False
    """Whether any instances will do, so that only MIG mode is switched."""


def resolve(
    name: str, configurations: Mapping[str, tuple[Group, ...]], inventory: Inventory
) -> tuple[LayoutTarget, ...]:
    """Return the target of each GPU in the configuration of this name, by index.

    A configuration of the file takes precedence over mig-parted's. Of several groups that match a GPU the last one
    wins; a GPU that none matches has no target and is left alone, and so are GPUs without MIG where a group is for all
    devices or switches MIG off. Profiles may go by other drivers' names (`3g.39gb` is `3g.40gb`).

    Source: NVIDIA/mig-parted, `WalkSelectedMigConfigForEachGPU` in cmd/nvidia-mig-parted/assert/assert.go, and
    cmd/nvidia-mig-parted/apply/mode.go and config.go.

    Raises:
        InvalidInput: no configuration of that name, a profile that a GPU lacks, instances that never fit together, MIG
            for a GPU named by its index that has none.

    """
    groups = configurations.get(name)
    return _by_default(name, configurations, inventory) if groups is None else _by_groups(name, groups, inventory)


def unseen_gpus(name: str, configurations: Mapping[str, tuple[Group, ...]], inventory: Inventory) -> tuple[int, ...]:
    """Return the indices of the GPUs in the configuration of this name that the driver never showed.

    Whether they have MIG, or the PCI ids of a filter, is unknown, so they count as included.
    """
    groups = configurations.get(name, (Group(enabled=True),))
    return tuple(
        index for index in inventory.unseen if any(group.devices is None or index in group.devices for group in groups)
    )


def configuration_names(configurations: Mapping[str, tuple[Group, ...]], inventory: Inventory) -> tuple[str, ...]:
    """Return the names of the configurations that this node could have, the file's first."""
    names = dict.fromkeys((*configurations, *_default_names(inventory)))
    return tuple(name for name in names if _is_possible(name, configurations, inventory))


def as_groups(inventory: Inventory) -> tuple[Group, ...]:
    """Return the groups of a configuration that describes this node now; lost GPUs are left out.

    Placements are lost, because the format counts instances; incomplete instances are not counted.
    """
    alike: dict[tuple[bool, Counts], list[int]] = {}
    for gpu in inventory.gpus:
        if not gpu.lost:
            placements = tuple(each.placement for each in gpu.instances)
            key = (gpu.mig is not None and gpu.mig.current, counts_of(gpu.model, placements))
            alike.setdefault(key, []).append(gpu.index)
    return tuple(
        Group(
            devices=None if len(indices) == len(inventory.gpus) and not inventory.unseen else tuple(indices),
            enabled=enabled,
            instances=instances,
        )
        for (enabled, instances), indices in alike.items()
    )


def exact(gpu: GpuFacts, layout: Layout | None) -> LayoutTarget:
    """Return the target of a GPU with known placements; None is MIG off.

    Raises:
        InvalidInput: this GPU does not support them.

    """
    wrong = None if layout is None else why_illegal(gpu.model, layout)
    if wrong:
        raise InvalidInput(
            _subject(gpu),
            found=f"{wrong}, which this GPU cannot have",
            hint="choose a layout from `tessera profiles`",
        )
    if layout is None:
        return LayoutTarget(gpu=gpu.uuid, index=gpu.index, mig=False)
    placed = tuple(sorted(layout))
    return LayoutTarget(gpu=gpu.uuid, index=gpu.index, mig=True, counts=counts_of(gpu.model, placed), layout=placed)


def _is_possible(name: str, configurations: Mapping[str, tuple[Group, ...]], inventory: Inventory) -> bool:
    if name not in configurations:
        return all(_default_counts(gpu.model, name) is not None for gpu in inventory.gpus if gpu.mig is not None)
    try:
        _by_groups(name, configurations[name], inventory)
    except InvalidInput:
        return False
    return True


def _by_groups(name: str, groups: tuple[Group, ...], inventory: Inventory) -> tuple[LayoutTarget, ...]:
    found = []
    for gpu in inventory.gpus:
        matching = [group for group in groups if _matches(group, gpu)]
        target = _target(name, gpu, matching[-1]) if matching else None
        if target is not None:
            found.append(target)
    return tuple(found)


def _matches(group: Group, gpu: GpuFacts) -> bool:
    named = group.devices is None or gpu.index in group.devices
    return named and (not group.filters or any(_passes(gpu, text) for text in group.filters))


def _passes(gpu: GpuFacts, text: str) -> bool:
    """Return whether a GPU has the PCI ids of a filter, compared as numbers; an invalid filter matches no GPU.

    Source: NVIDIA/mig-parted 0.15, `NewDeviceIDFromString` and `Matches` in pkg/types/device.go.
    """
    device, *subsystem = (_number(part) for part in text.split(":"))
    own = {_number(each) for each in ((gpu.pci_device_id,) if gpu.pci_device_id else gpu.model.pci)}
    if device is None or device not in own or len(subsystem) > 1:
        return False
    return not subsystem or subsystem[0] in gpu.pci_subsystem_ids


def _number(text: str) -> int | None:
    """Return a number of 32 bits as Go's `strconv.ParseUint` reads it with base 0; None if it is not one."""
    if not _DIGITS.fullmatch(text):
        return None
    try:
        number = int(text, 8 if _OCTAL.fullmatch(text) else 0)
    except ValueError:
        return None
    return number if number < 1 << 32 else None


def _target(name: str, gpu: GpuFacts, group: Group) -> LayoutTarget | None:
    if gpu.mig is None:
        if group.enabled and group.devices is not None:
            raise InvalidInput(
                f"configuration {name}, {_subject(gpu)}",
                found="it has mig-enabled: true, and the GPU has no MIG",
                hint="write devices: all, which leaves out GPUs without MIG, or other indices",
            )
        return None
    if not group.enabled:
        return LayoutTarget(gpu=gpu.uuid, index=gpu.index, mig=False)
    return LayoutTarget(gpu=gpu.uuid, index=gpu.index, mig=True, counts=_counts(name, gpu, group.instances))


def _counts(name: str, gpu: GpuFacts, instances: tuple[tuple[str, int], ...]) -> Counts:
    desired: Counter[str] = Counter()
    for text, count in instances:
        desired[_profile(name, gpu, text)] += count
    if not layouts_with(gpu.model, desired):
        listed = ", ".join(f"{count} x {each}" for each, count in instances)
        raise InvalidInput(
            f"configuration {name}, {_subject(gpu)}",
            found=f"{listed} do not fit on one {gpu.model.name} together",
            hint=f"choose from `tessera profiles {gpu.model.name}`",
        )
    return tuple((each.name, desired[each.name]) for each in gpu.model.profiles if desired[each.name])


def _profile(name: str, gpu: GpuFacts, text: str) -> str:
    try:
        return profile(gpu.model, text).name
    except InvalidInput as error:
        raise InvalidInput(
            f"configuration {name}, {_subject(gpu)}",
            found=error.found,
            expected=error.expected,
            hint=error.hint,
        ) from error


def _by_default(
    name: str, configurations: Mapping[str, tuple[Group, ...]], inventory: Inventory
) -> tuple[LayoutTarget, ...]:
    """Return the targets of a built-in configuration of mig-parted."""
    partitioned = [gpu for gpu in inventory.gpus if gpu.mig is not None]
    known = {gpu.uuid: _default_counts(gpu.model, name) for gpu in partitioned}
    if not partitioned and inventory.unseen and name.startswith(_ALL):
        return ()  # only those that are lost may have it
    if name not in _default_names(inventory) and not any(counts is not None for counts in known.values()):
        raise InvalidInput(
            "MIG configuration",
            found=shown(name),
            expected="the name of a configuration that this node can have",
            hint=", ".join(configuration_names(configurations, inventory)),
        )
    targets = []
    for gpu in partitioned:
        counts = known[gpu.uuid]
        if counts is None:
            raise InvalidInput(
                f"configuration {name}, {_subject(gpu)}",
                found="the GPU's model does not have it",
                hint="write a file with the layout of each GPU, or choose one that all MIG GPUs of this node support: "
                + ", ".join(configuration_names(configurations, inventory)),
            )
        targets.append(LayoutTarget(gpu=gpu.uuid, index=gpu.index, mig=name != f"{_ALL}disabled", counts=counts))
    return tuple(targets)


def _default_names(inventory: Inventory) -> tuple[str, ...]:
    partitioned = [gpu.model for gpu in inventory.gpus if gpu.mig is not None]
    return tuple(dict.fromkeys((f"{_ALL}disabled", *(name for model in partitioned for name in named_layouts(model)))))


def _default_counts(model: GpuModel, name: str) -> Counts | None:
    """Return a built-in configuration of mig-parted for one model; None where it has none."""
    named = named_layouts(model)
    if name in named:
        return named[name]
    if not name.startswith(_ALL):
        return None
    try:
        same = profile(model, name.removeprefix(_ALL)).name
    except InvalidInput:
        return None
    return named.get(f"{_ALL}{same.replace('+', '.')}")


def _subject(gpu: GpuFacts) -> str:
    return f"GPU {gpu.index} ({gpu.model.name})"
