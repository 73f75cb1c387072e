"""How a node shares its GPUs: the content of its files, and the resulting sharing of each GPU.

A node policy decides for the GPUs it names. For the others NVIDIA's sharing configuration decides; without
one, the label `gpushare=true` makes them memory shares, and without it each is one whole device. Existing MIG instances
are always offered as instances, except under strategy `none`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.gpumodels import GpuModel, profile
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Layout, Placement
from tessera.core.gpu.sharing import (
    AMOUNT_MODES,
    GPU_RESOURCE,
    MPS_MODES,
    NO_MPS_LIMITS,
    Mode,
    Offer,
    Sharing,
    mig_resource,
    names_device,
    without_mps,
)
from tessera.errors import InvalidInput

__all__ = [
    "AllocationPolicy",
    "GpuSettings",
    "ListStrategy",
    "NodeSharing",
    "PluginOptions",
    "SharingEntry",
    "Strategy",
    "combined",
    "desired_layouts",
    "effective",
    "mps_client_limit",
    "notes",
    "shared_gpus",
    "withheld",
]

Strategy: TypeAlias = Literal["none", "single", "mixed"]
AllocationPolicy: TypeAlias = Literal["distributed", "packed"]
ListStrategy: TypeAlias = Literal["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]

_MIG_MODES = {Mode.TIME_SLICING: Mode.MIG_TIME_SLICING, Mode.MPS: Mode.MIG_MPS}
_AS_GPU = frozenset({Mode.WHOLE, Mode.TIME_SLICING, Mode.MPS})
"""Modes in which a GPU without MIG is advertised as `nvidia.com/gpu`."""
_VOLTA = (7, 0)
_MORE_CLIENTS = (13, 1)


class SharingEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One resource of NVIDIA's sharing configuration: which devices are shared, how, and under which name."""

    resource: str
    """The name of its unshared devices: `nvidia.com/gpu`, `nvidia.com/mig-1g.5gb`."""
    mode: Mode
    """`Mode.TIME_SLICING` or `Mode.MPS`, of whole GPUs and MIG instances alike."""
    replicas: int
    rename: str = ""
    """Name of the shared devices; empty to keep the default."""
    count: int = 0
    """How many of the devices are shared, the first in order of GPU and instance; 0 where `devices` decides."""
    devices: tuple[str, ...] = ()
    """GPU index `0`, MIG index `0:1`, GPU or MIG UUID; empty, with `count` 0, for all."""
    single_request: bool | None = None
    """`failRequestsGreaterThanOne`; None for the default: no under time-slicing, yes under MPS."""


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How devices are injected into containers, in the terms of NVIDIA's device plugin."""

    list_strategies: tuple[ListStrategy, ...] = ()
    """`deviceListStrategy`; empty where the file does not set it."""
    id_strategy: Literal["uuid", "index"] = "uuid"
    pass_device_specs: bool = False
    allocation_policy: AllocationPolicy | None = None
    """`sharedDevicesAllocationPolicy`; None where the file does not set it."""
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    driver_root: str = "/"
    container_driver_root: str = "/driver-root"


class GpuSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The node policy of one GPU."""

    uuid: str
    sharing: Sharing | None = None
    """The layout is the desired one; None leaves the sharing to the other files."""
    strategy: Strategy | None = None
    """MIG strategy of this GPU alone; None for the node's."""
    power_limit_watts: int | None = None
    clocks_mhz: tuple[int, int] | None = None
    """Lowest and highest clock of the graphics engine; None leaves them to the driver."""


class NodeSharing(msgspec.Struct, frozen=True, kw_only=True):
    """The sharing settings of one node, by files and labels."""

    strategy: Strategy | None = None
    """MIG strategy; None where it is not set, which means `mixed`."""
    entries: tuple[SharingEntry, ...] = ()
    policies: tuple[GpuSettings, ...] = ()
    memory_share: bool = False
    """Whether GPUs without settings in any file are shared by memory: the label `gpushare=true`."""
    unit_mib: int = 1024
    """Memory of one unit of `tessera.dev/gpu-memory` and `aliyun.com/gpu-mem`."""
    plugin: PluginOptions = PluginOptions()
    evict_conflicts: bool = True
    """Whether the later of two pods with the same device, by a defect, is evicted; otherwise it is only reported."""
    ignored: tuple[str, ...] = ()
    """Settings of a file without effect."""

    @property
    def renamed(self) -> frozenset[str]:
        """The names by `rename` that are none of NVIDIA's."""
        return frozenset(each.rename for each in self.entries if each.rename and not names_device(each.rename))


