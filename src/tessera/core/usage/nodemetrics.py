"""The metrics of a node's GPUs: their names, and the samples of an observation.

Names and labels are DCGM exporter's where the meaning is equal, so that its dashboards work. An unknown
value has no sample. Most series of a node: `series_bound`.
Source: NVIDIA dcgm-exporter, `etc/default-counters.csv`, `internal/pkg/rendermetrics/render_metrics.go`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Layout, open_placements
from tessera.core.usage.attribution import ContainerDevice, ContainerUsage, DeviceUsage, GpuUsage
from tessera.core.usage.families import Family, Labels, Metric, MetricSample
from tessera.core.usage.observation import GpuCounts, NodeUsage
from tessera.core.usage.throttling import ThrottleCause, causes

__all__ = [
    "ALLOCATED",
    "DEVICE_USED",
    "EXCLUSIVE",
    "FB_USED",
    "GPU_UTIL",
    "NODE_METRICS",
    "PART",
    "SM_ACTIVE",
    "THROTTLED",
    "node_families",
    "series_bound",
]

_MIB = 1 << 20
_LONGEST = 128
"""Characters of a label that the driver writes."""
_POD = ("namespace", "pod", "container", "pod_uid")
EXCLUSIVE = "exclusive"
"""The label of an allocation that says whether its device is exclusive: `true` or `false`."""

PART = "part"
"""The label of an allocation of a shared device: `replica`, or `memory` for an amount of it; of others empty."""


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", text, labels)


_GPU = {
    "sm_clock_mhz": _gauge("DCGM_FI_DEV_SM_CLOCK", "SM clock (MHz)."),
    "memory_clock_mhz": _gauge("DCGM_FI_DEV_MEM_CLOCK", "Memory clock (MHz)."),
    "temperature_c": _gauge("DCGM_FI_DEV_GPU_TEMP", "Temperature of the GPU (C)."),
    "memory_temperature_c": _gauge("DCGM_FI_DEV_MEMORY_TEMP", "Temperature of the memory (C)."),
    "reserved_mib": _gauge("DCGM_FI_DEV_FB_RESERVED", "Memory that driver and firmware reserve (MiB)."),
    "power_watts": _gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (W)."),
    "energy_mj": Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since the driver was loaded (mJ)."),
    "memory_percent": _gauge("DCGM_FI_DEV_MEM_COPY_UTIL", "Time in which memory was read or written (percent)."),
    "encoder_percent": _gauge("DCGM_FI_DEV_ENC_UTIL", "Encoder utilization (percent)."),
    "decoder_percent": _gauge("DCGM_FI_DEV_DEC_UTIL", "Decoder utilization (percent)."),
    "clocks_event_reasons": _gauge("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "Reasons for the current clocks (bit mask)."),
    "ecc_corrected": Metric("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Corrected memory errors since the last load."),
    "ecc_uncorrected": Metric(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Uncorrected memory errors since the last load."
    ),
}
"""Measurements of a whole GPU, by the field of its reading."""
_LASTING = frozenset({"ecc_corrected", "ecc_uncorrected", "energy_mj"})
"""Counters that go on when a pod ends: with its labels they would begin anew, and Prometheus' `increase`
would miss the error that ended it, and the energy of short jobs."""
SM_ACTIVE = _gauge("DCGM_FI_PROF_SM_ACTIVE", "SM activity: part of the SMs that were busy (0-1).")
_ACTIVITY = {
    "graphics_percent": _gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "Time in which the graphics engine was active (0-1)."),
    "sm_percent": SM_ACTIVE,
    "tensor_percent": _gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "Time in which tensor cores were active (0-1)."),
    "dram_percent": _gauge("DCGM_FI_PROF_DRAM_ACTIVE", "Memory bandwidth in use (0-1)."),
}
FB_USED = _gauge("DCGM_FI_DEV_FB_USED", "Memory in use (MiB); of a shared device for each container.", *_POD)
FB_FREE = _gauge("DCGM_FI_DEV_FB_FREE", "Memory that is free (MiB).", *_POD)
GPU_UTIL = _gauge(
    "DCGM_FI_DEV_GPU_UTIL", "GPU utilization (percent); of a shared GPU also by each container's processes.", *_POD
)
_XID = _gauge("DCGM_FI_DEV_XID_ERRORS", "The last XID since the agent started; 0 for none.")
_ROWS = (
    Metric("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for corrected errors."),
    Metric("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Rows remapped for uncorrected errors."),
    _gauge("DCGM_FI_DEV_ROW_REMAP_FAILURE", "Whether remapping of rows has failed."),
    _gauge("DCGM_FI_DEV_ROW_REMAP_PENDING", "Whether a row is remapped at the next reset of the GPU."),
)
ALLOCATED = _gauge(
    "tessera_container_memory_allocated_bytes",
    "GPU memory allocated to a container. `exclusive`: no other container may use the device; `part`: a shared one is "
    "divided by `replica` or `memory`.",
    *_POD,
    EXCLUSIVE,
    PART,
)
_MEMORY = _gauge("tessera_device_memory_bytes", "Memory of a device that can be allocated.")
DEVICE_USED = _gauge("tessera_device_memory_used_bytes", "Device memory in use.")
_DEVICE_ALLOCATED = _gauge(
    "tessera_device_memory_allocated_bytes", "Memory of a device that containers were allocated."
)
ENDED_LOAD = _gauge(
    "tessera_device_ended_processes_load",
    "Load of a shared device (0-1) that cannot be attributed, because its processes exited before the agent read their "
    "cgroup.",
)
_CONTAINERS = _gauge("tessera_device_containers", "Containers that were allocated a device or a part of it.")
_HEALTHY = _gauge("tessera_device_healthy", "Whether a GPU or a MIG instance may be allocated to new pods.")
_ORPHANED = _gauge(
    "tessera_device_orphaned",
    "1 if processes of a deleted pod are all that keeps a device from new pods; 0 if it is also unhealthy.",
)
_SHARING = _gauge(
    "tessera_device_sharing_info", "How a device is shared, and how its limits are enforced.", "mode", "isolation"
)
_GPU_MEMORY = _gauge("tessera_gpu_memory_bytes", "Allocatable memory of the whole GPU, partitioned or not.")
_LOST = _gauge("tessera_gpu_lost", "Whether the driver has lost the GPU.")
_LAYOUT = _gauge("tessera_gpu_layout_info", "MIG layout as `PROFILE@START,...`; `off` without MIG.", "layout")
THROTTLED = _gauge(
    "tessera_gpu_throttled", f"Whether clocks are lowered, by cause: {', '.join(ThrottleCause)}.", "cause"
)
_CLASSES = ("application", "hardware", "other")
_XIDS = Metric(
    "tessera_gpu_xid_errors_total",
    "counter",
    f"XIDs since the agent started, by class: {', '.join(_CLASSES)}.",
    ("class",),
)
_CHANGES = Metric(
    "tessera_gpu_layout_changes_total",
    "counter",
    "Changes of a GPU's MIG layout since the agent started, between two observations.",
)
_FREE_SLICES = _gauge("tessera_gpu_free_memory_slices", "Memory slices outside allocated MIG instances.")
_LARGEST = _gauge(
    "tessera_gpu_largest_free_memory_slices", "Memory slices of the largest MIG instance that could be allocated."
)
_LEFT_OUT = _gauge(
    "tessera_exporter_containers_left_out", "Containers without series, beyond the limit of 2,048.", "hostname"
)
_ATTRIBUTION = _gauge(
    "tessera_exporter_process_attribution",
    "Whether processes of other pods are visible, so that the use of a shared device is split among its containers.",
    "hostname",
)

NODE_METRICS: tuple[Metric, ...] = (
    FB_USED,
    FB_FREE,
    GPU_UTIL,
    *_ACTIVITY.values(),
    *_GPU.values(),
    _XID,
    *_ROWS,
    _MEMORY,
    DEVICE_USED,
    _DEVICE_ALLOCATED,
    ALLOCATED,
    ENDED_LOAD,
    _CONTAINERS,
    _HEALTHY,
    _ORPHANED,
    _SHARING,
    _GPU_MEMORY,
    _LOST,
    _LAYOUT,
    THROTTLED,
    _XIDS,
    _CHANGES,
    _FREE_SLICES,
    _LARGEST,
    _LEFT_OUT,
    _ATTRIBUTION,
)
"""All of them, in the order in which they are written."""

_MOST_CONTAINERS = 2048
"""Most containers with series of their own; a kubelet runs 110 pods unless configured otherwise."""
_OF_GPU = (*_GPU.values(), _XID, *_ROWS, _GPU_MEMORY, _LOST, _LAYOUT, _CHANGES, _FREE_SLICES, _LARGEST)
"""With one series for each GPU at the most; THROTTLED and _XIDS have one for each cause and class."""
_OF_DEVICE = (
    *_ACTIVITY.values(), FB_USED, FB_FREE, GPU_UTIL, _MEMORY, DEVICE_USED, _DEVICE_ALLOCATED, ENDED_LOAD, _CONTAINERS,
    _HEALTHY, _ORPHANED,
)  # fmt: skip
"""With one series for each device, beside those of its containers; _SHARING has one for each of its modes."""
_MODES_A_DEVICE = ("whole", "mps", "memory-share")
"""Most modes of a device at once."""
_OF_CONTAINER = (FB_USED, GPU_UTIL, ALLOCATED)
_OF_NODE = (_LEFT_OUT, _ATTRIBUTION)


_Samples: TypeAlias = defaultdict[str, list[MetricSample]]


def series_bound(gpus: int, instances: int, containers: int) -> int:
    """Return the maximum number of series of a node's GPUs.

    Args:
        gpus: its GPUs.
        instances: MIG instances of all of them.
        containers: containers that were allocated a device, each counted for each of its devices.

    """
    of_gpu = len(_OF_GPU) + len(ThrottleCause) + len(_CLASSES)
    of_device = len(_OF_DEVICE) + len(_MODES_A_DEVICE)
    return gpus * of_gpu + (gpus + instances) * of_device + containers * len(_OF_CONTAINER) + len(_OF_NODE)


def node_families(usage: NodeUsage) -> tuple[Family, ...]:
    """Return the metrics of a node's GPUs, without empty ones."""
    samples: _Samples = defaultdict(list)
    counts = {each.gpu: each for each in usage.counts}
    containers = 0
    for gpu in usage.gpus:
        labels = _labels(gpu.facts, usage.node)
        _add_gpu(samples, gpu, labels, with_pod=containers < _MOST_CONTAINERS)
        _add_counts(samples, counts.get(gpu.facts.uuid, GpuCounts(gpu=gpu.facts.uuid)), labels)
        for device in gpu.devices:
            shown = device.containers[: max(_MOST_CONTAINERS - containers, 0)]
            _add_device(samples, device, shown, labels)
            containers += len(device.containers)
    _add_statuses(samples, usage)
    for index in usage.unseen:
        nameless = (("gpu", str(index)), *_of_node(usage.node))
        _add(samples, _LOST, nameless, 1)
        _add(samples, _HEALTHY, nameless, 0)
    left_out = max(containers - _MOST_CONTAINERS, 0)
    samples[_LEFT_OUT.name].append(MetricSample((("hostname", usage.node),), left_out))
    samples[_ATTRIBUTION.name].append(MetricSample((("hostname", usage.node),), int(usage.sees_processes)))
    return tuple(Family(each, _each_once(samples[each.name])) for each in NODE_METRICS if samples[each.name])


