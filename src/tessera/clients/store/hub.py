"""Repositories of the Hugging Face Hub, at the commit of a name when it is listed.

Source: https://huggingface.co/docs/hub/api and `huggingface_hub` 2.4, looked up 2026-11-24.
"""

import contextlib
import re
import threading
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from tessera.api.fields import error_phrase
from tessera.clients.store.http1 import Endpoint, Response
from tessera.clients.store.pages import all_pages
from tessera.clients.store.protocol import Contents, Refused, Retry, Temporary, once
from tessera.clients.store.ranges import read_range
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import UNDECODABLE, InvalidInput, shown

__all__ = ["HubStore", "Repository"]

_ADDRESS = re.compile(
    r"(?P<kind>models/|datasets/|)(?P<name>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[\w./%-]{1,200}?))?"
    r"(?:/(?P<folder>.*))?",
    re.ASCII,
)
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HOPS = 5
_REDIRECT, _UNAUTHORIZED, _FORBIDDEN = 300, 401, 403


T = TypeVar("T")


class Repository(NamedTuple):
    """A repository, revision and folder."""

    kind: str
    """`models` or `datasets`."""
    name: str
    revision: str
    """A branch, a tag or a commit."""
    folder: str
    """Without `/` at its ends; empty for the whole repository."""

    @classmethod
    def of_address(cls, rest: str) -> "Repository":
        """Parse the part after `hf://`: `[datasets/]OWNER/NAME[@REVISION][/FOLDER]`; a `/` in a revision is `%2F`.

        Raises:
            InvalidInput: it is something else.

        """
        found = _ADDRESS.fullmatch(rest)
        if found is None:
            desired = "hf://OWNER/NAME, hf://OWNER/NAME@REVISION/FOLDER or hf://datasets/OWNER/NAME"
            raise InvalidInput(
                f"source {shown(f'hf://{rest}')}", found="it names no repository", hint=f"write {desired}"
            )
        revision = (found["revision"] or "main").replace("%2F", "/").replace("%2f", "/")
        return cls(found["kind"].rstrip("/") or "models", found["name"], revision, (found["folder"] or "").strip("/"))


class _Large(msgspec.Struct, frozen=True):
    oid: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    size: Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    type: str
    path: str
    oid: str = ""
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    lfs: _Large | None = None


class _Commit(msgspec.Struct, frozen=True):
    sha: str


