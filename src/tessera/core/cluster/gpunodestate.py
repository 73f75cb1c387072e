"""The state of a GPU node in the cluster: its GPUs, desired instances, and claims."""

from typing import Literal, TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Gpu, NodeName, Share
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.workload.need import PodKey

__all__ = ["Claim", "DesiredDevices", "GpuNodeState", "ImpairedKind", "Impairment", "UnhealthyDevice", "Used"]

ImpairedKind: TypeAlias = Literal["Refused", "Overridden", "Withheld"]


class DesiredDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one GPU for pods that request them by name: desired ones, or advertised ones."""

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
    """Shares that a server is about to bind a pod to; they count as used until the pod is observed."""

    uid: str
    """UID of the pod: another pod of the same name has another claim."""
    pod: PodKey
    shares: tuple[Share, ...]
    attempt: str = ""
    """Identifies one of several attempts to bind the pod; giving up an attempt drops no other's claim."""


class UnhealthyDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is allocated to no pod for now."""

    device: DeviceId
    """A GPU with all that is on it, or an instance."""
    reason: str = ""


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in use, as the driver counts it; all processes together."""

    gpu: str
    """UUID."""
    placement: Placement | None = None
    """The MIG instance; None for the whole GPU."""
    memory_mib: int


class Impairment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is declared for a node and not in force."""

    kind: ImpairedKind
    """Refused: invalid or impossible. Overridden: something else takes precedence. Withheld: a resource is not
    advertised, or a GPU is not shared or partitioned yet as declared."""
    subject: str = ""
    """Its subject: `GPUPolicy batch`, `label gpushare=true`, the resource `tessera.dev/gpu-memory`."""
    by: str = ""
    """What takes precedence."""
    message: str
    """The cause and the fix, in a sentence."""


class GpuNodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node's part of the cluster's ledger, from its GPUNode object."""

    name: NodeName
    gpus: tuple[Gpu, ...] = ()
    """By the driver and their current sharing, with the existing layout; sorted by index."""
    unhealthy: tuple[UnhealthyDevice, ...] = ()
    used: tuple[Used, ...] = ()
    unit_mib: int = 1024
    """Memory of one unit of `tessera.dev/gpu-memory` and `aliyun.com/gpu-mem`."""
    driver: str = ""
    """Version of the GPU driver."""
    reported: bool = False
    """Whether an agent has written the GPUs; before that, nothing can be allocated."""
    desired: tuple[DesiredDevices, ...] = ()
    offered: tuple[DesiredDevices, ...] = ()
    """Devices that the kubelet may allocate: advertised by name, or used by pods that requested the name. They
    are the kubelet's until the agent removes them."""
    claims: tuple[Claim, ...] = ()
    impaired: tuple[Impairment, ...] = ()
    """Declarations for the node that are not in force."""
    policy: str = ""
    """Name of the GPUPolicy that applies; empty for none."""
    assignment_keys: tuple[str, ...] = ()
    """Public keys, in base64, with which the node's agent signs assignments, the current one first. Empty where an
    older agent reports, which does not sign."""
    version: str = ""
    """Version of the object all this was read from, for optimistic writes."""
