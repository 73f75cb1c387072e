"""Memory limits by cgroup: how much memory of each GPU each pod's cgroup may use.

The driver (615 and later) counts all processes of a cgroup together, so that the pod's own cgroup is limited: it exists
before any of the pod's containers does, and no container can leave it.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import Mode

__all__ = ["CappedPod", "MemoryCap", "Qos", "memory_caps", "pod_cgroup"]

Qos: TypeAlias = Literal["Guaranteed", "Burstable", "BestEffort"]


class CappedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of this node whose memory is limited, and the shares that say how far."""

    uid: str
    qos: Qos
    """`status.qosClass`."""
    steps: tuple[tuple[Share, ...], ...]
    """What it uses at once: the shares of the containers that last, and of each init container beside the sidecars
    that start before it."""


class MemoryCap(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The limit of one cgroup on one GPU."""

    gpu: str
    """UUID."""
    cgroup: str
    """Path below the root of the cgroup tree."""
    hard_mib: int


def pod_cgroup(uid: str, qos: Qos, *, systemd: bool) -> str:
    """Return the path of a pod's cgroup as the kubelet names it, with either cgroup driver.

    Source: kubernetes/kubernetes `pkg/kubelet/cm/{cgroup_manager_linux,pod_container_manager_linux}.go`.
    """
    inner = "" if qos == "Guaranteed" else qos.lower()
    if not systemd:
        return "/".join(part for part in ("/kubepods", inner, f"pod{uid}") if part)
    parents = ["kubepods", f"kubepods-{inner}"] if inner else ["kubepods"]
    pod = f"{parents[-1]}-pod{uid.replace('-', '_')}"
    return "".join(f"/{name}.slice" for name in (*parents, pod))


def memory_caps(pods: Iterable[CappedPod], inventory: Inventory, *, systemd: bool = True) -> tuple[MemoryCap, ...]:
    """Return the limits of the pods with memory shares, sorted; none where the driver does not support them.

    Shares of one GPU that are used at once add up. GPUs with MIG on do not support it. MPS has limits of its own: there
    the memory is the server's, whose cgroup is not the pod's.
    """
    if not inventory.memory_limits:
        return ()
    uuids = {each.index: each.uuid for each in inventory.gpus if each.layout is None and not each.lost}
    return tuple(sorted(cap for pod in pods for cap in _caps(pod, uuids, systemd=systemd)))


def _caps(pod: CappedPod, uuids: Mapping[int, str], *, systemd: bool) -> Iterable[MemoryCap]:
    most: dict[str, int] = {}
    for step in pod.steps:
        shared: dict[str, int] = {}
        for share in step:
            if share.mode is Mode.MEMORY_SHARE and share.gpu in uuids:
                uuid = uuids[share.gpu]
                shared[uuid] = shared.get(uuid, 0) + share.memory_mib
        most |= {uuid: max(mib, most.get(uuid, 0)) for uuid, mib in shared.items()}
    cgroup = pod_cgroup(pod.uid, pod.qos, systemd=systemd)
    return (MemoryCap(gpu=uuid, cgroup=cgroup, hard_mib=hard_mib) for uuid, hard_mib in most.items())