def combined(config: NodeSharing, policy: NodeSharing, *, memory_share: bool = False) -> NodeSharing:
    """Return the settings of NVIDIA's sharing configuration, the node policy and the label `gpushare=true` together."""
    return msgspec.structs.replace(
        config,
        strategy=policy.strategy or config.strategy,
        policies=policy.policies,
        memory_share=memory_share,
        unit_mib=policy.unit_mib,
        evict_conflicts=policy.evict_conflicts,
        ignored=(*config.ignored, *policy.ignored),
    )


def effective(inventory: Inventory, node_sharing: NodeSharing) -> tuple[Gpu, ...]:
    """Return each GPU with the sharing in force for its present configuration, in order of index.

    A GPU whose MIG mode or layout does not match its policy yet offers nothing, or its present instances.
    """
    return _Resolution(inventory, node_sharing).gpus


def notes(inventory: Inventory, node_sharing: NodeSharing) -> tuple[str, ...]:
    """Return the settings of the node's files without full effect, and why; one sentence each."""
    return tuple(_Resolution(inventory, node_sharing).notes)


def shared_gpus(inventory: Inventory, node_sharing: NodeSharing) -> frozenset[str]:
    """Return the UUIDs of the GPUs for which, or for whose instances, entries of NVIDIA's configuration decide."""
    return _Resolution(inventory, node_sharing).shared


def desired_layouts(inventory: Inventory, node_sharing: NodeSharing) -> tuple[tuple[str, Layout | None], ...]:
    """Return by GPU UUID the MIG layouts fixed by policies that differ from the present ones; None for MIG off.

    A policy that lets Tessera repartition does not fix the instances.
    """
    facts = {each.uuid: each for each in inventory.gpus}
    desired = (
        (each.uuid, each.sharing.layout)
        for each in node_sharing.policies
        if each.uuid in facts and each.sharing is not None and _fixes_layout(each.sharing)
    )
    return tuple((uuid, layout) for uuid, layout in desired if layout != facts[uuid].layout)


def _fixes_layout(sharing: Sharing) -> bool:
    """Return whether this sharing needs one MIG layout, or MIG off."""
    return not sharing.allow_repartition if sharing.layout is not None else Mode.MIG not in sharing.modes


def withheld(gpus: Iterable[Gpu], retained: Mapping[str, Layout]) -> tuple[Gpu, ...]:
    """Return the GPUs, of which those in `retained` offer only these instances, and never the whole GPU.

    Units of memory of managed GPUs stay: they do not name their GPU, and with fewer of them the kubelet
    would reject pods assigned to other GPUs for good.
    """
    return tuple(
        msgspec.structs.replace(gpu, sharing=_only(gpu.sharing, retained[gpu.uuid])) if gpu.uuid in retained else gpu
        for gpu in gpus
    )


def _only(sharing: Sharing, retained: Layout) -> Sharing:
    if sharing.layout is None and sharing.managed:
        return msgspec.structs.replace(sharing, modes=tuple(mode for mode in sharing.modes if mode is not Mode.WHOLE))
    if sharing.layout is None:
        return _nothing(None)
    return _without(sharing, (each for each in sharing.layout if each not in retained))


def mps_client_limit(facts: GpuFacts, cuda: tuple[int, int]) -> int:
    """Return the maximum number of MPS clients of one GPU.

    Source: NVIDIA MPS documentation: 16 before Volta, 48 from Volta on, 60 since CUDA 13.1.
    """
    if (0, 0) < facts.compute_capability < _VOLTA or facts.model.arch in NO_MPS_LIMITS:
        return 16
    return 60 if cuda >= _MORE_CLIENTS else 48


class _Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A device before it is shared."""

    gpu: str
    placement: Placement | None
    resource: str
    model: GpuModel
    names: frozenset[str]
    """Its possible names in a list of devices."""

    def called(self, resource: str) -> bool:
        """Return whether an entry's resource means this; profiles go by any name drivers print."""
        if resource == self.resource or self.placement is None or not resource.startswith(mig_resource("")):
            return resource == self.resource
        try:
            named = profile(self.model, resource).name
        except InvalidInput:
            return False
        return self.resource == mig_resource(self.placement.profile) and named == self.placement.profile


