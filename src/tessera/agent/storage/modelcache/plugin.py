"""The device plugin of a model: a resource of which each device is a mount of the same revision."""

import asyncio
from collections.abc import Awaitable, Callable

from tessera.agent.deviceplugin.offers.listed import ListedResource
from tessera.clients.kubelet import OptionalCalls
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.modeloffers import ModelOffer
from tessera.core.deviceplugin.offers.prefer import PreferenceRequest
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["OfferedModel"]

_ANSWER_S = 10.0
"""The kubelet waits without an end, and starts no other pod meanwhile."""


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
            Unavailable: the revision is not on the disk, or damaged, or the disk does not answer in 10 s.

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
            try:
                async with asyncio.timeout(_ANSWER_S):
                    return await self._respond(self.resource.name, ids[0])
            except TimeoutError:
                raise Unavailable(
                    f"resource {self.resource.name}",
                    found=f"the disk for models has not answered in {_ANSWER_S:.0f} s",
                    hint="see the kernel's log of the node for what its disk does, then recreate the pod",
                ) from None

    async def pre_start(self, ids: tuple[str, ...]) -> None:
        """Do nothing."""
