"""The registry client over HTTP: tokens, redirects, and registries that misbehave."""

from collections.abc import AsyncIterator

import pytest

from conformance.registrysuite import AMD64, RegistrySuite, filled
from harness.httpserver import Asked, answer, chunked, serving
from harness.registryserver import RegistryServer, headed, serving_registry
from tessera.api.oci.dockerconfig import read_docker_config
from tessera.api.oci.manifests import MANIFEST
from tessera.clients.connections import HttpResponse
from tessera.clients.registry import HttpRegistry, Keychain, Registry, read_image
from tessera.core.storage.images.layers import Reference
from tessera.errors import TesseraError, Unavailable, Unsupported

pytestmark = pytest.mark.anyio

CONTENT = filled()[0].contents["suite/one", "1"]


@pytest.fixture
async def served() -> AsyncIterator[RegistryServer]:
    async with serving_registry(filled()[0]) as served:
        yield served


@pytest.fixture
async def registry() -> AsyncIterator[HttpRegistry]:
    async with HttpRegistry() as client:
        yield client


def one(served: RegistryServer, tag: str = "1") -> Reference:
    return Reference(registry=served.host, repository="suite/one", tag=tag)


class TestHttpRegistry(RegistrySuite):
    @pytest.fixture
    def host(self, served: RegistryServer) -> str:
        return served.host

    @pytest.fixture
    def registry(self, registry: HttpRegistry) -> Registry:
        return registry


def keychain(host: str, entry: str) -> Keychain:
    return Keychain(read_docker_config(f'{{"auths": {{"{host}": {entry}}}}}'.encode(), "test"))


ENTRIES = {
    "user and password": ('{"username": "user", "password": "a:b"}', "user:a:b"),
    "identity token": ('{"identitytoken": "secret"}', "secret"),
}


@pytest.mark.parametrize("case", ENTRIES)
async def test_a_token_is_had_once_for_a_repository(served: RegistryServer, case: str) -> None:
    entry, served.user = ENTRIES[case]
    async with HttpRegistry(keychain(served.host, entry)) as client:
        assert (await read_image(client, one(served, "several"), AMD64)).bytes
    assert len([each for each in served.server.requested if each.target.startswith("/token")]) == 1


async def test_without_the_right_to_pull_it_says_how_to_get_it(served: RegistryServer, registry: HttpRegistry) -> None:
    served.user = "user:password"
    with pytest.raises(Unavailable, match=f"HTTP 401.*docker login {served.host}"):
        await registry.manifest(one(served))
    async with HttpRegistry(keychain(served.host, '{"username": "user", "password": "wrong"}')) as client:
        with pytest.raises(Unavailable, match="HTTP 401") as caught:
            await client.manifest(one(served))
    assert "wrong" not in str(caught.value)


async def test_basic_credentials_are_sent_where_they_are_asked_for(served: RegistryServer) -> None:
    def spoil(requested: Asked) -> bytes | None:
        return (
            None
            if requested.headers.get("authorization", "").startswith("Basic ")
            else headed("401 No", "WWW-Authenticate: Basic realm=x")
        )

    served.spoil = spoil
    async with HttpRegistry(keychain(served.host, '{"username": "user", "password": "p"}')) as client:
        assert await client.manifest(one(served)) == CONTENT
    async with HttpRegistry() as client:
        with pytest.raises(Unavailable, match="HTTP 401"):
            await client.manifest(one(served))


async def test_a_redirect_to_another_server_gets_no_credentials(served: RegistryServer) -> None:
    served.user = "user:p"
    async with serving(lambda _: answer(CONTENT.content, content_type=MANIFEST)) as store:

        def spoil(requested: Asked) -> bytes | None:
            to_store = "/manifests/" in requested.target and "authorization" in requested.headers
            return headed("307 Temporary Redirect", f"Location: {store.url}/blob?signed=1") if to_store else None

        served.spoil = spoil
        async with HttpRegistry(keychain(served.host, '{"username": "user", "password": "p"}')) as client:
            assert await client.manifest(one(served)) == CONTENT
        assert [each.target for each in store.requested] == ["/blob?signed=1"]
        assert "authorization" not in store.requested[0].headers


