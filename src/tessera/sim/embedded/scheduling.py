"""A simplified kube-scheduler: pending pods in order of arrival, filtered by the server and bound."""

import asyncio
from collections import Counter

from tessera.api.scheduler.extender import Args, BindingArgs
from tessera.clients.kube import NODES, PODS, MemoryKube, Object, Store, labels_of, name_of, uid_of
from tessera.errors import TesseraError
from tessera.server.verbs import Verbs
from tessera.sim.embedded.nodes import gpu_limits
from tessera.wakeup import WakeUp

__all__ = ["Scheduling"]

_TURN_S = 1.0


class Scheduling:
    """Places pods, as kube-scheduler does with Tessera's extender.

    Args:
        kube: the Kubernetes API.
        verbs: the server's answers.

    """

    def __init__(self, kube: MemoryKube, verbs: Verbs) -> None:
        self._kube = kube
        self._verbs = verbs
        self._wakeup = WakeUp()
        self._nodes, self._pods = (Store(kube, kind, wake=self._wakeup.set) for kind in (NODES, PODS))

    async def run(self) -> None:
        """Place pods until canceled."""
        async with asyncio.TaskGroup() as tasks:
            for store in (self._nodes, self._pods):
                tasks.create_task(store.run())
                await store.synced()
            while True:
                pods = sorted(self._pods.objects.values(), key=lambda each: int(each["metadata"]["uid"][4:]))
                for each in pods:
                    if not each["spec"].get("nodeName"):
                        await self._place(each)
                await self._wakeup.wait(_TURN_S)
                await asyncio.sleep(_TURN_S / 4)

    async def _place(self, pod: Object) -> None:
        """Bind a pod, or write on it why it is pending."""
        # 1. The nodes that advertise enough, as in kube-scheduler's plugin NodeResourcesFit.
        lacking = {name: self._lacks(name, pod) for _, name in self._nodes.objects}
        names = tuple(name for name, lack in lacking.items() if not lack)
        reasons = Counter(lack for lack in lacking.values() if lack)
        try:
            # 2. Those of them where the server has room, and the best of these.
            args = Args(pod=pod, names=names)
            found = self._verbs.filter(args)
            reasons.update([*found.failed.values(), *found.hopeless.values()])
            if found.fitting:
                scores = self._verbs.prioritize(Args(pod=pod, names=found.fitting))
                best = found.fitting[scores.index(max(scores))]
                namespace, name = name_of(pod)
                await self._verbs.bind(BindingArgs(namespace=namespace, name=name, uid=uid_of(pod), node=best))
                return
        except TesseraError as error:
            reasons[str(error)] += 1
        await self._refuse(pod, reasons)

    def _lacks(self, node: str, pod: Object) -> str:
        """Return why a node does not fit a pod: its labels, or a resource."""
        if not labels_of(self._nodes.objects["", node]).items() >= (pod["spec"].get("nodeSelector") or {}).items():
            return "node(s) didn't match Pod's node affinity/selector"
        allocatable = (self._nodes.objects["", node].get("status") or {}).get("allocatable") or {}
        used = Counter[str]()
        for each in self._pods.objects.values():
            if each["spec"].get("nodeName") == node:
                used.update(gpu_limits(each))
        short = (name for name, count in gpu_limits(pod).items() if int(allocatable.get(name, 0)) - used[name] < count)
        return next((f"Insufficient {name}" for name in short), "")

    async def _refuse(self, pod: Object, reasons: Counter[str]) -> None:
        """Write the condition PodScheduled, as kube-scheduler does."""
        words = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        message = f"0/{len(self._nodes.objects)} nodes are available: {words}."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        namespace, name = name_of(pod)
        if (pod.get("status") or {}).get("conditions") != [condition]:
            status = {"status": {"conditions": [condition]}}
            try:
                await self._kube.patch(PODS, name, status, namespace=namespace, subresource="status")
            except TesseraError:
                return  # it was deleted
