"""Bounds for agents' reports: values from another process are validated before use.

Numbers that no GPU can have count as not reported; causes that Tessera does not know, and contention by containers that
the report does not have, are left out.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from tessera.core.usage.contention import SATURATED, Contention
from tessera.core.usage.plausible import MOST_CELSIUS, MOST_MIB, MOST_WATTS, percentage, possible, within
from tessera.core.usage.throttling import ThrottleCause
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport
from tessera.core.workload.objectnames import is_label, is_pod

__all__ = ["discard_impossible"]

_MOST_GPUS: Final = 4096
_MOST_SLICES: Final = 64
_MOST_S: Final = 100 * 365 * 86_400
_CAUSES: Final = frozenset({*ThrottleCause, SATURATED})


def discard_impossible(report: UsageReport) -> UsageReport:
    """Return a report without impossible values, as an agent just answered with it."""
    gpus = [each for each in report.gpus if possible(each.index, _MOST_GPUS)]
    containers = {each.name for gpu in gpus for device in gpu.devices for each in device.containers if _is_named(each)}
    return msgspec.structs.replace(
        report,
        age_s=within(report.age_s, _MOST_S),
        answered_s=0.0,
        gpus=tuple(_gpu(each, containers) for each in gpus),
    )


def _is_named(container: ContainerReport) -> bool:
    """Return whether Kubernetes takes its names."""
    return is_pod(container.namespace, container.pod) and is_label(container.container)


def _gpu(gpu: GpuReport, containers: Collection[str]) -> GpuReport:
    return msgspec.structs.replace(
        gpu,
        temperature_c=within(gpu.temperature_c, MOST_CELSIUS),
        power_watts=within(gpu.power_watts, MOST_WATTS),
        throttled=tuple(each for each in dict.fromkeys(gpu.throttled) if each in _CAUSES),
        devices=tuple(map(_device, gpu.devices)),
        contention=tuple(_known(gpu, containers)),
    )


def _known(gpu: GpuReport, containers: Collection[str]) -> Iterator[Contention]:
    """Yield contention of each cause of throttling once, and of saturation for each device, if it is of containers.

    Its containers are the node's. `evenly` needs two of them and, as `nobody`, an empty `caused_by`.
    """
    pending = Counter(_CAUSES)
    pending[SATURATED] = max(1, len(gpu.devices))
    for each in gpu.contention:
        names = {*each.caused_by, *each.affected, *each.evenly}
        if pending[each.cause] > 0 and names.issubset(containers):
            pending[each.cause] -= 1
            evenly = tuple(dict.fromkeys(each.evenly))
            yield msgspec.structs.replace(
                each,
                caused_by=tuple(dict.fromkeys(each.caused_by)),
                affected=tuple(dict.fromkeys(each.affected)),
                evenly=evenly if len(evenly) > 1 and not each.caused_by else (),
                nobody=each.nobody and not each.caused_by,
            )


def _device(device: DeviceReport) -> DeviceReport:
    return msgspec.structs.replace(
        device,
        start=device.start if possible(device.start, _MOST_SLICES) else 0,
        memory_mib=device.memory_mib if possible(device.memory_mib, MOST_MIB) else 0,
        used_mib=within(device.used_mib, MOST_MIB),
        gpu_percent=percentage(device.gpu_percent),
        ended_percent=percentage(device.ended_percent),
        containers=tuple(map(_container, device.containers)),
    )


def _container(container: ContainerReport) -> ContainerReport:
    return msgspec.structs.replace(
        container,
        allocated_mib=within(container.allocated_mib, MOST_MIB),
        used_mib=within(container.used_mib, MOST_MIB),
        gpu_percent=percentage(container.gpu_percent),
        peak_mib=within(container.peak_mib, MOST_MIB),
        mean_percent=percentage(container.mean_percent),
        observed_s=container.observed_s if possible(container.observed_s, _MOST_S) else 0.0,
        load_observed_s=within(container.load_observed_s, _MOST_S),
    )
