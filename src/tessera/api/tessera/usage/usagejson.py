"""GPU usage as JSON: an agent's `/usage`, and what `tessera top`, `recommend` and `explain pod` print of it.

Fields that are empty, false or unknown are left out of `/usage`.
"""

from typing import Final, Literal

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.usage.reportbounds import discard_impossible
from tessera.core.usage.rightsizing import Recommendation, Sizing
from tessera.core.usage.usagereport import PodContention, UsageReport
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = [
    "ContainerUsageFields",
    "ContentionFields",
    "DeviceUsageFields",
    "GpuUsageFields",
    "PodContentionFields",
    "RecommendationFields",
    "UsageFields",
    "contention_fields",
    "read_usage",
    "recommendation_fields",
    "usage_fields",
    "write_usage",
]

_MOST_OBJECTS: Final = 20_000
"""GPUs, devices and containers; a node of 8 GPUs with 7 instances, each shared by 4 containers, has 300."""


class ContainerUsageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A container, as `ContainerReport`."""

    namespace: str
    pod: str
    container: str
    exclusive: bool = False
    replica: bool = False
    allocated_mib: int | None = None
    used_mib: int | None = None
    gpu_percent: float | None = None
    peak_mib: int | None = None
    mean_percent: float | None = None
    observed_s: float = 0.0
    load_observed_s: float | None = None


class DeviceUsageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A device, as `DeviceReport`."""

    profile: str = ""
    start: int = 0
    memory_mib: int = 0
    used_mib: int | None = None
    gpu_percent: float | None = None
    ended_percent: float | None = None
    containers: tuple[ContainerUsageFields, ...] = ()


class ContentionFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What slows down the users of a GPU, as `Contention`."""

    cause: str
    caused_by: tuple[str, ...] = ()
    nobody: bool = False
    scope: Literal["gpu", "node"] = "gpu"
    evenly: tuple[str, ...] = ()
    affected: tuple[str, ...] = ()
    ended: bool = False


class PodContentionFields(ContentionFields, frozen=True, kw_only=True):
    """The same of one pod, as `PodContention`."""

    gpu: int


class GpuUsageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A GPU, as `GpuReport`."""

    index: int
    uuid: str = ""
    model: str = ""
    lost: bool = False
    temperature_c: float | None = None
    power_watts: float | None = None
    throttled: tuple[str, ...] = ()
    devices: tuple[DeviceUsageFields, ...] = ()
    contention: tuple[ContentionFields, ...] = ()


class UsageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The report of a node, as `UsageReport`."""

    node: str
    age_s: float | None = None
    answered_s: float = 0.0
    gpus: tuple[GpuUsageFields, ...] = ()


class _EarlierContention(ContentionFields, frozen=True, kw_only=True):
    drivers: tuple[str, ...] = ()
    """Name of `causedBy` in reports of earlier agents: nodes are upgraded one after the other."""


class _ReadContainer(ContainerUsageFields, frozen=True, kw_only=True):
    granted_mib: int | None = None
    """Name of `allocatedMib` there."""


class _ReadDevice(DeviceUsageFields, frozen=True, kw_only=True):
    containers: tuple[_ReadContainer, ...] = ()


class _ReadGpu(GpuUsageFields, frozen=True, kw_only=True):
    devices: tuple[_ReadDevice, ...] = ()
    noise: tuple[_EarlierContention, ...] = ()
    """Name of `contention` there."""


class _ReadUsage(UsageFields, frozen=True, kw_only=True):
    gpus: tuple[_ReadGpu, ...] = ()


class RecommendationFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A recommendation for a container, as `Recommendation`; with every field."""

    node: str
    gpu: int
    device: str
    namespace: str
    pod: str
    container: str
    allocated_mib: int | None = None
    peak_mib: int | None = None
    mean_percent: float | None = None
    observed_s: float = 0.0
    verdict: Sizing
    fits: str = ""
    saved_mib: int = 0
    load_unknown: bool = False


def usage_fields(report: UsageReport) -> UsageFields:
    """Return a report as it is written."""
    return msgspec.convert(report, UsageFields, from_attributes=True)


def contention_fields(contention: PodContention) -> PodContentionFields:
    """Return what slows down a pod as it is written."""
    return msgspec.convert(contention, PodContentionFields, from_attributes=True)


def recommendation_fields(recommendation: Recommendation) -> RecommendationFields:
    """Return a recommendation as it is written."""
    return msgspec.convert(recommendation, RecommendationFields, from_attributes=True)


def write_usage(report: UsageReport) -> bytes:
    """Return a report as JSON."""
    return msgspec.json.encode(usage_fields(report))


def read_usage(text: bytes, subject: str) -> UsageReport:
    """Read a report, also of an earlier agent; impossible values count as not reported.

    Raises:
        InvalidInput: it is not a report, or is too large to be one of a node; `subject` says where it came from.

    """
    objects = text.count(b"{")  # before it is decoded: millions of empty objects would take seconds
    if objects > _MOST_OBJECTS:
        found = f"its report has {objects} objects, more than {_MOST_OBJECTS}"
        raise InvalidInput(subject, found=found, hint="check who runs it")
    try:
        fields = msgspec.json.decode(text, type=_ReadUsage)
    except UNDECODABLE as error:
        raise InvalidInput(
            subject, found=f"it is not a report ({error_phrase(error, text)})", hint="query the agent's port 9400"
        ) from error
    fields = msgspec.structs.replace(fields, gpus=tuple(map(_with_present_names, fields.gpus)))
    return discard_impossible(msgspec.convert(fields, UsageReport, from_attributes=True))


def _with_present_names(gpu: _ReadGpu) -> _ReadGpu:
    earlier = tuple(msgspec.structs.replace(each, caused_by=each.caused_by or each.drivers) for each in gpu.noise)
    devices = tuple(
        msgspec.structs.replace(device, containers=tuple(map(_with_allocated, device.containers)))
        for device in gpu.devices
    )
    return msgspec.structs.replace(gpu, devices=devices, contention=gpu.contention or earlier)


def _with_allocated(container: _ReadContainer) -> _ReadContainer:
    if container.allocated_mib is not None:
        return container
    return msgspec.structs.replace(container, allocated_mib=container.granted_mib)
