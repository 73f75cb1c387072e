"""The pods of a node, of what their record, assignments and kubelet say."""

import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping

from tessera.agent.pods.nodepods import NodePods
from tessera.clients.kube import Listing, Object
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import AssignedRequest
from tessera.core.deviceplugin.allocations.unreadableentries import UnknownUse

__all__ = ["AnnotatedPods", "KnownResources", "ListedPods", "node_pods"]


class KnownResources:
    """A kubelet that knows some resources."""

    def __init__(self, *resources: str) -> None:
        self.gpu_resources: Container[str] = resources


class ListedPods:
    """Pods bound to a node, as functions return them."""

    def __init__(
        self,
        pods: Callable[[], Iterable[Object]],
        relist: Callable[[], Awaitable[Listing]],
        node: Callable[[], Object] = dict,
    ) -> None:
        self.pods = pods
        self.node = node
        self._relist = relist

    async def relist(self) -> Listing:
        return await self._relist()


class AnnotatedPods:
    """Pods of a node, as one function returns them and another annotates them."""

    def __init__(
        self,
        pods: Callable[[], Iterable[Object]],
        annotate: Callable[[Object, Mapping[str, str]], Awaitable[Object | None]],
    ) -> None:
        self.pods = pods
        self._annotate = annotate

    async def annotate(self, pod: Object, annotations: Mapping[str, str]) -> Object | None:
        return await self._annotate(pod, annotations)


class _View:
    checkpoint_is_readable = False
    kubelet_resources: frozenset[str] = frozenset()

    def __init__(
        self,
        pods: Callable[[], Iterable[Object]],
        held: Callable[[], Awaitable[tuple[KubeletAllocation, ...]]],
    ) -> None:
        self.pods = pods
        self._held = held

    async def devices_of_lasting_containers(self) -> tuple[KubeletAllocation, ...]:
        return await self._held()


class _Record:
    def __init__(self, entries: Iterable[AgentAllocation]) -> None:
        self.entries = tuple(entries)

    def release(self) -> None:
        pass

    async def observe_unknown_uses(self) -> Mapping[str, UnknownUse]:
        return {}


class _Assigned:
    def __init__(self, requests: Iterable[AssignedRequest]) -> None:
        self._requests = tuple(requests)

    def assigned_requests(self) -> tuple[AssignedRequest, ...]:
        return self._requests

    async def refresh(self) -> None:
        pass


async def _nothing() -> tuple[KubeletAllocation, ...]:
    return ()


def node_pods(
    pods: Callable[[], Iterable[Object]] = tuple,
    held: Callable[[], Awaitable[tuple[KubeletAllocation, ...]]] = _nothing,
    *,
    resources: Iterable[str] = (),
    entries: Iterable[AgentAllocation] = (),
    requests: Iterable[AssignedRequest] = (),
    clock_s: Callable[[], float] = time.monotonic,
) -> NodePods:
    """Return the pods of a node.

    Args:
        pods: returns the Pod objects.
        held: returns the kubelet's record.
        resources: that the kubelet knows.
        entries: of the agent's own record.
        requests: the pods' assignments.
        clock_s: a monotonic clock.

    """
    view, assigned = _View(pods, held), _Assigned(requests)
    return NodePods(view, _Record(entries), assigned, KnownResources(*resources), clock_s=clock_s)
