"""Google Cloud Storage by its JSON API: listing, ranges of a generation of an object.

Source: https://cloud.google.com/storage/docs/json_api/v1/objects, looked up 2026-11-24.
"""

import base64
import contextlib
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, urlsplit

import google.auth
import google.auth.credentials
import google.auth.exceptions
import google.auth.transport.requests
import msgspec
from google.oauth2 import service_account

from tessera.api.fields import error_phrase
from tessera.clients.store.bucketnames import no_bucket
from tessera.clients.store.http1 import Endpoint, Response, request_of
from tessera.clients.store.pages import all_pages
from tessera.clients.store.pipelines import pipelined
from tessera.clients.store.protocol import Changed, Contents, Refused, Retry, Temporary, once
from tessera.clients.store.ranges import read_range
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import UNDECODABLE, InvalidInput

__all__ = ["GcsStore", "GoogleToken"]

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_only",)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_FIELDS = "items(name,size,md5Hash,crc32c,generation),nextPageToken"
_GONE = 404


class _Item(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    size: str
    generation: str
    md5_hash: str = ""
    """Objects that were composed of others have none: large files that gcloud uploads in parts."""
    crc32c: str = ""


class _Page(msgspec.Struct, frozen=True, rename="camel"):
    items: tuple[_Item, ...] = ()
    next_page_token: str = ""


class GoogleToken:
    """The authorization of requests: a token in the environment, or one from Google's own library.

    Args:
        environ: `CLOUDSDK_AUTH_ACCESS_TOKEN`, a token; or `GOOGLE_CREDENTIALS`, the JSON of a service account. Without
            these the library tries `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's login and the metadata server, which
            on GKE has the tokens of Workload Identity. Without any, only public buckets can be read.

    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._fixed = environ.get("CLOUDSDK_AUTH_ACCESS_TOKEN", "")
        self._account = environ.get("GOOGLE_CREDENTIALS", "")
        self._lock = threading.Lock()
        self._credentials: google.auth.credentials.Credentials | None = None
        self._searched = False

    def headers(self) -> dict[str, str]:
        """Return the authorization header; none without credentials.

        Raises:
            Temporary: the library gets no token now.

        """
        token = self._fixed or self._found()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _found(self) -> str:
        with self._lock:
            if not self._searched:
                self._credentials = self._find()
                self._searched = True
            if self._credentials is None:
                return ""
            if not self._credentials.valid:
                try:
                    self._credentials.refresh(google.auth.transport.requests.Request())  # type: ignore[no-untyped-call]
                except google.auth.exceptions.GoogleAuthError as error:
                    raise Temporary(f"no token of Google: {type(error).__name__}") from error
            return str(self._credentials.token)

    def _find(self) -> google.auth.credentials.Credentials | None:
        if self._account:
            return _service_account(self._account)
        try:
            return google.auth.default(scopes=_SCOPES)[0]
        except google.auth.exceptions.DefaultCredentialsError:
            return None


def _service_account(text: str) -> google.auth.credentials.Credentials:
    make = service_account.Credentials.from_service_account_info
    try:
        info = msgspec.json.decode(text, type=dict[str, str])
        made: google.auth.credentials.Credentials = make(info, scopes=_SCOPES)  # type: ignore[no-untyped-call]
    except (*UNDECODABLE, google.auth.exceptions.GoogleAuthError) as error:
        raise InvalidInput(
            "GOOGLE_CREDENTIALS", found=f"{type(error).__name__}", hint="give the JSON of a service account's key"
        ) from error
    return made


class GcsStore:
    """The objects of a bucket whose names begin with a prefix.

    Args:
        bucket: its name.
        prefix: without `/` at its ends; empty for the whole bucket.
        endpoint: of the API.
        token: authorizes; None for servers that require none.
        timeout_s: how long a connection may be silent.

    """

    pipelines = True

    def __init__(
        self, bucket: str, prefix: str, endpoint: str, token: GoogleToken | None, timeout_s: float = 10.0
    ) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise no_bucket("gs", "bucket", bucket, prefix)
        self.source = f"gs://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        address = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise InvalidInput(
                "STORAGE_EMULATOR_HOST", found=endpoint, expected="an address such as http://localhost:1"
            )
        self._root = f"{address.path.rstrip('/')}/storage/v1/b/{bucket}/o"
        self._endpoint = Endpoint(address, timeout_s)
        self._token = token

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self._endpoint.requests

    def _headers(self, stored: StoredObject | None = None, start: int = 0, stop: int = 0) -> dict[str, str]:
        # What is stored compressed comes as it is stored: its size and checksum are those of the listing.
        headers = {"Host": self._endpoint.host, "Accept-Encoding": "gzip" if stored else "identity"}
        if stored and (start, stop) != (0, stored.size):
            headers["Range"] = f"bytes={start}-{stop - 1}"
        return {**headers, **(self._token.headers() if self._token else {})}

    def objects(self, retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return all objects, page by page."""
        return tuple(all_pages(self._read_page, retry))

    def _read_page(self, token: str) -> tuple[list[StoredObject], str | None]:
        query = {"fields": _FIELDS, "prefix": self._prefix} | ({"pageToken": token} if token else {})
        text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        with self._endpoint.request("GET", f"{self._root}?{text}", self._headers()) as response:
            page = _read_page(response.content())
        return [self._object(each) for each in page.items if each.name != self._prefix], page.next_page_token or None

    def _object(self, item: _Item) -> StoredObject:
        right = item.name.startswith(self._prefix) and re.fullmatch("[0-9]{1,15}", item.size)
        if not right or not re.fullmatch("[0-9]{1,20}", item.generation):
            raise Temporary(f"a listing with name {item.name[:60]!r} and size {item.size[:20]!r}")
        checksum = f"crc32c:{_hex(item.crc32c)}" if item.crc32c else ""
        if item.md5_hash:
            checksum = f"md5:{_hex(item.md5_hash)}"
        return StoredObject(item.name.removeprefix(self._prefix), int(item.size), item.generation, checksum)

    def _target(self, stored: StoredObject) -> str:
        name = quote(self._prefix + stored.path, safe="")
        return f"{self._root}/{name}?alt=media&generation={stored.etag}"

    def _request(self, stored: StoredObject) -> bytes:
        return request_of("GET", self._target(stored), self._headers(stored, 0, stored.size))

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield small objects of the listed generations with their content."""
        return pipelined(self._endpoint, objects, self._request, checks_etag=False)

    @contextlib.contextmanager
    def read(self, stored: StoredObject, start: int, stop: int) -> Iterator[Response]:
        """Open a range of the listed generation."""
        target, headers = self._target(stored), self._headers(stored, start, stop)
        any_etag = msgspec.structs.replace(stored, etag="")  # the header's ETag is not the generation
        try:
            with read_range(self._endpoint, target, headers, any_etag, (start, stop)) as response:
                yield response
        except Refused as error:
            if error.status == _GONE:
                raise Changed("this generation was deleted") from error
            raise

    def close(self) -> None:
        """Close connections."""
        self._endpoint.close()


def _read_page(content: bytes) -> _Page:
    try:
        return msgspec.json.decode(content, type=_Page)
    except UNDECODABLE as error:
        raise Temporary(f"an invalid listing: {error_phrase(error, content)}") from error


def _hex(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).hex()
    except ValueError as error:
        raise Temporary("a listing with an invalid checksum") from error
