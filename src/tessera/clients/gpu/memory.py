"""A GPU driver in this process: MIG as the real one does it, with faults on demand.

For demos, the simulator and tests. It follows NVML's rules: instances need MIG and a free place, MIG devices get a new
UUID each time they are made, what is in use is neither destroyed nor switched.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Self

import msgspec

from tessera.clients.gpu.protocol import MemoryLimit, Use
from tessera.core.gpumodels import model as model_named
from tessera.core.inventory import ComputeMode, GpuEvent, GpuFacts, GpuProcess, Instance, Inventory, MigMode
from tessera.core.mig import Placement, why_illegal
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

__all__ = ["MemoryDriver"]

_DRIVER, _CUDA = "615.71.09", (13, 4)
_LEAST_WATTS_PART = 4
"""The lowest power limit is this part of the default; real GPUs differ."""
_DEFAULT_WATTS = 400
_NO_MIG = MigMode(current=False, pending=False)


class MemoryDriver:
    """A `GpuDriver` whose GPUs live in this process.

    Args:
        gpus: the GPUs, sorted by index.
        memory_limits: whether the driver limits memory by cgroup.

    """

    def __init__(self, gpus: tuple[GpuFacts, ...], *, memory_limits: bool = True) -> None:
        self._gpus = {each.uuid: each for each in gpus}
        self._memory_limits = memory_limits
        self._processes: dict[str, tuple[GpuProcess, ...]] = defaultdict(tuple)
        self._limits: dict[tuple[str, str], int | None] = {}
        self.clocks_mhz: dict[str, tuple[int, int]] = {}
        """Locked clocks by GPU UUID."""
        self._faults: dict[str, list[TesseraError | None]] = defaultdict(list)
        self._stubborn: set[str] = set()
        self._listeners: list[asyncio.Queue[GpuEvent]] = []
        self._serials = itertools.count(1)

    @classmethod
    def of(cls, *models: str, memory_limits: bool = True) -> Self:
        """Return a driver with one GPU of each of these models of the catalogue, in order."""
        return cls(tuple(_facts(index, name) for index, name in enumerate(models)), memory_limits=memory_limits)

    # What a test or a demo does to the node

    def fail(self, method: str, error: TesseraError, *, after: int = 0) -> None:
        """Let a call of a method raise an error instead of doing anything, `after` more calls that work."""
        self._faults[method] += [None] * after + [error]

    def hold_mode_changes(self, gpu: str) -> None:
        """From now on a change of the MIG mode waits for `reset`, as on GPUs before Hopper with a driver in use."""
        self._stubborn.add(gpu)

    def reset(self, gpu: str) -> None:
        """Reset a GPU, as a reboot does: a pending MIG mode takes effect, and MIG instances are gone."""
        facts = self._gpus[gpu]
        mig = MigMode(current=facts.mig.pending, pending=facts.mig.pending) if facts.mig else None
        self._set(gpu, mig=mig, instances=(), incomplete=(), lost=False)
        self._processes.pop(gpu, None)

    def lose(self, gpu: str) -> None:
        """Let the driver lose a GPU, as when it falls off the bus."""
        self._set(gpu, lost=True)
        self.report(GpuEvent(gpu=gpu, lost=True))

    def start_process(self, gpu: str, pid: int, placement: Placement | None = None, memory_mib: int = 100) -> None:
        """Let a process open a context on a GPU, or on the MIG instance at a placement."""
        instance = None if placement is None else self._instance(gpu, placement).gpu_instance
        process = GpuProcess(pid=pid, memory_mib=memory_mib, gpu_instance=instance)
        self._processes[gpu] = (*self._processes[gpu], process)

    def end_process(self, pid: int) -> None:
        """Let a process end."""
        for gpu, processes in self._processes.items():
            self._processes[gpu] = tuple(each for each in processes if each.pid != pid)

    def report(self, event: GpuEvent) -> None:
        """Let the driver report an event."""
        for listener in self._listeners:
            listener.put_nowait(event)

    # The Protocol

    async def inventory(self) -> Inventory:
        """Return all GPUs as they are now."""
        await self._call("inventory")
        gpus = tuple(sorted(self._gpus.values(), key=lambda each: each.index))
        return Inventory(gpus=gpus, driver=_DRIVER, nvml=f"13.{_DRIVER}", cuda=_CUDA, memory_limits=self._memory_limits)

    async def set_mig(self, gpu: str, *, enabled: bool) -> MigMode:
        """Switch MIG on or off, at once or with the next reset."""
        facts = await self._reach("set_mig", gpu)
        if facts.mig is None:
            raise Unsupported(_named(facts), found=f"{facts.model.name} without MIG", wanted="a GPU with MIG")
        if enabled != facts.mig.current and (facts.layout or self._processes[gpu]):
            raise Conflict(_named(facts), found="MIG instances or processes on it", wanted="an unused GPU")
        at_once = gpu not in self._stubborn or enabled == facts.mig.current
        mig = MigMode(current=enabled if at_once else facts.mig.current, pending=enabled)
        self._set(gpu, mig=mig)
        return mig

    async def create_instance(self, gpu: str, placement: Placement) -> Instance:
        """Create an instance and the compute instance that fills it."""
        facts = await self._reach("create_instance", gpu)
        if facts.layout is None:
            raise Conflict(_named(facts), found="MIG off", wanted="MIG on", accepted="switching MIG on first")
        reason = why_illegal(facts.model, tuple(sorted((*facts.layout, placement))))
        if reason:
            raise Conflict(_at(facts, placement), found=reason, wanted="a free place for it")
        instance = self._made(facts, placement)
        self._set(gpu, instances=tuple(sorted((*facts.instances, instance), key=lambda each: each.placement)))
        return instance

    async def destroy_instance(self, gpu: str, placement: Placement) -> None:
        """Destroy an unused instance."""
        facts = await self._reach("destroy_instance", gpu)
        if placement in facts.incomplete:
            self._set(gpu, incomplete=tuple(each for each in facts.incomplete if each != placement))
            return
        instance = self._instance(gpu, placement)
        if any(each.gpu_instance == instance.gpu_instance for each in self._processes[gpu]):
            raise Conflict(_at(facts, placement), found="a process on it", wanted="an unused instance")
        self._set(gpu, instances=tuple(each for each in facts.instances if each != instance))

    async def processes(self, gpu: str) -> tuple[GpuProcess, ...]:
        """Return the processes on a GPU and on its instances."""
        await self._reach("processes", gpu)
        return self._processes[gpu]

    async def use(self, gpu: str, placement: Placement | None = None) -> Use:
        """Return the memory that processes hold, and 0 or 100 percent by whether there are any."""
        facts = await self._reach("use", gpu)
        on = None if placement is None else self._instance(gpu, placement).gpu_instance
        chosen = [each for each in self._processes[gpu] if placement is None or each.gpu_instance == on]
        percent = None if facts.layout is not None else 100 * bool(chosen)
        return Use(memory_used_mib=sum(each.memory_mib or 0 for each in chosen), gpu_percent=percent)

    async def set_compute_mode(self, gpu: str, mode: ComputeMode) -> None:
        """Say who may open contexts on a GPU."""
        await self._reach("set_compute_mode", gpu)
        self._set(gpu, compute_mode=mode)

    async def set_power_limit(self, gpu: str, watts: int | None) -> None:
        """Cap a GPU's power; None restores the default."""
        facts = await self._reach("set_power_limit", gpu)
        if facts.power_range_watts is None:
            raise Unsupported(_named(facts), found="no power limit", wanted="a GPU whose power can be capped")
        least, most = facts.power_range_watts
        wanted = facts.power_default_watts if watts is None else watts
        if wanted is not None and not least <= wanted <= most:
            raise InvalidInput(_named(facts), found=f"{wanted} W", wanted=f"between {least} and {most} W")
        self._set(gpu, power_limit_watts=wanted)

    async def lock_clocks(self, gpu: str, mhz: tuple[int, int] | None) -> None:
        """Lock or unlock the clock of the graphics engine."""
        facts = await self._reach("lock_clocks", gpu)
        if mhz is None:
            self.clocks_mhz.pop(gpu, None)
        elif not 0 < mhz[0] <= mhz[1]:
            raise InvalidInput(_named(facts), found=f"clocks {mhz[0]} to {mhz[1]} MHz", wanted="lowest, then highest")
        else:
            self.clocks_mhz[gpu] = mhz

    async def set_memory_limit(self, gpu: str, cgroup: str, hard_mib: int | None) -> None:
        """Limit the memory of a cgroup on a GPU."""
        facts = await self._limited("set_memory_limit", gpu)
        if hard_mib is not None and hard_mib < 0:
            raise InvalidInput(f"{_named(facts)}, cgroup {cgroup}", found=f"{hard_mib} MiB", wanted="0 MiB or more")
        self._limits[gpu, cgroup] = hard_mib

    async def memory_limit(self, gpu: str, cgroup: str) -> MemoryLimit:
        """Return the limit of a cgroup; nothing here is in a cgroup, so nothing is held."""
        await self._limited("memory_limit", gpu)
        return MemoryLimit(hard_mib=self._limits.get((gpu, cgroup)), used_mib=0)

    async def events(self) -> AsyncIterator[GpuEvent]:
        """Yield what `report` is told from now on."""
        queue = asyncio.Queue[GpuEvent]()
        self._listeners.append(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.remove(queue)

    async def close(self) -> None:
        """Do nothing: there is nothing to let go of."""

    # Within

    async def _call(self, method: str) -> None:
        await asyncio.sleep(0)
        faults = self._faults[method]
        error = faults.pop(0) if faults else None
        if error is not None:
            raise error

    async def _reach(self, method: str, gpu: str) -> GpuFacts:
        """Return a GPU that a method may act on."""
        await self._call(method)
        facts = self._gpus.get(gpu)
        if facts is None:
            known = ", ".join(self._gpus) or "none"
            raise InvalidInput(f"GPU {gpu}", found="no such GPU", wanted="a GPU of this node", accepted=known)
        if facts.lost:
            raise Unavailable(_named(facts), found="GPU is lost", wanted="a GPU on the bus", accepted="a reboot")
        return facts

    async def _limited(self, method: str, gpu: str) -> GpuFacts:
        facts = await self._reach(method, gpu)
        if not self._memory_limits:
            wanted = "driver 615 or later, which limits memory by cgroup"
            raise Unsupported(_named(facts), found="a driver without memory limits", wanted=wanted)
        if facts.layout is not None:
            raise Unsupported(_named(facts), found="MIG on", wanted="a GPU without MIG, which limits memory by itself")
        return facts

    def _instance(self, gpu: str, placement: Placement) -> Instance:
        facts = self._gpus[gpu]
        for each in facts.instances:
            if each.placement == placement:
                return each
        raise Conflict(_at(facts, placement), found="no such instance", wanted="an instance that exists")

    def _made(self, facts: GpuFacts, placement: Placement) -> Instance:
        profile = next(each for each in facts.model.profiles if each.name == placement.profile)
        taken = {each.gpu_instance for each in facts.instances}
        serial = next(self._serials)
        return Instance(
            placement=placement,
            uuid=f"MIG-00000000-0000-5000-8000-{serial:012x}",
            gpu_instance=next(number for number in itertools.count(1) if number not in taken),
            compute_instance=0,
            memory_mib=profile.memory_mib,
            multiprocessors=profile.sm or 0,
        )

    def _set(self, gpu: str, **changes: object) -> None:
        self._gpus[gpu] = msgspec.structs.replace(self._gpus[gpu], **changes)


def _facts(index: int, name: str) -> GpuFacts:
    model = model_named(name)
    return GpuFacts(
        index=index,
        uuid=f"GPU-00000000-0000-4000-8000-{index:012x}",
        minor=index,
        product=model.name,
        model=model,
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        pci_device_id=model.pci[0] if model.pci else "",
        memory_total_mib=model.memory_mib,
        memory_mib=model.memory_mib,
        mig=_NO_MIG if model.profiles else None,
        power_limit_watts=_DEFAULT_WATTS,
        power_default_watts=_DEFAULT_WATTS,
        power_range_watts=(_DEFAULT_WATTS // _LEAST_WATTS_PART, _DEFAULT_WATTS),
    )


def _named(facts: GpuFacts) -> str:
    return f"GPU {facts.index} ({facts.uuid})"


def _at(facts: GpuFacts, placement: Placement) -> str:
    return f"{_named(facts)}, {placement.profile} at {placement.start}"
