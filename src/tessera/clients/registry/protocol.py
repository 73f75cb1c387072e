"""What Tessera asks of a registry."""

from typing import Protocol

import msgspec

from tessera.api.oci.manifests import Index, Platform, choose, image, read_config, read_manifest
from tessera.core.storage.images.layers import Image, Reference
from tessera.errors import Unsupported, shown

__all__ = ["Content", "Registry", "read_image"]


class Content(msgspec.Struct, frozen=True):
    """A manifest as the registry has it."""

    digest: str
    media_type: str
    content: bytes


class Registry(Protocol):
    """Registries, each by the host in an image's name. What they send has the digest that was asked for.

    Raised are

    - `InvalidInput` when there is no such image, or the credentials have not the form of any;
    - `Unavailable` when the registry refuses, does not answer, or answers what it must not.
    """

    async def manifest(self, reference: Reference) -> Content:
        """Return what an image's name stands for: its digest where it has one, else its tag."""
        ...

    async def blob(self, reference: Reference, digest: str) -> bytes:
        """Return small content of the image's repository, such as a configuration."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


async def read_image(registry: Registry, reference: Reference, desired: Platform) -> Image:
    """Return an image for a platform.

    Raises:
        InvalidInput: there is no such image.
        Unsupported: it is not for this platform, or no image of a container.
        Unavailable: the registry refuses, does not answer, or answers what it must not.

    """
    subject = f"image {reference.name}"
    named = await registry.manifest(reference)
    found = read_manifest(named.content, named.media_type, subject)
    if isinstance(found, Index):
        chosen = choose(found, desired, subject)
        one = await registry.manifest(msgspec.structs.replace(reference, digest=chosen.digest))
        found = read_manifest(one.content, one.media_type, subject)
        if isinstance(found, Index):
            raise Unsupported(subject, found="an index in an index", expected="an image for each platform")
    config = read_config(await registry.blob(reference, found.config.digest), subject)
    if not config.platform.serves(desired):
        raise Unsupported(
            subject, found=f"an image for {shown(config.platform.name)}", expected=f"one for {desired.name}"
        )
    return image(reference, named.digest, found, config)