class HubStore:
    """The files of a repository, which never change: they are those of one commit.

    Args:
        repository: the repository.
        endpoint: the hub's address.
        token: of a user; empty for public repositories.
        timeout_s: how long a connection may be silent.

    """

    pipelines = False

    def __init__(self, repository: Repository, endpoint: str, token: str, timeout_s: float = 10.0) -> None:
        self._hub = urlsplit(_followed(endpoint.rstrip("/"), ""))
        if self._hub.scheme not in {"http", "https"} or not self._hub.hostname:
            raise InvalidInput(
                "HF_ENDPOINT", found=shown(endpoint), expected="an address such as https://hub.example.com"
            )
        kind, name, revision, folder = repository
        self.source = f"hf://{'' if kind == 'models' else f'{kind}/'}{name}@{revision}/{folder}".rstrip("/")
        self._repository = repository
        self._token = token
        self._timeout_s = timeout_s
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        self._links: dict[str, str] = {}
        self._lock = threading.Lock()
        self._commit = ""

    @property
    def requests(self) -> int:
        """Number of requests, of the hub and of the servers that it redirects to."""
        return sum(each.requests for each in tuple(self._endpoints.values()))

    def objects(self, retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return all files of the revision's current commit."""
        kind, name, revision, folder = self._repository
        top = f"{self._hub.geturl()}/api/{kind}/{name}"
        commit = _decode(self._get(f"{top}/revision/{quote(revision, safe='')}")[0], _Commit).sha
        if not _COMMIT.fullmatch(commit):
            raise Temporary(f"a revision whose commit is {commit[:60]!r}")
        self._commit = commit
        self._links.clear()
        tree = "/".join((f"{top}/tree/{commit}", *(quote(part, safe="") for part in folder.split("/") if part)))
        first = f"{tree}?recursive=true"

        def read(following: str) -> tuple[tuple[_Entry, ...], str | None]:
            address = following or first
            content, more = self._get(address)
            entries = _decode(content, tuple[_Entry, ...])
            return entries, self._below_hub(_followed(address, more)) if more else None

        return tuple(self._object(each) for each in all_pages(read, retry) if each.type == "file")

    def _object(self, entry: _Entry) -> StoredObject:
        folder = self._repository.folder
        if folder and not entry.path.startswith(f"{folder}/"):
            raise Temporary(f"a listing with path {entry.path[:60]!r}")
        path = entry.path.removeprefix(f"{folder}/") if folder else entry.path
        if entry.lfs is not None:
            return StoredObject(path, entry.lfs.size, entry.lfs.oid, f"sha256:{entry.lfs.oid}")
        known = _COMMIT.fullmatch(entry.oid)
        return StoredObject(path, entry.size, entry.oid, f"git:{entry.oid}" if known else "")

    def _get(self, address: str) -> tuple[bytes, str]:
        """Return the content of a URL of the hub's API, and that of the next page; empty for none."""
        with self._request("GET", address) as response:
            if response.status >= _REDIRECT:
                raise Refused(f"status {response.status}: the repository has another name")
            following = _NEXT.search(response.headers.get("link", ""))
            return response.content(), following[1] if following else ""

    def _below_hub(self, address: str) -> str:
        if urlsplit(address)[:2] != self._hub[:2]:
            raise Refused(f"a next page at another host, {shown(urlsplit(address).netloc)}")
        return address

    @contextlib.contextmanager
    def _request(self, method: str, address: str) -> Iterator[Response]:
        endpoint, target, headers = self._parts(address)
        try:
            with endpoint.request(method, target, headers) as response:
                yield response
        except Refused as error:
            if error.status in {_UNAUTHORIZED, _FORBIDDEN}:
                why = "this token may not read it" if self._token else "it needs a token, HF_TOKEN"
                raise Refused(f"{error}: no such repository, or {why}", error.status) from error
            raise

    def _parts(self, address: str) -> tuple[Endpoint, str, dict[str, str]]:
        """Return the server of a URL, the target there, and headers; only the hub gets the token."""
        parts = urlsplit(address)
        if parts.scheme not in {"http", "https"} or (parts.scheme == "http" and self._hub.scheme == "https"):
            raise Refused(f"it leads to {shown(address[:80])}, which is not https")
        with self._lock:
            endpoint = self._endpoints.get((parts.scheme, parts.netloc))
            if endpoint is None:
                endpoint = self._endpoints[parts.scheme, parts.netloc] = Endpoint(parts, self._timeout_s)
        headers = {"Host": endpoint.host, "Accept-Encoding": "identity"}
        if self._token and parts[:2] == self._hub[:2]:
            headers["Authorization"] = f"Bearer {self._token}"
        return endpoint, f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}", headers

    def _link(self, stored: StoredObject) -> str:
        """Return the URL of an object: a large one is elsewhere, at a URL that expires."""
        known = self._links.get(stored.path)
        if known is not None:
            return known
        if not stored.checksum.startswith("sha256:"):
            return self._address(stored)
        address = self._address(stored)
        for _ in range(_HOPS):
            with self._request("HEAD", address) as response:
                if response.status < _REDIRECT:
                    break
                address = _followed(address, response.headers.get("location", ""))
            if urlsplit(address)[:2] != self._hub[:2]:  # it may be signed for GET alone
                break
        else:
            raise Refused(f"more than {_HOPS} redirections")
        self._links[stored.path] = address
        return address

    def _address(self, stored: StoredObject) -> str:
        kind, name, _, folder = self._repository
        path = quote("/".join(part for part in (folder, stored.path) if part), safe="/")
        top = f"{self._hub.geturl()}{'' if kind == 'models' else f'/{kind}'}"
        return f"{top}/{name}/resolve/{self._commit}/{path}"

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield the objects without their content."""
        return ((each, None) for each in objects)

    @contextlib.contextmanager
    def read(self, stored: StoredObject, start: int, stop: int) -> Iterator[Response]:
        """Open a range of a file."""
        endpoint, target, headers = self._parts(self._link(stored))
        if (start, stop) != (0, stored.size):
            headers["Range"] = f"bytes={start}-{stop - 1}"
        any_etag = msgspec.structs.replace(stored, etag="")  # the commit says which state it is
        try:
            with read_range(endpoint, target, headers, any_etag, (start, stop)) as response:
                yield response
        except Refused as error:
            self._links.pop(stored.path, None)
            if error.status in {_UNAUTHORIZED, _FORBIDDEN} and endpoint.host != self._hub.netloc:
                raise Temporary("the address from the hub has expired") from error
            raise

    def close(self) -> None:
        """Close connections."""
        for each in self._endpoints.values():
            each.close()


def _decode(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except UNDECODABLE as error:
        raise Temporary(f"not an answer of the hub: {error_phrase(error, content)}") from error


def _followed(address: str, link: str) -> str:
    """Return the URL that a link leads to.

    Raises:
        Refused: it, or its port, is invalid.

    """
    try:
        following = urljoin(address, link)
        urlsplit(following).port  # noqa: B018 - it is parsed when it is read
    except ValueError as error:
        raise Refused(f"it leads to {shown(link or address)}: {error}") from error
    return following
