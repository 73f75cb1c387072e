"""Which of the free devices of a resource a container prefers (`GetPreferredAllocation`)."""

from collections import Counter
from typing import Literal

import msgspec

from tessera.core.deviceplugin.offers.advertise import PluginDevice, Resource
from tessera.core.gpu.sharing import Mode
from tessera.errors import InvalidInput

__all__ = ["AllocationPolicy", "PreferenceRequest", "prefer"]

AllocationPolicy = Literal["distributed", "packed"]
"""Whether replicas come from the least or from the most used device. Source: NVIDIA/k8s-device-plugin
`api/config/v1/flags.go` `sharedDevicesAllocationPolicy`, `internal/rm/allocate.go`."""

_UNSHARED = (Mode.WHOLE, Mode.MIG)


class PreferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A container's request: how many devices, and how to choose them."""

    available: tuple[str, ...]
    must_include: tuple[str, ...] = ()
    size: int


class _Group(msgspec.Struct, kw_only=True):
    """The free clients of one device."""

    device: PluginDevice
    total: int
    free: list[str]
    """In reverse order of the offer."""
    chosen: int = 0

    @property
    def used(self) -> int:
        return self.total - len(self.free)


def prefer(
    resource: Resource, desired: PreferenceRequest, policy: AllocationPolicy = "distributed", *, distinct: bool = False
) -> tuple[str, ...]:
    """Return the preferred device ids of a container, as many as it requests, including the required ones.

    Replicas come from the least used device (`distributed`) or the most used one (`packed`); MIG instances that are not
    replicated from the most used GPU, so that others stay free to be repartitioned. With `distinct`, replicas come from
    another GPU before any of a GPU that is chosen already. Among equals: the NUMA node of most chosen devices, the one
    with the fewest sufficient free devices, the order of the offer. Withdrawn ids come last. Cost: the
    size times the number of devices, whose replicas are not examined singly.

    Raises:
        InvalidInput: fewer are available than requested, or more are required.

    """
    must, available = dict.fromkeys(desired.must_include), dict.fromkeys((*desired.must_include, *desired.available))
    if not len(must) <= desired.size <= len(available):
        raise InvalidInput(
            f"preferred allocation of {resource.name}",
            found=f"{desired.size} of {len(available)} available devices are requested, {len(must)} of them required",
            hint="request at least the required and at most the available ones",
        )
    groups = _groups(resource, available, must)
    chosen = list(must)
    unshared = all(device.mode in _UNSHARED for device in resource.devices)
    packed, distinct = policy == "packed" or unshared, distinct and not unshared
    while len(chosen) < desired.size:
        group = _best(groups, desired.size - len(chosen), packed=packed, distinct=distinct)
        if group is None:
            break
        chosen.append(group.free.pop())
        group.chosen += 1
    known = set(chosen)
    rest = [each for each in available if each not in known]
    return (*chosen, *rest[: desired.size - len(chosen)])


def _groups(resource: Resource, available: dict[str, None], must: dict[str, None]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for device in resource.devices:
        group = groups.setdefault(device.uuid, _Group(device=device, total=0, free=[]))
        group.total += 1
        if device.id in must:
            group.chosen += 1
        elif device.id in available:
            group.free.append(device.id)
    for group in groups.values():
        group.free.reverse()
    return list(groups.values())


def _best(groups: list[_Group], missing: int, *, packed: bool, distinct: bool) -> _Group | None:
    """Return the device to take the next client from; None when none is free."""
    on_gpu, used, near, free = Counter[str](), Counter[str](), Counter[int | None](), Counter[int | None]()
    for group in groups:
        on_gpu[group.device.gpu_uuid] += group.chosen
        used[group.device.gpu_uuid] += group.used
        near[group.device.numa] += group.chosen
        free[group.device.numa] += len(group.free)

    def cost(group: _Group) -> tuple[int, ...]:
        gpu, numa = group.device.gpu_uuid, group.device.numa
        sign = -1 if packed else 1
        enough = free[numa] >= missing
        return (
            on_gpu[gpu] if distinct else 0,
            sign * group.used,
            sign * used[gpu],
            -near[numa],
            0 if enough else 1,
            free[numa] if enough else -free[numa],
        )

    return min((group for group in groups if group.free), key=cost, default=None)
