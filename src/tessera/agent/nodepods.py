"""The pods of this node: what they were assigned, and what they hold by the kubelet's record."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from tessera.api.dues import read_dues, unshown
from tessera.clients.kube import Object, name_of
from tessera.clients.kubelet import PodResources
from tessera.core.advertise import SHARE_RESOURCES, DeviceKey
from tessera.core.inventory import Inventory
from tessera.core.matching import Due, Held
from tessera.core.memorycaps import PodShares, Qos
from tessera.core.mps import mps_key
from tessera.core.snapshot import Share
from tessera.errors import Unavailable

__all__ = ["Holding", "NodePods", "used_keys"]

_LACKING_S = 60.0
"""How long a kubelet that has just started may take to read its pods."""


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod holds."""

    pod: str
    """`namespace/name`."""
    devices: tuple[str, ...]
    """Device ids; of shares, whose ids say nothing, the UUIDs of the devices its assignment names."""


class NodePods:
    """The pods of this node.

    Args:
        objects: returns the Pod objects as last seen.
        record: the kubelet's PodResources.

    """

    def __init__(self, objects: Callable[[], Iterable[Object]], record: PodResources) -> None:
        self.objects = objects
        self._record = record
        self._lacking_since_s: float | None = None
        self.unit_mib = 1024
        """Memory of one unit of the resources counted in memory."""

    @property
    def dues(self) -> tuple[Due, ...]:
        """What the assignments of unfinished pods say, container by container."""
        return read_dues(self.objects(), share_unit_mib=self.unit_mib).dues

    @property
    def shares(self) -> tuple[Share, ...]:
        """All shares that are assigned."""
        return tuple(share for due in self.dues for share in due.shares)

    @property
    def by_pod(self) -> tuple[PodShares, ...]:
        """The shares of each pod that has any, with what its cgroup is named by."""
        objects = {name_of(each): each for each in self.objects()}
        shares: dict[tuple[str, str], list[Share]] = {}
        for due in self.dues:
            shares.setdefault((due.key.namespace, due.key.pod), []).extend(due.shares)
        return tuple(
            PodShares(uid=objects[name]["metadata"].get("uid", ""), qos=_qos(objects[name]), shares=tuple(own))
            for name, own in shares.items()
        )

    def given(self, inventory: Inventory) -> frozenset[DeviceKey]:
        """Return the MIG instances that pods hold by assignment."""
        starts = {(share.gpu, share.start) for share in self.shares}
        return frozenset(
            (facts.uuid, each.placement)
            for facts in inventory.gpus
            for each in facts.instances
            if (facts.index, each.placement.start) in starts
        )

    async def held(self, inventory: Inventory) -> tuple[Holding, ...]:
        """Return what pods hold; who has an assignment holds what that says.

        Raises:
            Unavailable: the kubelet does not answer, or has just started and does not show a running pod yet.

        """
        assigned = self._assigned(inventory)
        pods: dict[str, list[str]] = {}
        for each in await self._trusted():
            pod = f"{each.namespace}/{each.pod}"
            named = assigned.get(pod, ()) if each.resource in SHARE_RESOURCES else ()
            pods.setdefault(pod, []).extend(named or each.device_ids)
        return tuple(Holding(pod=pod, devices=tuple(dict.fromkeys(ids))) for pod, ids in pods.items())

    async def _trusted(self) -> tuple[Held, ...]:
        """Return the kubelet's record; one that lacks a running pod only when it has lacked one for a minute."""
        record, now_s = await self._record.list(), asyncio.get_running_loop().time()
        missing = unshown(self.objects(), record)
        if not missing:
            self._lacking_since_s = None
            return record
        if self._lacking_since_s is None:
            self._lacking_since_s = now_s
        if now_s - self._lacking_since_s > _LACKING_S:
            return record
        raise Unavailable(
            "the kubelet's PodResources",
            found=f"no entry for {', '.join(missing[:3])}, which run{'s' if len(missing) == 1 else ''} with devices",
            wanted="all pods of this node; a kubelet that has just started has not read them yet",
        )

    def _assigned(self, inventory: Inventory) -> Mapping[str, Sequence[str]]:
        uuids: dict[tuple[int, int | None], str] = {(gpu.index, None): gpu.uuid for gpu in inventory.gpus}
        uuids |= {(gpu.index, each.placement.start): each.uuid for gpu in inventory.gpus for each in gpu.instances}
        assigned: dict[str, list[str]] = {}
        for due in self.dues:
            found = [uuids.get((share.gpu, share.start)) for share in due.shares]
            assigned.setdefault(f"{due.key.namespace}/{due.key.pod}", []).extend(each for each in found if each)
        return assigned


def used_keys(holdings: Iterable[Holding], inventory: Inventory) -> frozenset[str]:
    """Return the keys (`core.mps.mps_key`) of the GPUs and MIG instances that pods hold."""
    keys = {gpu.uuid: mps_key(gpu.uuid) for gpu in inventory.gpus} | {
        each.uuid: mps_key(gpu.uuid, each.placement) for gpu in inventory.gpus for each in gpu.instances
    }
    held = (device.partition("::")[0].partition("-_-")[0] for each in holdings for device in each.devices)
    return frozenset(keys[device] for device in held if device in keys)


def _qos(pod: Object) -> Qos:
    found = (pod.get("status") or {}).get("qosClass")
    return found if found in {"Guaranteed", "Burstable"} else "BestEffort"
