"""kube-scheduler's extender verbs, answered from the view: filter, prioritize, choose, preempt, bind."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tessera.api.gpushare.inspect import gpushare_inspect
from tessera.api.kubernetes.images import pod_images
from tessera.api.scheduler.extender import Args, BindingArgs, Preemption, PreemptionCandidate
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.api.tessera.pods.clusterpods import LivePod
from tessera.core.explain.inspection import inspect
from tessera.core.packing.ledger import Filtered
from tessera.core.packing.preempt import victims
from tessera.server.binder import Binder
from tessera.server.claims.nominations import Nominations
from tessera.server.view import View

__all__ = ["Verbs"]


class Verbs:
    """The extender verbs of a server.

    Args:
        view: the server's view of the cluster.
        nominations: places reserved for pods about to be bound.
        binder: binds.

    """

    def __init__(self, view: View, nominations: Nominations, binder: Binder) -> None:
        self._view = view
        self._nominations = nominations
        self._binder = binder

    def choose(self, args: Args) -> Filtered:
        """Return only the node to which `prioritize` would give 10; `filter`'s answer where there is none.

        The place there is reserved for the pod for a moment.
        """
        # 1. Parse the pod. Where there is no node to choose, `filter` answers.
        live = self._requested_pod(args.pod)
        if not live.gpus or live.wrong:
            return self._filter(args, live)
        # 2. Choose the best node, with the pod's own claims set aside.
        self._view.ledger.arrive(live.uid, live.need)
        with self._view.claims.set_aside(live.uid) as claimed:
            unsuited = self._view.ledger.unsuited(live.need, args.names)
            suited = [name for name in args.names if name not in unsuited] if unsuited else args.names
            best = self._view.ledger.best(live.need, suited, self._images_present(args))
        if best is None:
            return self._filter(args, live)
        # 3. Reserve the place for the pod, unless it is claimed already.
        if live.claiming and best not in claimed:
            self._nominations.add(live.uid, live.key, live.need, best)
        return Filtered((best,), {}, {})

    def filter(self, args: Args) -> Filtered:
        """Return the nodes on which a pod fits, and why it does not fit on the others.

        Pods without GPUs fit everywhere. Those that request devices by name alone fit where a device of the name is
        what the pod restricts it to; how many are free the kubelet counts.
        """
        return self._filter(args, self._requested_pod(args.pod))

    def _filter(self, args: Args, live: LivePod) -> Filtered:
        # 1. Answer for pods whose devices the kubelet counts, and for invalid requests.
        if not live.gpus:
            return Filtered(args.names, {}, {})
        if live.wrong:
            return Filtered((), {}, dict.fromkeys(args.names, live.wrong))
        self._view.ledger.arrive(live.uid, live.need)
        # 2. Ask the ledger, with the pod's own claims set aside.
        with self._view.claims.set_aside(live.uid) as claimed:
            unsuited = {name: each.text for name, each in self._view.ledger.unsuited(live.need, args.names).items()}
            suited = tuple(name for name in args.names if name not in unsuited)
            if not live.claiming:
                return Filtered(suited, {}, unsuited)
            found = self._view.ledger.filter(live.need, suited)
            found = found._replace(hopeless=found.hopeless | unsuited)
        # 3. Reserve the place if only one node is left: kube-scheduler asks for no scores then.
        if len(found.fitting) == 1 and found.fitting[0] not in claimed:
            self._nominations.add(live.uid, live.key, live.need, found.fitting[0])
        return found

    def prioritize(self, args: Args) -> tuple[int, ...]:
        """Return a score from 0 to 10 for each node; one has 10, and is reserved for the pod for a moment."""
        # 1. Parse the pod. Without GPUs all nodes are equal.
        live = self._requested_pod(args.pod)
        if not live.gpus or live.wrong or not args.names:
            return (0,) * len(args.names)
        # 2. Score the nodes, with the pod's own claims set aside.
        with self._view.claims.set_aside(live.uid) as claimed:
            scores = self._view.ledger.scores(live.need, args.names, self._images_present(args))
        # 3. Reserve the place on the best node for the pod, unless it is claimed already.
        best = args.names[scores.index(max(scores))]
        if live.claiming and max(scores) and best not in claimed:
            self._nominations.add(live.uid, live.key, live.need, best)
        return scores

    def preempt(self, requested: Preemption) -> tuple[PreemptionCandidate, ...]:
        """Return the nodes where evicting pods helps, each with its cheapest sufficient set of victims.

        Victims of kube-scheduler that are not needed are left out; it counts units, not devices.
        """
        live = self._requested_pod(requested.pod)
        if live.gpus and live.wrong:
            return ()
        # The pod's own claims are set aside: the memory is its own, and no pod is evicted for it.
        with self._view.claims.set_aside(live.uid):
            unsuited = self._view.ledger.unsuited(live.need, [each.node for each in requested.candidates])
            suited = tuple(each for each in requested.candidates if each.node not in unsuited)
            if not live.claiming:
                return suited
            found = [self._victims(live, each) for each in suited]
        return tuple(each for each in found if each is not None)

    def _victims(self, live: LivePod, candidate: PreemptionCandidate) -> PreemptionCandidate | None:
        ledger, node = self._view.ledger, candidate.node
        removable = (
            str(holder.id) for holder in ledger.pods_on(node) if self._view.pods.live_pod(holder.id) is not None
        )
        chosen = victims(ledger, live.need, live.priority, node, removable)
        if not chosen:  # no eviction helps; or none is needed, and then preemption is not the answer
            return None
        return PreemptionCandidate(node=node, victims=chosen, violations=min(candidate.violations, len(chosen)))

    async def bind(self, args: BindingArgs) -> None:
        """Bind a pod, see `Binder.bind`."""
        await self._binder.bind(args)

    async def inspect(self, node: str = "") -> bytes:
        """Return GPU usage in gpushare's format, of one node or of all."""
        objects, authority = self._view.objects(node), self._view.keys.authority

        def inspected() -> bytes:
            return gpushare_inspect(inspect(read_cluster(as_fields(objects), authority=authority)), node)

        return await asyncio.to_thread(inspected)

    def _images_present(self, args: Args) -> Mapping[str, int]:
        return self._view.images.bytes_present(pod_images(args.pod))

    def _requested_pod(self, pod: Mapping[str, Any]) -> LivePod:
        """Return the parsed pod of a request; drop its nomination, and expired ones."""
        live = self._view.pods.read(dict(pod))
        self._view.pods.drop_expired()
        self._nominations.drop_expired()
        self._nominations.drop(live.uid)
        return live