class _Resolution:
    """The sharing of each GPU, worked out step by step, with notes."""

    def __init__(self, inventory: Inventory, node_sharing: NodeSharing) -> None:
        self._inventory = inventory
        self._node_sharing = node_sharing
        self.notes: list[str] = list(node_sharing.ignored)
        self._policies = {each.uuid: self._called(each, each.sharing) for each in node_sharing.policies if each.sharing}
        self._slots = tuple(slot for facts in inventory.gpus for slot in self._slots_of(facts))
        self._entries = self._assigned()
        sharings = [self._sharing(facts) for facts in inventory.gpus]
        self.gpus = tuple(
            Gpu(index=facts.index, model=facts.model, memory_mib=facts.memory_mib, sharing=sharing, uuid=facts.uuid)
            for facts, sharing in zip(inventory.gpus, self._alike(sharings), strict=True)
        )

    @property
    def shared(self) -> frozenset[str]:
        """The UUIDs of the GPUs in entries."""
        return frozenset(uuid for uuid, _ in self._entries)

    # Which entry decides for which device

    def _called(self, policy: GpuSettings, sharing: Sharing) -> Sharing:
        """Return the sharing of a policy with its instances named by the MIG strategy.

        Instances fixed by a policy are offered under strategy `none` too, by their profiles.
        """
        strategy = policy.strategy or (
            sharing.strategy if sharing.strategy == "single" else self._node_sharing.strategy
        )
        return msgspec.structs.replace(sharing, strategy="single" if strategy == "single" else "mixed")

    def _slots_of(self, facts: GpuFacts) -> Iterator[_Slot]:
        if facts.uuid in self._policies:
            return
        if not self._is_partitioned(facts):
            names = frozenset((facts.uuid, str(facts.index)))
            yield _Slot(gpu=facts.uuid, placement=None, resource=GPU_RESOURCE, model=facts.model, names=names)
            return
        for number, each in enumerate(
            sorted(facts.instances, key=lambda each: (each.gpu_instance, each.compute_instance))
        ):
            old = f"MIG-{facts.uuid}/{each.gpu_instance}/{each.compute_instance}"
            profile_name = mig_resource(each.placement.profile)
            yield _Slot(
                gpu=facts.uuid,
                placement=each.placement,
                resource=GPU_RESOURCE if self._node_sharing.strategy == "single" else profile_name,
                model=facts.model,
                names=frozenset((each.uuid, f"{facts.index}:{number}", old)),
            )

    def _is_partitioned(self, facts: GpuFacts) -> bool:
        return facts.layout is not None and self._node_sharing.strategy != "none"

    def _assigned(self) -> dict[tuple[str, Placement | None], SharingEntry]:
        """Return the entry of each shared device; lists decide before counts, and these before all."""
        assigned: dict[tuple[str, Placement | None], SharingEntry] = {}
        for entry in sorted(self._node_sharing.entries, key=lambda entry: (not entry.devices, not entry.count)):
            named = [slot for slot in self._slots if slot.called(entry.resource)]
            free = [slot for slot in named if (slot.gpu, slot.placement) not in assigned]
            for slot in self._chosen(entry, named, free):
                assigned[slot.gpu, slot.placement] = entry
        return assigned

    def _chosen(self, entry: SharingEntry, named: list[_Slot], free: list[_Slot]) -> Iterable[_Slot]:
        if entry.devices:
            for device in entry.devices:
                if not any(device in slot.names for slot in named):
                    self.notes.append(f"sharing of {entry.resource}: no such device here is called {device}")
                elif not any(device in slot.names for slot in free):
                    self.notes.append(f"sharing of {entry.resource}: another entry already shares device {device}")
            return [slot for slot in free if not slot.names.isdisjoint(entry.devices)]
        if entry.count > len(free):
            found = f"{entry.count} devices are to be shared, and the node has {len(free)}"
            self.notes.append(f"sharing of {entry.resource}: {found}")
        return free[: entry.count or len(free)]

    # The sharing of one GPU

    def _sharing(self, facts: GpuFacts) -> Sharing:
        policy = self._policies.get(facts.uuid)
        if policy is not None:
            sharing = self._by_policy(facts, policy)
        elif self._is_partitioned(facts):
            sharing = self._instances(facts)
        else:
            sharing = self._whole(facts)
        return self._limited(facts, _without(sharing, facts.incomplete))

    def _by_policy(self, facts: GpuFacts, desired: Sharing) -> Sharing:
        if _fixes_layout(desired) and (desired.layout is None) != (facts.layout is None):
            state = "on" if facts.layout is not None else "off"
            self.notes.append(f"{_named(facts)} offers nothing until its policy is met: MIG is {state}")
            return _nothing(facts.layout)
        return msgspec.structs.replace(desired, layout=facts.layout)

    def _whole(self, facts: GpuFacts) -> Sharing:
        entry = self._entries.get((facts.uuid, None))
        if facts.layout is not None:
            if entry is not None and entry.mode is Mode.MPS:
                self.notes.append(f"{_named(facts)} offers nothing: MIG is on, so MPS needs strategy single or mixed")
                return _nothing(None)
            self.notes.append(f"{_named(facts)} is offered whole although MIG is on: the MIG strategy is none")
        elif entry is None and self._node_sharing.memory_share:
            return Sharing(modes=(Mode.MEMORY_SHARE,))
        if entry is None:
            return Sharing(modes=(Mode.WHOLE,))
        shared = f"{GPU_RESOURCE}.shared"
        renamed = () if entry.rename in {"", shared} else (_offer(None, entry.mode, entry),)
        return Sharing(
            modes=(entry.mode,),
            replicas=(("", entry.replicas),),
            renamed=entry.rename == shared,
            offers=renamed,
            single_request=entry.single_request,
        )

    def _instances(self, facts: GpuFacts) -> Sharing:
        offers = [
            _offer(each.placement, _MIG_MODES[entry.mode], entry)
            for each in facts.instances
            if (entry := self._entries.get((facts.uuid, each.placement))) is not None
        ]
        return Sharing(
            modes=(Mode.MIG, *sorted({offer.mode for offer in offers})),
            layout=facts.layout,
            allow_repartition=False,
            strategy="single" if self._node_sharing.strategy == "single" else "mixed",
            offers=tuple(offers),
        )

    # Impossible sharing

    def _limited(self, facts: GpuFacts, sharing: Sharing) -> Sharing:
        """Return the sharing without MPS where MPS enforces no limits, and with no more clients than MPS admits."""
        if not MPS_MODES.intersection(sharing.modes):
            return sharing
        if facts.model.arch in NO_MPS_LIMITS:
            self.notes.append(
                f"{_named(facts)} offers no MPS: on {facts.model.arch} it limits neither memory nor compute"
            )
            return without_mps(sharing)
        most = mps_client_limit(facts, self._inventory.cuda)
        clients = (
            *(number for _, number in sharing.replicas),
            *(each.clients for each in sharing.offers if each.mode in MPS_MODES),
        )
        if max(clients, default=0) <= most:
            return sharing
        self.notes.append(f"{_named(facts)} has {most} clients a device: MPS admits no more")
        return msgspec.structs.replace(
            sharing,
            replicas=tuple((name, min(number, most)) for name, number in sharing.replicas),
            offers=tuple(
                msgspec.structs.replace(each, clients=min(each.clients, most)) if each.mode in MPS_MODES else each
                for each in sharing.offers
            ),
        )

    def _alike(self, sharings: list[Sharing]) -> list[Sharing]:
        """Return the sharings, with nothing for GPUs that strategy `single` excludes.

        Under `single` all of `nvidia.com/gpu` must be alike; the most frequent kind stays, of equally frequent ones
        that of the first GPU.
        """
        kinds = [
            _single_kinds(each) if self._under_single(facts, each) else None
            for facts, each in zip(self._inventory.gpus, sharings, strict=True)
        ]
        numbers = Counter[str]()
        for kind in kinds:
            numbers.update(kind or ())
        if len(numbers) <= 1:
            return sharings
        (profile, _), *_ = numbers.most_common(1)
        alike = []
        for facts, sharing, kind in zip(self._inventory.gpus, sharings, kinds, strict=True):
            strange = kind is not None and set(kind) - {profile}
            if strange:
                found = ", ".join(sorted(strange))
                self.notes.append(
                    f"{_named(facts)} offers nothing: strategy single requires {profile} only, and the node has {found}"
                )
            alike.append(_amounts(sharing) if strange else sharing)
        return alike

    def _under_single(self, facts: GpuFacts, sharing: Sharing) -> bool:
        return sharing.strategy == "single" if facts.uuid in self._policies else self._node_sharing.strategy == "single"


