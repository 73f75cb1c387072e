"""Binds pods: has their shares claimed, then posts the Binding that carries the assignment."""

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec

from tessera.api.scheduler.extender import BindingArgs
from tessera.api.tessera.pods.assignments import serves
from tessera.api.tessera.pods.bindings import binding_annotations
from tessera.api.tessera.pods.clusterpods import LivePod, object_field
from tessera.clients.kube import PODS, Kube, Object, Unanswered
from tessera.core.cluster.protocols.claims import Fate
from tessera.core.cluster.snapshot import Share
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable
from tessera.log import Logger
from tessera.server.claims.claimer import Claimer, WrittenClaim
from tessera.server.signingkey import SigningKey
from tessera.server.view import View

__all__ = ["Binder", "Clocks"]


class Clocks(msgspec.Struct, frozen=True):
    """The times a server lives by."""

    monotonic_s: Callable[[], float]
    """Decides."""
    wall_ns: Callable[[], int]
    """Nanoseconds since 1970, for gpushare's annotation alone."""


class Binder:
    """Binds pods for one server.

    Args:
        kube: the Kubernetes API.
        view: what is known of the cluster; what is done is taken into it at once.
        claimer: claims shares; its limits hold here too.
        key: signs what is written on pods.
        clocks: this server's times.
        log: records each binding.

    """

    def __init__(
        self,
        kube: Kube,
        view: View,
        claimer: Claimer,
        *,
        key: SigningKey,
        clocks: Clocks,
        log: Logger,
    ) -> None:
        self._kube = kube
        self._view = view
        self._claimer = claimer
        self._clocks = clocks
        self._limits = claimer.limits
        self._key = key
        self._log = log
        self._under_way: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """Node and task by the pod's UID: another pod may have come under the name meanwhile."""
        self.counts: Counter[str] = Counter()
        """How often each thing happened: bound, refused, unanswered."""

    async def bind(self, args: BindingArgs) -> None:
        """Bind a pod; done twice it is done once. It goes on when the caller is cancelled.

        Raises:
            Conflict: the pod is bound elsewhere, gone, or does not fit on the node any more.
            Unavailable: the API server does not answer, or refuses for now.
            InvalidInput: the pod's request or the node's object makes no sense, or the server refuses for good.

        """
        seen = self._view.pods.find(args.key)
        uid = args.uid or (seen[1].uid if seen else args.key)
        known = self._under_way.get(uid)
        if known is None:
            task = asyncio.create_task(self._bind(args))
            self._under_way[uid] = known = (args.node, task)
            task.add_done_callback(lambda done: self._ended(uid, args.key, done))
        node, task = known
        if node != args.node:
            raise Conflict(_subject(args), found=f"a binding to node {node} under way", expected="one at a time")
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # who asked waits no longer
            raise Unavailable(_subject(args), found="a server that ends", expected="another try") from None

    async def close(self) -> None:
        """Wait for what is under way, so long as it may take, and cancel the rest."""
        tasks = [task for _, task in self._under_way.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._limits.stop_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, uid: str, key: str, task: asyncio.Task[None]) -> None:
        self._under_way.pop(uid, None)
        if task.cancelled():
            self.counts["unanswered"] += 1
            self._log.warning("not_bound", pod=key, reason="cancelled, as a server's end does; it may be bound still")
        elif (error := task.exception()) is not None:
            self.counts["refused" if not isinstance(error, Unanswered) else "unanswered"] += 1
            if isinstance(error, TesseraError):
                self._log.info("not_bound", pod=key, reason=str(error))
            else:
                self._log.error("defect", pod=key, exc_info=error)

    async def _bind(self, args: BindingArgs) -> None:
        # 1. Find the pod. Bound already, it is where it shall be or a conflict.
        pod, live = await self._pod(args)
        if live.node:
            _check_node(args, live.node)
            return
        if live.gpus and live.wrong:
            raise InvalidInput(_subject(args), found=live.wrong, expected="a request that Tessera can serve")
        # 2. Bind a pod without shares as it is.
        if not live.claiming:
            await self._post(args, live, {}, ())
            return
        # 3. Claim shares on the node's GPUNode, where there is a key that counts.
        _ = self._key.signer
        made = await self._claimer.claim(args.node, live)
        # 4. Write and sign the assignment. Nothing was sent yet: where that fails the claim goes.
        try:
            annotations = self._assignment(args, pod, live, made)
        except Exception:
            self._claimer.abandon(args.node, made)
            raise
        # 5. Post the Binding. Only where it is known that it was refused the claim goes.
        try:
            await self._post(args, live, annotations, made.claim.shares)
        except Unanswered:
            raise
        except TesseraError:
            self._claimer.abandon(args.node, made)
            raise

    def _assignment(self, args: BindingArgs, pod: Object, live: LivePod, made: WrittenClaim) -> dict[str, str]:
        """Return the annotations that assign what was claimed, signed, while the claim is young and in its object."""
        if self._clocks.monotonic_s() - made.sent_s > self._limits.binding_within_s:
            raise Unavailable(_subject(args), found="a claim written long ago", expected="a quick API server")
        if self._view.pods.fate(live.uid) is Fate.OPEN and not self._view.has_claim(args.node, made.claim):
            # Its GPUNode was deleted: the agent may have offered these devices to the kubelet by now.
            found = f"no claim for it in GPUNode {args.node} any more"
            raise Conflict(_subject(args), found=found, expected="the one just written; it is scheduled again")
        if made.taken_over and not serves(object_field("Pod", pod), live.need, made.claim.shares):
            # An earlier Binding may be under way with these shares: nobody signs them for another ask.
            found = "annotations that were changed since an earlier attempt claimed what it asked then"
            raise Conflict(_subject(args), found=found, expected="another try when that attempt is over")
        annotations = binding_annotations(
            pod,
            live.need,
            made.claim.shares,
            self._view.gpus(args.node),
            share_unit_mib=self._view.pods.share_unit_mib,
            now_ns=self._clocks.wall_ns(),
        )
        return self._key.signer.sealed(annotations, uid=live.uid, node=args.node)

    async def _pod(self, args: BindingArgs) -> tuple[Object, LivePod]:
        """Return the pod, looked up at the API server where it is not known."""
        known = self._view.pods.find(args.key)
        if known is None or (args.uid and known[1].uid != args.uid):
            found = await self._kube.get(PODS, args.name, args.namespace)
            if found is not None:
                self._view.take_pod(found)
            known = self._view.pods.find(args.key)
        if known is None or (args.uid and known[1].uid != args.uid):
            found_text = "no such pod" if known is None else f"another pod of that name, {known[1].uid}"
            raise Conflict(_subject(args), found=found_text, expected=f"the pod {args.uid}".rstrip())
        return known

    async def _post(
        self, args: BindingArgs, live: LivePod, annotations: dict[str, str], shares: tuple[Share, ...]
    ) -> None:
        try:
            await self._kube.bind(args.name, args.namespace, uid=live.uid, node=args.node, annotations=annotations)
        except Conflict:
            found = await self._kube.get(PODS, args.name, args.namespace)
            if found is None or (found["metadata"].get("uid") != live.uid):
                self._view.mark_gone(live.uid)
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


def _subject(args: BindingArgs) -> str:
    return f"pod {args.key} on node {args.node}"


def _check_node(args: BindingArgs, bound: str) -> None:
    """Accept a pod that is bound already where it shall be."""
    if bound != args.node:
        raise Conflict(_subject(args), found=f"a pod that is bound to node {bound}", expected="one without a node")
