"""What Tessera asks of a node's container runtime."""

from typing import Protocol

import msgspec

from tessera.api.oci.dockerconfig import Credential
from tessera.core.storage.images.layers import Reference

__all__ = ["LocalImage", "Runtime"]


class LocalImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image that the node has."""

    digest: str
    """What its name stands for here; as in the registry, for all platforms."""
    bytes: int
    """On disk."""
    pinned: bool
    """Whether the kubelet's garbage collection spares it."""


class Runtime(Protocol):
    """A container runtime.

    Raised are `Unavailable` when it does not answer or cannot do it now, and `Unsupported` when it never can.
    """

    async def version(self) -> str:
        """Return its name and version."""
        ...

    async def image(self, reference: Reference) -> LocalImage | None:
        """Return an image by the name that pods use; None where the node has none of this name."""
        ...

    async def pull(self, reference: Reference, digest: str, credential: Credential | None) -> None:
        """Pull an image, and give it its name.

        Args:
            reference: the name.
            digest: what the name shall stand for; empty for what it stands for in the registry now.
            credential: for the registry.

        """
        ...

    async def pin(self, reference: Reference) -> None:
        """Let the kubelet's garbage collection spare an image that the node has; what others pinned stays theirs."""
        ...

    async def unpin(self, name: str) -> None:
        """Take back what `pin` did for the image of this name; nothing happens where it did nothing."""
        ...

    async def pinned(self) -> frozenset[str]:
        """Return the names of the images that `pin` pinned, by whatever process."""
        ...

    async def disk_percent(self) -> int:
        """Return how full the disk is on which images lie."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
