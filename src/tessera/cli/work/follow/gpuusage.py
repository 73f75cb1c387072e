"""The GPU usage of a Job's pod while it runs, in words."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping

from tessera.api.kubernetes.jobstates import JobState
from tessera.cli.drawing.lettering import clean
from tessera.clients.kube import Kube
from tessera.clients.nodeusage import ProxiedUsage
from tessera.core.usage.usagereport import ContainerReport, UsageReport
from tessera.core.workload.units import gib
from tessera.errors import Unavailable

__all__ = ["gpu_usage"]

_EVERY_S = 15.0
"""As often as an agent observes its GPUs."""
_NOTICEABLE_PART = 0.1
_NOTICEABLE_PERCENT = 20.0


async def gpu_usage(kube: Kube, state: JobState, every_s: float = _EVERY_S) -> AsyncIterator[str]:
    """Yield what the pod of a Job uses of its GPUs, and again whenever that has changed noticeably.

    Ends if the agent of its node does not answer the first request: that needs rights beyond one namespace.
    """
    source, former, answered = ProxiedUsage(kube, node=state.node), dict[str, ContainerReport](), False
    while True:
        try:
            found = {device: each for report in (await source.read()).some() for device, each in _of_pod(report, state)}
            answered = True
        except Unavailable:
            if not answered:
                return
            found = former
        if _noticeable(former, found):
            former = found
            yield "; ".join(f"{device}: {_words(each)}" for device, each in found.items())
        await asyncio.sleep(every_s)


def _of_pod(report: UsageReport, state: JobState) -> Iterator[tuple[str, ContainerReport]]:
    """Yield what a Job's pod uses of each of its devices, where that is known."""
    for gpu in report.gpus:
        for device in gpu.devices:
            where = f"GPU {gpu.index}{f' {clean(device.profile)}@{device.start}' if device.profile else ''}"
            for each in device.containers:
                known = each.used_mib is not None or each.gpu_percent is not None
                if (each.namespace, each.pod) == (state.namespace, state.pod) and known:
                    yield where, each


def _noticeable(former: Mapping[str, ContainerReport], now: Mapping[str, ContainerReport]) -> bool:
    """Return whether usage changed by a tenth of the allocated memory, or by 20 points of compute, or devices did."""
    if former.keys() != now.keys():
        return bool(now)
    for device, each in now.items():
        memory_mib = abs((each.used_mib or 0) - (former[device].used_mib or 0))
        percent = abs((each.gpu_percent or 0.0) - (former[device].gpu_percent or 0.0))
        if memory_mib > _NOTICEABLE_PART * (each.allocated_mib or 0) or percent >= _NOTICEABLE_PERCENT:
            return True
    return False


def _words(container: ContainerReport) -> str:
    of = f" of {gib(container.allocated_mib)}" if container.allocated_mib is not None else ""
    memory = f"{gib(container.used_mib)}{of}" if container.used_mib is not None else ""
    busy = f"{container.gpu_percent:.0f} % busy" if container.gpu_percent is not None else ""
    return ", ".join(filter(None, (memory, busy)))