def _each_once(samples: Iterable[MetricSample]) -> tuple[MetricSample, ...]:
    """Return the first sample of each series: a broken driver may name two devices alike, and a scrape would fail."""
    return tuple({each.labels: each for each in reversed(tuple(samples))}.values())[::-1]


def _labels(facts: GpuFacts, node: str) -> Labels:
    """Return DCGM exporter's labels of a GPU."""
    return (
        ("gpu", str(facts.index)),
        ("UUID", facts.uuid[:_LONGEST]),
        ("pci_bus_id", facts.pci_bus_id[:_LONGEST]),
        ("device", f"nvidia{facts.minor}"),
        ("modelName", facts.product[:_LONGEST]),
        *_of_node(node),
    )


def _of_node(node: str) -> Labels:
    """Return a node's labels: some dashboards have `Hostname`, others `hostname`."""
    return (("Hostname", node), ("hostname", node))


def _device_labels(device: DeviceUsage, labels: Labels) -> Labels:
    if device.instance is None:
        return labels
    return (*labels, *_of_instance(device.instance.placement.profile, device.instance.gpu_instance))


def _of_instance(profile: str, gpu_instance: int) -> Labels:
    return (("GPU_I_PROFILE", profile[:_LONGEST]), ("GPU_I_ID", str(gpu_instance)))


