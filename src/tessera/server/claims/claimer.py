"""Claims shares on a GPUNode before pods are bound to them, so that no other server assigns them.

The protocol is docs/decisions/0010; `core.cluster.protocols.claims` decides which claims count. This server's writes to
a node are serialized; pods that queue meanwhile are claimed for together, in one write.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from tessera.api.tessera.node.nodereports import has_agent
from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.api.tessera.v1alpha1.gpunodes import claims_field, new_object
from tessera.clients.kube import GPU_NODES, PODS, Kube, Object, Selection, Unanswered
from tessera.core.cluster.gpunodestate import Claim
from tessera.core.cluster.protocols.claims import Fate, key_of
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.packing.ledger import LedgerEntry, Purpose, PurposeKey
from tessera.core.workload.tesseranames import GPUS_BY_LABELS
from tessera.errors import Conflict, TesseraError, Unavailable
from tessera.log import Logger
from tessera.server.claims.nominations import Nominations
from tessera.server.settings import ServerSettings
from tessera.server.view import View

__all__ = ["Claimer", "WrittenClaim"]

_TRIES = 10
"""Reads and writes of one node for a batch of pods; a conflict takes one of each."""
_TOGETHER = 16
"""Most pods in one write."""


class WrittenClaim(msgspec.Struct, frozen=True):
    """A written claim."""

    claim: Claim
    taken_over: bool
    """Whether it replaced the claim of an earlier attempt, whose Binding may still succeed."""
    sent_s: float


class _ClaimRequest(msgspec.Struct, frozen=True, eq=False):
    """A pod waiting for a claim, and the future with its answer."""

    live: LivePod
    answer: asyncio.Future[WrittenClaim]


_Chosen = list[tuple[_ClaimRequest, WrittenClaim]]
"""Claims to write, each with its request."""


class Claimer:
    """Creates, drops and garbage-collects the claims of one server.

    Args:
        kube: the Kubernetes API.
        view: the server's view of the cluster; updated at once with each claim.
        nominations: places reserved for pods about to be bound; they give way to a pod that is bound.
        settings: this server's name in claims, and their lifetime.
        clock_s: the monotonic clock.
        log: records claims that could not be removed.

    """

    def __init__(
        self,
        kube: Kube,
        view: View,
        nominations: Nominations,
        *,
        settings: ServerSettings,
        clock_s: Callable[[], float],
        log: Logger,
    ) -> None:
        self._kube = kube
        self._view = view
        self._nominations = nominations
        self._replica = settings.replica
        self.limits = settings.limits
        """Deadlines."""
        self._clock_s = clock_s
        self._log = log
        self._attempts = 0
        self._waiting: defaultdict[str, list[_ClaimRequest]] = defaultdict(list)
        self._order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._next_s: dict[str, float] = {}
        """Earliest next write to each node, on the loop's clock."""
        self.counts: Counter[str] = Counter()
        """Writes by result: written, conflict."""

    async def claim(self, node: str, live: LivePod) -> WrittenClaim:
        """Choose shares for a pod on a node and claim them.

        Raises:
            Conflict: the pod does not fit, or other writers change the node again and again.
            Unavailable: the API server does not answer.
            InvalidInput: the GPUNode cannot be parsed.

        """
        # 1. Join the batch of this node.
        one, waiting = _ClaimRequest(live, asyncio.get_running_loop().create_future()), self._waiting[node]
        waiting.append(one)
        try:
            async with self._order[node]:
                while not one.answer.done():  # done if it was claimed for in another batch
                    # 2. After a write for several pods wait for more: a batch costs one write.
                    pause_s = self._next_s.get(node, 0.0) - asyncio.get_running_loop().time()
                    if pause_s > 0 and len(waiting) < _TOGETHER:
                        await asyncio.sleep(pause_s)
                    # 3. Claim for the whole batch, in one write.
                    batch = waiting[:_TOGETHER]
                    del waiting[:_TOGETHER]
                    with self._answered(node, batch):
                        await self._claim_all(node, batch)
        finally:
            if one in waiting:
                waiting.remove(one)
        return await one.answer

    async def _claim_all(self, node: str, batch: list[_ClaimRequest]) -> None:
        """Answer each pod that waits for a claim on a node."""
        view, sure = self._view, False
        for _ in range(_TRIES):
            # 1. Read the GPUNode and its pods, unless the view has every version.
            if not view.claims.on(node).verified:
                await self._verify(node)
                sure = True
                continue
            # 2. Choose shares, reserved in the ledger while 3. the claims are written.
            with self._chosen(node, [each for each in batch if not each.answer.done()], sure=sure) as chosen:
                if chosen and not await self._write(node, chosen):
                    continue
            # 4. Read again for pods that do not fit: the obstacle may be gone by now.
            if all(each.answer.done() for each in batch):
                return
            view.claims.on(node).lost()
        raise Conflict(f"GPUNode {node}", found="it keeps changing", hint="kube-scheduler tries again")

    @contextmanager
    def _answered(self, node: str, batch: list[_ClaimRequest]) -> Iterator[None]:
        """Answer the whole batch with the error that ended it, and the caller too."""
        try:
            yield
        except TesseraError as error:
            _refuse(batch, error)
        except asyncio.CancelledError:
            found = "a server that ends"
            _refuse(batch, Unavailable(f"claims on node {node}", found=found, hint="kube-scheduler tries again"))
            raise
        except Exception as error:  # noqa: BLE001 (who waits for an answer gets one)
            _refuse(batch, self._defect(node, error))

    def _defect(self, node: str, error: Exception) -> Unavailable:
        """Log an unexpected error, and return the message for the pod's event."""
        self._log.error("defect", node=node, exc_info=error)
        found = f"unexpected {type(error).__name__}: {error}"
        return Unavailable(f"claims on node {node}", found=found, hint="see the server's log")

    @contextmanager
    def _chosen(self, node: str, batch: list[_ClaimRequest], *, sure: bool) -> Iterator[_Chosen]:
        """Assign claims to pods that fit, reserving their shares; reject the others where that is certain."""
        view, chosen, holds = self._view, _Chosen(), list[PurposeKey]()
        view.pods.drop_expired()
        for each in batch:
            live = each.live
            self._nominations.drop(live.uid)  # only now: dropped earlier, other pods would be sent to the place
            earlier = view.claims.on(node).earlier(live.uid, view.pods.fate)
            try:
                shares = self._taken_over(node, earlier) if earlier else self._choose(live, node)
            except Exception as defect:  # noqa: BLE001 (a pod that nobody thought of is not in the way of the others)
                each.answer.set_exception(self._defect(node, defect))
                continue
            if isinstance(shares, str):
                if sure:
                    error = Conflict(
                        f"pod {live.key} on node {node}",
                        found=f"there is no room for {shares}",
                        hint="the pod is scheduled again",
                    )
                    each.answer.set_exception(error)
                continue
            self._attempts += 1
            claim = Claim(uid=live.uid, pod=live.key, shares=shares, attempt=f"{self._replica}/{self._attempts}")
            chosen.append((each, WrittenClaim(claim, earlier is not None, self._clock_s())))
            if earlier is None:
                holds.append(PurposeKey(Purpose.CHOICE, live.uid, node, claim.attempt))
                view.ledger.put_pod(LedgerEntry(holds[-1], live.key, NodeName(node), live.need, shares, live.priority))
        try:
            yield chosen
        finally:
            for name in holds:
                view.ledger.drop_pod(name)

    def _taken_over(self, node: str, earlier: Claim) -> tuple[Share, ...] | str:
        """Return the claim of an earlier attempt, unless its GPUs are taken.

        They can be where it was deleted with its GPUNode, or came back in the object after it was given up, as from a
        backup. Such a pod is not bound before that attempt is over: a request to bind it may be in flight.
        """
        if self._fits_still(node, earlier):
            return earlier.shares
        return (
            "the shares that an earlier attempt claimed: other pods or the kubelet have them by now, or the GPU is of "
            f"another model; that claim ends within {self.limits.claim_lives_s:.0f} s"
        )

    def _fits_still(self, node: str, claim: Claim) -> bool:
        live = self._view.pods.live_pod(claim.uid)
        with self._view.claims.set_aside(claim.uid):
            return self._view.ledger.can_hold(node, claim.shares, models=live.need.models if live else ())

    def _restored(self, node: str) -> tuple[Claim, ...]:
        """Return the claims missing from a GPUNode that was deleted and recreated, to be written again.

        Without claims whose shares the kubelet or another pod may have by now: a claim in the object may be bound.
        """
        lacking = self._view.claims.on(node).lacking(self._view.pods.fate)
        return tuple(each for each in lacking if self._fits_still(node, each))

    def _choose(self, live: LivePod, node: str) -> tuple[Share, ...] | str:
        shares = self._view.ledger.choose(live.need, node)
        if isinstance(shares, str) and self._nominations.drop_all_on(node):
            return self._view.ledger.choose(live.need, node)
        return shares

    async def _write(self, node: str, chosen: _Chosen) -> bool:
        """Write claims and answer their pods; return whether the object was still the version they were chosen for."""
        view, claims = self._view, self._view.claims.on(node)
        new = tuple(made.claim for _, made in chosen)
        restored = tuple(each for each in self._restored(node) if each.uid not in {claim.uid for claim in new})
        try:
            written = await self._patch(node, claims.version, claims.with_claims((*restored, *new), view.pods.fate))
        except Conflict:
            self.counts["conflict"] += 1
            claims.lost()
            return False
        except Unanswered:
            claims.lost()
            for _, made in chosen:
                self.abandon(node, made)
            raise
        view.take_gpu_node(written)
        self.counts["written"] += 1
        if len(chosen) > 1:  # more are likely to come; a caller that binds one pod at a time does not wait
            self._next_s[node] = asyncio.get_running_loop().time() + self.limits.gather_s
        for each, made in chosen:
            each.answer.set_result(made)
        return True

    async def _patch(self, node: str, version: int, claims: tuple[Claim, ...]) -> Object:
        body = {"metadata": {"resourceVersion": str(version)}, "spec": {"claims": claims_field(claims)}}
        return await self._kube.patch(GPU_NODES, node, body)

    def abandon(self, node: str, written: WrittenClaim) -> None:
        """Drop the claim of a failed binding; a claim it replaced may still be bound."""
        if not written.taken_over:
            self._view.claims.on(node).give_up(key_of(written.claim))
            self._view.claims.hold(node)

    async def _verify(self, node: str) -> None:
        """Read the GPUNode, then list the node's pods, so that together they are complete."""
        claims = self._view.claims.on(node)
        claims.reading()
        each = await self._kube.get(GPU_NODES, node)
        if each is None:
            each = await self._create(node)
        pods = await self._kube.list(PODS, Selection(fields=(("spec.nodeName", node),)))
        self._view.take_verified(node, each, pods)

    async def _create(self, node: str) -> Object:
        """Create the GPUNode of a node that has GPUs by its labels and no agent, so that claims can be written."""
        known = self._view.nodes.get(node)
        if known is None or not self._view.gpus(node):
            raise Conflict(f"node {node}", found="there is no such node with GPUs", hint="the pod is scheduled again")
        if has_agent(known):
            found = "it has an agent, which has not written its GPUNode"
            accepted = "start the agent (kubectl get pods -n tessera-system); kube-scheduler tries again"
            raise Conflict(f"node {node}", found=found, hint=accepted)
        body = new_object(node, known["metadata"].get("uid", ""))
        body["metadata"]["annotations"] = {GPUS_BY_LABELS: "true"}
        return await self._kube.create(GPU_NODES, body)

    # Garbage collection

    async def sweep(self) -> None:
        """Check claims that are too old, and remove settled ones from the GPUNodes."""
        for node in self._view.claims.nodes:
            try:
                await self._sweep(node)
            except TesseraError as error:
                self._log.info("not_swept", node=node, reason=str(error))

    async def _sweep(self, node: str) -> None:
        view, claims, now_s = self._view, self._view.claims.on(node), self._clock_s()
        for claim in claims.overdue(now_s - self.limits.unknown_s, view.pods.fate):
            if view.pods.live_pod(claim.uid) is None:
                await self._look_up(claim)
        for claim in claims.overdue(now_s - self.limits.claim_lives_s, view.pods.fate):
            await self._look_up(claim)
            if view.pods.fate(claim.uid) is Fate.OPEN:
                claims.give_up(key_of(claim))
                view.claims.hold(node)
        async with self._order[node]:
            lacking = not claims.verified and claims.lacking(view.pods.fate)
            if lacking or claims.vanished(now_s - self.limits.unknown_s, view.pods.fate):
                await self._verify(node)
            restored = self._restored(node) if claims.verified else ()
            if restored or claims.without_settled(view.pods.fate) is not None:
                written = claims.with_claims(restored, view.pods.fate)
                view.take_gpu_node(await self._patch(node, claims.version, written))

    async def _look_up(self, claim: Claim) -> None:
        """Check the pod of a claim. The pod existed before the claim: if it is missing now, it is gone."""
        namespace, _, name = claim.pod.partition("/")
        found = await self._kube.get(PODS, name, namespace)
        if found is None or found["metadata"].get("uid") != claim.uid:
            self._view.mark_gone(claim.uid)
        else:
            self._view.take_pod(found)


def _refuse(batch: list[_ClaimRequest], error: TesseraError) -> None:
    for each in batch:
        if not each.answer.done():
            each.answer.set_exception(error)
            each.answer.exception()  # retrieved: a canceled caller does not wait any more
