"""The containers of this node that were allocated GPUs, and the processes in them."""

import asyncio
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tessera.api.kubernetes.podstates import container_ids
from tessera.clients.kube import Object
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.snapshot import Gpu
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.usage.attribution import ENDED, ContainerDevice, Owner
from tessera.core.usage.cgroups import outside_pods, owner_of

__all__ = ["NodeContainers"]

_MOST_READ = 1 << 13
"""Bytes of a process's control groups that are read: a path has 4,096 at the most."""


class Pods(Protocol):
    """The observed pods of a node; `agent.pods.podsview.PodsView` is one."""

    def pods(self) -> Iterable[Object]:
        """Return the pods of this node."""

    @property
    def blind(self) -> bool:
        """Whether processes of pods cannot be observed."""


class AgentAllocations(Protocol):
    """The agent's record of allocations; `agent.deviceplugin.allocations.allocationrecord.AllocationRecord` is one."""

    @property
    def entries(self) -> Iterable[AgentAllocation]:
        """All allocations."""


class Orphans(Protocol):
    """The processes of deleted pods; `agent.deviceplugin.allocations.refusals.Refusals` is one."""

    @property
    def devices_of_orphans(self) -> Iterable[UnhealthyDevice]:
        """The devices used only by them."""


class NodeContainers:
    """Containers with GPUs, by the agent's record of allocations, and the containers of processes.

    Args:
        record: the allocations.
        view: the pods of this node.
        proc: the host's process table.
        orphans: the processes of deleted pods.

    """

    def __init__(self, record: AgentAllocations, view: Pods, proc: Path, orphans: Orphans) -> None:
        self._record = record
        self._orphans = orphans
        self._view = view
        self._proc = proc

    @property
    def orphaned(self) -> frozenset[DeviceId]:
        """The devices used only by processes of deleted pods."""
        return frozenset(each.device for each in self._orphans.devices_of_orphans)

    def allocations(self, inventory: Inventory, gpus: Iterable[Gpu]) -> tuple[ContainerDevice, ...]:
        """Return the containers that were allocated a device; init containers only until the pod's others start."""
        entries = [each for each in self._record.entries if each.uid and each.pod]
        lasting = {each.uid for each in entries if not each.initial}
        memory = dict(_memory_mib(inventory))
        replicas = {DeviceId(gpu.uuid, device.placement): device.memory_mib for gpu in gpus for device in gpu.devices}
        return tuple(
            _allocation(entry, use, memory.get(use.device), replicas.get(use.device))
            for entry in entries
            if not entry.initial or entry.uid not in lasting
            for use in entry.uses
        )

    async def owners(self, pids: Iterable[int]) -> Mapping[int, Owner | None] | None:
        """Return the containers of processes: None for one outside of pods, `ENDED`, and none where it is unknown.

        None if processes of other pods cannot be observed.
        """
        if self._view.blind:
            return None
        return await asyncio.to_thread(self._owners, frozenset(pids), tuple(self._view.pods()))

    def _owners(self, pids: Iterable[int], pods: Iterable[Object]) -> Mapping[int, Owner | None]:
        containers = dict(itertools.chain.from_iterable(map(container_ids, pods)))
        uids = [str((each.get("metadata") or {}).get("uid", "")) for each in pods]
        texts = {pid: self._cgroups(pid) for pid in pids}
        found = {pid: ENDED if text is None else owner_of(text, containers, uids) for pid, text in texts.items()}
        return {pid: owner for pid, owner in found.items() if owner is not None or outside_pods(texts[pid] or "")}

    @property
    def sees_processes(self) -> bool:
        """Whether processes of other pods can be observed."""
        return not self._view.blind

    def _cgroups(self, pid: int) -> str | None:
        """Return the control groups of a process; None for one that has ended, empty where they cannot be read now."""
        process = self._proc / str(pid)
        try:
            with (process / "cgroup").open("rb") as file:
                return file.read(_MOST_READ).decode(errors="replace")
        except OSError:
            return "" if process.exists() else None


def _memory_mib(inventory: Inventory) -> Iterator[tuple[DeviceId, int]]:
    """Yield the memory of each device, where it is known."""
    for facts in inventory.gpus:
        devices = ((None, facts.memory_mib), *((each.placement, each.memory_mib) for each in facts.instances))
        yield from ((DeviceId(facts.uuid, placement), memory_mib) for placement, memory_mib in devices if memory_mib)


def _allocation(
    entry: AgentAllocation, use: AllocatedDevice, memory_mib: int | None, replica_mib: int | None
) -> ContainerDevice:
    """Return a container's allocation; of a time-sliced device the equal share, which is not enforced."""
    namespace, _, pod = entry.pod.partition("/")
    allocated_mib = memory_mib
    if use.exclusivity is Exclusivity.MEMORY:
        allocated_mib = use.memory_mib
    elif use.exclusivity is Exclusivity.REPLICA:
        allocated_mib = None if replica_mib is None else replica_mib * max(len(entry.ids) // len(entry.uses), 1)
    return ContainerDevice(
        namespace=namespace,
        pod=pod,
        container=entry.container,
        uid=entry.uid,
        device=use.device,
        exclusive=use.exclusivity is Exclusivity.EXCLUSIVE,
        replica=use.exclusivity is Exclusivity.REPLICA,
        allocated_mib=allocated_mib,
    )
