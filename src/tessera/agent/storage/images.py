"""Pulls and pins the images of ImageWarmups on this node, when the controller says so; reports what it has.

The controller writes the desired images and the current pulls to the node's NodeImages. No state is kept
here: pins are labels in the container runtime, and the number of a pull is in the status.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tessera.agent.nodestate.ownobject import create_own
from tessera.api.oci.dockerconfig import RegistryCredential, credential, read_pull_secret
from tessera.api.oci.references import read_reference
from tessera.api.tessera.v1alpha1.imagewarmups import (
    API_VERSION,
    NODE_IMAGES,
    new_node_images,
    node_status,
    read_node_images,
    unanswered_status,
)
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import NODE_IMAGES as KIND
from tessera.clients.kube import SECRETS, Kube, Object, Selection, Store
from tessera.clients.runtime import Runtime
from tessera.core.storage.images.warmup import DesiredImage, ObservedImage, next_steps, observed_image
from tessera.core.usage.ownmetrics import IMAGES
from tessera.core.workload.tesseranames import AGENT
from tessera.errors import InvalidInput, TesseraError, Unavailable, Unsupported
from tessera.log import RepeatedError, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["ImageWarmer"]


class _Pull(NamedTuple):
    """A pull that is going on."""

    report: ObservedImage
    task: asyncio.Task[None]


class ImageWarmer:
    """Reconciles a node's images with its NodeImages; `run` ends when it is canceled.

    Args:
        node: name of the Node object.
        kube: the Kubernetes API.
        runtime: the node's container runtime.
        interval_s: longest pause between two passes.
        now_s: seconds since 1970.

    """

    def __init__(
        self,
        node: str,
        kube: Kube,
        runtime: Runtime,
        *,
        interval_s: float = 30.0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._kube = kube
        self._runtime = runtime
        self._interval_s = interval_s
        self._now_s = now_s
        self._log = logger(node=node)
        self._complain = RepeatedError(self._log, "images_not_followed")
        self._wakeup = WakeUp()
        selection = Selection(fields=(("metadata.name", node),))
        self._store = Store(kube, KIND, selection, wake=self._wakeup.set, on_error=self._complain)
        self._pulls: dict[str, _Pull] = {}
        """Running pulls, by image."""
        self._ended: dict[str, ObservedImage] = {}
        """Result of the last pull of an image."""
        self._problems: dict[str, str] = {}
        """Why an image is not pinned."""
        self._states: Counter[str] = Counter()
        """Images by state, as last reported."""

    async def run(self, measures: Measures) -> None:
        """Run until canceled; while the CRD or the container runtime is missing, wait for it.

        Args:
            measures: counts the node's images.

        """

        def done() -> None:
            measures.turned("images")
            measures.set(IMAGES, {(("state", state),): count for state, count in self._states.items()})

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._store.run(measures))
                await self._store.synced()
                measures.started("images")
                while True:
                    await one_turn(self.reconcile, self._complain, done)
                    await self._wakeup.wait(self._interval_s)
        finally:
            for pull in self._pulls.values():
                pull.task.cancel()
            await self._runtime.close()

    async def reconcile(self) -> None:
        """Reconcile once, and report.

        Raises:
            TesseraError: the API server or the container runtime does not answer.

        """
        # 1. Read the desired images; the object's existence shows that there is an agent.
        found = self._store.objects.get(("", self._node)) or await create_own(
            self._kube, KIND, self._node, new_node_images
        )
        node_images = read_node_images(found)
        former = {each.image: each for each in node_images.observed}
        # 2. Observe the runtime, and the node's images.
        try:
            version, percent = await self._runtime.version(), await self._runtime.disk_percent()
            pinned = await self._runtime.pinned()
        except TesseraError as error:
            await self._report(found, unanswered_status(found.get("status") or {}, str(error)))
            raise
        observed = [await self._observe(each, former.get(each.image)) for each in node_images.desired]
        # 3. Pull, pin and unpin.
        changed, failures = False, {each.image: each.failures for each in observed}
        for step in next_steps(node_images.desired, observed, pinned):
            if step.kind == "pull":
                self._begin(step.image, failures.get(step.image.image, 0))
            else:
                await self._pin(step.image, pinned=step.kind == "pin")
            changed = True
        # 4. Report.
        if changed:
            observed = [await self._observe(each, former.get(each.image)) for each in node_images.desired]
        self._states = Counter(each.state for each in observed)
        await self._report(found, node_status(observed, disk_percent=percent, runtime=version))
        self._complain.clear()

    async def _report(self, node_images: Object, status: Object) -> None:
        if node_images.get("status") != status:
            body = {"apiVersion": API_VERSION, "kind": NODE_IMAGES, "metadata": {"name": self._node}, "status": status}
            await self._kube.apply(KIND, body, manager=AGENT, force=True, subresource="status")

    async def _observe(self, image: DesiredImage, former: ObservedImage | None) -> ObservedImage:
        """Return the observed state of an image; one that is unread, or unknown to the runtime, has failed."""
        name, found, reason = image.image, None, image.unread
        pull = self._pulls.get(name)
        try:
            found = None if pull or reason else await self._runtime.image(read_reference(name))
        except TesseraError as error:
            reason = str(error)
        on_node = ObservedImage(image=name, state="Failed", failed_s=self._now_s(), reason=reason) if reason else None
        if found is not None:
            on_node = ObservedImage(
                image=name,
                state="Present",
                digest=found.digest,
                bytes=found.bytes,
                pinned=found.pinned,
                reason=self._problems.get(name, "") if image.pinned and not found.pinned else "",
            )
        pulling = None if pull is None else pull.report
        return observed_image(image, on_node, pulling=pulling, ended=self._ended.get(name), former=former)

    def _begin(self, image: DesiredImage, failures: int) -> None:
        """Start a pull, in the background, after so many that failed."""
        task = asyncio.create_task(self._pull(image, failures))
        report = ObservedImage(image=image.image, state="Pulling", attempt=image.attempt, failures=failures)
        self._pulls[image.image] = _Pull(report, task)

    async def _pull(self, image: DesiredImage, failures: int) -> None:
        self._log.info("image_pull", image=image.image, digest=image.digest, attempt=image.attempt)
        try:
            await self._runtime.pull(read_reference(image.image), image.digest, await self._credential(image))
        except TesseraError as error:
            self._log.warning("image_not_pulled", image=image.image, attempt=image.attempt, reason=str(error))
            self._ended[image.image] = ObservedImage(
                image=image.image,
                state="Failed",
                attempt=image.attempt,
                failures=failures + 1,
                failed_s=self._now_s(),
                reason=str(error),
            )
        else:
            self._log.info("image_pulled", image=image.image, attempt=image.attempt)
            self._ended[image.image] = ObservedImage(image=image.image, state="Missing", attempt=image.attempt)
        finally:
            self._pulls.pop(image.image, None)
            self._wakeup.set()

    async def _credential(self, image: DesiredImage) -> RegistryCredential | None:
        """Return the credentials for an image; None where its secrets have none.

        Raises:
            TesseraError: a secret cannot be read, or is not a registry's.

        """
        configs = []
        for name in image.secrets:
            found = await self._kube.get(SECRETS, name, NAMESPACE)
            if found is None:
                raise InvalidInput(
                    f"Secret {NAMESPACE}/{name}",
                    found="there is no Secret of this name",
                    hint="create it, or correct the name",
                )
            configs.append(read_pull_secret(found))
        return credential(configs, read_reference(image.image))

    async def _pin(self, image: DesiredImage, *, pinned: bool) -> None:
        """Pin or unpin an image; a failure is in the report."""
        try:
            if pinned:
                await self._runtime.pin(read_reference(image.image))
            else:
                await self._runtime.unpin(image.image)
        except (Unsupported, Unavailable) as error:
            if self._problems.get(image.image) != str(error):
                self._log.warning("image_not_pinned", image=image.image, reason=str(error))
            self._problems[image.image] = str(error)
        else:
            self._problems.pop(image.image, None)
            self._log.info("image_pinned" if pinned else "image_unpinned", image=image.image)
