"""How GPUs and their containers are used, and why clocks are lowered, by Prometheus: its queries and their answers.

Answers are untrusted: an implausible sample is left out.
Source: prometheus.io, "HTTP API".
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from tessera.api.prometheus.answers import numbers, read_series
from tessera.api.prometheus.matchers import selected
from tessera.core.gpu.gpumodels import model
from tessera.core.usage.activity import IDLE_PERCENT, UNUSED_MIB, pod_activity, pod_memory
from tessera.core.usage.contention import ContainerLoad, Contention, DeviceLoad, GpuLoad, contention_of
from tessera.core.usage.nodemetrics import ALLOCATED, DEVICE_USED, ENDED_LOAD, FB_USED, GPU_UTIL, SM_ACTIVE, THROTTLED
from tessera.core.usage.plausible import MOST_MIB, percentage, within
from tessera.core.usage.throttling import ThrottleCause
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput

__all__ = ["load_queries", "read_activity", "read_contention", "read_loads", "read_memory"]

_MOST_SERIES: Final = 20_000
_MOST_LOADS: Final = 100_000
"""Containers and devices."""
_GPU: Final = ("Hostname", "UUID")
_DEVICE: Final = (*_GPU, "modelName", "GPU_I_ID", "GPU_I_PROFILE")
_CONTAINER: Final = ("namespace", "pod", "container")
_UID: Final = "pod_uid"
"""Only series of a container have it; those of `_CONTAINER` Prometheus may also give to what it scrapes."""
_LOADED: Final = ", ".join((*_DEVICE, *_CONTAINER, _UID))
_Device: TypeAlias = tuple[str, ...]
"""The labels of `_DEVICE`."""
_UNUSED_BYTES: Final = UNUSED_MIB << 20


def load_queries(matchers: str = "") -> dict[str, str]:
    """Return the queries by purpose.

    Of loads there is the mean of two minutes, which says whether a pod is idle, and the last sample, which belongs to
    the reasons of the present clocks: a pod that worked a minute ago slows down none now.

    Args:
        matchers: labels of the cluster's series; empty where Prometheus has those of one cluster.

    """
    used = selected(FB_USED.name, matchers, f'{_UID}!=""')
    of_device, allocated, load, active, throttled, ended = (
        selected(each.name, matchers) for each in (DEVICE_USED, ALLOCATED, GPU_UTIL, SM_ACTIVE, THROTTLED, ENDED_LOAD)
    )
    return {
        "allocations": f"group by ({_LOADED}) ({used} or {allocated} or {of_device} > {_UNUSED_BYTES})",
        "memory": f"max by ({_LOADED}) ({used})",
        "utilization": f"max by ({_LOADED}) (avg_over_time({load}[2m]) and {load})",
        "sm_active": f"max by ({_LOADED}) (avg_over_time({active}[2m]) and {active}) * 100",
        "utilization_now": f"max by ({_LOADED}) ({load})",
        "sm_active_now": f"max by ({_LOADED}) ({active}) * 100",
        "ended": f"max by ({', '.join(_DEVICE)}) ({ended}) * 100",
        "throttled": f"max by (Hostname, UUID, cause) ({throttled}) == 1",
    }


def read_loads(answers: Mapping[str, bytes], source: str, *, now: bool) -> dict[tuple[str, str], GpuLoad]:
    """Return how busy the devices of each GPU and their containers are, by node and UUID.

    Args:
        answers: Prometheus' JSON, by purpose.
        source: what they came from, for errors.
        now: by the last sample, not the mean.

    Raises:
        InvalidInput: an answer is not Prometheus' JSON, or has too many series.

    """
    names = (f"{each}_now" if now else each for each in ("utilization", "sm_active"))
    utilization, active = (_percentages(answers[name], source) for name in names)
    busy = utilization | active
    ended = _percentages(answers["ended"], source)
    devices = defaultdict[_Device, dict[str, float | None]](dict)
    for device, name in _percentages(answers["allocations"], source) | busy:
        devices[device][name] = busy.get((device, name))
    found = defaultdict[tuple[str, str], list[DeviceLoad]](list)
    for device, loads in devices.items():
        # A shared device has series of its own; of an exclusive one they are its container's.
        whole = [each[device, ""] for each in (utilization, active) if (device, "") in each]
        containers = tuple(ContainerLoad(name=name, percent=percent) for name, percent in loads.items() if name)
        percent = max(whole, default=containers[0].percent if len(containers) == 1 else None)
        by_ended = ended.get((device, ""), 0.0) >= IDLE_PERCENT
        found[device[0], device[1]].append(
            DeviceLoad(percent=percent, part=_part(device), containers=containers, ended=by_ended)
        )
    causes = _causes(answers["throttled"], source)
    return {
        key: GpuLoad(causes=causes.get(key, ()), devices=tuple(found.get(key, ())))
        for key in sorted(found.keys() | causes.keys())
    }


def _percentages(answer: bytes, source: str) -> dict[tuple[_Device, str], float]:
    """Return percentages by device and container; without a container those of all of it."""
    return _values(answer, source, percentage)


def _values(answer: bytes, source: str, read: Callable[[float], float | None]) -> dict[tuple[_Device, str], float]:
    """Return values by device and container, `namespace/pod/container`; those that `read` returns None of are none."""
    found: dict[tuple[_Device, str], float] = {}
    for each in read_series(answer, source, most=_MOST_LOADS):
        device = tuple(each.metric.get(label, "") for label in _DEVICE)
        pod = tuple(each.metric.get(label, "") for label in _CONTAINER)
        whole = not each.metric.get(_UID)
        key = device, "" if whole else "/".join(pod)
        for _, value in numbers([each.value] if each.value else []):
            plausible = read(value)
            if plausible is not None and device[1] and (whole or all(pod)):
                found[key] = max(found.get(key, 0.0), plausible)
    return found


def _part(device: _Device) -> float | None:
    *_, product, _, profile = device
    if not profile:
        return 1.0
    try:
        return model(product).compute_part(profile)
    except InvalidInput:
        return None


def read_activity(loads: Mapping[tuple[str, str], GpuLoad]) -> dict[tuple[str, PodKey], float]:
    """Return how much of its compute each pod uses, in percent of its busiest device, by node and pod."""
    return pod_activity(
        (node, each.name, each.percent)
        for (node, _), load in loads.items()
        for device in load.devices
        for each in device.containers
    )


def read_memory(answers: Mapping[str, bytes], source: str) -> dict[tuple[str, str], dict[PodKey, int]]:
    """Return how much memory each pod uses of each GPU, in MiB, by node and UUID.

    Raises:
        InvalidInput: as `read_loads`.

    """
    used = _values(answers["memory"], source, lambda value: within(value, MOST_MIB))
    return pod_memory(
        (device[0], device[1], name, round(used[device, name]) if (device, name) in used else None)
        for device, name in _percentages(answers["allocations"], source)
        if name
    )


def read_contention(loads: Mapping[tuple[str, str], GpuLoad]) -> dict[tuple[str, str], tuple[Contention, ...]]:
    """Return what slows down the pods of GPUs, by node and UUID."""
    nodes = defaultdict[str, dict[str, GpuLoad]](dict)
    for (node, uuid), load in loads.items():
        nodes[node][uuid] = load
    return {
        (node, uuid): each
        for node, gpus in nodes.items()
        for uuid, each in zip(gpus, contention_of(tuple(gpus.values())), strict=True)
        if each
    }


def _causes(answer: bytes, source: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return why clocks are lowered, by node and UUID."""
    found = defaultdict[tuple[str, str], set[str]](set)
    for each in read_series(answer, source, most=_MOST_SERIES):
        node, uuid = (each.metric.get(label, "") for label in _GPU)
        found[node, uuid].add(each.metric.get("cause", ""))
    return {key: tuple(each.value for each in ThrottleCause if each.value in causes) for key, causes in found.items()}
