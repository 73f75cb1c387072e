"""The inventory of a node's GPU driver, as one immutable value: GPUs, their MIG instances, processes and events."""

import enum

import msgspec

from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.mig import Layout, Placement

__all__ = ["ComputeMode", "GpuEvent", "GpuFacts", "GpuProcess", "Instance", "Inventory", "MigMode"]


class MigMode(msgspec.Struct, frozen=True, kw_only=True):
    """Whether MIG is on, and its mode after the next reset of the GPU."""

    current: bool
    pending: bool

    @property
    def needs_reset(self) -> bool:
        """Whether a change is pending until a reset of the GPU, or a reboot of the node."""
        return self.current != self.pending


class ComputeMode(enum.StrEnum):
    """Who may open contexts on a GPU. Source: NVML, `nvmlComputeMode_t`."""

    DEFAULT = "default"
    EXCLUSIVE_PROCESS = "exclusive-process"
    PROHIBITED = "prohibited"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance with the one compute instance that fills it."""

    placement: Placement
    uuid: str
    """`MIG-...`; a new one each time the instance is created, so never used as its identity."""
    gpu_instance: int
    """NVML's id of the GPU instance, unique on its GPU as long as it exists."""
    compute_instance: int
    memory_mib: int
    """Usable memory."""
    multiprocessors: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU by the driver."""

    index: int
    """Driver's order; for people, labels and shares. Calls that change something use the UUID."""
    uuid: str
    minor: int
    """Number of the device node `/dev/nvidia<minor>`."""
    product: str
    """As the driver prints it: `NVIDIA A100-SXM4-40GB`."""
    model: GpuModel
    """The catalog's entry, with the driver's profiles, placements and memory where they differ."""
    pci_bus_id: str = ""
    pci_device_id: str = ""
    """Device and vendor id, as mig-parted's filters write them: `0x20B010DE`."""
    pci_subsystem_ids: tuple[int, ...] = (0,)
    """Subsystem device and vendor id, as mig-parted's filters may give it: the system's. Where that shows none there is
    the driver's, and 0, which mig-parted takes then."""
    pci_class: str = ""
    """Device class as the system shows it: `0x030200`; empty where it does not."""
    virtual: bool = False
    """Whether it is a vGPU in a virtual machine; a passed-through GPU is not."""
    numa: int | None = None
    memory_total_mib: int
    memory_mib: int
    """Memory that can be allocated: the total less what the driver reserves."""
    compute_capability: tuple[int, int] = (0, 0)
    compute_mode: ComputeMode = ComputeMode.DEFAULT
    mig: MigMode | None = None
    """None where the GPU has no MIG."""
    instances: tuple[Instance, ...] = ()
    """Sorted by placement."""
    incomplete: tuple[Placement, ...] = ()
    """GPU instances without exactly one compute instance that fills them; never offered to pods."""
    lost: bool = False
    """Whether the driver no longer reaches the GPU; then all but index and UUID is the last known value."""
    power_limit_watts: int | None = None
    power_default_watts: int | None = None
    power_range_watts: tuple[int, int] | None = None

    @property
    def layout(self) -> Layout | None:
        """The MIG layout, complete instances or not; None where MIG is off."""
        if self.mig is None or not self.mig.current:
            return None
        return tuple(sorted((*(each.placement for each in self.instances), *self.incomplete)))


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of a node at one moment."""

    gpus: tuple[GpuFacts, ...]
    """Sorted by index."""
    driver: str = ""
    nvml: str = ""
    cuda: tuple[int, int] = (0, 0)
    memory_limits: bool = False
    """Whether the driver limits memory by cgroup (NVML of driver 615 and later)."""
    notes: tuple[str, ...] = ()
    """Differences between driver and catalog, one sentence each; the driver is right."""
    unseen: tuple[int, ...] = ()
    """Indices of GPUs that the driver counts and has never shown, because they were lost before the first query;
    nothing else is known of them."""
    asked_ns: int = 0
    """When the driver was asked, on this process's monotonic clock in nanoseconds: of two inventories the one asked
    for later is the newer."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Notes about these GPUs, one sentence each."""
        unseen = (
            f"GPU {index}: lost before Tessera started, or of the UUID of another, so it is not listed"
            for index in self.unseen
        )
        return (*self.notes, *unseen)


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process with a context on a GPU."""

    pid: int
    memory_mib: int | None = None
    """None where the driver does not report it."""
    gpu_instance: int | None = None
    """The GPU instance it runs on; None where MIG is off."""
    mps_client: bool = False
    """Whether it is a client of an MPS server, which does its work: the driver counts that as the server's."""


class GpuEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A driver event about a GPU."""

    gpu: str
    """UUID of the GPU; empty where the driver does not know it."""
    xid: int | None = None
    """Number of the error; None when the GPU was lost or its MIG configuration changed."""
    gpu_instance: int | None = None
    """Its GPU instance, if the event names one."""
    compute_instance: int | None = None
    lost: bool = False
