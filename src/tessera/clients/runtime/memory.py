"""An in-memory container runtime, for tests and demos."""

import msgspec

from tessera.api.oci.dockerconfig import RegistryCredential
from tessera.clients.runtime.protocol import LocalImage
from tessera.core.storage.images.layers import Reference
from tessera.errors import Unavailable

__all__ = ["MemoryRuntime"]


class MemoryRuntime:
    """A node's images, pulled from a mapping of registries."""

    def __init__(self) -> None:
        self.offered: dict[str, tuple[str, int]] = {}
        """Digest and size by full name: the content of registries."""
        self.passwords: dict[str, str] = {}
        """Password by registry, of those that require one."""
        self.images: dict[str, LocalImage] = {}
        """By full name."""
        self.pulls: list[str] = []
        """Pulls in order: names, with the digest if one was requested."""
        self.percent = 0
        self._ours: set[str] = set()

    async def version(self) -> str:
        """Return its name and version."""
        return "memory 1"

    async def image(self, reference: Reference) -> LocalImage | None:
        """Return an image by its name in pods."""
        return self.images.get(reference.name)

    async def pull(self, reference: Reference, digest: str, credential: RegistryCredential | None) -> None:
        """Pull an image, and give it its name."""
        self.pulls.append(reference.at(digest) if digest else reference.name)
        password = self.passwords.get(reference.registry, "")
        if password and (credential is None or credential.password != password):
            raise Unavailable(f"image {reference.name}", found="you have no right to pull it", hint="give credentials")
        known = [each for name, each in self.offered.items() if name == reference.name or each[0] == digest]
        found = next((each for each in known if digest in ("", each[0])), None)
        if found is None:
            raise Unavailable(f"image {reference.name}", found="no such image", hint="check its name and tag")
        self.images[reference.name] = LocalImage(digest=found[0], bytes=found[1], pinned=False)

    async def pin(self, reference: Reference) -> None:
        """Pin an image against garbage collection."""
        found = self.images.get(reference.name)
        if found is None:
            raise Unavailable(f"image {reference.name}", found="this node has none", hint="pull it first")
        if not found.pinned:
            self._ours.add(reference.name)
            self.images[reference.name] = msgspec.structs.replace(found, pinned=True)

    async def unpin(self, name: str) -> None:
        """Undo `pin`."""
        if name in self._ours:
            self._ours.discard(name)
            if name in self.images:
                self.images[name] = msgspec.structs.replace(self.images[name], pinned=False)

    async def pinned(self) -> frozenset[str]:
        """Return the names of the images that `pin` pinned."""
        return frozenset(self._ours & self.images.keys())

    async def disk_percent(self) -> int:
        """Return how full the disk is."""
        return self.percent

    async def close(self) -> None:
        """Do nothing: there is no connection."""
