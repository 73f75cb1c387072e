"""Makes the moves of a defragmentation: evicts a pod, waits for its replacement, observes again, goes on or stops."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from tessera.api.kubernetes.evictable import read_evictable
from tessera.api.kubernetes.podstates import is_terminating
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.cli.livecluster import authority_of
from tessera.clients.kube import (
    DISRUPTION_BUDGETS,
    GPU_NODES,
    NODES,
    PODS,
    Kind,
    Kube,
    Object,
    Selection,
    Unanswered,
    name_of,
    uid_of,
    version_of,
)
from tessera.core.cluster.cluster import Cluster
from tessera.core.packing.defrag import DefragProposal, Evictable, Move, PodToPlace, propose
from tessera.core.workload.need import PodKey
from tessera.errors import Conflict, Unavailable, Unsupported

__all__ = ["TAINT", "MoveRunner", "observe"]

_PAUSE_S = 1.0
"""Interval of polling."""
_REFUSED_PAUSE_S = 5.0
"""Interval of eviction requests for a pod that a PodDisruptionBudget protects."""

_TRIES = 10
"""Attempts to change a node that others change too."""
_MOVING = "tessera.dev/defrag"
"""Taint of a node: keeps new pods off it while an evicted pod is replaced elsewhere. Set by `tessera defrag`; read
by kube-scheduler."""
TAINT: Object = {"key": _MOVING, "value": "moving", "effect": "NoSchedule"}

Report = Callable[[int, str], None]
"""Called with the number of moves made and the current step."""


async def observe(kube: Kube) -> tuple[Cluster, Mapping[PodKey, Evictable]]:
    """Return the current cluster, and which of its pods may be evicted."""
    kinds = (NODES, PODS, GPU_NODES, DISRUPTION_BUDGETS)
    listed = await asyncio.gather(*(_list(kube, kind) for kind in kinds))
    fields = as_fields(each for objects in listed for each in objects)
    return read_cluster(fields, authority=await authority_of(kube)), read_evictable(fields)


async def _list(kube: Kube, kind: Kind) -> tuple[Object, ...]:
    try:
        return (await kube.list(kind)).objects
    except Unsupported:
        if kind is not GPU_NODES:
            raise
        return ()


class MoveRunner:
    """Makes moves until the pods to place fit, at most as many as were proposed.

    Args:
        kube: the cluster.
        pods to place: the pods to make room for.
        deadline_s: longest wait for each step.

    """

    def __init__(self, kube: Kube, targets: Sequence[PodToPlace], deadline_s: float) -> None:
        self._kube = kube
        self._targets = tuple(targets)
        self._deadline_s = deadline_s
        self._waiting: frozenset[PodKey] = frozenset()
        self.evicted: list[PodKey] = []
        """The evicted pods, in order."""

    async def make(self, most: int, report: Report) -> None:
        """Evict one pod after the other, each by the current cluster, until the pods to place fit; then wait for them.

        Raises:
            Conflict: more than `most` moves would be needed, because the cluster changed.
            Unavailable: a deadline passed; `evicted` has the moves made.

        """
        cluster, _ = await observe(self._kube)
        self._waiting = frozenset(each.key for each in cluster.snapshot.pending)
        while (proposal := await self._proposal(most - len(self.evicted))).moves:
            await self._move(proposal.moves[0], report)
        if self._targets:
            report(len(self.evicted), "waiting until the pods are bound")
            await self._bound()

    async def _proposal(self, most: int) -> DefragProposal:
        """Return the remaining moves, for the current cluster."""
        cluster, evictable = await observe(self._kube)
        left = [each for each in self._targets if not _is_bound(cluster, each.pod)]
        found = propose(cluster, left, evictable, most=most)
        if found.stuck:
            raise Conflict(
                f"cluster after {len(self.evicted)} moves",
                found=f"no room for {found.stuck[0].pod}: {found.stuck[0].reasons[0]}",
                hint="run tessera defrag again, which finds what fits now",
            )
        return found

    async def _move(self, move: Move, report: Report) -> None:
        namespace, _, name = move.pod.partition("/")
        known = await self._siblings(move, namespace)
        report(len(self.evicted), f"evicting {move.pod} from {move.frees.node}")
        async with self._kept_free(move):
            await self._evict(move, name, namespace)
            self.evicted.append(move.pod)
            report(len(self.evicted) - 1, f"waiting for the replacement of {move.pod}")
            await self._replaced(move, namespace, known)
        report(len(self.evicted), f"{move.pod} is replaced")

    @contextlib.asynccontextmanager
    async def _kept_free(self, move: Move) -> AsyncIterator[None]:
        """Keep new pods off the node of an evicted pod, if its replacement fits on another."""
        node = move.frees.node
        if move.fits.node == node:
            yield
            return
        try:
            await self._taint(node, [TAINT])
            await asyncio.sleep(_PAUSE_S)  # schedulers observe it before the replacement is created
            yield
        finally:
            await self._taint(node, [])

    async def _taint(self, node: str, ours: list[Object]) -> None:
        """Add our taint to a node, or remove it."""
        for _ in range(_TRIES):
            found = await self._kube.get(NODES, node)
            if found is None:
                return
            taints = (found.get("spec") or {}).get("taints") or []
            desired = [*(each for each in taints if each.get("key") != TAINT["key"]), *ours]
            body = {"metadata": {"resourceVersion": version_of(found)}, "spec": {"taints": desired or None}}
            try:
                await self._kube.patch(NODES, node, body)
            except Conflict:
                continue
            return
        raise Conflict(
            f"node {node}",
            found=f"its taint {TAINT['key']} could not be changed: other updates conflict on each try",
            hint="run it again",
        )

    async def _evict(self, move: Move, name: str, namespace: str) -> None:
        """Request the eviction until it succeeds; a recreated pod is not evicted."""
        asked = False
        async for last in self._times(_REFUSED_PAUSE_S):
            pod = await self._kube.get(PODS, name, namespace)
            gone = pod is None or (pod["metadata"].get("uid") or "") != move.uid
            if asked and gone:
                return
            if pod is None or gone:
                raise Conflict(
                    f"pod {move.pod}",
                    found=f"it was deleted or replaced, and the move is of UID {move.uid}",
                    hint="run it again",
                )
            if is_terminating(pod):
                return
            try:
                await self._kube.evict(name, namespace, uid=move.uid)
            except Unavailable as error:
                if last:
                    raise
                asked = asked or isinstance(error, Unanswered)
                continue
            return

    async def _siblings(self, move: Move, namespace: str) -> frozenset[str]:
        """Return the UIDs of the pods that the controller of a pod has created so far."""
        pods = (await self._kube.list(PODS, Selection(namespace=namespace))).objects
        return frozenset(uid_of(each) for each in pods if _owner(each) == _owner_name(move))

    async def _replaced(self, move: Move, namespace: str, known: frozenset[str]) -> None:
        """Wait until the pod is gone and its replacement runs."""
        async for last in self._times(_PAUSE_S):
            pods = (await self._kube.list(PODS, Selection(namespace=namespace))).objects
            gone = all(uid_of(each) != move.uid for each in pods)
            made = [each for each in pods if _owner(each) == _owner_name(move) and uid_of(each) not in known]
            if gone and any(map(_runs, made)):
                return
            if last:
                found = "no replacement yet" if gone else "it is still terminating"
                if made and gone:
                    found = f"its replacement {name_of(made[0])[1]} is not ready yet"
                raise Unavailable(
                    f"pod {move.pod}",
                    found=f"{found} within {self._deadline_s:g} s",
                    hint="give a longer --deadline-s; tessera explain pod explains a pending replacement",
                )

    async def _bound(self) -> None:
        """Wait until the pods to place that are pods of the cluster are bound."""
        mine = [each.pod for each in self._targets if each.pod in self._waiting]
        async for last in self._times(_PAUSE_S):
            cluster, _ = await observe(self._kube)
            left = [pod for pod in mine if not _is_bound(cluster, pod)]
            if not left:
                return
            if last:
                raise Unavailable(
                    f"pod {left[0]}",
                    found=f"it is still pending after {self._deadline_s:g} s although its place is free",
                    hint="wait, as kube-scheduler retries within minutes; or run tessera explain pod",
                )

    async def _times(self, pause_s: float) -> AsyncIterator[bool]:
        """Yield until the deadline, with a pause between; the last time True."""
        now = asyncio.get_running_loop().time
        end_s = now() + self._deadline_s
        while True:
            last = now() + pause_s > end_s
            yield last
            if last:
                return
            await asyncio.sleep(pause_s)


def _is_bound(cluster: Cluster, key: PodKey) -> bool:
    return any(each.pod.key == key and each.node is not None for each in cluster.pods)


def _owner(pod: Object) -> tuple[str, str]:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next(((each["kind"], each["name"]) for each in owners if each.get("controller")), ("", ""))


def _owner_name(move: Move) -> tuple[str, str]:
    kind, _, name = move.owner.split("/", 2)
    return kind, name


def _runs(pod: Object) -> bool:
    """Return whether a pod runs and is ready, if its status has the condition."""
    status = pod.get("status") or {}
    ready = [each["status"] for each in status.get("conditions") or () if each.get("type") == "Ready"]
    return status.get("phase") == "Running" and ready != ["False"] and not is_terminating(pod)
