"""An in-memory registry, for tests and demos."""

from collections.abc import Sequence

import msgspec

from tessera.api.oci.manifests import (
    INDEX,
    MANIFEST,
    BuildStep,
    Config,
    Descriptor,
    ImageManifest,
    Index,
    Platform,
    digest_of,
)
from tessera.clients.registry.protocol import RegistryContent
from tessera.core.storage.images.layers import Reference
from tessera.errors import InvalidInput

__all__ = ["MemoryRegistry"]

_LINUX = Platform("linux", "amd64")


class MemoryRegistry:
    """Pushed images, under any host."""

    def __init__(self) -> None:
        self.contents: dict[tuple[str, str], RegistryContent] = {}
        """Manifests by repository, and tag or digest."""
        self.blobs: dict[str, bytes] = {}
        """Configurations by digest; of layers only the size."""

    async def manifest(self, reference: Reference) -> RegistryContent:
        """Return the manifest or index of an image's name."""
        found = self.contents.get((reference.repository, reference.digest or reference.tag))
        if found is None:
            raise InvalidInput(f"image {reference.name}", found="no such image", hint="check its name and tag")
        return found

    async def blob(self, reference: Reference, digest: str) -> bytes:
        """Return a configuration."""
        if digest not in self.blobs:
            raise InvalidInput(
                f"image {reference.name}", found=f"the registry has no content {digest}", hint="push the image again"
            )
        return self.blobs[digest]

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def push(
        self, repository: str, tag: str, layers: Sequence[tuple[Descriptor, str]], platform: Platform = _LINUX
    ) -> RegistryContent:
        """Push an image, and return its manifest.

        Args:
            repository: without the host.
            tag: empty to name it only by its digest.
            layers: each with the text of its build step; the lowest first.
            platform: of the image.

        """
        config = Config(
            architecture=platform.architecture,
            os=platform.os,
            variant=platform.variant,
            history=tuple(BuildStep(created_by=text) for _, text in layers),
        )
        # The digests of uncompressed layers, which a container runtime verifies.
        rootfs = {"type": "layers", "diff_ids": [each.digest for each, _ in layers]}
        content = msgspec.json.encode({**msgspec.to_builtins(config), "rootfs": rootfs})
        described = Descriptor(digest_of(content), len(content), "application/vnd.oci.image.config.v1+json")
        self.blobs[described.digest] = content
        return self._keep(repository, tag, ImageManifest(described, tuple(each for each, _ in layers)))

    def push_index(
        self, repository: str, tag: str, images: Sequence[tuple[RegistryContent, Platform]]
    ) -> RegistryContent:
        """Push an index of images that were pushed, and return it."""
        listed = (
            Descriptor(each.digest, len(each.content), each.media_type, platform=platform) for each, platform in images
        )
        return self._keep(repository, tag, Index(tuple(listed)))

    def _keep(self, repository: str, tag: str, record: Index | ImageManifest) -> RegistryContent:
        written = {"schemaVersion": 2, **msgspec.to_builtins(record)}
        media_type = INDEX if isinstance(record, Index) else MANIFEST
        content = msgspec.json.encode(written | {"mediaType": media_type})
        kept = RegistryContent(digest_of(content), media_type, content)
        for name in filter(None, (tag, kept.digest)):
            self.contents[repository, name] = kept
        return kept
