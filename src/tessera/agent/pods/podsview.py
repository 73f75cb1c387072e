"""An agent's view of its node's pods: the API server's objects, the kubelet's record, running processes."""

import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from tessera.agent.pods.podprocesses import ProcessTable
from tessera.api.kubernetes.containerlimits import (
    containers_in_order,
    has_resource_claim,
    holds_devices,
    lasting_containers,
    limits_of,
)
from tessera.api.kubernetes.podstates import (
    created_containers,
    created_ns,
    is_finished,
    is_terminating,
    started_s,
    was_admitted,
)
from tessera.api.kubernetes.registerednode import registered_node
from tessera.clients.kube import Listing, Object, annotations_of, name_of, uid_of, version_of
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.workload.kubernetesnames import MIRROR
from tessera.errors import Unavailable, Unsupported

__all__ = [
    "BoundPods",
    "PodsInView",
    "PodsView",
    "by_uid",
    "is_ended",
    "is_ending",
    "observed_pod",
]

_FRESH_S = 2.0
"""How long a list takes precedence over the watch, which shows the same before that."""
_OF_THE_API = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""A UID as the API server creates it. A static pod's is 32 digits of a hash, unless its file says another.
Source: Kubernetes `pkg/kubelet/config/common.go`, `applyDefaults`."""


class PodsInView(Protocol):
    """The last gate's view of pods; `PodsView` is one."""

    def pods(self) -> Iterable[Object]:
        """Return the pods of this node."""

    def by_uid(self) -> Mapping[str, Object]:
        """Return them by the UID that the kubelet knows."""

    def find(self, uid: str) -> Object | None:
        """Return the pod of this UID."""

    async def refresh(self) -> None:
        """Update `pods` to all that the kubelet can know."""

    async def allocated(self) -> tuple[KubeletAllocation, ...]:
        """Return the kubelet's record."""

    async def devices_of_all_containers(self) -> tuple[KubeletAllocation, ...]:
        """Return the containers' devices by the kubelet's record."""

    async def devices_of_lasting_containers(self) -> tuple[KubeletAllocation, ...]:
        """Return them without those of init containers that end before others start."""

    def has_lost(self, uid: str, container: str, resource: str) -> bool:
        """Return whether the kubelet's record can be read, and lacks an allocation."""

    @property
    def checkpoint_is_readable(self) -> bool:
        """Whether the kubelet's checkpoint can be read."""

    @property
    def kubelet_started_ns(self) -> int | None:
        """When the kubelet started, in nanoseconds since 1970; None if unknown."""

    @property
    def kubelet_resources(self) -> frozenset[str]:
        """The resources that the kubelet admits no pod without."""

    def node(self) -> RegisteredNode:
        """Return the Node object as the watch shows it."""

    def responses(self) -> Mapping[tuple[str, str, str], ContainerResponse]:
        """Return what the kubelet hands to the runtime for containers, by UID of the pod, container and resource."""

    async def allocatable(self) -> Mapping[str, frozenset[str]]:
        """Return the ids of the devices that the kubelet has as healthy, by resource."""

    def running(self, uids: Iterable[str]) -> frozenset[str]:
        """Return those of these pods that have running processes."""

    def running_containers(self, containers: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return those of these containers, by UID of the pod and name, that may have running processes."""

    def pods_of(self, pids: Iterable[int]) -> Mapping[int, str]:
        """Return the UID of each process's pod, of those that run in one."""

    @property
    def blind(self) -> bool:
        """Whether processes of pods cannot be observed."""


class BoundPods(Protocol):
    """The pods that are bound to a node."""

    def node(self) -> Object:
        """Return the Node object as the watch shows it; empty where there is none."""
        ...

    def pods(self) -> Iterable[Object]:
        """Return them as the watch shows them."""
        ...

    async def relist(self) -> Listing:
        """Return them as the API server has them now (a quorum read)."""
        ...


class _Observation(NamedTuple):
    """Pods of the watch, the list that takes precedence over it, and what follows from both."""

    watched: tuple[Object, ...]
    listed: Mapping[str, Object] | None
    pods: tuple[Object, ...]
    by_uid: Mapping[str, Object]

    def is_of(self, watched: tuple[Object, ...], listed: Mapping[str, Object] | None) -> bool:
        """Return whether these are the same objects: they are replaced, never changed."""
        same = listed is self.listed and len(watched) == len(self.watched)
        return same and all(map(operator.is_, watched, self.watched))


class PodsView:
    """The pods of this node.

    Args:
        bound: the pods of this node, as watched and as listed.
        checkpoint: the kubelet's record of devices.
        resources: the kubelet's PodResources, for where the checkpoint cannot be read.
        proc: the host's process table.
        clock_s: a monotonic clock.

    """

    def __init__(
        self,
        bound: BoundPods,
        checkpoint: DeviceCheckpoint,
        resources: PodResources,
        *,
        proc: Path = Path("/proc"),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bound = bound
        self._checkpoint = checkpoint
        self._resources = resources
        self._processes = ProcessTable(proc)
        self._clock_s = clock_s
        self._listed: dict[str, Object] = {}
        self._moment = 0
        self._until_s = -math.inf
        self._observation = _Observation((), None, (), {})

    # Pods

    def pods(self) -> tuple[Object, ...]:
        """Return the pods that are bound to this node, as of the watch or the last `refresh`."""
        return self._observe().pods

    def by_uid(self) -> Mapping[str, Object]:
        """Return them by the UID that the kubelet knows."""
        return self._observe().by_uid

    def _observe(self) -> _Observation:
        """Return the last observation if nothing has changed: a call asks many times."""
        watched = tuple(self._bound.pods())
        listed = self._listed if self._clock_s() <= self._until_s else None
        if not self._observation.is_of(watched, listed):
            pods = watched if listed is None else tuple(self._merged(watched))
            self._observation = _Observation(watched, listed, pods, by_uid(pods))
        return self._observation

    def _merged(self, watched: Iterable[Object]) -> Iterator[Object]:
        """Yield the newest version of each pod; a pod missing from the list is gone, unless it is newer than the list.

        A listed pod is gone, too, if the watch shows another of its name.
        """
        left, shown = dict(self._listed), list[Object]()
        for pod in watched:
            listed = left.pop(uid_of(pod), None)
            if listed is pod or (listed is None and _version(pod) > self._moment):
                shown.append(pod)
            elif listed is not None:
                shown.append(listed if _version(listed) > _version(pod) else pod)
        names = {name_of(pod) for pod in shown} if left else set()
        yield from shown
        yield from (pod for pod in left.values() if name_of(pod) not in names)

    def find(self, uid: str) -> Object | None:
        """Return the pod of this UID, or the static pod that the kubelet knows by it."""
        return self.by_uid().get(uid)

    async def refresh(self) -> None:
        """Read the pods of this node from the API server, so that `pods` includes all that the kubelet can know.

        Raises:
            TesseraError: the API server does not answer.

        """
        begun = self._moment
        listing = await self._bound.relist()
        moment = int(listing.resource_version or 0)
        if moment < self._moment != begun:
            return  # a later read has come before; where none has, etcd was restored from a backup
        known = {uid_of(pod): pod for pod in (*self._listed.values(), *self._bound.pods())}
        # An unchanged pod stays the same object, so that it is not parsed again.
        self._listed = {uid_of(pod): _unchanged(known.get(uid_of(pod)), pod) for pod in listing.objects}
        self._moment = moment
        self._until_s = self._clock_s() + _FRESH_S

    # The kubelet's allocations

    async def allocated(self) -> tuple[KubeletAllocation, ...]:
        """Return the kubelet's allocations by container; its checkpoint also has pods that have ended.

        Raises:
            Unavailable: the checkpoint cannot be read, and PodResources does not answer for single pods.

        """
        try:
            return self._checkpoint.read()
        except Unavailable:
            return await self._requested()

    async def _requested(self) -> tuple[KubeletAllocation, ...]:
        """Read each pod with devices from the kubelet; its `List` is never called (docs/kubelet-races.md)."""
        found, node = [], self.node()
        for pod in self.pods():
            if is_ended(pod) or not holds_devices(pod, node):
                continue
            found += [msgspec.structs.replace(each, uid=uid_of(pod)) for each in await self._get(pod)]
        return tuple(found)

    async def _get(self, pod: Object) -> tuple[KubeletAllocation, ...]:
        namespace, name = name_of(pod)
        try:
            return await self._resources.get(namespace, name)
        except Unsupported as error:  # listing all instead would make the kubelet forget an allocation in progress
            raise Unavailable(error.subject, found=error.found, expected=error.expected, hint=error.hint) from error

    async def devices_of_all_containers(self) -> tuple[KubeletAllocation, ...]:
        """Return the devices of this node's containers, sorted.

        Raises:
            Unavailable: neither the kubelet's checkpoint nor its PodResources can be read.

        """
        return tuple(each for _, each in await self._with_pods())

    async def devices_of_lasting_containers(self) -> tuple[KubeletAllocation, ...]:
        """Return them without those of init containers that end before others start, which get them then.

        Raises:
            Unavailable: neither the kubelet's checkpoint nor its PodResources can be read.

        """
        return tuple(each for pod, each in await self._with_pods() if each.container in lasting_containers(pod))

    async def _with_pods(self) -> list[tuple[Object, KubeletAllocation]]:
        """Return the kubelet's allocations to pods that have not ended, sorted, each with its pod."""
        found = []
        allocated, pods = await self.allocated(), self.by_uid()
        for each in allocated:
            pod = pods.get(each.uid)
            if pod is not None and not is_ended(pod):
                namespace, name = name_of(pod)
                found.append((pod, msgspec.structs.replace(each, namespace=namespace, pod=name)))
        return sorted(found, key=lambda each: each[1].key)

    def has_lost(self, uid: str, container: str, resource: str) -> bool:
        """Return whether the kubelet's checkpoint can be read, and lacks an allocation."""
        return self._checkpoint.lacks(uid, container, resource)

    def node(self) -> RegisteredNode:
        """Return the Node object as the watch shows it."""
        return registered_node(self._bound.node())

    @property
    def checkpoint_is_readable(self) -> bool:
        """Whether the kubelet's checkpoint can be read."""
        return self._checkpoint.is_readable()

    @property
    def kubelet_started_ns(self) -> int | None:
        """When the kubelet started, in nanoseconds since 1970; None if its socket is not there."""
        return self._checkpoint.kubelet_started_ns()

    @property
    def kubelet_resources(self) -> frozenset[str]:
        """The resources that the kubelet admits no pod without, by its checkpoint; none if it cannot be read."""
        return self._checkpoint.resources()

    def responses(self) -> Mapping[tuple[str, str, str], ContainerResponse]:
        """Return the answers of `Allocate` that the kubelet hands to the runtime at each start; none if unreadable."""
        return self._checkpoint.responses()

    async def allocatable(self) -> Mapping[str, frozenset[str]]:
        """Return the ids of the devices that the kubelet has as healthy, by resource.

        Raises:
            Unavailable: it does not answer.

        """
        return await self._resources.allocatable()

    # Processes

    def running(self, uids: Iterable[str]) -> frozenset[str]:
        """Return those of these pods that have running processes, whatever API server and kubelet say of them."""
        return self._processes.running(uids, self.by_uid())

    def running_containers(self, containers: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return those of these containers, by UID of the pod and name, that may have running processes."""
        return self._processes.running_containers(containers, self.by_uid(), self._bound.node())

    def pods_of(self, pids: Iterable[int]) -> Mapping[int, str]:
        """Return the UID of each process's pod, of those that run in one; a view that is `blind` finds none."""
        return self._processes.pods_of(pids, self.by_uid())

    @property
    def blind(self) -> bool:
        """Whether the processes of other pods cannot be observed, as without `hostPID`, and never could."""
        return self._processes.blind


def by_uid(pods: Iterable[Object]) -> dict[str, Object]:
    """Return pods by the UID that the kubelet knows them by: of a static pod the one in its annotation.

    A user may write that annotation. So it never replaces the UID of a pod that the API server created, and
    of several pods with the same one a living one counts: devices in use never count as free.
    """
    own, mirrored = dict[str, Object](), dict[str, Object]()
    for pod in pods:
        _put(own, uid_of(pod), pod)
        mirror = annotations_of(pod).get(MIRROR)
        if mirror is not None and not _OF_THE_API.fullmatch(str(mirror)):
            _put(mirrored, str(mirror), pod)
    return mirrored | own


def _put(pods: dict[str, Object], uid: str, pod: Object) -> None:
    """Keep a pod under a UID, unless one that lives longer is there."""
    if uid not in pods or _lives(pod) >= _lives(pods[uid]):
        pods[uid] = pod


def _lives(pod: Object) -> tuple[bool, bool]:
    return not is_ended(pod), not is_ending(pod)


def observed_pod(pod: Object) -> GatePod:
    """Return the observation of a pod that the API server has."""
    return GatePod(
        name="/".join(name_of(pod)),
        ended=is_ended(pod),
        ending=is_ending(pod),
        requests=frozenset((container, resource) for container, resource, _ in limits_of(pod)),
        lasting=lasting_containers(pod),
        order=containers_in_order(pod),
        created=created_containers(pod),
        reported=was_admitted(pod),
        created_ns=created_ns(pod),
        started_s=started_s(pod),
        static=MIRROR in annotations_of(pod),
        has_resource_claim=has_resource_claim(pod),
    )


def is_ended(pod: Object | None) -> bool:
    """Return whether a pod is gone, or has run to its end."""
    return pod is None or is_finished(pod)


def is_ending(pod: Object | None) -> bool:
    """Return whether a pod is gone, has run to its end, or is terminating."""
    return pod is None or is_finished(pod) or is_terminating(pod)


def _unchanged(known: Object | None, pod: Object) -> Object:
    """Return a pod as it is known already, if it is of this version."""
    return known if known is not None and _version(known) == _version(pod) != 0 else pod


def _version(pod: Object) -> int:
    version = version_of(pod)
    return int(version) if version.isdecimal() else 0