async def test_a_login_that_the_target_of_a_redirect_demands_is_not_begun(served: RegistryServer) -> None:
    served.user = "user:p"

    def demanding(_asked: Asked) -> bytes:
        return headed("401 Unauthorized", f'WWW-Authenticate: Bearer realm="{store.url}/token"')

    async with serving(demanding) as store:

        def spoil(requested: Asked) -> bytes | None:
            redirected = "/manifests/" in requested.target and "authorization" in requested.headers
            return headed("307 Temporary Redirect", f"Location: {store.url}/blob") if redirected else None

        served.spoil = spoil
        async with HttpRegistry(keychain(served.host, '{"username": "user", "password": "p"}')) as client:
            with pytest.raises(Unavailable, match=r"to which it redirects, requests a login \(HTTP 401\)"):
                await client.manifest(one(served))
        assert [each.target for each in store.requested] == ["/blob"], "no token is requested there"


MISBEHAVING: dict[str, tuple[bytes | None, type[TesseraError], str]] = {
    "an endless answer": (chunked(*[b"x" * (1 << 20)] * 6), Unavailable, "more than 4194304 bytes"),
    "a redirect in a circle": (
        headed("307 Temporary Redirect", "Location: /v2/"),
        Unavailable,
        "more than 5 times: name",
    ),
    "a redirect to nowhere": (headed("302 Found"), Unavailable, "more than 5 times: name"),
    "a redirect out of HTTP": (
        headed("302 Found", "Location: file:///etc/passwd"),
        Unavailable,
        "redirects to 'file:///etc/passwd'",
    ),
    "too many requests": (headed("429 Too Many Requests"), Unavailable, "HTTP 429.*try again later"),
    "a failure": (headed("500 Internal Server Error"), Unavailable, "HTTP 500"),
    "an unknown demand": (headed("401 Unauthorized", "WWW-Authenticate: Negotiate"), Unavailable, "Bearer or Basic"),
    "a page": (answer(b"<html>", content_type="text/html"), Unsupported, "media type 'text/html'"),
    "other content than the digest says": (answer(b"{}", content_type=MANIFEST), Unavailable, "layers|config"),
    "a body cut short": (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", Unavailable, "not completed"),
}


@pytest.mark.parametrize("case", MISBEHAVING)
async def test_a_registry_that_misbehaves_is_found_out(
    served: RegistryServer, registry: HttpRegistry, case: str
) -> None:
    raw, error, want = MISBEHAVING[case]
    served.spoil = lambda _: raw
    served.server.hang_up_after_s = 0.1
    with pytest.raises(error, match=want):
        await read_image(registry, one(served), AMD64)


async def test_content_of_another_digest_is_refused(served: RegistryServer, registry: HttpRegistry) -> None:
    served.spoil = lambda _: answer(b"{}", content_type=MANIFEST)
    named = Reference(registry=served.host, repository="suite/one", digest=CONTENT.digest)
    with pytest.raises(
        Unavailable,
        match="the content has digest sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
    ):
        await registry.manifest(named)
    with pytest.raises(Unavailable, match="the content has digest"):
        await registry.blob(named, CONTENT.digest)


async def test_a_registry_is_asked_by_http_only_where_that_was_allowed(served: RegistryServer) -> None:
    """127.0.0.1 needs no permission; the same address written so that it is not known does."""
    host = f"0.0.0.0:{served.server.port}"
    named = Reference(registry=host, repository="suite/one", tag="1")
    async with HttpRegistry() as client:
        with pytest.raises(Unavailable, match="--plain-http HOST"):
            await client.manifest(named)
    async with HttpRegistry(plain=frozenset({host})) as client:
        assert await client.manifest(named) == CONTENT


async def test_a_registry_whose_name_has_no_address_is_said_to_have_none() -> None:
    named = Reference(registry="registry.invalid:5000", repository="a", tag="1")
    async with HttpRegistry() as client:
        with pytest.raises(
            Unavailable, match=r"no address for the name registry\.invalid: check the name, and this machine's DNS"
        ):
            await client.manifest(named)


async def test_a_password_is_not_sent_without_tls_for_a_registry_with_it() -> None:
    refused = HttpResponse(401, b"", {"www-authenticate": 'Bearer realm="http://127.0.0.1:1/token"'})
    named = Reference(registry="registry.example", repository="a", tag="1")
    async with HttpRegistry(keychain("registry.example", '{"username": "user", "password": "p"}')) as client:
        with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1/token', which is not https"):
            await client._authorize(named, refused, plain=False)
