"""In-memory GPUs: MIG, processes, limits and events as in the driver, and injected faults.

For demos, the simulator and tests.
"""

import asyncio
import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any, Self

import msgspec

from tessera.clients.gpu.feed import EventFeed
from tessera.clients.gpu.protocol import GpuUtilization, MemoryLimit
from tessera.clients.gpu.refusals import (
    bounded_clocks,
    bounded_memory,
    bounded_power,
    check_compute_mode,
    check_idle,
    check_present,
    check_room,
    closed,
    instance_at,
    lost,
    mig_of,
    named,
    no_gpu,
    no_memory_limits,
    used,
)
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import (
    ComputeMode,
    GpuEvent,
    GpuFacts,
    GpuProcess,
    Instance,
    Inventory,
    MigMode,
)
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.readings import EngineActivity, GpuReading, InstanceReading, ProcessReading
from tessera.errors import TesseraError

__all__ = ["MemoryDriver"]

_DRIVER, _CUDA = "615.71.09", (13, 4)
_EMPTY_INSTANCE_MIB = 14
"""In use on a MIG instance without a process, as an H100's driver reports it."""
_LEAST_WATTS_PART = 4
"""The lowest power limit is this part of the default; real GPUs differ."""
_DEFAULT_WATTS = 400
_GPM = (9, 0)
"""From Hopper on the driver measures the activity of multiprocessors."""
_NO_MIG = MigMode(current=False, pending=False)
_COMPUTE = {
    "Pascal": (6, 0),
    "Volta": (7, 0),
    "Turing": (7, 5),
    "Ampere": (8, 0),
    "Ada Lovelace": (8, 9),
    "Hopper": (9, 0),
    "Blackwell": (10, 0),
    "Blackwell Ultra": (10, 3),
}


class _Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What one call of a method does."""

    error: TesseraError | None = None
    """What it raises; None if it works."""
    half_done: bool = False


_WORKS = _Fault()


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call under way."""

    facts: GpuFacts
    half_done: bool
    """Whether it fails, and leaves instances by half."""


