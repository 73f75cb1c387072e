"""The pods of this node: what they were assigned, and what they hold by the kubelet's record."""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable

from tessera.api.tessera.pods.assignedrequests import unshown
from tessera.clients.kube import Object, name_of
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations import Allocation
from tessera.core.deviceplugin.holdings import PodDevices, assigned, held_by_name, holdings
from tessera.core.deviceplugin.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.matching import AssignedRequest
from tessera.core.gpu.deviceids import DeviceId, existing_devices
from tessera.core.gpu.inventory import Inventory
from tessera.core.node.memorycaps import PodShares, Qos
from tessera.errors import Unavailable

__all__ = ["Lacking", "NodePods"]

_LACKING_S = 60.0
"""How long a kubelet that has just started may take to read its pods."""


class Lacking:
    """Running pods that the kubelet's record lacks: one that has just started has not read its pods yet.

    What a record lacks for a minute it never has, as of a pod that ran before its resource was registered.
    """

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def pods(
        self, objects: Iterable[Object], record: Iterable[KubeletAllocation], names: Container[str]
    ) -> tuple[str, ...]:
        """Return those that it has lacked for less than a minute; the arguments are those of `unshown`."""
        now_s = asyncio.get_running_loop().time()
        self._since_s = {each: self._since_s.get(each, now_s) for each in unshown(objects, record, names)}
        return tuple(each for each, since_s in self._since_s.items() if now_s - since_s <= _LACKING_S)


class NodePods:
    """The pods of this node.

    Args:
        objects: returns the Pod objects as last seen.
        record: returns what containers hold, by the kubelet's record and the agent's own.
        requests: returns what their assignments say after all exchanges, as `ShareAllocator.assigned_requests` does.
        names: returns the resources that the kubelet knows: others that pods ask for are in no record.
        allocations: returns what containers were allocated, by the agent's own record.
        refresh: lets objects and assignments be what the API server has now.

    """

    def __init__(
        self,
        objects: Callable[[], Iterable[Object]],
        record: Callable[[], Awaitable[tuple[KubeletAllocation, ...]]],
        requests: Callable[[], tuple[AssignedRequest, ...]],
        names: Callable[[], Container[str]],
        allocations: Callable[[], tuple[Allocation, ...]] = tuple,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._objects = objects
        self._record = record
        self._requests = requests
        self._names = names
        self._allocations = allocations
        self._refresh = refresh
        self._lacking = Lacking()

    async def refresh(self) -> None:
        """Let the pods and what they were assigned be what the API server has now.

        Raises:
            TesseraError: the API server does not answer.

        """
        if self._refresh is not None:
            await self._refresh()

    @property
    def shares(self) -> tuple[Share, ...]:
        """All shares that are assigned."""
        return tuple(share for request in self._requests() for share in request.shares)

    @property
    def by_pod(self) -> tuple[PodShares, ...]:
        """The shares of each pod that has any, with what its cgroup is named by."""
        objects = {name_of(each): each for each in self._objects()}
        shares: dict[tuple[str, str], list[Share]] = {}
        for request in (each for each in self._requests() if not each.initial):
            shares.setdefault((request.key.namespace, request.key.pod), []).extend(request.shares)
        found = []
        for name, own in shares.items():
            said = (objects[name].get("status") or {}).get("qosClass")
            qos: Qos = said if said in {"Guaranteed", "Burstable"} else "BestEffort"
            found.append(PodShares(uid=objects[name]["metadata"].get("uid", ""), qos=qos, shares=tuple(own)))
        return tuple(found)

    def assigned(self, inventory: Inventory) -> frozenset[DeviceId]:
        """Return the devices that assignments name, made already or not; a GPU for an amount or all of it."""
        return assigned(self._requests(), inventory)

    async def by_name(self, inventory: Inventory) -> frozenset[DeviceId]:
        """Return the devices that pods hold and asked for by name.

        Raises:
            Unavailable: as `held`.

        """
        return held_by_name(await self._trusted(), inventory)

    async def held(self, inventory: Inventory) -> tuple[PodDevices, ...]:
        """Return what pods hold; who has an assignment holds what that says.

        What `Allocate` answered is held before the kubelet's record shows by whom: its container has UUIDs, which
        instances that are made again do not have. Until then the pod has no name.

        Raises:
            Unavailable: the kubelet does not answer, or has just started and does not show a running pod yet.

        """
        known = holdings(await self._trusted(), self._requests(), inventory, guess=False)
        uuids = existing_devices(inventory)
        own = (
            (each.pod, dict.fromkeys(uuids[use.device] for use in each.uses if use.device in uuids))
            for each in self._allocations()
        )
        return (*known, *(PodDevices(pod=pod, devices=tuple(devices)) for pod, devices in own if pod or devices))

    async def _trusted(self) -> tuple[KubeletAllocation, ...]:
        """Return the kubelet's record; one that lacks a running pod only when it has lacked it for a minute."""
        record = await self._record()
        missing = self._lacking.pods(self._objects(), record, self._names())
        if not missing:
            return record
        raise Unavailable(
            "the record of devices",
            found=f"it lacks pods that run with devices: {', '.join(missing[:3])}",
            hint="the agent tries again: a kubelet that has just started has not read all pods yet",
        )
