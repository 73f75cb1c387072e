"""What every implementation of the container runtime's Protocol does; each is run through it by a subclass."""

import pytest

from tessera.api.oci.dockerconfig import RegistryCredential
from tessera.clients.runtime import Runtime
from tessera.core.storage.images.layers import Reference
from tessera.errors import Unavailable

USER, PASSWORD = "suite", "secret-of-suite"


class RuntimeSuite:
    """A subclass has the fixtures `runtime`, `host` and `locked`, a registry that wants USER and PASSWORD.

    Both registries have suite/one with the tags 1 and several, and `digests` says what these are.
    """

    @pytest.fixture
    def one(self, host: str) -> Reference:
        return Reference(registry=host, repository="suite/one", tag="1")

    async def test_it_says_what_it_is(self, runtime: Runtime) -> None:
        name, _, version = (await runtime.version()).partition(" ")
        assert name
        assert version
        assert 0 <= await runtime.disk_percent() <= 100

    async def test_an_image_is_there_under_its_name_when_it_was_pulled(
        self, runtime: Runtime, one: Reference, digests: dict[str, str]
    ) -> None:
        assert await runtime.image(one) is None
        await runtime.pull(one, "", None)
        found = await runtime.image(one)
        assert found is not None
        assert (found.digest, found.pinned) == (digests["1"], False)
        assert found.bytes > 0
        await runtime.pull(one, "", None)
        assert await runtime.image(one) == found

    async def test_a_digest_is_pulled_and_named(self, runtime: Runtime, host: str, digests: dict[str, str]) -> None:
        """The name stands for the digest that was asked for, whatever it stood for here or stands for elsewhere."""
        several = Reference(registry=host, repository="suite/one", tag="several")
        for digest in (digests["several"], digests["1"], digests["1"]):
            await runtime.pull(several, digest, None)
            found = await runtime.image(several)
            assert found is not None
            assert found.digest == digest

    async def test_what_cannot_be_pulled_says_why(self, runtime: Runtime, host: str) -> None:
        gone = Reference(registry=host, repository="suite/one", tag="gone")
        with pytest.raises(Unavailable, match="suite/one:gone"):
            await runtime.pull(gone, "", None)
        assert await runtime.image(gone) is None
        with pytest.raises(Unavailable, match="suite/one:gone"):
            await runtime.pin(gone)

    async def test_credentials_are_used(self, runtime: Runtime, locked: str) -> None:
        one = Reference(registry=locked, repository="suite/one", tag="1")
        for credential in (None, RegistryCredential(username=USER, password="wrong")):
            with pytest.raises(Unavailable) as caught:
                await runtime.pull(one, "", credential)
            assert "wrong" not in str(caught.value)
        await runtime.pull(one, "", RegistryCredential(username=USER, password=PASSWORD))
        assert await runtime.image(one) is not None

    async def test_a_pin_holds_until_it_is_taken_back(self, runtime: Runtime, one: Reference) -> None:
        await runtime.pull(one, "", None)
        for _ in range(2):
            await runtime.pin(one)
            assert await self.is_pinned(runtime, one, want=True)
            assert await runtime.pinned() == {one.name}
        await runtime.unpin("registry.example/other:1")
        assert await runtime.pinned() == {one.name}
        for _ in range(2):
            await runtime.unpin(one.name)
            assert not await self.is_pinned(runtime, one, want=False)
            assert await runtime.pinned() == frozenset()

    async def test_each_name_of_an_image_has_a_pin_of_its_own(
        self, runtime: Runtime, host: str, one: Reference, digests: dict[str, str]
    ) -> None:
        other = Reference(registry=host, repository="suite/one", tag="several")
        await runtime.pull(one, "", None)
        await runtime.pull(other, digests["1"], None)
        await runtime.pin(one)
        assert await self.is_pinned(runtime, one, want=True)
        assert not await self.is_pinned(runtime, other, want=False)
        await runtime.pin(other)
        await runtime.unpin(one.name)
        assert await self.is_pinned(runtime, other, want=True)
        assert not await self.is_pinned(runtime, one, want=False)
        assert await runtime.pinned() == {other.name}

    async def is_pinned(self, runtime: Runtime, image: Reference, *, want: bool) -> bool:
        """Return whether an image is pinned; a subclass waits for what is wanted where that takes a while."""
        del want
        found = await runtime.image(image)
        assert found is not None
        return found.pinned