def _pod_labels(allocation: ContainerDevice) -> Labels:
    return (
        ("namespace", allocation.namespace),
        ("pod", allocation.pod),
        ("container", allocation.container),
        ("pod_uid", allocation.uid),
    )


def _add(samples: _Samples, metric: Metric, labels: Labels, value: float | None) -> None:
    if value is not None:
        samples[metric.name].append(MetricSample(labels, value))


def _add_gpu(samples: _Samples, gpu: GpuUsage, labels: Labels, *, with_pod: bool) -> None:
    """Add the measurements of a whole GPU; also a container's if it has the GPU exclusively, and series of its own."""
    facts, reading = gpu.facts, gpu.reading
    user = gpu.devices[0].exclusive_allocation if with_pod and facts.layout is None and gpu.devices else None
    whole = (*labels, *_pod_labels(user)) if user else labels
    for field, metric in _GPU.items():
        _add(samples, metric, labels if field in _LASTING else whole, getattr(reading, field))
    if reading.remapped_rows is not None:
        rows = reading.remapped_rows
        for metric, value in zip(
            _ROWS, (rows.corrected, rows.uncorrected, int(rows.failed), int(rows.pending)), strict=True
        ):
            _add(samples, metric, labels, value)
    _add(samples, _GPU_MEMORY, labels, facts.memory_mib * _MIB or None)
    _add(samples, _LOST, labels, int(facts.lost))
    if reading.clocks_event_reasons is not None:
        found = causes(reading.clocks_event_reasons)
        for cause in ThrottleCause:
            _add(samples, THROTTLED, (*labels, ("cause", cause.value)), int(cause in found))
    if facts.mig is not None:
        _add(samples, _LAYOUT, (*labels, ("layout", _layout_text(facts.layout))), 1)
    if facts.layout is not None:
        _add_slices(samples, gpu, labels)


