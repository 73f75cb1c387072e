"""Node labels about GPUs, equal to those of NVIDIA's GPU Feature Discovery, for programs that read these.

Source: NVIDIA k8s-device-plugin, `docs/gpu-feature-discovery/README.md` and `internal/lm`. Where a label is ambiguous
there, as for a node with GPUs of several models, the kind with the most GPUs is described, of several such
the one with the lowest index; where shares differ from GPU to GPU, the number that most have.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.gpumodels import DRIVER_NAMES
from tessera.core.gpu.inventory import GpuFacts, Instance, Inventory, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import GPU_RESOURCE, MPS_MODES, Device, Mode, mig_resource
from tessera.core.node.nodesharing import Strategy

__all__ = ["TIMESTAMP", "Labeling", "expected_labels", "gpu_labels", "owns", "stamped"]

_LONGEST = 63
"""Longest value of a label. Source: Kubernetes, Labels and Selectors."""
_DROPPED = re.compile(r"[^A-Za-z0-9-_. ]")
_EDGES = "-_."
_OWNED = re.compile(
    r"nvidia\.com/("
    r"cuda\.(driver|driver-version|runtime|runtime-version)\.[a-z]+|gfd\.timestamp|mig\.(capable|strategy)|mps\.capable|vgpu\.present"
    r"|gpu\.(count|family|machine|memory|mode|multiprocessors|product|replicas|sharing-strategy)"
    r"|gpu\.(compute|slices|engines)\.[a-z]+|mig-\d+g\..+"
    r")"
)
_FAMILIES = (
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
)
"""By the least compute capability. Source: `internal/lm/resource.go`; Blackwell, which the version read lacks, by its
naming."""
_UNDESCRIBED = re.compile(r"nvidia\.com/(cuda\.|gpu\.(machine|mode)$|vgpu\.)|.*\.(multiprocessors|engines\.[a-z]+)$")
"""Labels beyond the description of a node: its driver, machine and engines."""
_STRATEGIES = {
    Mode.TIME_SLICING: "time-slicing",
    Mode.MIG_TIME_SLICING: "time-slicing",
    Mode.MPS: "mps",
    Mode.MIG_MPS: "mps",
}
_GPU_MODES = {"0x030000": "graphics", "0x030200": "compute"}
"""By PCI class. Source: `internal/lm/nvml.go`."""

TIMESTAMP = "nvidia.com/gfd.timestamp"
"""Label of a node: when its GPU labels last changed, in seconds since 1970. Set by the agent; read by users."""

_Offered: TypeAlias = Mapping[str, tuple[Device, ...]]
"""Devices by GPU UUID."""
_Members: TypeAlias = list[tuple[GpuFacts, Instance]]
"""Instances of one profile, each with its GPU."""


class Labeling(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the labels besides the inventory."""

    strategy: Strategy = "mixed"
    """The node's MIG strategy."""
    machine: str = ""
    """The machine's product name, as its firmware reports it; empty where it does not."""


def owns(key: str) -> bool:
    """Return whether a label is one of `gpu_labels`, so that a stale one may be removed.

    Labels of the GPU operator and the MIG manager, and their inputs, are not.
    """
    return _OWNED.fullmatch(key) is not None


def gpu_labels(inventory: Inventory, gpus: Sequence[Gpu], labeling: Labeling) -> dict[str, str]:
    """Return the labels of a node, without the time of their last change; none if it has no GPU.

    Args:
        inventory: of the driver.
        gpus: with the sharing in force, from `core.node.nodesharing.effective`.
        labeling: the other facts.

    """
    if not inventory.gpus:
        return {}
    offered = {gpu.uuid: gpu.devices for gpu in gpus}
    labels = {
        "gpu.machine": _value(labeling.machine) or "unknown",
        "gpu.mode": _GPU_MODES.get(inventory.gpus[0].pci_class, "unknown"),
        "mig.capable": str(any(each.mig is not None for each in inventory.gpus)).lower(),
        "mps.capable": str(any(MPS_MODES.intersection(gpu.sharing.modes) for gpu in gpus)).lower(),
        "vgpu.present": str(any(each.virtual for each in inventory.gpus)).lower(),
        **_versions(inventory),
        **_whole(inventory.gpus, offered),
    }
    if labeling.strategy != "none":
        labels["mig.strategy"] = labeling.strategy
        labels |= (_single if labeling.strategy == "single" else _mixed)(inventory.gpus, offered)
    return {f"nvidia.com/{key}": value for key, value in sorted(labels.items())}


