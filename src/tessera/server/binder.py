"""Binds pods: claims their shares on the node's GPUNode first, so that no other server gives them away.

The protocol is docs/decisions/0010; which claims count is `core.claims`. No lock is held while the API is asked, but
for the order of this server's own writes to one node.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable

import msgspec

from tessera.api.bindings import binding_annotations
from tessera.api.clusterpods import LivePod
from tessera.api.extender import BindingArgs
from tessera.api.gpunodes import claims_field, new_object
from tessera.clients.kube import GPU_NODES, PODS, Kube, Object, Selection, Unanswered
from tessera.core.claims import Fate, key_of
from tessera.core.gpunodestate import Claim
from tessera.core.snapshot import Share
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable
from tessera.log import Logger
from tessera.server.nominations import Nominations
from tessera.server.settings import Settings
from tessera.server.view import BY_LABELS, View

__all__ = ["Binder", "Clocks"]

_TRIES = 5


class Clocks(msgspec.Struct, frozen=True):
    """The times a server lives by."""

    monotonic_s: Callable[[], float]
    """Decides."""
    wall_ns: Callable[[], int]
    """Nanoseconds since 1970, for gpushare's annotation alone."""


class _Made(msgspec.Struct, frozen=True):
    """A claim that the API server has."""

    claim: Claim
    taken_over: bool
    """Whether it replaced that of an earlier attempt, which may bind the pod still."""
    sent_s: float