def _layout_text(layout: Layout | None) -> str:
    """Return a layout as `1g.5gb@0,3g.20gb@4`; `off` without MIG."""
    return "off" if layout is None else ",".join(f"{each.profile}@{each.start}" for each in layout)


def _add_slices(samples: _Samples, gpu: GpuUsage, labels: Labels) -> None:
    """Add how much of a GPU is free in all, and in one piece, beside the allocated instances."""
    allocated = tuple(sorted(each.instance.placement for each in gpu.devices if each.instance and each.containers))
    model = gpu.facts.model
    free = model.memory_slices - sum(each.size for each in allocated)
    largest = max((each.size for each in open_placements(model, allocated)), default=0)
    _add(samples, _FREE_SLICES, labels, free)
    _add(samples, _LARGEST, labels, largest)


def _add_counts(samples: _Samples, counts: GpuCounts, labels: Labels) -> None:
    found: Mapping[str, int] = dict(counts.xids)
    _add(samples, _XID, labels, counts.last_xid)
    for name in _CLASSES:
        _add(samples, _XIDS, (*labels, ("class", name)), found.get(name, 0))
    _add(samples, _CHANGES, labels, counts.layout_changes)


def _add_device(samples: _Samples, device: DeviceUsage, shown: Collection[ContainerUsage], labels: Labels) -> None:
    """Add the measurements of a device, and those of its containers that have series of their own."""
    own = _device_labels(device, labels)
    user = device.exclusive_allocation if shown else None
    whose = (*own, *_pod_labels(user)) if user else own
    known = device.used_mib is not None and device.memory_mib > 0
    free_mib = max(device.memory_mib - (device.used_mib or 0), 0) if known else None
    _add(samples, FB_FREE, whose, free_mib)
    _add(samples, GPU_UTIL, whose, device.gpu_percent)
    for field, metric in _ACTIVITY.items():
        percent = None if device.activity is None else getattr(device.activity, field)
        _add(samples, metric, whose, None if percent is None else percent / 100)
    if not device.containers:
        _add(samples, FB_USED, own, device.used_mib)
    elif device.exclusive_allocation is None and device.unattributed_mib:
        _add(samples, FB_USED, own, device.unattributed_mib)
    for each in shown:
        pod = (*own, *_pod_labels(each.allocation))
        _add(samples, FB_USED, pod, each.memory_mib)
        if user is None and device.instance is None:  # under MIG nobody has a utilization
            _add(samples, GPU_UTIL, pod, each.gpu_percent)
        part = "" if each.allocation.exclusive else "replica" if each.allocation.replica else "memory"
        kind = ((EXCLUSIVE, "true" if each.allocation.exclusive else "false"), (PART, part))
        _add(samples, ALLOCATED, (*pod, *kind), _bytes(each.allocation.allocated_mib))
    allocated = [each.allocation.allocated_mib for each in device.containers]
    _add(samples, _MEMORY, own, device.memory_mib * _MIB or None)
    _add(samples, DEVICE_USED, own, _bytes(device.used_mib))
    _add(samples, _DEVICE_ALLOCATED, own, None if None in allocated else sum(each or 0 for each in allocated) * _MIB)
    _add(samples, ENDED_LOAD, own, None if device.ended_percent is None else device.ended_percent / 100)
    _add(samples, _CONTAINERS, own, len(device.containers))


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * _MIB


def _add_statuses(samples: _Samples, usage: NodeUsage) -> None:
    labels = dict(_labels_of_devices(usage))
    for status in usage.statuses:
        if status.device in labels:
            own = labels[status.device]
            _add(samples, _HEALTHY, own, int(status.healthy))
            _add(samples, _ORPHANED, own, int(status.orphaned))
            if status.mode:
                _add(samples, _SHARING, (*own, ("mode", status.mode), ("isolation", status.isolation)), 1)


def _labels_of_devices(usage: NodeUsage) -> Iterator[tuple[DeviceId, Labels]]:
    for gpu in usage.gpus:
        labels = _labels(gpu.facts, usage.node)
        yield DeviceId(gpu.facts.uuid), labels
        instances: Iterable[DeviceUsage] = (each for each in gpu.devices if each.instance is not None)
        yield from ((each.device, _device_labels(each, labels)) for each in instances)
