"""What reconcilers of custom resources share that select nodes: watched objects, the reconcile loop, status writes."""

import abc
import asyncio
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from tessera.api.kubernetes.conditions import is_true
from tessera.api.tessera.v1alpha1.gpupolicies import LabelSelector, selector_term
from tessera.clients.kube import Kind, Kube, Object, Selection, Store, Subresource, labels_of, name_of
from tessera.core.packing.fit.admission import matches
from tessera.core.workload.need import SelectorTerm
from tessera.core.workload.tesseranames import CONTROLLER
from tessera.errors import InvalidInput
from tessera.log import RepeatedError, RepeatedErrors, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["Reconciler"]

_LONGEST_S: Final = 10.0

_Node = TypeVar("_Node")
_Wire = TypeVar("_Wire")
_Core = TypeVar("_Core")
_Status = TypeVar("_Status", bound=msgspec.Struct)


class Reconciler(abc.ABC):
    """Reconciles custom resources that select nodes; `run` ends when it is canceled.

    Args:
        kube: the Kubernetes API.
        nodes: the Node objects, watched by the caller.
        kinds: the kinds to watch besides nodes, with a selection for each.
        what: name of the reconciler in logs and metrics, as `model_caches`.
        now: the wall clock.
        least_s: shortest pause between two passes, however much changes.

    """

    def __init__(
        self,
        kube: Kube,
        nodes: Store,
        kinds: Mapping[Kind, Selection],
        what: str,
        *,
        now: Callable[[], dt.datetime],
        least_s: float,
    ) -> None:
        self._now = now
        self._least_s = least_s
        self._log = logger()
        self._complain = RepeatedError(self._log, f"{what}_not_followed")
        self._complain_once = RepeatedErrors(self._log, "object_not_read")
        self._kube = kube
        self._nodes = nodes
        self._wakeup = WakeUp()
        nodes.wake_also(self._wakeup.set)
        self._stores = {
            kind: Store(kube, kind, selection, wake=self._wakeup.set, on_error=self._complain)
            for kind, selection in kinds.items()
        }
        self._what = what

    @abc.abstractmethod
    async def reconcile(self) -> None:
        """Reconcile all objects once.

        Raises:
            TesseraError: a write failed; earlier writes stay.

        """

    async def run(self, measures: Measures) -> None:
        """Reconcile on every change, and every 10 s, until canceled; while a CRD is not installed, wait for it.

        The first pass starts once all stores and the nodes are synced: an object not listed yet would count as deleted.
        """

        def passed() -> None:
            self._complain.clear()
            measures.turned(self._what)

        try:
            async with asyncio.TaskGroup() as tasks:
                for store in self._stores.values():
                    tasks.create_task(store.run())
                for store in (self._nodes, *self._stores.values()):
                    await store.synced()
                measures.started(self._what)
                while True:
                    await one_turn(self.reconcile, self._complain, passed)
                    await asyncio.sleep(self._least_s)
                    await self._wakeup.wait(_LONGEST_S)
        finally:
            measures.stopped(self._what)

    def objects(self, kind: Kind) -> Mapping[tuple[str, str], Object]:
        """Return the objects of a kind, by namespace and name."""
        return self._stores[kind].objects

    def is_ready(self, node: str) -> bool:
        """Return whether a node exists and is ready."""
        return is_true(self._node(node), "Ready")

    def selected(self, term: SelectorTerm | None, nodes: set[str]) -> frozenset[str]:
        """Return which of these nodes a node selector term matches; None matches all."""
        return frozenset(each for each in nodes if term is None or matches(term, labels_of(self._node(each)), each))

    def _node(self, name: str) -> Object:
        return self._nodes.objects.get(("", name), {})

    def read_nodes(self, kind: Kind, read: Callable[[Object, bool], _Node]) -> list[_Node]:
        """Return the per-node objects of a kind, ordered by name; unreadable ones are left out.

        Args:
            kind: of the objects, which are named like their nodes.
            read: parses one; its second argument is whether the node is ready.

        """
        found = []
        for (_, name), each in sorted(self.objects(kind).items()):
            try:
                found.append(read(each, self.is_ready(name)))
            except InvalidInput as error:
                self._complain_once(error)
        return found

    def read_selecting(
        self,
        kind: Kind,
        read: Callable[[Object, frozenset[str]], tuple[_Wire, _Core]],
        selector: Callable[[_Wire], LabelSelector],
        names: set[str],
    ) -> tuple[list[tuple[_Wire, _Core]], list[tuple[Object, str]]]:
        """Return the valid objects of a kind, ordered by name, and the reason for each invalid one.

        Args:
            kind: of objects that select nodes.
            read: parses an object; its second argument is the nodes that it selects.
            selector: returns the node selector term of an object.
            names: all nodes.

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
        """Write the status of an object if it changed."""
        if status != former:
            await self.write(kind, name, status=msgspec.to_builtins(status))

    async def write_refused(
        self, kind: Kind, obj: Object, form: type[_Status], refused: Callable[[_Status, int], _Status]
    ) -> None:
        """Write the status of an invalid object.

        Args:
            kind: of the object.
            obj: the object.
            form: record type of the status; a former status that cannot be parsed counts as none.
            refused: returns the new status from the former one and the generation.

        """
        try:
            former = msgspec.convert(obj.get("status") or {}, form)
        except msgspec.ValidationError:
            former = form()
        status = refused(former, obj["metadata"].get("generation", 0))
        await self.write_status(kind, obj["metadata"]["name"], former, status)

    async def write(self, kind: Kind, name: str, **part: Any) -> None:
        """Write the `spec` or `status` of an object."""
        subresource: Subresource = "status" if "status" in part else ""
        body = {"metadata": {"name": name}, **part}
        await self._kube.apply(kind, body, manager=CONTROLLER, force=True, subresource=subresource)
