"""The ImageWarmup controller: which node pulls which image next. Observe, plan by `core.storage.images.warmup`, apply.

It writes the desired images and the current pulls to each node's NodeImages, and the status of each ImageWarmup and
Environment.
It remembers when pulls were started; after a restart it counts from its own start.
"""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from tessera.api import documents
from tessera.api.fields import Field
from tessera.api.kubernetes.images import images_of
from tessera.api.oci.references import read_reference
from tessera.api.tessera.v1alpha1.environments import (
    Environment,
    EnvironmentStatus,
    last_valid_environment,
    read_environment,
)
from tessera.api.tessera.v1alpha1.imagewarmups import (
    IMAGE_WARMUP,
    ImageWarmupStatus,
    node_spec,
    read_image_warmup,
    read_node_images,
    readable_status,
    warmup_status,
)
from tessera.api.tessera.v1alpha1.objects import refused_status, subject_of
from tessera.clients.kube import ENVIRONMENTS, IMAGE_WARMUPS, NODE_IMAGES, PODS, Kube, Object, Selection, Store
from tessera.controller.reconciler import Reconciler
from tessera.core.storage.images.warmup import (
    DesiredImage,
    NodeImages,
    Turn,
    image_nodes,
    plan_warmups,
    summarize_warmup,
)
from tessera.errors import InvalidInput

__all__ = ["ImageWarmups"]

_UNBOUND = Selection(fields=(("spec.nodeName", ""),))


class ImageWarmups(Reconciler):
    """Reconciles the ImageWarmups of all nodes; `run` ends when it is canceled.

    Args:
        kube: the Kubernetes API.
        nodes: the Node objects, watched by the caller.
        now: the wall clock.
        least_s: shortest pause between two passes, however much changes.

    """

    def __init__(
        self,
        kube: Kube,
        nodes: Store,
        *,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        least_s: float = 1.0,
    ) -> None:
        kinds = {IMAGE_WARMUPS: Selection(), ENVIRONMENTS: Selection(), NODE_IMAGES: Selection(), PODS: _UNBOUND}
        super().__init__(kube, nodes, kinds, "image_warmups", now=now, least_s=least_s)
        self._turns: dict[Turn, float] = {}

    async def reconcile(self) -> None:
        """Reconcile all ImageWarmups once.

        Raises:
            TesseraError: a write failed; earlier writes stay.

        """
        now = self._now()
        # 1. Read the nodes with an agent, the environments, the warmups, and the images of pending pods.
        nodes = self.read_nodes(NODE_IMAGES, lambda each, ready: read_node_images(each, ready=ready))
        names = {each.name for each in nodes}
        environments = self._environments()
        known, refused = self.read_selecting(
            IMAGE_WARMUPS,
            partial(read_image_warmup, environments=environments),
            lambda each: each.spec.node_selector,
            names,
        )
        demand = _demand(self.objects(PODS).values())
        # 2. Plan, and write the desired images of each node.
        warmups = [core for _, core in known]
        retained = _retained([found for found, _ in refused], nodes)
        # In a thread: with thousands of nodes this takes a second, and the Lease must be renewed meanwhile.
        plan = partial(plan_warmups, warmups, nodes, demand, self._turns, now.timestamp(), retained=retained)
        desired = await asyncio.to_thread(plan)
        for node in nodes:
            if desired[node.name] != node.desired:
                await self._write_node(node.name, desired[node.name])
        turns = [Turn(name, each.image, each.attempt) for name, images in desired.items() for each in images]
        self._turns = {each: self._turns.get(each, now.timestamp()) for each in turns if each.attempt}
        # 3. Write the status of each warmup and environment.
        for each, core in known:
            status = warmup_status(each, summarize_warmup(core, nodes, demand), now)
            await self.write_status(IMAGE_WARMUPS, each.metadata.name, each.status, status)
        for found, problem in refused:
            if readable_status(found) is None:  # it stays: it has what the nodes keep
                cause = f"this version can read neither its status nor its spec ({problem})"
                hint = "make its spec valid, or upgrade Tessera"
                self._complain_once(InvalidInput(subject_of(IMAGE_WARMUP, found), found=cause, hint=hint))
                continue
            await self.write_refused(
                IMAGE_WARMUPS, found, ImageWarmupStatus, partial(refused_status, problem=problem, now=now)
            )
        for one in environments:
            selected, ready = image_nodes(one.full_image, warmups, nodes)
            reported = EnvironmentStatus(nodes=selected, ready=ready, image=one.image)
            await self.write_status(ENVIRONMENTS, one.name, one.status, reported)

    def _environments(self) -> list[Environment]:
        """Return the Environments in order of their names, invalid ones with their last valid image."""
        found = list[Environment | None]()
        for _, each in sorted(self.objects(ENVIRONMENTS).items()):
            try:
                found.append(read_environment(each))
            except InvalidInput as error:
                self._complain_once(error)
                found.append(last_valid_environment(each))
        return [each for each in found if each is not None]

    async def _write_node(self, name: str, desired: tuple[DesiredImage, ...]) -> None:
        await self.write(NODE_IMAGES, name, spec=node_spec(desired))
        turns = [each.image for each in desired if each.attempt]
        self._log.info("node_images_written", node=name, images=len(desired), turns=turns)


def _retained(refused: Iterable[Object], nodes: Sequence[NodeImages]) -> set[str]:
    """Return what invalid ImageWarmups list by their statuses; of an unreadable status all that any node has."""
    found = set[str]()
    for each in refused:
        status = readable_status(each)
        if status is None:
            return {image.image for node in nodes for image in node.desired}
        found |= {image.image for image in status.images}
    return found


def _demand(pods: Iterable[Object]) -> Counter[str]:
    """Return how many pods need each image, by its full name; invalid names are skipped."""
    found = Counter[str]()
    for pod in pods:
        document = documents.Document(source="pod", number=1, data=pod, first_line=1)
        for text in images_of((Field(document, pod),)):
            try:
                found[read_reference(text).name] += 1
            except InvalidInput:
                continue
    return found
