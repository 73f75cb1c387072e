"""What every implementation of the registry client's Protocol does; each is run through it by a subclass."""

import io
import tarfile
from collections.abc import Sequence

import pytest

from tessera.api.oci.manifests import Descriptor, Platform, digest_of
from tessera.clients.registry import MemoryRegistry, Registry, read_image
from tessera.core.storage.images.layers import Layer, Reference
from tessera.errors import InvalidInput, Unsupported

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


def layer(name: str) -> bytes:
    """Return a layer with one file, not compressed."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(name)
        archive.addfile(info, io.BytesIO(name.encode()))
    return content.getvalue()


STEPS = (("RUN one", layer("first")), ("COPY . /app", layer("second")))
LAYER = "application/vnd.oci.image.layer.v1.tar"


def described(steps: Sequence[tuple[str, bytes]]) -> list[tuple[Descriptor, str]]:
    return [(Descriptor(digest_of(content), len(content), LAYER), step) for step, content in steps]


def filled() -> tuple[MemoryRegistry, tuple[bytes, ...]]:
    """Return a registry with the images of the suite, and the contents of their layers."""
    memory = MemoryRegistry()
    one = memory.push("suite/one", "1", described(STEPS))
    other = memory.push("suite/one", "", described(STEPS[:1]), ARM64)
    memory.push_index("suite/one", "several", [(one, AMD64), (other, ARM64)])
    return memory, tuple(content for _, content in STEPS)


class RegistrySuite:
    """A subclass has the fixtures `registry`, with the images of `filled`, and `host`."""

    async def test_a_tag_and_its_digest_name_the_same(self, registry: Registry, host: str) -> None:
        by_tag = await registry.manifest(Reference(registry=host, repository="suite/one", tag="1"))
        by_digest = await registry.manifest(Reference(registry=host, repository="suite/one", digest=by_tag.digest))
        assert by_tag == by_digest
        assert digest_of(by_tag.content) == by_tag.digest

    async def test_an_image_is_read_for_its_platform(self, registry: Registry, host: str) -> None:
        several = Reference(registry=host, repository="suite/one", tag="several")
        amd, arm = [await read_image(registry, several, each) for each in (AMD64, ARM64)]
        assert amd.digest == arm.digest == (await registry.manifest(several)).digest
        assert [each.digest for each in amd.layers] == [digest_of(content) for _, content in STEPS]
        assert amd.layers[0] == Layer(digest=digest_of(STEPS[0][1]), bytes=len(STEPS[0][1]), step="one")
        assert (amd.platform, arm.platform, len(arm.layers)) == ("linux/amd64", "linux/arm64", 1)

    async def test_an_image_of_one_platform_is_no_other_ones(self, registry: Registry, host: str) -> None:
        with pytest.raises(Unsupported, match=r"linux/amd64.*: name an image for linux/arm64"):
            await read_image(registry, Reference(registry=host, repository="suite/one", tag="1"), ARM64)

    @pytest.mark.parametrize(("repository", "tag"), [("suite/one", "2"), ("suite/none", "1")])
    async def test_what_is_not_there_is_named(self, registry: Registry, host: str, repository: str, tag: str) -> None:
        with pytest.raises(InvalidInput, match=f"{repository}:{tag}: no such image"):
            await registry.manifest(Reference(registry=host, repository=repository, tag=tag))

    async def test_content_that_is_not_there_is_named(self, registry: Registry, host: str) -> None:
        with pytest.raises(InvalidInput, match="suite/one"):
            await registry.blob(Reference(registry=host, repository="suite/one", tag="1"), digest_of(b"none"))
