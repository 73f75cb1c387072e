"""The observed world as one immutable value: nodes with their GPUs, running pods with their shares, pending pods."""

from typing import NewType, Self

import msgspec

from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import AUTO, Device, Mode, Option, Sharing, devices, options
from tessera.core.workload.need import Ask, Isolation, Pod, PodKey

__all__ = ["Assignment", "Gpu", "LeftOut", "MemoryUnits", "Node", "NodeName", "Running", "Share", "Snapshot", "Taint"]

NodeName = NewType("NodeName", str)


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """A node's taint. Source: k8s.io/api core/v1 Taint."""

    key: str
    effect: str
    value: str = ""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod gets of one device."""

    gpu: int
    """Index of the GPU in its node."""
    mode: Mode
    profile: str | None = None
    start: int | None = None
    """First memory slice of the MIG instance, where the share is one or lies on one."""
    memory_mib: int
    """Memory granted; for time-slicing, which limits nothing, the fair part of the device."""
    compute_percent: int
    """Percent of the GPU's compute granted."""
    isolation: Isolation
    resource: str
    container: str = ""

    @classmethod
    def of(cls, gpu: int, ask: Ask, option: Option, start: int | None = None) -> Self:
        """Return what a container gets when one device of `ask` is served by `option`, on the instance at `start`."""
        return cls(
            gpu=gpu,
            mode=option.mode,
            profile=option.profile,
            start=start,
            memory_mib=option.memory_mib,
            compute_percent=option.compute_percent,
            isolation=option.mode.isolation,
            resource=option.resource or ask.resource,
            container=ask.container,
        )

    @classmethod
    def of_device(cls, gpu: int, device: Device, resource: str) -> Self:
        """Return what one client of an existing device of a GPU gets."""
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
    """Memory that can be granted: what the driver reports usable, else the catalogue's figure."""
    sharing: Sharing = AUTO
    uuid: str = ""
    healthy: "Gpu | None" = None
    """As it is while nothing of it is unhealthy, where something is and is closed to new pods; reasons tell this."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices this GPU offers as it is configured now."""
        return devices(self.model, self.memory_mib, self.sharing)

    def options(self, ask: Ask) -> tuple[Option, ...]:
        """Return the ways one device of `ask` could be served here if nobody held anything, the preferred first."""
        return options(ask, self.model, self.memory_mib, self.sharing)


class MemoryUnits(msgspec.Struct, frozen=True):
    """The units of `tessera.dev/gpu-memory` that a node advertises, which kube-scheduler and the kubelet count."""

    count: int
    mib: int
    """Memory of each."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node: what it can grant in total, and how pods may be drawn to or kept from it."""

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
    problem: str = ""
    """Why its GPUs are not known, so that it has none here; empty where they are."""
    lost: int = 0
    """How many of its GPUs are offered no more, where nobody knows which."""
    cached_models: tuple[str, ...] | None = None
    """ModelCaches whose model it offers; None where nobody knows, so that none is missed."""
    units: MemoryUnits | None = None
    """None where it advertises none, or nobody knows of how much each is."""
    ordered: bool = True
    """Whether the GPUs are in the driver's order; labels of a node whose GPUs differ do not tell it."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, its node, and its shares, one per device in the order of its asks."""

    pod: PodKey
    node: NodeName
    shares: tuple[Share, ...] = ()


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that holds its shares already; the planner never moves it."""

    pod: Pod
    assignment: Assignment
    guessed: bool = False
    """Whether nobody recorded its devices: some of its node that fit are taken for them."""


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a manifest, or a part of it, that no pod was read from."""

    object: str
    """`Kind name` or `Kind namespace/name`, or its place where it has no name."""
    reason: str
    resources: tuple[str, ...] = ()
    """GPU resources that it names, which may be asked for all the same."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a plan is made from. Saved to a file it is a bug report, a regression test and a demo."""

    nodes: tuple[Node, ...]
    running: tuple[Running, ...] = ()
    pending: tuple[Pod, ...] = ()
    """In order of arrival."""
    notes: tuple[str, ...] = ()
    """What the observer could not see and how it filled that in, or what it left out; one sentence each."""
    left_out: tuple[LeftOut, ...] = ()
    """Objects of manifests, or parts of them, whose pods are not among these."""