def _named(facts: GpuFacts) -> str:
    return f"GPU {facts.index} ({facts.uuid})"


def _nothing(layout: Layout | None) -> Sharing:
    return Sharing(modes=(), layout=layout, allow_repartition=False)


def _amounts(sharing: Sharing) -> Sharing:
    """Return the sharing without any device; shared memory of a managed GPU stays."""
    modes = tuple(mode for mode in sharing.modes if mode in AMOUNT_MODES)
    if sharing.layout is not None or not sharing.managed or not modes:
        return _nothing(sharing.layout)
    return msgspec.structs.replace(sharing, modes=modes)


def _offer(placement: Placement | None, mode: Mode, entry: SharingEntry) -> Offer:
    return Offer(
        placement=placement,
        mode=mode,
        clients=entry.replicas,
        resource=entry.rename,
        single_request=entry.single_request,
    )


def _without(sharing: Sharing, placements: Iterable[Placement]) -> Sharing:
    """Return the sharing with these instances withheld."""
    withheld = {each: Offer(placement=each, mode=Mode.MIG, clients=0) for each in placements}
    retained = (each for each in sharing.offers if each.placement not in withheld)
    return msgspec.structs.replace(sharing, offers=(*retained, *withheld.values()))


def _single_kinds(sharing: Sharing) -> Counter[str]:
    """Return the kinds of device of a GPU under strategy `single`, with their numbers."""
    if sharing.layout is None:
        return Counter({"whole GPUs": 1} if not _AS_GPU.isdisjoint(sharing.modes) else {})
    return Counter(placement.profile for placement in sharing.layout)
