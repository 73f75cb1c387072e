"""Filters a driver's measurements: an impossible value counts as not reported."""

from collections.abc import Iterable
from typing import Any

import msgspec

from tessera.core.gpu.inventory import GpuFacts, Instance
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading, RemappedRows
from tessera.core.usage.throttling import KNOWN_REASONS

__all__ = [
    "MOST_CELSIUS",
    "MOST_MIB",
    "MOST_WATTS",
    "discard_implausible",
    "most_mib",
    "percentage",
    "possible",
    "within",
]

MOST_MIB = 4 << 20
"""For a GPU with unknown memory; more than any has."""
MOST_CELSIUS = 200
MOST_WATTS = 10_000
_MOST_PERCENT = 101
"""Slightly above 100 is rounding."""
_PERCENTAGES = ("gpu_percent", "memory_percent", "encoder_percent", "decoder_percent")
_MOST = {
    "sm_clock_mhz": 20_000,
    "memory_clock_mhz": 50_000,
    "temperature_c": MOST_CELSIUS,
    "memory_temperature_c": MOST_CELSIUS,
    "reserved_mib": MOST_MIB,
    "power_watts": MOST_WATTS,
    "energy_mj": 1 << 62,
    "clocks_event_reasons": KNOWN_REASONS,
    "ecc_corrected": 1 << 52,
    "ecc_uncorrected": 1 << 52,
}
"""Upper bound of each other field; drivers write all bits of a field for a value that they do not have."""
_MOST_ROWS = 1 << 20


def possible(value: object, most: float) -> bool:
    """Return whether a value is a number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= most


def percentage(value: Any) -> Any:
    """Return a percentage, at most 100; None where it is impossible."""
    return min(value, 100) if possible(value, _MOST_PERCENT) else None


def most_mib(device: GpuFacts | Instance) -> int:
    """Return how much memory can be in use on a GPU or an instance."""
    known = device.memory_total_mib if isinstance(device, GpuFacts) else device.memory_mib
    return known or MOST_MIB


def discard_implausible(reading: GpuReading, facts: GpuFacts) -> GpuReading:
    """Return a reading without impossible values: negative, not a number, more than the GPU has.

    Unknown instances are left out, and so are processes without a process id. A process counts once for each instance.
    """
    instances = {each.placement: each for each in facts.instances}
    fields: dict[str, Any] = {name: within(getattr(reading, name), most) for name, most in _MOST.items()}
    fields |= {name: percentage(getattr(reading, name)) for name in _PERCENTAGES}
    return GpuReading(
        **fields,
        memory_used_mib=within(reading.memory_used_mib, most_mib(facts)),
        activity=_activity(reading.activity),
        remapped_rows=_rows(reading.remapped_rows),
        instances=tuple(
            _instance(each, instances[each.placement]) for each in reading.instances if each.placement in instances
        ),
        processes=None if reading.processes is None else tuple(_processes(reading.processes, most_mib(facts))),
    )


def _processes(processes: Iterable[ProcessReading], most: int) -> Iterable[ProcessReading]:
    found: dict[tuple[int, int | None], ProcessReading] = {}
    for each in processes:
        if possible(each.pid, 1 << 32) and each.pid > 0:
            one = ProcessReading(
                pid=each.pid,
                memory_mib=within(each.memory_mib, most),
                gpu_instance=each.gpu_instance,
                sm_percent=percentage(each.sm_percent),
            )
            found.setdefault((each.pid, each.gpu_instance), one)
    return found.values()


def within(value: Any, most: float) -> Any:
    """Return a value from 0 to `most`; None where it is none."""
    return value if possible(value, most) else None


def _instance(reading: InstanceReading, instance: Instance) -> InstanceReading:
    used_mib = within(reading.memory_used_mib, most_mib(instance))
    return InstanceReading(placement=reading.placement, memory_used_mib=used_mib, activity=_activity(reading.activity))


def _activity(activity: EngineActivity | None) -> EngineActivity | None:
    if activity is None:
        return None
    return EngineActivity(**{name: percentage(value) for name, value in msgspec.structs.asdict(activity).items()})


def _rows(rows: RemappedRows | None) -> RemappedRows | None:
    known = rows is not None and possible(rows.corrected, _MOST_ROWS) and possible(rows.uncorrected, _MOST_ROWS)
    return rows if known else None
