"""An agent's view of its node's pods: the API server's objects, the kubelet's record, running processes."""

import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from tessera.api.kubernetes.containerlimits import (
    asks_of,
    container_ids,
    containers_in_order,
    holds_devices,
    lasting_containers,
    runtime_of,
    was_left_out,
)
from tessera.api.kubernetes.podstates import is_finished, is_terminating
from tessera.clients.kube import Listing, Object, annotations_of, name_of, uid_of, version_of
from tessera.clients.kubelet import DeviceCheckpoint, PodResources
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.lastgate import GatePod
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.usage.cgroups import owner_of
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
    "sees_other_containers",
]

_FRESH_S = 2.0
"""How long a list takes precedence over the watch, which shows the same before that."""
_OF_THE_API = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
"""A UID as the API server creates it. A static pod's is 32 digits of a hash, unless its file says another.
Source: Kubernetes `pkg/kubelet/config/common.go`, `applyDefaults`."""
_FIRST_NAMESPACE = "pid:[4026531836]"
"""The PID namespace of the machine. Source: Linux `include/linux/proc_ns.h`, PROC_PID_INIT_INO."""
_THREADS = 16
"""The place of the number of threads behind the state."""
_START = 18
"""The place of the time of the start behind the state."""
_PAUSE = "pause"
"""Name of the process that these runtimes start before a pod's containers, and end after them. CRI-O leaves it out.
Source: containerd and cri-dockerd run Kubernetes `build/pause`; CRI-O, `drop_infra_ctr`."""
_STARTING_PAUSE = frozenset({"containerd", "docker"})
_LEAST_UID = 4
"""Length of a UID searched among control groups; every real one has 36 characters."""


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

    async def container_devices(self, *, initial: bool = False) -> tuple[KubeletAllocation, ...]:
        """Return the containers' devices by the kubelet's record."""

    def has_lost(self, uid: str, container: str, resource: str) -> bool:
        """Return whether the kubelet's record can be read, and lacks an allocation."""

    def left_out(self, pod: Object, resource: str) -> bool:
        """Return whether a pod of this node surely runs without a resource that it requests."""

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
        self._proc = proc
        self._clock_s = clock_s
        self._sees = False
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
        found = []
        for pod in self.pods():
            if is_ended(pod) or not holds_devices(pod):
                continue
            found += [msgspec.structs.replace(each, uid=uid_of(pod)) for each in await self._get(pod)]
        return tuple(found)

    async def _get(self, pod: Object) -> tuple[KubeletAllocation, ...]:
        namespace, name = name_of(pod)
        try:
            return await self._resources.get(namespace, name)
        except Unsupported as error:  # listing all instead would make the kubelet forget an allocation in progress
            raise Unavailable(error.subject, found=error.found, expected=error.expected, hint=error.hint) from error

    async def container_devices(self, *, initial: bool = False) -> tuple[KubeletAllocation, ...]:
        """Return the devices of this node's containers, sorted.

        Args:
            initial: whether also those of init containers that end before others start, which get them then.

        Raises:
            Unavailable: neither the kubelet's checkpoint nor its PodResources can be read.

        """
        found = []
        allocated, pods = await self.allocated(), self.by_uid()
        for each in allocated:
            pod = pods.get(each.uid)
            if pod is not None and not is_ended(pod) and (initial or each.container in lasting_containers(pod)):
                namespace, name = name_of(pod)
                found.append(msgspec.structs.replace(each, namespace=namespace, pod=name))
        return tuple(sorted(found, key=lambda each: each.key))

    def has_lost(self, uid: str, container: str, resource: str) -> bool:
        """Return whether the kubelet's checkpoint can be read, and lacks an allocation."""
        return self._checkpoint.lacks(uid, container, resource)

    def left_out(self, pod: Object, resource: str) -> bool:
        """Return whether a pod runs without a resource that it requests, as this node never had it (`was_left_out`)."""
        return was_left_out(pod, resource, self._bound.node())

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
        """Return those of these pods that have running processes, whatever API server and kubelet say of them.

        The control groups of a pod carry its UID, in every version and with every cgroup driver. A container may give
        groups below its own the names of other pods: it is in its own pod nevertheless. A `blind` view finds none.
        """
        return frozenset(uid for uid, _, _ in self._processes(uids))

    def running_containers(self, containers: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return those of these containers, by UID of the pod and name, that may have running processes.

        Which container a process is in says its control group, by the id in the pod's status. One of an unknown id
        may be of any: a status can be late. Only the process that holds a pod's namespaces, from before its first
        container to after its last, is of none. A tenant may choose a process's name, and not that it is the first.
        """
        asked = frozenset(containers)
        found: dict[str, dict[Path, str]] = {}
        for uid, container, process in self._processes({uid for uid, _ in asked}):
            found.setdefault(uid, {})[process] = container
        running = {
            uid: {own for process, own in of_pod.items() if own or not self._holds_namespaces(uid, process, of_pod)}
            for uid, of_pod in found.items()
        }
        return frozenset(each for each in asked if not running.get(each[0], set()).isdisjoint({each[1], ""}))

    def _holds_namespaces(self, uid: str, process: Path, of_pod: Iterable[Path]) -> bool:
        """Return whether a process is certainly none of a container: it started before all others of its pod."""
        runtime = runtime_of(self.find(uid) or {}, self._bound.node())
        if _text(process / "comm").strip() != _PAUSE or runtime not in _STARTING_PAUSE:
            return False
        start = _started(process)
        return start > 0 and all(start < _started(other) for other in of_pod if other != process)

    def _processes(self, uids: Iterable[str]) -> Iterator[tuple[str, str, Path]]:
        """Yield the processes of these pods: UID, name of the container if its id is known, folder in the table."""
        desired = {uid: (f"pod{uid}", f"pod{uid.replace('-', '_')}") for uid in uids if len(uid) >= _LEAST_UID}
        present = self.by_uid()
        known = {*present, *desired} if desired else set[str]()
        containers = {name: own for uid in desired for name, own in container_ids(present.get(uid, {}))}
        for process, text in _cgroups(self._proc) if desired else ():
            named = {uid for uid, names in desired.items() if any(name in text for name in names)}
            # The outermost may be no pod of this cluster: its nodes may be pods of another.
            owner = owner_of(text, containers, known) if named else None
            if owner is None or owner.uid not in known:
                yield from ((uid, "", process) for uid in named)
            elif owner.uid in named:
                yield owner.uid, owner.container, process

    def pods_of(self, pids: Iterable[int]) -> Mapping[int, str]:
        """Return the UID of each process's pod, of those that run in one; a view that is `blind` finds none.

        A process that has ended, and whose parent has not asked for it yet, runs no more.
        """
        if self.blind:
            return {}
        uids = tuple(self.by_uid())
        found = {pid: owner_of(_text(self._proc / str(pid) / "cgroup"), {}, uids) for pid in pids}
        return {
            pid: owner.uid
            for pid, owner in found.items()
            if owner is not None and not _is_zombie(_text(self._proc / str(pid) / "stat"))
        }

    @property
    def blind(self) -> bool:
        """Whether the processes of other pods cannot be observed, as without `hostPID`, and never could."""
        self._sees = self._sees or sees_other_containers(self._proc)
        return not self._sees


def sees_other_containers(proc: Path) -> bool:
    """Return whether a process table shows those of other containers.

    It does in the machine's own PID namespace, whose number is known, and if there is more than one control group.
    """
    return _link(proc / "self/ns/pid") == _FIRST_NAMESPACE or len({text for _, text in _cgroups(proc)}) > 1


def _cgroups(proc: Path) -> Iterator[tuple[Path, str]]:
    for process in proc.iterdir() if proc.is_dir() else ():
        if process.name.isdecimal():
            yield process, _text(process / "cgroup")


def _is_zombie(stat: str) -> bool:
    """Return whether a process has ended, by its `/proc/PID/stat`; not if only its first thread has.

    Source: proc_pid_stat(5), fields 3 (state) and 20 (num_threads), behind the name, which may contain anything.
    """
    state, *fields = stat.rpartition(")")[2].split() or ("",)
    return state in {"Z", "X"} and fields[_THREADS : _THREADS + 1] in (["0"], ["1"])


def _started(process: Path) -> int:
    """Return when a process started, in ticks of the clock; 0 if it has ended. Source: proc_pid_stat(5), field 22."""
    fields = _text(process / "stat").rpartition(")")[2].split()[1:]
    return int(fields[_START]) if len(fields) > _START else 0


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
        asks=frozenset((container, resource) for container, resource, _ in asks_of(pod)),
        lasting=lasting_containers(pod),
        order=containers_in_order(pod),
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


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it has ended meanwhile
