"""Registries over HTTP, by the OCI distribution API.

Source: OCI distribution specification 1.1, sections Pull and Errors.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import Mapping
from typing import Self
from urllib.parse import urlencode, urljoin, urlsplit

from tessera.api.oci.challenges import read_challenge, read_token
from tessera.api.oci.dockerconfig import RegistryCredential
from tessera.api.oci.manifests import ACCEPTED, checked, digest_of
from tessera.clients.connections import Broken, Connections, HttpResponse, NoAddress, Unreachable, reached
from tessera.clients.registry.keychain import Keychain
from tessera.clients.registry.protocol import RegistryContent
from tessera.core.storage.images.layers import Reference
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["HttpRegistry"]

_MOST_BYTES = 4 << 20
"""Largest manifest or configuration. Source: OCI distribution specification, section Pushing Manifests."""
_DEADLINE_S = 30.0
_AT_ONCE = 8
_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_HUB = {"docker.io": "registry-1.docker.io"}
_PORT = re.compile(r":\d+$")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class HttpRegistry:
    """Registries by their hosts: HTTPS, or HTTP if it is allowed or the host is this machine.

    Args:
        keychain: the credentials.
        plain: hosts with HTTP.

    """

    def __init__(self, keychain: Keychain | None = None, *, plain: frozenset[str] = frozenset()) -> None:
        self._keychain = keychain or Keychain()
        self._plain = plain
        self._tls: ssl.SSLContext | None = None
        self._connections: dict[str, Connections] = {}
        self._authorizations: dict[tuple[str, str], str] = {}
        """The header of the last read of a repository."""
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self.close()

    async def manifest(self, reference: Reference) -> RegistryContent:
        """Return the manifest or index of an image's name: by its digest if it has one, else by its tag."""
        target = f"/v2/{reference.repository}/manifests/{reference.digest or reference.tag}"
        answer = await self._read(reference, target, {"Accept": ", ".join(ACCEPTED)})
        if reference.digest:
            checked(answer.content, reference.digest, _subject(reference))
        digest = reference.digest or digest_of(answer.content)
        return RegistryContent(digest, answer.headers.get("content-type", ""), answer.content)

    async def blob(self, reference: Reference, digest: str) -> bytes:
        """Return small content of the image's repository, such as a configuration."""
        answer = await self._read(reference, f"/v2/{reference.repository}/blobs/{digest}", {})
        return checked(answer.content, digest, _subject(reference))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(each.close() for each in self._connections.values()))
        self._connections.clear()

    async def _read(self, reference: Reference, target: str, headers: dict[str, str]) -> HttpResponse:
        """Return a successful answer, with a token if the registry requires one."""
        host = _HUB.get(reference.registry, reference.registry)
        plain = host in self._plain or _PORT.sub("", host) in _LOOPBACK
        url = f"{'http' if plain else 'https'}://{host}{target}"
        known = (reference.registry, reference.repository)
        async with self._turns:
            sent = self._authorizations.get(known, "")
            answer = await self._follow(reference, url, headers, sent)
            if answer.status == _UNAUTHORIZED:
                self._authorizations[known] = await self._authorize(reference, answer, plain=plain)
                answer = await self._follow(reference, url, headers, self._authorizations[known])
        if not answer.success:
            raise _refusal(answer, reference)
        return answer

    async def _authorize(self, reference: Reference, refused: HttpResponse, *, plain: bool) -> str:
        """Return the Authorization header for a registry."""
        subject = _subject(reference)
        challenge = read_challenge(refused.headers.get("www-authenticate", ""), subject)
        credential = await self._keychain.find(reference)
        if challenge.scheme == "basic":
            return _basic(credential) if credential else ""
        if not challenge.realm.startswith("https://") and not plain:
            raise Unavailable(
                subject, found=f"its tokens are at {shown(challenge.realm)}, which is not https", hint=_PLAIN
            )
        requested = {"scope": challenge.scope or f"repository:{reference.repository}:pull"}
        requested |= {"service": challenge.service} if challenge.service else {}
        if credential and credential.identity_token:
            # Source: distribution `docs/content/spec/auth/oauth.md`.
            form = {**requested, "grant_type": "refresh_token", "refresh_token": credential.identity_token}
            body = urlencode({**form, "client_id": "tessera"}).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = await self._ask(challenge.realm, headers, subject, body)
        else:
            headers = {"Authorization": _basic(credential)} if credential else {}
            separator = "&" if "?" in challenge.realm else "?"
            answer = await self._ask(f"{challenge.realm}{separator}{urlencode(requested)}", headers, subject)
        if not answer.success:
            raise _refusal(answer, reference)
        return f"Bearer {read_token(answer.content, subject)}"

    async def _follow(
        self, reference: Reference, url: str, headers: Mapping[str, str], authorization: str
    ) -> HttpResponse:
        """Return the answer after redirects; other servers than the registry get no credentials."""
        origin, subject = _origin(url), _subject(reference)
        for _ in range(_MOST_REDIRECTS):
            mine = {"Authorization": authorization} if authorization and _origin(url) == origin else {}
            answer = await self._ask(url, {**headers, **mine}, subject)
            if answer.status == _UNAUTHORIZED and _origin(url) != origin:  # nobody logs in at its word
                found = f"{_origin(url)}, to which it redirects, requests a login (HTTP {answer.status})"
                raise Unavailable(subject, found=found, hint="try again later, or tell the registry's administrator")
            if answer.status not in _REDIRECTS:
                return answer
            onward = urljoin(url, answer.headers.get("location", ""))
            if not onward.startswith(("https://", f"{urlsplit(url).scheme}://")):
                raise Unavailable(subject, found=f"it redirects to {shown(onward)}, which is not https", hint=_PLAIN)
            url = onward
        raise Unavailable(
            subject, found=f"it redirects more than {_MOST_REDIRECTS} times", hint="name the registry itself"
        )

    async def _ask(self, url: str, headers: Mapping[str, str], subject: str, body: bytes = b"") -> HttpResponse:
        origin = _origin(url)
        try:
            async with asyncio.timeout(_DEADLINE_S):
                connections = self._to(origin)
                if body:
                    return await connections.ask("POST", url.removeprefix(origin), headers, body)
                return await connections.read(url.removeprefix(origin), headers, most=_MOST_BYTES)
        except TimeoutError as error:
            raise Unavailable(
                subject, found=f"no answer from {origin} in {_DEADLINE_S:g} s", hint="try again later"
            ) from error
        except (Unreachable, Broken) as error:
            hint = _PLAIN if origin.startswith("https:") else "check the registry's address, and the way to it"
            if isinstance(error, NoAddress):
                hint = "check the name, and this machine's DNS"
            raise Unavailable(subject, found=f"{origin}: {error}", hint=hint) from error

    def _to(self, origin: str) -> Connections:
        if origin not in self._connections:
            if origin.startswith("https:") and self._tls is None:
                self._tls = ssl.create_default_context()
            self._connections[origin] = Connections(reached(origin), self._tls)
        return self._connections[origin]


_PLAIN = "a registry without TLS needs --plain-http HOST; a private CA is trusted by SSL_CERT_FILE"


def _subject(reference: Reference) -> str:
    return f"image {reference.name}"


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _basic(credential: RegistryCredential) -> str:
    return f"Basic {base64.b64encode(f'{credential.username}:{credential.password}'.encode()).decode()}"


def _refusal(answer: HttpResponse, reference: Reference) -> InvalidInput | Unavailable:
    """Return the error of an answer."""
    subject = _subject(reference)
    if answer.status == _NOT_FOUND:
        return InvalidInput(subject, found="no such image", hint="check its name and tag, and that you may pull it")
    if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
        hint = f"run docker login {reference.registry}, or give --docker-config FILE"
        return Unavailable(subject, found=f"you have no right to pull it (HTTP {answer.status})", hint=hint)
    return Unavailable(subject, found=f"HTTP {answer.status}", hint="try again later")
