"""What reconcilers of kinds have in common: the objects that they follow, look after look, and what they write."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from tessera.api.kubernetes.conditions import is_true
from tessera.api.tessera.gpupolicies import LabelSelector, selector_term
from tessera.clients.kube import Kind, Kube, Object, Selection, Store, Subresource, labels_of, name_of
from tessera.core.packing.fit.admission import matches
from tessera.core.workload.need import SelectorTerm
from tessera.errors import InvalidInput
from tessera.log import Complaint, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["Following"]

_MANAGER: Final = "tessera-controller"
_LONGEST_S: Final = 10.0

_Node = TypeVar("_Node")
_Wire = TypeVar("_Wire")
_Core = TypeVar("_Core")
_Status = TypeVar("_Status", bound=msgspec.Struct)


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

    async def run(self, reconcile: Callable[[], Awaitable[None]], least_s: float, measures: Measures) -> None:
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
                    await one_turn(reconcile, self.complain, well)
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

    def read_nodes(self, kind: Kind, read: Callable[[Object, bool], _Node]) -> list[_Node]:
        """Return the nodes' own objects of a kind, in the order of their names; one that cannot be read is left out.

        Args:
            kind: of the objects, which have their nodes' names.
            read: returns one, told whether its node is ready.

        """
        found = []
        for (_, name), each in sorted(self.objects(kind).items()):
            try:
                found.append(read(each, self.is_ready(name)))
            except InvalidInput as error:
                self.complain(error)
        return found

    def read_selecting(
        self,
        kind: Kind,
        read: Callable[[Object, frozenset[str]], tuple[_Wire, _Core]],
        selector: Callable[[_Wire], LabelSelector],
        names: set[str],
    ) -> tuple[list[tuple[_Wire, _Core]], list[tuple[Object, str]]]:
        """Return the objects of a kind in the order of their names, and those that cannot be carried out, and why.

        Args:
            kind: of objects that select nodes.
            read: returns one and what is decided by, given the nodes that it selects.
            selector: returns which these are.
            names: of the nodes.

        """
        known, refused = [], []
        for each in sorted(self.objects(kind).values(), key=name_of):
            try:
                found, _ = read(each, frozenset())
                known.append(read(each, self.selected(selector_term(selector(found)), names)))
            except InvalidInput as error:
                refused.append((each, str(error)))
        return known, refused

    async def write_status(self, kind: Kind, name: str, former: _Status, status: _Status) -> None:
        """Write the status of an object where it differs."""
        if status != former:
            await self.write(kind, name, status=msgspec.to_builtins(status))

    async def write_refused(
        self, kind: Kind, each: Object, form: type[_Status], refused: Callable[[_Status, int], _Status]
    ) -> None:
        """Write the status of an object that cannot be carried out.

        Args:
            kind: of the object.
            each: the object.
            form: of its status; a former one that cannot be read counts as none.
            refused: returns the status, given the former one and the generation.

        """
        try:
            former = msgspec.convert(each.get("status") or {}, form)
        except msgspec.ValidationError:
            former = form()
        status = refused(former, each["metadata"].get("generation", 0))
        await self.write_status(kind, each["metadata"]["name"], former, status)

    async def write(self, kind: Kind, name: str, **part: Any) -> None:
        """Write `spec` or `status` of an object."""
        subresource: Subresource = "status" if "status" in part else ""
        body = {"metadata": {"name": name}, **part}
        await self._kube.apply(kind, body, manager=_MANAGER, force=True, subresource=subresource)
