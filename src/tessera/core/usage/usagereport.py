"""GPU usage of a node as its agent reports it, for `tessera top`, `tessera recommend` and the page."""

from collections.abc import Iterable, Iterator

import msgspec

from tessera.core.usage.attribution import ContainerUsage, DeviceUsage
from tessera.core.usage.containerhistory import Histories
from tessera.core.usage.contention import Contention, contention_of, gpu_load
from tessera.core.usage.observation import NodeUsage

__all__ = [
    "ContainerReport",
    "DeviceReport",
    "GpuReport",
    "PodContention",
    "UsageReport",
    "contention_around",
    "gpus_by_urgency",
    "usage_report",
]


class ContainerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A container that was allocated a device, or a part of one; None for what is unknown."""

    namespace: str
    pod: str
    container: str
    exclusive: bool = False
    replica: bool = False
    """Whether its allocation is replicas of a shared device (time-slicing, MPS), not an amount of memory."""
    allocated_mib: int | None = None
    used_mib: int | None = None
    gpu_percent: float | None = None
    peak_mib: int | None = None
    """The peak memory of the time observed."""
    mean_percent: float | None = None
    observed_s: float = 0.0
    """For how long its memory was known."""
    load_observed_s: float | None = None
    """For how long its load was known; None in reports of agents that do not say, and then as long as its memory."""

    @property
    def name(self) -> str:
        """`namespace/pod/container`."""
        return f"{self.namespace}/{self.pod}/{self.container}"


class DeviceReport(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU without MIG, or a MIG instance."""

    profile: str = ""
    start: int = 0
    memory_mib: int = 0
    used_mib: int | None = None
    gpu_percent: float | None = None
    ended_percent: float | None = None
    """Load of a shared device by processes that exited, of any of its containers."""
    containers: tuple[ContainerReport, ...] = ()


class PodContention(Contention, frozen=True, kw_only=True):
    """A cause on one GPU that slows down a pod or is caused by it."""

    gpu: int
    """Index."""


class GpuReport(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU."""

    index: int
    uuid: str = ""
    model: str = ""
    lost: bool = False
    temperature_c: float | None = None
    power_watts: float | None = None
    throttled: tuple[str, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    contention: tuple[Contention, ...] = ()


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs of one node."""

    node: str
    age_s: float | None = None
    """Age of the observation; none without one."""
    answered_s: float = 0.0
    """How long ago the agent answered with it, which is part of its age."""
    gpus: tuple[GpuReport, ...] = ()


def usage_report(usage: NodeUsage, histories: Histories) -> UsageReport:
    """Return the report of an observation."""
    return UsageReport(node=usage.node, age_s=0.0, gpus=tuple(_gpus(usage, histories)))


def _gpus(usage: NodeUsage, histories: Histories) -> Iterator[GpuReport]:
    loads = tuple(map(gpu_load, usage.gpus))
    for gpu, load, contention in zip(usage.gpus, loads, contention_of(loads), strict=True):
        yield GpuReport(
            index=gpu.facts.index,
            uuid=gpu.facts.uuid,
            model=gpu.facts.model.name,
            lost=gpu.facts.lost,
            temperature_c=gpu.reading.temperature_c,
            power_watts=gpu.reading.power_watts,
            throttled=load.causes,
            devices=tuple(_device(each, histories) for each in gpu.devices),
            contention=contention,
        )


def _device(device: DeviceUsage, histories: Histories) -> DeviceReport:
    placement = None if device.instance is None else device.instance.placement
    return DeviceReport(
        profile="" if placement is None else placement.profile,
        start=0 if placement is None else placement.start,
        memory_mib=device.memory_mib,
        used_mib=device.used_mib,
        gpu_percent=device.busy_percent,
        ended_percent=device.ended_percent,
        containers=tuple(_container(each, device, histories) for each in device.containers),
    )


def _container(container: ContainerUsage, device: DeviceUsage, histories: Histories) -> ContainerReport:
    allocation = container.allocation
    history = histories.get((allocation.key, device.device))
    return ContainerReport(
        namespace=allocation.namespace,
        pod=allocation.pod,
        container=allocation.container,
        exclusive=allocation.exclusive,
        replica=allocation.replica,
        allocated_mib=allocation.allocated_mib,
        used_mib=container.memory_mib,
        gpu_percent=container.busy_percent,
        peak_mib=None if history is None else history.peak_mib,
        mean_percent=None if history is None else history.mean_percent,
        observed_s=0.0 if history is None else history.known_s,
        load_observed_s=0.0 if history is None else history.load_known_s,
    )


def contention_around(report: UsageReport, pod: str) -> Iterator[PodContention]:
    """Yield what slows down a pod, `namespace/pod`, or is caused by it."""
    for gpu in report.gpus:
        for each in gpu.contention:
            if any(name.rpartition("/")[0] == pod for name in (*each.caused_by, *each.affected)):
                yield PodContention(gpu=gpu.index, **msgspec.structs.asdict(each))


def gpus_by_urgency(reports: Iterable[UsageReport]) -> list[tuple[str, GpuReport]]:
    """Return the GPUs with their nodes: slow ones first, lost ones, then the busiest; those of unknown load last."""
    found = [(report.node, gpu) for report in reports for gpu in report.gpus]
    return sorted(found, key=lambda each: (not each[1].contention, not each[1].lost, -_load(each[1])))


def _load(gpu: GpuReport) -> float:
    return max((-1.0 if device.gpu_percent is None else device.gpu_percent for device in gpu.devices), default=-1.0)
