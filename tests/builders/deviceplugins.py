"""A node's last gate and device plugins, made as the agent makes them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from tessera.agent.agenttimes import AgentTimes
from tessera.agent.deviceplugin import AssignedPods, CdiFolder, Gate, PluginPaths, Plugins, ShareAllocator
from tessera.agent.deviceplugin.allocations.allocationrecord import AllocationRecord
from tessera.agent.deviceplugin.allocations.deviceprocesses import DeviceProcesses, ListedProcesses
from tessera.agent.deviceplugin.containers.assignedpods import WritablePods
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequest
from tessera.agent.deviceplugin.containers.devicemaker import DeviceMaker
from tessera.agent.pods.assignmentkeys import Trust
from tessera.agent.pods.observing import PodObserver
from tessera.agent.pods.podsview import PodsInView
from tessera.clients.gpu import MemoryDriver
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuProcess, Inventory
from tessera.log import RepeatedErrors, logger

__all__ = ["GpusOfNode", "Unchanged", "device_plugins", "gate"]

_TIMES = AgentTimes()
_NO_GPUS = MemoryDriver(())


class GpusOfNode(Protocol):
    """The GPUs of a node, which containers that are about to start may change."""

    async def change(self, request: ChangeRequest) -> Inventory: ...

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]: ...


class Unchanged:
    """GPUs that nobody changes, and on which no process is: devices by name are there before they are offered."""

    async def change(self, request: ChangeRequest) -> Inventory:
        raise AssertionError(request)

    async def processes(self, _: str) -> tuple[GpuProcess, ...]:
        return ()


def gate(
    view: PodsInView,
    capacity: Callable[[], Mapping[DeviceId, int]] = dict,
    *,
    file: Path | None = None,
    listed: ListedProcesses = _NO_GPUS.processes,
    inventory: Callable[[], Inventory] = lambda: Inventory(gpus=()),
    times: AgentTimes = _TIMES,
) -> Gate:
    """Return a gate with a record of its own; unless said otherwise in memory, and no GPU has a process."""
    log = logger()
    record = AllocationRecord(PodObserver(view, log), capacity, log, wake=lambda: None, file=file, times=times)
    return Gate(record, DeviceProcesses(listed, view, inventory), log, times=times)


def device_plugins(
    paths: PluginPaths,
    view: PodsInView,
    pods: WritablePods,
    trust: Trust,
    *,
    gpus: GpusOfNode | None = None,
    times: AgentTimes = _TIMES,
) -> Plugins:
    """Return the plugins of an agent that has just started."""
    log, gpus = logger(), gpus or Unchanged()
    devices = DeviceMaker(paths, gpus, RepeatedErrors(log, "device_handover_impaired"))
    own = gate(
        view,
        devices.capacity,
        file=paths.allocations,
        listed=gpus.processes,
        inventory=lambda: devices.inventory,
        times=times,
    )
    cdi = CdiFolder(paths.cdi, driver_specs=paths.driver_specs, driver_folder=paths.driver_folder)
    shares = ShareAllocator(
        own, devices, AssignedPods(pods, trust, own.record), cdi, log, answers_file=paths.answers_file
    )
    return Plugins(paths, devices, own, shares, cdi, log)
