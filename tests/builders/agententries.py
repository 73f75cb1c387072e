"""Entries of the agent's record of units of memory, and what their containers use."""

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Placement

__all__ = ["GPU", "UNITS", "amount", "client", "entry", "whole"]

GPU, UNITS = "GPU-0", "tessera.dev/gpu-memory"


def whole(gpu: str = GPU, placement: Placement | None = None) -> AllocatedDevice:
    return AllocatedDevice(device=DeviceId(gpu, placement))


def amount(memory_mib: int, gpu: str = GPU) -> AllocatedDevice:
    return AllocatedDevice(device=DeviceId(gpu), exclusivity=Exclusivity.MEMORY, memory_mib=memory_mib)


def client(gpu: str = GPU, *, mps: bool | None = None, clients: int = 0) -> AllocatedDevice:
    return AllocatedDevice(device=DeviceId(gpu), exclusivity=Exclusivity.REPLICA, mps=mps, clients=clients)


def entry(
    pod: str, *uses: AllocatedDevice, ids: str = "", container: str = "main", at: int = 0, initial: bool = False
) -> AgentAllocation:
    return AgentAllocation(
        resource=UNITS,
        ids=tuple(ids or pod),
        uses=uses,
        uid=pod,
        pod=f"default/{pod}",
        container=container,
        initial=initial,
        at_ns=at,
    )