class Binder:
    """Binds pods for one server.

    Args:
        kube: the Kubernetes API.
        view: what is known of the cluster; what is done is taken into it at once.
        nominations: places kept for pods that are about to be bound.
        settings: this server's name in claims, and how long things may take.
        clocks: its times.
        log: told each binding.

    """

    def __init__(
        self,
        kube: Kube,
        view: View,
        nominations: Nominations,
        *,
        settings: Settings,
        clocks: Clocks,
        log: Logger,
    ) -> None:
        self._kube = kube
        self._view = view
        self._nominations = nominations
        self._replica = settings.replica
        self._clocks = clocks
        self._limits = settings.limits
        self._log = log
        self._attempts = 0
        self._under_way: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.counts: Counter[str] = Counter()
        """How often each thing happened: bound, conflict, refused, unanswered."""

    async def bind(self, args: BindingArgs) -> None:
        """Bind a pod; done twice it is done once. It goes on when the caller is cancelled.

        Raises:
            Conflict: the pod is bound elsewhere, gone, or does not fit on the node any more.
            Unavailable: the API server does not answer, or refuses for now.
            InvalidInput: the pod's request or the node's object makes no sense, or the server refuses for good.

        """
        known = self._under_way.get(args.key)
        if known is None:
            task = asyncio.create_task(self._bind(args))
            self._under_way[args.key] = known = (args.node, task)
            task.add_done_callback(lambda done: self._ended(args.key, done))
        node, task = known
        if node != args.node:
            raise Conflict(_subject(args), found=f"a binding to node {node} under way", wanted="one at a time")
        await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for what is under way, so long as it may take, and cancel the rest."""
        tasks = [task for _, task in self._under_way.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limits.stop_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        self._under_way.pop(key, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.counts["refused" if not isinstance(error, Unanswered) else "unanswered"] += 1
            self._log.info("not_bound", pod=key, reason=str(error))

    async def _bind(self, args: BindingArgs) -> None:
        pod, live = await self._pod(args)
        if live.node:
            _check_node(args, live.node)
            return
        if live.gpus and live.wrong:
            raise InvalidInput(_subject(args), found=live.wrong, wanted="a request that Tessera can serve")
        self._nominations.drop(live.uid)
        if not live.claiming:
            await self._post(args, live, {}, ())
            return
        made = await self._claim(args, live)
        shares = made.claim.shares
        annotations = binding_annotations(
            pod,
            live.need,
            shares,
            self._view.gpus(args.node),
            share_unit_mib=self._view.share_unit_mib,
            now_ns=self._clocks.wall_ns(),
        )
        try:
            if self._clocks.monotonic_s() - made.sent_s > self._limits.binding_within_s:
                raise Unavailable(_subject(args), found="a claim written long ago", wanted="a quick API server")
            await self._post(args, live, annotations, shares)
        except Unanswered:
            raise
        except TesseraError:
            self._never(args.node, made)
            raise

    async def _pod(self, args: BindingArgs) -> tuple[Object, LivePod]:
        """Return the pod, looked up at the API server where it is not known."""
        known = self._view.pod(args.key)
        if known is None or (args.uid and known[1].uid != args.uid):
            found = await self._kube.get(PODS, args.name, args.namespace)
            if found is not None:
                self._view.take_pod(found)
            known = self._view.pod(args.key)
        if known is None or (args.uid and known[1].uid != args.uid):
            found_text = "no such pod" if known is None else f"another pod of that name, {known[1].uid}"
            raise Conflict(_subject(args), found=found_text, wanted=f"the pod {args.uid}".rstrip())
        return known

    async def _post(
        self, args: BindingArgs, live: LivePod, annotations: dict[str, str], shares: tuple[Share, ...]
    ) -> None:
        try:
            await self._kube.bind(args.name, args.namespace, uid=live.uid, node=args.node, annotations=annotations)
        except Conflict:
            found = await self._kube.get(PODS, args.name, args.namespace)
            if found is None or (found["metadata"].get("uid") != live.uid):
                self._view.see_gone(live.uid)
                raise
            self._view.take_pod(found)
            bound = (found.get("spec") or {}).get("nodeName")
            if not bound:
                raise
            _check_node(args, bound)
        else:
            self._view.assume(live, args.node, shares)
        self.counts["bound"] += 1
        self._log.info("bound", pod=live.key, node=args.node, gpus=[share.gpu for share in shares])

    # Claims

    async def _claim(self, args: BindingArgs, live: LivePod) -> _Made:
        """Choose shares and claim them on the node."""
        view, node = self._view, args.node
        async with self._order[node]:
            sure = False
            for _ in range(2 * _TRIES):
                if not view.claims(node).verified:
                    await self._verify(node)
                    sure = True
                    continue
                earlier = view.claims(node).earlier(live.uid, view.fate)
                shares = earlier.shares if earlier else self._choose(live, node)
                if isinstance(shares, str):
                    if sure:
                        raise Conflict(_subject(args), found=shares, wanted="room for it; it is scheduled again")
                    view.claims(node).lost()  # perhaps what is in the way is gone by now
                    continue
                made = await self._write(node, live, shares, taken_over=earlier is not None)
                if made is not None:
                    return made
        self.counts["conflict"] += 1
        raise Conflict(f"GPUNode {node}", found="changes by others again and again", wanted="a moment without any")

    def _choose(self, live: LivePod, node: str) -> tuple[Share, ...] | str:
        shares = self._view.ledger.choose(live.need, node)
        if isinstance(shares, str) and self._nominations.clear(node):
            return self._view.ledger.choose(live.need, node)
        return shares

    async def _verify(self, node: str) -> None:
        """Read the node's object, then list its pods, so that together they are all there is."""
        claims = self._view.claims(node)
        claims.reading()
        each = await self._kube.get(GPU_NODES, node)
        if each is None:
            each = await self._create(node)
        pods = await self._kube.list(PODS, Selection(fields=(("spec.nodeName", node),)))
        self._view.verified(node, each, pods)

    async def _create(self, node: str) -> Object:
        """Make the object of a node that has GPUs by its labels alone, so that claims have a place."""
        known = self._view.nodes.get(node)
        if known is None or not self._view.gpus(node):
            raise Conflict(f"node {node}", found="no such node with GPUs", wanted="one that is there")
        body = new_object(node, known["metadata"].get("uid", ""))
        body["metadata"]["annotations"] = {BY_LABELS: "true"}
        return await self._kube.create(GPU_NODES, body)

    async def _write(self, node: str, live: LivePod, shares: tuple[Share, ...], *, taken_over: bool) -> _Made | None:
        """Write a claim; None where the object changed meanwhile."""
        view, claims = self._view, self._view.claims(node)
        self._attempts += 1
        claim = Claim(uid=live.uid, pod=live.key, shares=shares, attempt=f"{self._replica}/{self._attempts}")
        made = _Made(claim, taken_over, self._clocks.monotonic_s())
        try:
            written = await self._patch(node, claims.version, claims.with_claim(claim, view.fate))
        except Conflict:
            self.counts["conflict"] += 1
            claims.lost()
            return None
        except Unanswered:
            claims.lost()
            self._never(node, made)
            raise
        view.take_gpu_node(written)
        return made

    async def _patch(self, node: str, version: int, claims: tuple[Claim, ...]) -> Object:
        body = {"metadata": {"resourceVersion": str(version)}, "spec": {"claims": claims_field(claims)}}
        return await self._kube.patch(GPU_NODES, node, body)

    def _never(self, node: str, made: _Made) -> None:
        """Take in that an attempt will not bind its pod; what it took over may be bound by another attempt still."""
        if not made.taken_over:
            self._view.claims(node).give_up(key_of(made.claim))
            self._view.reclaim(node)

    # Old claims

    async def sweep(self) -> None:
        """Look into claims that are too old, and remove settled ones from the objects."""
        for node in self._view.claimed_nodes:
            try:
                await self._sweep(node)
            except TesseraError as error:
                self._log.info("not_swept", node=node, reason=str(error))

    async def _sweep(self, node: str) -> None:
        view, claims, now_s = self._view, self._view.claims(node), self._clocks.monotonic_s()
        for claim in claims.overdue(now_s - self._limits.unknown_s, view.fate):
            if not view.is_pod(claim.uid):
                await self._look_up(claim)
        for claim in claims.overdue(now_s - self._limits.claim_lives_s, view.fate):
            await self._look_up(claim)
            if view.fate(claim.uid) is Fate.OPEN:
                claims.give_up(key_of(claim))
                view.reclaim(node)
        async with self._order[node]:
            left = claims.without_settled(view.fate)
            if left is not None:
                view.take_gpu_node(await self._patch(node, claims.version, left))

    async def _look_up(self, claim: Claim) -> None:
        """Take in what became of a claim's pod. It was there before the claim: where it is not now, it is gone."""
        namespace, _, name = claim.pod.partition("/")
        found = await self._kube.get(PODS, name, namespace)
        if found is None or found["metadata"].get("uid") != claim.uid:
            self._view.see_gone(claim.uid)
        else:
            self._view.take_pod(found)


def _subject(args: BindingArgs) -> str:
    return f"pod {args.key} on node {args.node}"


def _check_node(args: BindingArgs, bound: str) -> None:
    """Accept a pod that is bound already where it shall be."""
    if bound != args.node:
        raise Conflict(_subject(args), found=f"a pod that is bound to node {bound}", wanted="one without a node")
