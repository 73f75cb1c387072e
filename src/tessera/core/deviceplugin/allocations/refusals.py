"""Containers that may not start, and conflicts of running ones: which last, and which pods are evicted for them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.clashes import Clash
from tessera.core.deviceplugin.allocations.gateobservation import GatePod
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode

__all__ = [
    "ContainerKey",
    "DoubleAllocation",
    "RefusedContainer",
    "blocked_pods",
    "lasting_conflicts",
    "refused_again",
    "with_lost",
    "without_ended",
]

_BLOCKED_S = 60.0
"""After this a container that is refused again and again waits for something that will not happen by itself."""
_MOVED_S = 30.0
"""For how long a conflict stands whose devices the driver has shown elsewhere: it may be creating the others anew."""
_LOST = "no devices found allocated in local cache for pod {}, container {}, resource {}"
"""Of a container that the kubelet cannot start: it allocates nothing again for a pod that it has admitted, and asks no
plugin. Source: kubernetes `pkg/kubelet/cm/devicemanager/manager.go`, `callPreStartContainerIfNeeded`."""
_LOST_RECORD = "the kubelet has lost its record of the pod's devices, and cannot start a container with them again"
ContainerKey: TypeAlias = tuple[str, str, str]
"""UID of the pod, container and resource (`AgentAllocation.container_key`)."""
DoubleAllocation: TypeAlias = tuple[AgentAllocation, Clash]
"""What two pods cannot both have: the later one, and why."""


class RefusedContainer(msgspec.Struct, frozen=True, kw_only=True):
    """A container that may not start."""

    pod: str
    """`namespace/name`."""
    text: str
    """Why."""
    since_s: float
    last_s: float
    """When it was refused for the first and for the last time."""
    rival: str = ""
    """UID of the pod that has its devices; empty for another reason."""
    final: bool = False
    """Whether it will never start."""
    lost: bool = False
    """Whether the kubelet says that it lost the container's devices."""


def refused_again(before: RefusedContainer | None, new: RefusedContainer) -> RefusedContainer:
    """Return a refusal after a new one of the same container: it began with the first, and a final one stays."""
    if before is None:
        return new
    return before if before.final else msgspec.structs.replace(new, since_s=before.since_s)


def without_ended(
    refused: Mapping[ContainerKey, RefusedContainer], pods: Mapping[str, GatePod]
) -> dict[ContainerKey, RefusedContainer]:
    """Return refusals without those that resolve themselves.

    These are of pods that end, and of pods that wait for a terminating one. One that waits for processes left behind by
    a deleted pod stays.

    Args:
        refused: the refusals.
        pods: that the API server has, by UID.

    """
    return {
        key: each
        for key, each in refused.items()
        if not _is_ending(key[0], pods) and (_is_ended(each.rival, pods) or not _is_ending(each.rival, pods))
    }


def blocked_pods(refused: Mapping[ContainerKey, RefusedContainer]) -> dict[str, tuple[str, str]]:
    """Return the pods that are evicted, by UID: name and reason. They were refused again after a minute, or for good.

    One whose container is not tried again, as the kubelet waits before it restarts one that crashed, may start the next
    time: what was in its way may be over.
    """
    return {
        uid: (each.pod, each.text)
        for (uid, _, _), each in refused.items()
        if each.final or each.last_s - each.since_s > _BLOCKED_S
    }


def with_lost(
    refused: Mapping[ContainerKey, RefusedContainer],
    pods: Mapping[str, GatePod],
    messages: Mapping[str, Mapping[str, str]],
    has_lost: Callable[[str, str, str], bool],
    node: RegisteredNode,
    now_s: float,
) -> dict[ContainerKey, RefusedContainer]:
    """Return refusals with containers of which the kubelet says that it lost their devices, until they run again.

    Its words alone are no proof: a watch may show former ones, and a container may write them itself. The kubelet must
    also have a checkpoint that lacks the devices.

    Args:
        refused: the refusals.
        pods: by UID.
        messages: why containers do not run, by UID of the pod and name, in the kubelet's words.
        has_lost: returns whether the kubelet's checkpoint can be read and lacks a container.
        node: the Node object.
        now_s: on a monotonic clock.

    """
    found = {key: each for key, each in refused.items() if not each.lost}
    for uid, waiting in messages.items():
        pod = pods[uid]
        for container, resource in sorted(pod.requests):
            key = uid, container, resource
            before = refused.get(key)
            known = before is not None and before.lost
            ours = container in waiting and node.is_of_gpus(resource)
            if ours and (known or waiting[container] == _LOST.format(*key)) and has_lost(*key):
                new = RefusedContainer(pod=pod.name, text=_LOST_RECORD, since_s=now_s, last_s=now_s, lost=True)
                found[key] = refused_again(before, new)
    return found


def lasting_conflicts(
    conflicts: Iterable[DoubleAllocation],
    moved: Collection[ContainerKey],
    since_s: Mapping[frozenset[ContainerKey], float],
    now_s: float,
) -> tuple[tuple[DoubleAllocation, ...], dict[frozenset[ContainerKey], float]]:
    """Return the conflicts for which a pod is evicted, and since when the others stand without a break.

    A conflict by where the driver shows instances now is one after half a minute: as long as it creates instances
    again, the next may end it.

    Args:
        conflicts: present ones.
        moved: containers whose devices the driver has shown elsewhere.
        since_s: the second result of the last call.
        now_s: on a monotonic clock.

    """
    lasting, standing = list[DoubleAllocation](), dict[frozenset[ContainerKey], float]()
    for later, clash in conflicts:
        key = frozenset(each.container_key for each in (later, clash.other) if each is not None)
        if key.isdisjoint(moved):
            lasting.append((later, clash))
            continue
        standing[key] = since_s.get(key, now_s)
        if now_s - standing[key] >= _MOVED_S:
            lasting.append((later, clash))
    return tuple(lasting), standing


def _is_ended(uid: str, pods: Mapping[str, GatePod]) -> bool:
    return uid not in pods or pods[uid].ended


def _is_ending(uid: str, pods: Mapping[str, GatePod]) -> bool:
    return uid not in pods or pods[uid].ending
