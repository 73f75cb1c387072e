"""The device plugin of a model: a resource of which each device is a mount of the same revision."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tessera.agent.deviceplugin.offers.listed import ListedResource
from tessera.agent.storage.modelcache.disk import ModelDisk
from tessera.clients.kubelet import OptionalCalls
from tessera.core.deviceplugin.containerresponse import ContainerMount, ContainerResponse
from tessera.core.deviceplugin.offers.modeloffers import ModelOffer, allocated_revisions, mount_path, path_variable
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.core.storage.models.cachedmodels import ModelOnDisk
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["ModelResponses", "OfferedModel"]

_ANSWER_S = 10.0
"""The kubelet waits without an end, and starts no other pod meanwhile."""
_THREADS = 4
"""Containers that are answered at once."""


class OfferedModel(ListedResource[ModelOffer]):
    """The device plugin of a model.

    A device that is still listed, though withdrawn, is answered as well: the kubelet may have chosen it just
    before, and its revision stays on the disk as long. One of a damaged revision is refused.

    Args:
        offer: offered at first.
        respond: returns what a container with a device of this id gets.

    """

    def __init__(self, offer: ModelOffer, respond: Callable[[str, str], Awaitable[ContainerResponse]]) -> None:
        super().__init__(offer)
        self._respond = respond

    @property
    def options(self) -> OptionalCalls:
        """Devices are interchangeable, and nothing is prepared before a container starts."""
        return OptionalCalls(pre_start=False, preferred=False)

    async def prefer(self, desired: PreferenceRequest) -> tuple[str, ...]:
        """Return any."""
        return tuple(sorted(desired.available))[: desired.size]

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        """Return the mount of the revision.

        Raises:
            InvalidInput: a device that is not listed.
            Unavailable: the revision is not on the disk, or damaged, or the disk does not answer.

        """
        with self._call(ids):
            known = {each.id for each in self.listed}
            unknown = next((each for each in ids if each not in known), None)
            if unknown is not None or not ids:
                raise InvalidInput(
                    f"devices of {self.resource.name}",
                    found=("none" if unknown is None else shown(unknown)) + " is not offered",
                    hint="name one that the kubelet was offered",
                )
            return await self._respond(self.resource.name, ids[0])

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Do nothing."""


class ModelResponses:
    """What containers get with devices of models: mounts of the revisions.

    Args:
        disk: the models' folder.
        on_disk: returns a model as observed last.

    """

    def __init__(self, disk: ModelDisk, on_disk: Callable[[str], ModelOnDisk]) -> None:
        self._disk = disk
        self._on_disk = on_disk
        # Threads that hang take none from the rest of the agent.
        self._threads = ThreadPoolExecutor(_THREADS, "model-mounts")
        self._begun: dict[Future[ContainerResponse], tuple[str, float]] = {}
        """The resource of each answer that is still awaited of the disk, and when it began, on the loop's clock."""

    async def respond(self, resource: str, device: str) -> ContainerResponse:
        """Return the mount that a container gets with a device; the agent goes on where the disk is slow.

        Raises:
            Unavailable: its revision is not on the disk, or damaged, or the disk does not answer within 10 s of the
                first request for this resource that it has not answered: while it hangs, further ones are refused
                at once. Once as many hang as there are threads, those for every resource are.

        """
        now_s = asyncio.get_running_loop().time()
        hang = len(self._begun) >= _THREADS
        since_s = min([now_s, *(at_s for of, at_s in self._begun.values() if hang or of == resource)])
        try:
            async with asyncio.timeout_at(since_s + _ANSWER_S):
                await asyncio.sleep(0)  # ends it at once where the disk hangs already
                answer = self._threads.submit(self._respond, resource, device)
                self._begun[answer] = resource, now_s
                answer.add_done_callback(self._begun.pop)
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise Unavailable(
                f"resource {resource}",
                found=f"the disk for models has not answered in {_ANSWER_S:.0f} s",
                hint="see the kernel's log of the node for what its disk does, then recreate the pod",
            ) from None

    def _respond(self, resource: str, device: str) -> ContainerResponse:
        name = resource.removeprefix(MODEL_RESOURCE)
        revision = next(iter(allocated_revisions((device,), self._on_disk(name).revisions)), "")
        try:
            is_there = bool(revision) and self._disk.has(name, revision)
            damage = self._disk.verification(name, revision).damage if is_there else ""
        except OSError:
            is_there, damage = False, ""
        if not is_there:
            raise Unavailable(
                f"model {name}",
                found="the revision that was offered cannot be read on this node any more",
                hint="recreate the pod to use the revision on the disk",
            )
        # The kubelet may have chosen the device just before its revision was found to be damaged.
        if damage:
            raise Unavailable(
                f"model {name}",
                found=f"revision {revision[:12]}: {damage}",
                hint="recreate the pod; it starts when the revision is fetched again",
            )
        self._disk.use(name, revision)
        path = mount_path(name)
        mount = ContainerMount(host_path=str(self._disk.path(name, revision)), container_path=path, read_only=True)
        return ContainerResponse(env=((path_variable(name), path),), mounts=(mount,))

    def close(self) -> None:
        """End at once; containers that are not answered yet are not."""
        self._threads.shutdown(wait=False, cancel_futures=True)
