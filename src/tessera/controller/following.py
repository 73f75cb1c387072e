"""What reconcilers of kinds have in common: the objects that they follow, look after look, and what they write."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tessera.api.kubernetes.conditions import is_true
from tessera.clients.kube import Kind, Kube, Object, Selection, Store, Subresource, labels_of
from tessera.core.packing.fit.admission import matches
from tessera.core.workload.need import SelectorTerm
from tessera.log import Complaint, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["Following"]

_MANAGER: Final = "tessera-controller"
_LONGEST_S: Final = 10.0


class Following:
    """The objects of some kinds, and the nodes, as last seen.

    Args:
        kube: the Kubernetes API.
        nodes: the Node objects, which somebody else follows.
        kinds: what is followed besides, and which objects of each.
        what: names the reconciler in the log, as `model_caches`.

    """

    def __init__(self, kube: Kube, nodes: Store, kinds: Mapping[Kind, Selection], what: str) -> None:
        self.complain = Complaint(logger(), f"{what}_not_followed")
        self._kube = kube
        self._nodes = nodes
        self._wakeup = WakeUp()
        nodes.wake_also(self._wakeup.set)
        self._stores = {
            kind: Store(kube, kind, selection, wake=self._wakeup.set, on_trouble=self.complain)
            for kind, selection in kinds.items()
        }
        self._what = what

    async def run(self, look: Callable[[], Awaitable[None]], least_s: float, measures: Measures) -> None:
        """Look when something has changed, and every 10 s, until cancelled; without the kinds wait for them.

        The first look comes when all are known, the nodes too: what is not known yet would count as deleted.
        """

        def well() -> None:
            self.complain.settle()
            measures.turned(self._what)

        try:
            async with asyncio.TaskGroup() as tasks:
                for store in self._stores.values():
                    tasks.create_task(store.run())
                for store in (self._nodes, *self._stores.values()):
                    await store.synced()
                while True:
                    await one_turn(look, self.complain, well)
                    await asyncio.sleep(least_s)
                    await self._wakeup.wait(_LONGEST_S)
        finally:
            measures.stopped(self._what)

    def objects(self, kind: Kind) -> Mapping[tuple[str, str], Object]:
        """Return the objects of a kind, by namespace and name."""
        return self._stores[kind].objects

    def is_ready(self, node: str) -> bool:
        """Return whether a node is there and ready."""
        return is_true(self._node(node), "Ready")

    def selected(self, term: SelectorTerm | None, nodes: set[str]) -> frozenset[str]:
        """Return which of these nodes a selector means; None means all."""
        return frozenset(each for each in nodes if term is None or matches(term, labels_of(self._node(each)), each))

    def _node(self, name: str) -> Object:
        return self._nodes.objects.get(("", name), {})

    async def write(self, kind: Kind, name: str, **part: Any) -> None:
        """Write `spec` or `status` of an object."""
        subresource: Subresource = "status" if "status" in part else ""
        body = {"metadata": {"name": name}, **part}
        await self._kube.apply(kind, body, manager=_MANAGER, force=True, subresource=subresource)
