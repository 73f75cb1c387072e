"""A GPU node as all processes know it: its GPUs in truth, desired instances, what is about to be allocated."""

from typing import Literal, TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Gpu, NodeName, Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.workload.need import PodKey

__all__ = ["Claim", "DesiredDevices", "GpuNodeState", "ImpairedKind", "Impairment", "UnhealthyDevice", "Used"]

ImpairedKind: TypeAlias = Literal["Refused", "Overridden", "Withheld"]


class DesiredDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one GPU for pods with exact requests: that shall exist and be advertised, or that are."""

    gpu: str
    """UUID."""
    whole: bool = False
    """Whether the GPU is desired as one whole device; then no instances are desired."""
    instances: Layout = ()

    @property
    def devices(self) -> tuple[DeviceId, ...]:
        """The devices one by one."""
        whole = (DeviceId(self.gpu),) if self.whole else ()
        return (*whole, *(DeviceId(self.gpu, each) for each in self.instances))


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Shares that a server is about to bind a pod to; they count as held until the pod is seen."""

    uid: str
    """UID of the pod: another pod of the same name is another claim."""
    pod: PodKey
    shares: tuple[Share, ...]
    attempt: str = ""
    """Which of several attempts to bind the pod wrote it; who gives an attempt up drops no other's claim."""


class UnhealthyDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is given to nobody for now."""

    gpu: str
    """UUID."""
    placement: Placement | None = None
    """The MIG instance; None for the whole GPU with all that is on it."""
    reason: str = ""

    @property
    def device(self) -> DeviceId:
        """The device."""
        return DeviceId(self.gpu, self.placement)


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that is in use, as the driver counts it; all processes together."""

    gpu: str
    """UUID."""
    placement: Placement | None = None
    """The MIG instance; None for the whole GPU."""
    memory_mib: int


class Impairment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was declared for a node and is not in force."""

    kind: ImpairedKind
    """Refused: it cannot be read or cannot be. Overridden: something else decides. Withheld: a resource is not
    offered, or a GPU is not shared or partitioned yet as declared."""
    subject: str = ""
    """What it is about: `GPUPolicy batch`, `label gpushare=true`, the resource `tessera.dev/gpu-memory`."""
    by: str = ""
    """What decides in its place."""
    message: str
    """What was found and what to do about it, in a sentence."""


class GpuNodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node's part of the cluster's ledger, as its GPUNode object has it."""

    name: NodeName
    gpus: tuple[Gpu, ...] = ()
    """As the driver shows them and as they are shared now, with the layout that exists; sorted by index."""
    unhealthy: tuple[UnhealthyDevice, ...] = ()
    used: tuple[Used, ...] = ()
    unit_mib: int = 1024
    """Memory of one unit of `tessera.dev/gpu-memory` and `aliyun.com/gpu-mem`."""
    driver: str = ""
    """Version of the GPU driver."""
    reported: bool = False
    """Whether an agent has written the GPUs; before it has, nothing can be granted."""
    desired: tuple[DesiredDevices, ...] = ()
    offered: tuple[DesiredDevices, ...] = ()
    """Devices that the kubelet may give away: advertised to it by name, or held by pods that asked for the name. They
    are nobody else's until the agent takes them out."""
    claims: tuple[Claim, ...] = ()
    impaired: tuple[Impairment, ...] = ()
    """What is declared for the node and not in force."""
    policy: str = ""
    """Name of the GPUPolicy that applies; empty for none."""
    assignment_keys: tuple[str, ...] = ()
    """Public keys, in base64, with which the node's agent signs assignments, the present one first. Empty where an
    older agent reports, which does not sign."""
    version: str = ""
    """Version of the object all this was read from, for a write that must not overlook another's."""
