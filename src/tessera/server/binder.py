"""Binds pods: claims their shares, then posts the Binding that carries the assignment."""

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

__all__ = ["Binder", "ServerClocks"]


class ServerClocks(msgspec.Struct, frozen=True):
    """The clocks of a server."""

    monotonic_s: Callable[[], float]
    """Monotonic; for decisions."""
    wall_ns: Callable[[], int]
    """Nanoseconds since 1970, only for gpushare's annotation."""


class Binder:
    """Binds pods for one server.

    Args:
        kube: the Kubernetes API.
        view: the server's view of the cluster; updated at once with each binding.
        claimer: claims shares; its deadlines apply to bindings too.
        key: signs assignments.
        clocks: of this server.
        log: records each binding.

    """

    def __init__(
        self,
        kube: Kube,
        view: View,
        claimer: Claimer,
        *,
        key: SigningKey,
        clocks: ServerClocks,
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
        """Node and task by pod UID: a pod of the same name may be a new one."""
        self.counts: Counter[str] = Counter()
        """Bindings by result: bound, refused, unanswered."""

    async def bind(self, args: BindingArgs) -> None:
        """Bind a pod; idempotent. Binding continues if the caller is canceled.

        Raises:
            Conflict: the pod is bound to another node, gone, or no longer fits on the node.
            Unavailable: the API server does not answer, or rejects the request for now.
            InvalidInput: the pod's request or the GPUNode is invalid, or the API server rejects the Binding for good.

        """
        observed = self._view.pods.find(args.key)
        uid = args.uid or (observed[1].uid if observed else args.key)
        known = self._under_way.get(uid)
        if known is None:
            task = asyncio.create_task(self._bind(args))
            self._under_way[uid] = known = (args.node, task)
            task.add_done_callback(lambda done: self._ended(uid, args.key, done))
        node, task = known
        if node != args.node:
            raise Conflict(
                _subject(args), found=f"a binding to node {node} is under way", hint="kube-scheduler tries again"
            )
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # the caller no longer waits
            raise Unavailable(_subject(args), found="this server ends", hint="kube-scheduler tries again") from None

    async def close(self) -> None:
        """Wait for bindings in progress, up to their deadline, and cancel the rest."""
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
            self._log.warning("not_bound", pod=key, reason="canceled, as a server's end does; it may still be bound")
        elif (error := task.exception()) is not None:
            self.counts["refused" if not isinstance(error, Unanswered) else "unanswered"] += 1
            if isinstance(error, TesseraError):
                self._log.info("not_bound", pod=key, reason=str(error))
            else:
                self._log.error("defect", pod=key, exc_info=error)

    async def _bind(self, args: BindingArgs) -> None:
        # 1. Find the pod. If it is bound already, this is its node or a conflict.
        pod, live = await self._pod(args)
        if live.node:
            _check_node(args, live.node)
            return
        if live.gpus and live.wrong:
            raise InvalidInput(_subject(args), found=live.wrong, hint="correct the request and recreate the pod")
        # 2. Bind a pod without shares unchanged.
        if not live.claiming:
            await self._post(args, live, {}, ())
            return
        # 3. Claim shares on the GPUNode, if there is a valid signing key.
        _ = self._key.signer
        written = await self._claimer.claim(args.node, live)
        # 4. Write and sign the assignment. Nothing was sent yet: on failure the claim is dropped.
        try:
            annotations = self._assignment(args, pod, live, written)
        except Exception:
            self._claimer.abandon(args.node, written)
            raise
        # 5. Post the Binding. Drop the claim only if the Binding was certainly rejected.
        try:
            await self._post(args, live, annotations, written.claim.shares)
        except Unanswered:
            raise
        except TesseraError:
            self._claimer.abandon(args.node, written)
            raise

    def _assignment(self, args: BindingArgs, pod: Object, live: LivePod, written: WrittenClaim) -> dict[str, str]:
        """Return the signed annotations that assign the claimed shares, if the claim is recent and in the GPUNode."""
        if self._clocks.monotonic_s() - written.sent_s > self._limits.binding_within_s:
            raise Unavailable(
                _subject(args),
                found="the claim was written too long ago: the API server is slow",
                hint="kube-scheduler tries again",
            )
        if self._view.pods.fate(live.uid) is Fate.OPEN and not self._view.has_claim(args.node, written.claim):
            # The GPUNode was deleted: the agent may have advertised these devices to the kubelet by now.
            found = f"no claim for it in GPUNode {args.node} any more"
            raise Conflict(_subject(args), found=found, hint="the pod is scheduled again")
        if written.taken_over and not serves(object_field("Pod", pod), live.need, written.claim.shares):
            # An earlier Binding with these shares may still be in flight: never sign them for a different request.
            found = "the annotations changed after an earlier attempt had claimed devices"
            raise Conflict(_subject(args), found=found, hint="kube-scheduler tries again when that attempt is over")
        annotations = binding_annotations(
            pod,
            live.need,
            written.claim.shares,
            self._view.gpus(args.node),
            share_unit_mib=self._view.pods.share_unit_mib,
            now_ns=self._clocks.wall_ns(),
        )
        return self._key.signer.sealed(annotations, uid=live.uid, node=args.node)

    async def _pod(self, args: BindingArgs) -> tuple[Object, LivePod]:
        """Return the pod, read from the API server if it is unknown."""
        known = self._view.pods.find(args.key)
        if known is None or (args.uid and known[1].uid != args.uid):
            found = await self._kube.get(PODS, args.name, args.namespace)
            if found is not None:
                self._view.take_pod(found)
            known = self._view.pods.find(args.key)
        if known is None or (args.uid and known[1].uid != args.uid):
            found_text = "no such pod" if known is None else f"another pod of that name, {known[1].uid}"
            raise Conflict(_subject(args), found=found_text, hint=f"the pod {args.uid} is scheduled again")
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
    """Accept a pod that is already bound to the requested node."""
    if bound != args.node:
        raise Conflict(_subject(args), found=f"the pod is bound to node {bound}", hint="observe it again")
