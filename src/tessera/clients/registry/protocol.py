"""The interface of a registry."""

from typing import Protocol

import msgspec

from tessera.api.oci.manifests import Index, Platform, choose, image, read_config, read_manifest
from tessera.core.storage.images.layers import Image, Reference
from tessera.errors import Unsupported, shown

__all__ = ["Registry", "RegistryContent", "read_image"]


class RegistryContent(msgspec.Struct, frozen=True):
    """A manifest in the registry."""

    digest: str
    media_type: str
    content: bytes


class Registry(Protocol):
    """Registries, each by the host in an image's name. Their answers match the requested digest.

    It raises

    - `InvalidInput` if there is no such image, or the credentials are malformed;
    - `Unavailable` if the registry rejects the request, does not answer, or answers invalid content.
    """

    async def manifest(self, reference: Reference) -> RegistryContent:
        """Return the manifest or index of an image's name: by its digest if it has one, else by its tag."""
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
        Unsupported: it is not for this platform, or not a container image.
        Unavailable: the registry rejects the request, does not answer, or answers invalid content.

    """
    subject = f"image {reference.name}"
    named = await registry.manifest(reference)
    found = read_manifest(named.content, named.media_type, subject)
    if isinstance(found, Index):
        chosen = choose(found, desired, subject)
        one = await registry.manifest(msgspec.structs.replace(reference, digest=chosen.digest))
        found = read_manifest(one.content, one.media_type, subject)
        if isinstance(found, Index):
            raise Unsupported(subject, found="it is an index in an index", hint="name an image of one platform")
    config = read_config(await registry.blob(reference, found.config.digest), subject)
    if not config.platform.serves(desired):
        raise Unsupported(
            subject,
            found=f"it is for {shown(config.platform.name)}, not for {desired.name}",
            hint=f"name an image for {desired.name}",
        )
    return image(reference, named.digest, found, config)
