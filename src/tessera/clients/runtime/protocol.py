"""The interface of a node's container runtime."""

from typing import Protocol

import msgspec

from tessera.api.oci.dockerconfig import RegistryCredential
from tessera.core.storage.images.layers import Reference

__all__ = ["LocalImage", "Runtime"]


class LocalImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image on the node."""

    digest: str
    """Digest of its name on this node; as in the registry, for all platforms."""
    bytes: int
    """On disk."""
    pinned: bool
    """Whether it is protected from the kubelet's garbage collection."""


class Runtime(Protocol):
    """A container runtime.

    Raises `Unavailable` if it does not answer or cannot do it now, and `Unsupported` if it never can.
    """

    async def version(self) -> str:
        """Return its name and version."""
        ...

    async def image(self, reference: Reference) -> LocalImage | None:
        """Return an image by its name in pods; None if the node has none of this name."""
        ...

    async def pull(self, reference: Reference, digest: str, credential: RegistryCredential | None) -> None:
        """Pull an image, and give it its name.

        Args:
            reference: the name.
            digest: the desired one; empty for the registry's current one.
            credential: for the registry.

        """
        ...

    async def pin(self, reference: Reference) -> None:
        """Pin an image of the node against the kubelet's garbage collection; others' pins stay."""
        ...

    async def unpin(self, name: str) -> None:
        """Undo `pin` for the image of this name; idempotent."""
        ...

    async def pinned(self) -> frozenset[str]:
        """Return the names of the images pinned by `pin`, by any process."""
        ...

    async def disk_percent(self) -> int:
        """Return how full the disk with the images is."""
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...
