"""ImageWarmups: which node pulls which image next, and how far all are; observe, plan by `core.storage.warmup`, apply.

It writes what a node shall have, and whose turn it is, into the node's NodeImages, and the status of each ImageWarmup.
When turns were given is remembered; a controller that begins anew counts from its start.
"""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec

from tessera.api import documents
from tessera.api.fields import Field
from tessera.api.kubernetes.images import images_of
from tessera.api.oci.references import read_reference
from tessera.api.tessera.gpupolicies import selector_term
from tessera.api.tessera.imagewarmups import (
    API_VERSION,
    ImageWarmup,
    Status,
    node_spec,
    read_image_warmup,
    read_node_images,
    refused_status,
    warmup_status,
)
from tessera.clients.kube import IMAGE_WARMUPS, NODE_IMAGES, PODS, Kube, Object, Selection, Store, labels_of, name_of
from tessera.core.packing.fit.admission import matches
from tessera.core.storage.warmup import DesiredImage, NodeImages, Turn, Warmup, plan, summary
from tessera.errors import InvalidInput, TesseraError
from tessera.log import logger
from tessera.wakeup import WakeUp

__all__ = ["ImageWarmups"]

_MANAGER = "tessera-controller"
_LONGEST_S = 10.0
_UNBOUND = Selection(fields=(("spec.nodeName", ""),))


class ImageWarmups:
    """Decides for all nodes; `run` ends when it is cancelled.

    Args:
        kube: the Kubernetes API.
        nodes: the Node objects as they are now.
        now: the wall clock.
        least_s: shortest pause between two looks, however much changes.

    """

    def __init__(
        self,
        kube: Kube,
        nodes: Callable[[], Mapping[tuple[str, str], Object]],
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        least_s: float = 1.0,
    ) -> None:
        self._least_s = least_s
        self._kube = kube
        self._nodes = nodes
        self._now = now
        self._log = logger()
        self._wakeup = WakeUp()
        self._stores = {
            kind: Store(kube, kind, selection, wake=self._wakeup.set, on_trouble=self._trouble)
            for kind, selection in ((IMAGE_WARMUPS, Selection()), (NODE_IMAGES, Selection()), (PODS, _UNBOUND))
        }
        self._turns: dict[Turn, float] = {}
        self._complaint = ""

    async def run(self) -> None:
        """Run until cancelled; without the kinds wait for them."""
        async with asyncio.TaskGroup() as tasks:
            for store in self._stores.values():
                tasks.create_task(store.run())
            for store in self._stores.values():
                await store.synced()
            while True:
                try:
                    await self.look()
                    self._complaint = ""
                except (TesseraError, TimeoutError) as error:
                    self._trouble(error)
                await asyncio.sleep(self._least_s)
                await self._wakeup.wait(_LONGEST_S)

    def _trouble(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if reason != self._complaint:
            self._complaint = reason
            self._log.warning("image_warmups_not_followed", reason=reason)

    async def look(self) -> None:
        """Look at everything once and do what is to be done.

        Raises:
            TesseraError: something could not be written; what was written before stays.

        """
        now = self._now()
        # 1. Read the nodes that have an agent, the warmups, and what pending pods need.
        nodes, objects = self._read_nodes(), self._stores[IMAGE_WARMUPS].objects.values()
        known, refused = self._read_warmups(objects, {each.name for each in nodes})
        demand = _demand(self._stores[PODS].objects.values())
        # 2. Decide, and write what nodes shall have.
        warmups = [core for _, core in known]
        # In a thread: with thousands of nodes it takes a second, in which the Lease must be renewed.
        desired = await asyncio.to_thread(plan, warmups, nodes, demand, self._turns, now.timestamp())
        for node in nodes:
            if desired[node.name] != node.desired:
                await self._write_node(node.name, desired[node.name])
        given = [Turn(name, each.image, each.attempt) for name, images in desired.items() for each in images]
        self._turns = {each: self._turns.get(each, now.timestamp()) for each in given if each.attempt}
        # 3. Write how far the warmups are.
        for each, core in known:
            await self._write_status(
                each.metadata.name, each.status, warmup_status(each, summary(core, nodes, demand), now)
            )
        for found, problem in refused:
            former = _status(found)
            status = refused_status(found["metadata"].get("generation", 0), problem, former, now)
            await self._write_status(found["metadata"]["name"], former, status)

    def _read_nodes(self) -> list[NodeImages]:
        found = []
        for (_, name), each in sorted(self._stores[NODE_IMAGES].objects.items()):
            try:
                node = read_node_images(each, ready=_is_ready(self._nodes().get(("", name), {})))
            except InvalidInput as error:
                self._trouble(error)
            else:
                found.append(node)
        return found

    def _read_warmups(
        self, objects: Iterable[Object], names: set[str]
    ) -> tuple[list[tuple[ImageWarmup, Warmup]], list[tuple[Object, str]]]:
        """Return the warmups in the order of their names, and those that cannot be carried out, and why."""
        known, refused = [], []
        for each in sorted(objects, key=name_of):
            try:
                found, _ = read_image_warmup(each)
                term = selector_term(found.spec.node_selector)
                selected = frozenset(
                    name
                    for name in names
                    if term is None or matches(term, labels_of(self._nodes().get(("", name), {})), name)
                )
                known.append(read_image_warmup(each, selected))
            except InvalidInput as error:
                refused.append((each, str(error)))
        return known, refused

    async def _write_node(self, name: str, desired: tuple[DesiredImage, ...]) -> None:
        body = {"apiVersion": API_VERSION, "kind": NODE_IMAGES.name, "metadata": {"name": name}}
        await self._kube.apply(NODE_IMAGES, {**body, "spec": node_spec(desired)}, manager=_MANAGER, force=True)
        turns = [each.image for each in desired if each.attempt]
        self._log.info("node_images_written", node=name, images=len(desired), turns=turns)

    async def _write_status(self, name: str, former: Status, status: Status) -> None:
        if status == former:
            return
        body = {"apiVersion": API_VERSION, "kind": IMAGE_WARMUPS.name, "metadata": {"name": name}}
        fields = msgspec.to_builtins(status)
        await self._kube.apply(
            IMAGE_WARMUPS, {**body, "status": fields}, manager=_MANAGER, force=True, subresource="status"
        )


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _demand(pods: Iterable[Object]) -> Counter[str]:
    """Return how many pods need each image, by its full name; a name that is none is nobody's."""
    found = Counter[str]()
    for pod in pods:
        document = documents.Document(source="pod", number=1, data=pod, first_line=1)
        for text in images_of((Field(document, pod),)):
            try:
                found[read_reference(text).name] += 1
            except InvalidInput:
                continue
    return found


def _status(found: Object) -> Status:
    """Return the status that an object has; an unreadable one counts as none."""
    try:
        return msgspec.convert(found.get("status") or {}, Status)
    except msgspec.ValidationError:
        return Status()
