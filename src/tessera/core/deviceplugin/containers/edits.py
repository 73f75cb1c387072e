"""Container edits for a share: environment, mounts and device nodes.

How the devices themselves are injected (`NVIDIA_VISIBLE_DEVICES`, CDI names) is decided by the device plugin.
"""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.core.cluster.instances import placement_of
from tessera.core.cluster.mpstargets import mps_key
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.containerresponse import ContainerMount
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.sharing import MPS_MODES, Mode
from tessera.core.workload.resources import SHARE_MEMORY
from tessera.errors import Unsupported

__all__ = ["HostPlaces", "ShareEdits", "edits"]

SHARED_MEMORY = "/dev/shm"  # noqa: S108  # the name MPS clients and servers use, not a file of ours
"""Where MPS clients and their server exchange data; both must see the same."""
CONTAINER_PIPE = "/run/tessera/mps"
"""Path of the MPS daemon's pipes in a container."""
_COMMON_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class ShareEdits(msgspec.Struct, frozen=True, kw_only=True):
    """A container's edits beside the devices themselves."""

    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[ContainerMount, ...] = ()
    device_nodes: tuple[str, ...] = ()
    """Paths on the host, and the same in the container."""


class HostPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """The paths and sizes that edits refer to."""

    mps_root: str = "/run/tessera/mps"
    shm: str = SHARED_MEMORY
    """Shared memory of the MPS daemons, on the host."""
    unit_mib: int = 1024
    """Memory of one advertised unit, for gpushare's variables."""
    caps: Mapping[tuple[str, int], tuple[str, ...]] = {}
    """Capability device nodes of MIG instances by GPU UUID and start."""


def edits(shares: Sequence[Share], gpus: Mapping[int, GpuFacts], place: HostPlaces) -> ShareEdits:
    """Return the edits for one container with these shares; `gpus` are the node's by index.

    Raises:
        InvalidInput: an MPS share of a MIG instance that its GPU cannot have.
        Unsupported: shares of several MPS daemons; a process can be a client of only one.

    """
    mps = [(share, gpus[share.gpu]) for share in shares if share.mode in MPS_MODES]
    keys = dict.fromkeys(mps_key(facts.uuid, placement_of(share, facts)) for share, facts in mps)
    if len(keys) > 1:
        raise Unsupported(
            f"container {shares[0].container or 'without a name'}",
            found=f"it has MPS shares of {len(keys)} GPUs; a GPU has its own MPS daemon, and a process uses one",
            hint="request one share a container, whole GPUs, or MIG instances",
        )
    env = [*_own_env(shares), *_gpushare_env(shares, gpus, place.unit_mib)]
    mounts: tuple[ContainerMount, ...] = ()
    for key in keys:
        env += _mps_env([share for share in shares if share.mode in MPS_MODES], gpus)
        pipe = ContainerMount(host_path=f"{place.mps_root}/{key}/pipe", container_path=CONTAINER_PIPE)
        mounts = (pipe, ContainerMount(host_path=place.shm, container_path=SHARED_MEMORY))
    return ShareEdits(env=tuple(env), mounts=mounts, device_nodes=_nodes(shares, gpus, place))


def _own_env(shares: Sequence[Share]) -> list[tuple[str, str]]:
    return [
        ("TESSERA_GPU_MEMORY_MIB", ",".join(str(share.memory_mib) for share in shares)),
        ("TESSERA_GPU_COMPUTE_PERCENT", ",".join(str(share.compute_percent) for share in shares)),
        ("TESSERA_GPU_MODE", ",".join(share.mode for share in shares)),
    ]


def _gpushare_env(shares: Sequence[Share], gpus: Mapping[int, GpuFacts], unit_mib: int) -> list[tuple[str, str]]:
    """Return the variables that gpushare's device plugin sets, for memory shares and requests by its names.

    A pod that requests `aliyun.com/gpu-mem` may be served by MPS; its programs expect the variables all the same.

    Source: AliyunContainerService/gpushare-device-plugin `pkg/gpu/nvidia/allocate.go`, `const.go`.
    """
    amounts = [share for share in shares if share.mode is Mode.MEMORY_SHARE or share.resource == SHARE_MEMORY]
    if not amounts:
        return []
    units = str(sum(share.memory_mib for share in amounts) // unit_mib)
    return [
        ("ALIYUN_COM_GPU_MEM_IDX", ",".join(str(share.gpu) for share in amounts)),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", units),
        ("ALIYUN_COM_GPU_MEM_POD", units),
        ("ALIYUN_COM_GPU_MEM_DEV", str(gpus[amounts[0].gpu].memory_mib // unit_mib)),
    ]


def _mps_env(shares: Sequence[Share], gpus: Mapping[int, GpuFacts]) -> list[tuple[str, str]]:
    """Return the variables that make processes MPS clients within their shares of one device.

    The daemon serves one device, so its clients see it as number 0; several shares of it add up. A share without a
    claim to compute is not limited in it.
    """
    percent = min(100, sum(_thread_percent(share, gpus[share.gpu]) for share in shares))
    limit = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", str(percent))] if percent else []
    memory_mib = sum(share.memory_mib for share in shares)
    return [
        ("CUDA_MPS_PIPE_DIRECTORY", CONTAINER_PIPE),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={memory_mib}M"),
        *limit,
    ]


def _thread_percent(share: Share, facts: GpuFacts) -> int:
    """Return the compute of a share in percent of its device, as MPS counts it; never more than the device divided.

    A replica's percent of the GPU was rounded down. So it is recovered by how often it goes into the instance's.
    """
    if share.profile is None or not share.compute_percent:
        return share.compute_percent
    slices = {profile.name: profile.compute_slices for profile in facts.model.profiles}
    instance_percent = 100 * slices[share.profile] // facts.model.compute_slices
    return 100 // max(1, instance_percent // share.compute_percent)


def _nodes(shares: Sequence[Share], gpus: Mapping[int, GpuFacts], place: HostPlaces) -> tuple[str, ...]:
    nodes: dict[str, None] = {}
    for share in shares:
        facts = gpus[share.gpu]
        nodes[f"/dev/nvidia{facts.minor}"] = None
        if share.start is not None:
            nodes |= dict.fromkeys(place.caps.get((facts.uuid, share.start), ()))
    return (*nodes, *(_COMMON_NODES if nodes else ()))
