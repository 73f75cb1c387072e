"""The observed cluster as one immutable value: nodes with their GPUs, running pods with their shares, pending pods."""

from typing import NewType, Self

import msgspec

from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import AUTO, Device, Mode, Option, Sharing, devices, options
from tessera.core.workload.need import DeviceRequest, Isolation, Pod, PodKey

__all__ = ["Assignment", "Gpu", "LeftOut", "MemoryUnits", "Node", "NodeName", "Running", "Share", "Snapshot", "Taint"]

NodeName = NewType("NodeName", str)


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A node's taint. Source: k8s.io/api core/v1 Taint."""

    key: str
    effect: str
    value: str = ""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's share of one device."""

    gpu: int
    """Index of the GPU in its node."""
    mode: Mode
    profile: str | None = None
    start: int | None = None
    """First memory slice of the MIG instance, if the share is one or lies on one."""
    memory_mib: int
    """Memory allocated; for time-slicing, which limits nothing, the equal share of the device."""
    compute_percent: int
    """Percent of the GPU's compute allocated."""
    isolation: Isolation
    resource: str
    container: str = ""

    @classmethod
    def of(cls, gpu: int, request: DeviceRequest, option: Option, start: int | None = None) -> Self:
        """Return a container's share when one device of `request` is served by `option`, on the instance at `start`."""
        return cls(
            gpu=gpu,
            mode=option.mode,
            profile=option.profile,
            start=start,
            memory_mib=option.memory_mib,
            compute_percent=option.compute_percent,
            isolation=option.mode.isolation,
            resource=option.resource or request.resource,
            container=request.container,
        )

    @classmethod
    def of_device(cls, gpu: int, device: Device, resource: str) -> Self:
        """Return the share of one client of an existing device of a GPU."""
        return cls(
            gpu=gpu,
            mode=device.mode,
            profile=device.placement.profile if device.placement else None,
            start=device.placement.start if device.placement else None,
            memory_mib=device.memory_mib,
            compute_percent=device.compute_percent,
            isolation=device.isolation,
            resource=resource,
        )


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a node."""

    index: int
    model: GpuModel
    memory_mib: int
    """Memory that can be allocated: usable memory by the driver, else the catalog's figure."""
    sharing: Sharing = AUTO
    uuid: str = ""
    healthy: "Gpu | None" = None
    """The GPU when healthy, or without conflicts, where all of it is closed to new pods; for reasons."""
    reserved: tuple[Share, ...] = ()
    """Kept from new pods, as far as pods do not use them: see `core.cluster.closing`."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices this GPU offers as configured now."""
        return devices(self.model, self.memory_mib, self.sharing)

    def options(self, request: DeviceRequest) -> tuple[Option, ...]:
        """Return the ways one device of `request` could be served on this GPU if it were empty, the preferred first."""
        return options(request, self.model, self.memory_mib, self.sharing)


class MemoryUnits(msgspec.Struct, frozen=True):
    """The units of `tessera.dev/gpu-memory` that a node advertises, which kube-scheduler and the kubelet count."""

    count: int
    mib: int
    """Memory of each."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node: its capacity, and how pods may be attracted to or kept from it."""

    name: NodeName
    cpu_milli: int
    memory_mib: int
    gpus: tuple[Gpu, ...] = ()
    max_pods: int = 110
    """The kubelet's default."""
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted by key."""
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    unhealthy: tuple[int, ...] = ()
    """The GPUs of which new pods are allocated nothing because they are unhealthy, by index; for reasons."""
    problem: str = ""
    """Why its GPUs are unknown, so that it has none here; empty where they are known."""
    lost: int = 0
    """How many of its GPUs are no longer advertised, if it is unknown which."""
    cached_models: tuple[str, ...] | None = None
    """ModelCaches whose model it offers; None where unknown, so that none counts as missing."""
    units: MemoryUnits | None = None
    """None where it advertises none, or the size of each is unknown."""
    reported: bool = True
    """False where it has an agent that has not reported the GPUs yet: until then nothing of them is allocated."""
    withheld: tuple[tuple[str, str], ...] = ()
    """Resources that its agent does not advertise though its GPUs could provide them, each with the reason."""
    advertised: tuple[str, ...] | None = None
    """Devices by name that a node without agent advertises, and that are not created there; None where unknown."""
    ordered: bool = True
    """Whether the GPUs are in the driver's order; labels of a node with different GPUs do not tell."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, its node, and its shares, one per device in the order of its requests."""

    pod: PodKey
    node: NodeName
    shares: tuple[Share, ...] = ()


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has its shares already; the planner never moves it."""

    pod: Pod
    assignment: Assignment
    unrecorded: bool = False
    """Whether its devices are not recorded: some of its node that fit are assumed."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a manifest, or a part of it, from which no pod was read."""

    object: str
    """`Kind name` or `Kind namespace/name`, or its place if it has no name."""
    reason: str
    resources: tuple[str, ...] = ()
    """GPU resources that it names, which may be requested all the same."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a plan. Saved to a file it is a bug report, a regression test and a demo."""

    nodes: tuple[Node, ...]
    running: tuple[Running, ...] = ()
    pending: tuple[Pod, ...] = ()
    """In order of arrival."""
    notes: tuple[str, ...] = ()
    """What could not be observed and what was assumed instead, or what was left out; one sentence each."""
    left_out: tuple[LeftOut, ...] = ()
    """Objects of manifests, or parts of them, whose pods are missing here."""