class MemoryDriver:
    """An in-memory `GpuDriver`.

    Args:
        gpus: the GPUs, sorted by index.
        memory_limits: whether the driver limits memory by cgroup.

    """

    def __init__(self, gpus: tuple[GpuFacts, ...], *, memory_limits: bool = True) -> None:
        self._gpus = {each.uuid: each for each in gpus}
        self._memory_limits = memory_limits
        self._processes: dict[str, tuple[GpuProcess, ...]] = defaultdict(tuple)
        self._sm_percent: dict[int, int] = {}
        self._measured: dict[str, dict[str, Any]] = defaultdict(dict)
        self._limits: dict[tuple[str, str], int] = {}
        self.clocks_mhz: dict[str, tuple[int, int]] = {}
        """Locked clocks by GPU UUID; drivers do not report them."""
        self._faults: dict[str, list[_Fault]] = defaultdict(list)
        self._stubborn: set[str] = set()
        self._serials = itertools.count(1)
        self._feed = EventFeed()
        self._closed = False

    @classmethod
    def of(cls, *models: str, memory_limits: bool = True, node: str = "") -> Self:
        """Return a driver with one GPU of each of these models of the catalog, in order.

        Args:
            models: names of the catalog.
            memory_limits: whether the driver limits memory by cgroup.
            node: makes the UUIDs different from other nodes'.

        Raises:
            InvalidInput: no such model.

        """
        facts = [_facts(index, name) for index, name in enumerate(models)]
        if node:
            facts = [msgspec.structs.replace(each, uuid=f"GPU-{node}-{each.index}") for each in facts]
        return cls(tuple(facts), memory_limits=memory_limits)

    # Controls for tests and demos

    def fail(self, method: str, error: TesseraError, *, after: int = 0, half_done: bool = False) -> None:
        """Let a call of a method raise an error, `after` more calls that work.

        Args:
            method: a method of `GpuDriver`.
            error: what the call raises instead of doing anything.
            after: how many calls work before it, counted from the last fault set.
            half_done: whether it acts first: an instance to be created or destroyed is left without its compute
                instance, and any other change happens, only its answer is lost.

        """
        self._faults[method] += [*[_WORKS] * after, _Fault(error=error, half_done=half_done)]

    def hold_mode_changes(self, gpu: str) -> None:
        """Let later changes of the MIG mode wait for `reset`, as on GPUs before Hopper with a driver in use."""
        self._stubborn.add(gpu)

    def reset(self, gpu: str) -> None:
        """Reset a GPU, as a reboot does: a pending MIG mode takes effect; instances, processes and limits are gone."""
        facts = self._gpus[gpu]
        self._change(
            gpu,
            lost=False,
            mig=MigMode(current=facts.mig.pending, pending=facts.mig.pending) if facts.mig else None,
            instances=(),
            incomplete=(),
            compute_mode=ComputeMode.DEFAULT,
            power_limit_watts=facts.power_default_watts,
        )
        self._processes.pop(gpu, None)
        self.clocks_mhz.pop(gpu, None)
        self._limits = {key: mib for key, mib in self._limits.items() if key[0] != gpu}

    def reboot(self) -> None:
        """Restart the node: every GPU is reset."""
        for gpu in self._gpus:
            self.reset(gpu)

    def lose(self, gpu: str) -> None:
        """Let the driver lose a GPU, as when it falls off the bus."""
        self._change(gpu, lost=True)
        self.report(GpuEvent(gpu=gpu, lost=True))

    def find(self, gpu: str) -> None:
        """Let the driver reach a lost GPU again."""
        self._change(gpu, lost=False)

    def set_measured(self, gpu: str, **fields: Any) -> None:
        """Set these fields of `GpuReading` for a GPU, plausible or not."""
        self._measured[gpu] |= fields

    def start_process(
        self, gpu: str, pid: int, placement: Placement | None = None, memory_mib: int = 100, sm_percent: int = 0
    ) -> None:
        """Let a process open a context on a GPU, or on the MIG instance at a placement."""
        self._sm_percent[pid] = sm_percent
        on = None if placement is None else instance_at(self._gpus[gpu], placement).gpu_instance
        process = GpuProcess(pid=pid, memory_mib=memory_mib, gpu_instance=on)
        self._processes[gpu] = (*self._processes[gpu], process)

    def set_load(self, pid: int, sm_percent: int) -> None:
        """Set how much of the time of its GPU or MIG instance a process takes."""
        self._sm_percent[pid] = sm_percent

    def end_process(self, pid: int) -> None:
        """Let a process end."""
        for gpu, processes in self._processes.items():
            self._processes[gpu] = tuple(each for each in processes if each.pid != pid)

    def report(self, event: GpuEvent) -> None:
        """Let the driver report an event."""
        self._feed.publish(event)

    # Reading

    async def inventory(self) -> Inventory:
        """Return all GPUs as they are now."""
        asked_ns = time.monotonic_ns()
        fault = await self._reach("inventory")
        if fault.error is not None:
            raise fault.error
        gpus = tuple(sorted(self._gpus.values(), key=lambda each: each.index))
        return Inventory(
            gpus=gpus,
            driver=_DRIVER,
            nvml=f"13.{_DRIVER}",
            cuda=_CUDA,
            memory_limits=self._memory_limits,
            asked_ns=asked_ns,
        )

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes on a GPU and on its instances, sorted."""
        async with self._call("processes", gpu):
            return tuple(sorted(self._processes[gpu], key=lambda each: (each.pid, each.gpu_instance or 0)))

    async def use(self, gpu: str, placement: Placement | None = None) -> GpuUtilization:
        """Return the memory in use, a little of it without a process, and 0 or 100 percent by whether there are any."""
        async with self._call("use", gpu) as call:
            on = None if placement is None else instance_at(call.facts, placement).gpu_instance
            chosen = [each for each in self._processes[gpu] if placement is None or each.gpu_instance == on]
            percent = None if call.facts.layout is not None else 100 * bool(chosen)
            empty_mib = _EMPTY_INSTANCE_MIB * (len(call.facts.instances) if placement is None else 1)
            used_mib = empty_mib + sum(each.memory_mib or 0 for each in chosen)
            return GpuUtilization(memory_used_mib=used_mib, gpu_percent=percent)

    async def measure(self, gpu: str) -> GpuReading:
        """Return what processes use, and what else was set to be measured."""
        async with self._call("measure", gpu) as call:
            facts, on = call.facts, self._processes[gpu]
            partitioned = facts.layout is not None
            counted = _COMPUTE.get(facts.model.arch, (0, 0)) >= _GPM

            def used_mib(instance: int) -> int:
                return _EMPTY_INSTANCE_MIB + sum(each.memory_mib or 0 for each in on if each.gpu_instance == instance)

            def activity(instance: int | None) -> EngineActivity | None:
                loads = (self._sm_percent.get(each.pid, 0) for each in on if each.gpu_instance == instance)
                return EngineActivity(sm_percent=min(sum(loads), 100)) if counted else None

            reading = GpuReading(
                memory_used_mib=_EMPTY_INSTANCE_MIB * len(facts.instances) + sum(each.memory_mib or 0 for each in on),
                gpu_percent=None if partitioned else min(sum(self._sm_percent.get(each.pid, 0) for each in on), 100),
                activity=None if partitioned else activity(None),
                instances=tuple(
                    InstanceReading(
                        placement=each.placement,
                        memory_used_mib=used_mib(each.gpu_instance),
                        activity=activity(each.gpu_instance),
                    )
                    for each in facts.instances
                ),
                processes=tuple(
                    ProcessReading(
                        pid=each.pid,
                        memory_mib=each.memory_mib,
                        gpu_instance=each.gpu_instance,
                        sm_percent=None if partitioned else self._sm_percent.get(each.pid, 0),
                    )
                    for each in sorted(on, key=lambda each: (each.pid, each.gpu_instance or 0))
                ),
            )
            return msgspec.structs.replace(reading, **self._measured[gpu])

    async def memory_limit(self, gpu: str, cgroup: str) -> MemoryLimit:
        """Return the limit of a cgroup; nothing here is in a cgroup, so nothing is held."""
        async with self._call("memory_limit", gpu) as call:
            self._check_memory_limits(call.facts)
            return MemoryLimit(hard_mib=self._limits.get((gpu, cgroup)), used_mib=0)

    def events(self) -> AsyncIterator[GpuEvent]:
        """Yield what is reported from this call on."""
        return self._feed.stream()

    # Changing

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        """Turn MIG on or off, at once or with the next reset."""
        async with self._call("set_mig", gpu) as call:
            now = mig_of(call.facts)
            if now.current != enabled:
                check_idle(call.facts, len(self._processes[gpu]))
            current = now.current if gpu in self._stubborn else enabled
            mode = MigMode(current=current, pending=enabled)
            compute_mode = ComputeMode.DEFAULT if current else call.facts.compute_mode
            self._change(gpu, mig=mode, compute_mode=compute_mode)
            if mode.current != now.current:
                self._feed.publish(GpuEvent(gpu=gpu))
        return mode

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Create an instance at exactly this place."""
        async with self._call("create_instance", gpu) as call:
            check_room(call.facts, placement)
            created = self._make(call.facts, placement)
            if call.half_done:
                self._change(gpu, incomplete=tuple(sorted((*call.facts.incomplete, placement))))
            else:
                instances = sorted((*call.facts.instances, created), key=lambda each: each.placement)
                self._change(gpu, instances=tuple(instances))
            self._feed.publish(GpuEvent(gpu=gpu))
        return created

    def _make(self, facts: GpuFacts, placement: Placement) -> Instance:
        profile = next(each for each in facts.model.profiles if each.name == placement.profile)
        taken = {each.gpu_instance for each in facts.instances}
        return Instance(
            placement=placement,
            uuid=f"MIG-00000000-0000-5000-8000-{next(self._serials):012x}",
            gpu_instance=next(number for number in itertools.count(1) if number not in taken),
            compute_instance=0,
            memory_mib=profile.memory_mib,
            multiprocessors=profile.sm or 0,
            copy_engines=profile.compute_slices,
            decoders=0 if profile.media == "none" else max(1, profile.compute_slices // 2),
        )

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        """Destroy an instance, complete or not."""
        async with self._call("destroy_instance", gpu) as call:
            check_present(call.facts, placement)
            on = {each.gpu_instance for each in call.facts.instances if each.placement == placement}
            users = [each.pid for each in self._processes[gpu] if each.gpu_instance in on]
            if users:
                raise used(call.facts, placement, users)
            instances = tuple(each for each in call.facts.instances if each.placement != placement)
            incomplete = (
                {*call.facts.incomplete, placement} if call.half_done else {*call.facts.incomplete} - {placement}
            )
            self._change(gpu, instances=instances, incomplete=tuple(sorted(incomplete)))
            self._feed.publish(GpuEvent(gpu=gpu))

    async def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Say who may open contexts on a GPU."""
        async with self._call("set_compute_mode", gpu) as call:
            check_compute_mode(call.facts, mode)
            self._change(gpu, compute_mode=mode)

    async def set_power_limit(self, gpu: str, watts: int | None) -> None:
        """Cap a GPU's power; None brings back what it was delivered with."""
        async with self._call("set_power_limit", gpu) as call:
            self._change(gpu, power_limit_watts=bounded_power(call.facts, watts))

    async def lock_clocks(self, gpu: str, mhz: tuple[int, int] | None) -> None:
        """Keep the clock of the graphics engine between two values; None leaves it to the driver."""
        async with self._call("lock_clocks", gpu) as call:
            if mhz is None:
                self.clocks_mhz.pop(gpu, None)
            else:
                self.clocks_mhz[gpu] = bounded_clocks(call.facts, mhz)

    async def set_memory_limit(self, gpu: str, cgroup: str, hard_mib: int | None) -> None:
        """Limit the memory of a cgroup on a GPU."""
        async with self._call("set_memory_limit", gpu) as call:
            self._check_memory_limits(call.facts)
            if hard_mib is None:
                self._limits.pop((gpu, cgroup), None)
            else:
                self._limits[gpu, cgroup] = bounded_memory(call.facts, cgroup, hard_mib)

    def _check_memory_limits(self, facts: GpuFacts) -> None:
        if not self._memory_limits:
            raise no_memory_limits(facts, f"driver {_DRIVER}, set to limit none")
        if facts.layout is not None:
            raise no_memory_limits(facts, "MIG on")

    async def close(self) -> None:
        """End all event streams; later calls raise `Unavailable`."""
        self._closed = True
        self._feed.close()

    # Calls

    @contextlib.asynccontextmanager
    async def _call(self, method: str, gpu: str) -> AsyncIterator[_Call]:
        """Yield a GPU that the driver reaches; fails first, or at the end once the change is made, as set."""
        fault = await self._reach(method)
        facts = self._gpus.get(gpu)
        if facts is None:
            raise no_gpu(gpu, self._gpus)
        if facts.lost:
            raise lost(named(facts))
        yield _Call(facts=facts, half_done=fault.half_done)
        if fault.error is not None:
            raise fault.error

    async def _reach(self, method: str) -> _Fault:
        await asyncio.sleep(0)
        if self._closed:
            raise closed()
        faults = self._faults[method]
        fault = faults.pop(0) if faults else _WORKS
        if fault.error is not None and not fault.half_done:
            raise fault.error
        return fault

    def _change(self, gpu: str, **fields: object) -> None:
        self._gpus[gpu] = msgspec.structs.replace(self._gpus[gpu], **fields)


def _facts(index: int, name: str) -> GpuFacts:
    gpu = model(name)
    product = next((each for each in gpu.aliases if not each.startswith("nvidia-")), gpu.name)
    return GpuFacts(
        index=index,
        uuid=f"GPU-00000000-0000-4000-8000-{index:012x}",
        minor=index,
        product=product if product.startswith("Tesla") else f"NVIDIA {product}",
        model=gpu,
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        pci_device_id=gpu.pci[0] if gpu.pci else "",
        pci_class="0x030200",
        memory_total_mib=gpu.memory_mib,
        memory_mib=gpu.memory_mib,
        compute_capability=_COMPUTE[gpu.arch],
        mig=_NO_MIG if gpu.profiles else None,
        power_limit_watts=_DEFAULT_WATTS,
        power_default_watts=_DEFAULT_WATTS,
        power_range_watts=(_DEFAULT_WATTS // _LEAST_WATTS_PART, _DEFAULT_WATTS),
    )