def expected_labels(gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return the labels of a node with these GPUs, as far as their models tell; none if it has no GPU."""
    if not gpus:
        return {}
    named = [msgspec.structs.replace(gpu, uuid=f"{gpu.index}") for gpu in gpus]
    strategy: Strategy = next((gpu.sharing.strategy for gpu in gpus if gpu.model.profiles), "mixed")
    labels = gpu_labels(Inventory(gpus=tuple(map(described, named))), named, Labeling(strategy=strategy))
    return {key: value for key, value in labels.items() if not _UNDESCRIBED.match(key)}


def described(gpu: Gpu) -> GpuFacts:
    """Return a GPU's inventory entry, with its fixed layout if it has one."""
    product, compute = DRIVER_NAMES[gpu.model.name]
    memory = {profile.name: profile.memory_mib for profile in gpu.model.profiles}
    layout = gpu.sharing.layout
    instances = tuple(
        Instance(placement=place, uuid="", gpu_instance=number, compute_instance=0, memory_mib=memory[place.profile])
        for number, place in enumerate(layout or ())
    )
    on = layout is not None
    return GpuFacts(
        index=gpu.index,
        uuid=gpu.uuid,
        minor=gpu.index,
        product=product,
        model=gpu.model,
        memory_total_mib=gpu.model.memory_mib,
        memory_mib=gpu.memory_mib,
        compute_capability=compute,
        mig=MigMode(current=on, pending=on) if gpu.model.profiles else None,
        instances=instances,
    )


def stamped(labels: Mapping[str, str], present: Mapping[str, str], *, now_s: int) -> dict[str, str]:
    """Return labels of `gpu_labels` with the time of their last change; none for none.

    Args:
        labels: the desired labels.
        present: all labels of the node; if ours among them are unchanged, their time stays.
        now_s: seconds since 1970.

    """
    if not labels:
        return {}
    stamp = present.get(TIMESTAMP, "")
    ours = {key: value for key, value in present.items() if owns(key) and key != TIMESTAMP}
    return {**labels, TIMESTAMP: stamp if stamp and ours == labels else str(now_s)}


def _versions(inventory: Inventory) -> dict[str, str]:
    """Return the versions of driver and CUDA, under their present and their deprecated names."""
    major, minor, revision, *_ = (*inventory.driver.split("."), "", "", "")
    cuda_major, cuda_minor = map(str, inventory.cuda)
    return {
        "cuda.driver.major": _value(major),
        "cuda.driver.minor": _value(minor),
        "cuda.driver.rev": _value(revision),
        "cuda.driver-version.major": _value(major),
        "cuda.driver-version.minor": _value(minor),
        "cuda.driver-version.revision": _value(revision),
        "cuda.driver-version.full": _value(inventory.driver),
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
    }


def _whole(gpus: Sequence[GpuFacts], offered: _Offered) -> dict[str, str]:
    """Return the labels of whole GPUs, those with MIG on counted; where all have it, nothing is shared."""
    plain = [each for each in gpus if each.layout is None]
    product, _ = Counter(each.product for each in plain or gpus).most_common(1)[0]
    chosen = next(each for each in plain or gpus if each.product == product)
    clients = [_clients(None, offered.get(each.uuid, ())) for each in plain if each.product == product]
    labels = {
        **_base("gpu", product, (), clients or [_UNSHARED]),
        "gpu.count": str(sum(each.product == product for each in gpus)),
    }
    if chosen.memory_total_mib:
        labels["gpu.memory"] = str(chosen.memory_total_mib)
    if chosen.compute_capability[0]:
        labels["gpu.family"] = next(
            (name for least, name in _FAMILIES if chosen.compute_capability >= least), "undefined"
        )
        labels["gpu.compute.major"], labels["gpu.compute.minor"] = map(str, chosen.compute_capability)
    return labels


class _Clients(msgspec.Struct, frozen=True, order=True):
    """How a device is shared; ordered by number."""

    number: int
    strategy: str = "none"
    renamed: bool = False


_UNSHARED = _Clients(0)
"""A partitioned whole GPU: it is not advertised, so it is not shared."""


def _clients(placement: Placement | None, devices: Iterable[Device]) -> _Clients:
    for each in devices:
        if each.placement == placement:
            usual = GPU_RESOURCE if placement is None else mig_resource(placement.profile)
            shared = each.clients > 1
            strategy = _STRATEGIES.get(each.mode, "none") if shared else "none"
            return _Clients(each.clients, strategy, shared and each.resource not in {usual, GPU_RESOURCE})
    return _Clients(1)


def _base(prefix: str, product: str, parts: tuple[str, ...], clients: Sequence[_Clients]) -> dict[str, str]:
    """Return product, replicas and sharing strategy, of the number of clients that most devices have."""
    counts = Counter(clients)
    usual = min(counts, key=lambda each: (-counts[each], each))
    suffixes = (*parts, "SHARED") if usual.number > 1 and not usual.renamed else parts
    return {
        f"{prefix}.product": _value(product, *suffixes),
        f"{prefix}.replicas": str(usual.number),
        f"{prefix}.sharing-strategy": usual.strategy,
    }


def _value(text: str, *suffixes: str) -> str:
    """Return text as a label's value: without invalid characters, shortened before the suffixes."""
    plain = "-".join(_DROPPED.sub("", text).split())
    end = "".join(f"-{each}" for each in suffixes)
    return f"{plain[: _LONGEST - len(end)].strip(_EDGES)}{end}".strip(_EDGES)


def _single(gpus: Sequence[GpuFacts], offered: _Offered) -> dict[str, str]:
    """Return the labels under strategy `single`, where instances are GPUs: all GPUs must have them, of one profile."""
    partitioned = [each for each in gpus if each.layout is not None]
    if not partitioned:
        return {}
    groups = _by_profile(partitioned)
    if len(partitioned) < len(gpus) or len(groups) != 1 or not all(each.instances for each in partitioned):
        nothing = dict.fromkeys(("gpu.count", "gpu.replicas", "gpu.memory"), "0")
        return nothing | {"gpu.product": _value(partitioned[0].product, "MIG", "INVALID"), "gpu.sharing-strategy": ""}
    ((profile, members),) = groups.items()
    return _instances("gpu", profile, members, offered)


def _mixed(gpus: Sequence[GpuFacts], offered: _Offered) -> dict[str, str]:
    """Return the labels under strategy `mixed`: those of each profile under its own name."""
    labels: dict[str, str] = {}
    for profile, members in _by_profile(gpus).items():
        labels |= _instances(mig_resource(profile).removeprefix("nvidia.com/"), profile, members, offered)
    return labels


def _by_profile(gpus: Iterable[GpuFacts]) -> dict[str, _Members]:
    found: dict[str, _Members] = {}
    for facts in gpus:
        for each in facts.instances:
            found.setdefault(each.placement.profile, []).append((facts, each))
    return found


def _instances(prefix: str, profile: str, members: _Members, offered: _Offered) -> dict[str, str]:
    facts, first = members[0]
    slices = next(each.compute_slices for each in facts.model.profiles if each.name == profile)
    clients = [_clients(each.placement, offered.get(owner.uuid, ())) for owner, each in members]
    return {
        **_base(prefix, facts.product, ("MIG", profile.replace("+", ".")), clients),
        f"{prefix}.count": str(len(members)),
        f"{prefix}.memory": str(first.memory_mib),
        f"{prefix}.multiprocessors": str(first.multiprocessors),
        f"{prefix}.slices.gi": str(slices),
        f"{prefix}.slices.ci": str(slices),
        f"{prefix}.engines.copy": str(first.copy_engines),
        f"{prefix}.engines.decoder": str(first.decoders),
        f"{prefix}.engines.encoder": str(first.encoders),
        f"{prefix}.engines.jpeg": str(first.jpeg_engines),
        f"{prefix}.engines.ofa": str(first.ofa_engines),
    }
