"""S3 and compatible stores (Ceph RGW): listing, ranges, signatures."""

import functools
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit
from xml.etree import ElementTree as ET

import msgspec

from tessera.clients.store.bucketnames import no_bucket
from tessera.clients.store.http1 import Endpoint, Response, request_of
from tessera.clients.store.pages import all_pages
from tessera.clients.store.pipelines import pipelined
from tessera.clients.store.protocol import Contents, Refused, Retry, Temporary, once
from tessera.clients.store.ranges import condition, read_range
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import InvalidInput, shown

__all__ = ["S3Settings", "S3Store", "SignedRequests", "sign"]

_EMPTY = hashlib.sha256(b"").hexdigest()
_MD5 = re.compile(r"[0-9a-f]{32}")
_SIZE = re.compile(r"[0-9]{1,15}")
_LEAST_REDIRECT = 300
_SECOND = timedelta(seconds=1)


class S3Settings(msgspec.Struct, frozen=True):
    """Endpoint and credentials, from the environment variables that AWS's own programs read.

    Args:
        endpoint: an address such as `http://rgw:7480`; empty for AWS.
        region: of the bucket.
        access_key: empty for anonymous reading.
        secret_key: belongs to it.
        session_token: of temporary credentials.
        timeout_s: how long a connection may be silent.

    """

    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    timeout_s: float = 10.0

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> "S3Settings":
        """Return the settings of `AWS_ENDPOINT_URL_S3`, `AWS_REGION`, `AWS_ACCESS_KEY_ID` and so on."""
        return cls(
            endpoint=environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL", ""),
            region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
            access_key=environ.get("AWS_ACCESS_KEY_ID", ""),
            secret_key=environ.get("AWS_SECRET_ACCESS_KEY", ""),
            session_token=environ.get("AWS_SESSION_TOKEN", ""),
        )


def sign(settings: S3Settings, now: datetime, target: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the signature of a GET request.

    Source: AWS, "Authenticating Requests (AWS Signature Version 4)".

    Args:
        settings: without an access key nothing is signed.
        now: the time.
        target: path and query, both quoted; the query's parts in order.
        headers: those to send, `Host` among them.

    """
    if not settings.access_key:
        return dict(headers)
    time = now.strftime("%Y%m%dT%H%M%SZ")
    signed = {**headers, "x-amz-content-sha256": _EMPTY, "x-amz-date": time}
    if settings.session_token:
        signed["x-amz-security-token"] = settings.session_token
    path, _, query = target.partition("?")
    order, names = _signed_names(tuple(signed))
    fields = "".join([f"{lower}:{signed[name].strip()}\n" for lower, name in order])
    canonical = f"GET\n{path}\n{query}\n{fields}\n{names}\n{_EMPTY}"
    scope = f"{time[:8]}/{settings.region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = _signer(settings.secret_key, scope).copy()  # what follows from the key alone is computed once a day
    signature.update(text.encode())
    credential = f"AWS4-HMAC-SHA256 Credential={settings.access_key}/{scope}"
    signed["Authorization"] = f"{credential}, SignedHeaders={names}, Signature={signature.hexdigest()}"
    return signed


class _SignedHeaders(NamedTuple):
    """What is the same in all requests of a second whose headers have the same names."""

    hmac: hmac.HMAC
    fields: str
    """The headers as they are signed, for `%` with those of a request."""
    signed: str
    """Behind these, up to the end of what is signed."""
    before: str
    """Before the signature's text."""
    head: str
    """The headers as they are sent, for `%` with those of a request."""


class SignedRequests:
    """Signed GET requests as they are sent: those of `sign`, for many small objects in less time.

    Args:
        settings: with an access key.
        host: of the endpoint.

    """

    def __init__(self, settings: S3Settings, host: str) -> None:
        self._settings = settings
        self._host = host
        self._second = self._end = datetime.min.replace(tzinfo=UTC)
        self._signed: dict[tuple[str, ...], _SignedHeaders] = {}

    def request(self, now: datetime, path: str, headers: dict[str, str]) -> bytes:
        """Return a request; the headers are those besides `Host`, none of them with spaces at its ends."""
        if not self._second <= now < self._end:
            self._second, self._signed = now.replace(microsecond=0), {}
            self._end = self._second + _SECOND
        if (signed := self._signed.get(names := tuple(headers))) is None:
            signed = self._signed[names] = self._of_names(names)
        canonical = f"GET\n{path}\n\n{signed.fields % headers}{signed.signed}"
        signature = signed.hmac.copy()
        signature.update(f"{signed.before}{hashlib.sha256(canonical.encode()).hexdigest()}".encode())
        return f"GET {path} HTTP/1.1\r\n{signed.head % headers}{signature.hexdigest()}\r\n\r\n".encode("latin-1")

    def _of_names(self, names: tuple[str, ...]) -> _SignedHeaders:
        time = self._second.strftime("%Y%m%dT%H%M%SZ")
        scope = f"{time[:8]}/{self._settings.region}/s3/aws4_request"
        same = sign(self._settings, self._second, "/", {"Host": self._host, **dict.fromkeys(names, "")})
        authorization = same.pop("Authorization").partition("Signature=")[0]
        same = {name: f"%({name})s" if name in names else value.replace("%", "%%") for name, value in same.items()}
        order, signed_names = _signed_names(tuple(same))
        return _SignedHeaders(
            hmac=_signer(self._settings.secret_key, scope),
            fields="".join(f"{lower}:{same[name]}\n" for lower, name in order),
            signed=f"\n{signed_names}\n{_EMPTY}",
            before=f"AWS4-HMAC-SHA256\n{time}\n{scope}\n",
            head="".join(f"{name}: {value}\r\n" for name, value in same.items())
            + f"Authorization: {authorization.replace('%', '%%')}Signature=",
        )


@functools.lru_cache(maxsize=16)
def _signed_names(names: tuple[str, ...]) -> tuple[list[tuple[str, str]], str]:
    """Return the names of headers in the order of a signature, in lower case and as given, and their list there."""
    order = sorted((name.lower(), name) for name in names)
    return order, ";".join(lower for lower, _ in order)


@functools.lru_cache(maxsize=4)
def _signer(secret_key: str, scope: str) -> hmac.HMAC:
    """Return the signing key of a day, a region and a service; it is copied, never updated."""
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, digestmod="sha256")


class S3Store:
    """The objects of a bucket whose keys begin with a prefix.

    Args:
        bucket: its name.
        prefix: without `/` at its ends; empty for the whole bucket.
        settings: endpoint and credentials.
        clock: the time for signatures.

    """

    pipelines = True

    def __init__(self, bucket: str, prefix: str, settings: S3Settings, clock: Callable[[], datetime]) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", bucket):
            raise no_bucket("s3", "bucket", bucket, prefix)
        self.source = f"s3://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._settings = settings
        self._clock = clock
        address = urlsplit(settings.endpoint or f"https://{bucket}.s3.{settings.region}.amazonaws.com")
        if address.scheme not in {"http", "https"} or not address.hostname:
            raise InvalidInput(
                "AWS_ENDPOINT_URL", found=settings.endpoint, expected="an address such as https://rgw.example.com:7480"
            )
        # A dot in the name would not match the certificate of *.s3.REGION.amazonaws.com.
        if not settings.endpoint and "." in bucket:
            address = urlsplit(f"https://s3.{settings.region}.amazonaws.com")
        self._root = f"/{bucket}" if settings.endpoint or "." in bucket else ""
        self._root = address.path.rstrip("/") + self._root
        self._endpoint = Endpoint(address, settings.timeout_s)
        self._signed = SignedRequests(settings, self._endpoint.host) if settings.access_key else None

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self._endpoint.requests

    def _headers(self, target: str, more: Mapping[str, str]) -> dict[str, str]:
        return sign(self._settings, self._clock(), target, {"Host": self._endpoint.host, **more})

    def objects(self, retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return all objects, page by page."""
        return tuple(all_pages(self._read_page, retry))

    def _read_page(self, token: str) -> tuple[list[StoredObject], str | None]:
        query = {"encoding-type": "url", "list-type": "2", "prefix": self._prefix}
        if token:
            query["continuation-token"] = token
        text = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
        target = f"{self._root or '/'}?{text}"
        with self._endpoint.request("GET", target, self._headers(target, {})) as response:
            if response.status >= _LEAST_REDIRECT:
                where = response.headers.get("x-amz-bucket-region") or response.headers.get("location", "")
                raise Refused(f"status {response.status}: another region or endpoint has it, {shown(where)}")
            page = _parse(response.content())
        is_last = page.findtext("{*}IsTruncated") != "true"
        return list(self._page(page)), None if is_last else page.findtext("{*}NextContinuationToken") or ""

    def _page(self, page: "ET.Element") -> Iterator[StoredObject]:
        encoded = page.findtext("{*}EncodingType") == "url"
        space = page.tag.removesuffix("ListBucketResult")
        names = [f"{space}{name}" for name in ("Key", "Size", "ETag")]
        for row in page.iterfind(f"{space}Contents"):
            texts = {each.tag: each.text for each in row}
            key, size, etag = (texts.get(name) or "" for name in names)
            key = unquote(key.replace("+", " ")) if encoded else key
            if not key.startswith(self._prefix) or not _SIZE.fullmatch(size):
                raise Temporary(f"a listing with key {key[:60]!r} and size {size[:20]!r}")
            if key == self._prefix:
                continue
            etag = etag.strip('"')
            checksum = f"md5:{etag}" if _MD5.fullmatch(etag) else ""
            yield StoredObject(key.removeprefix(self._prefix), int(size), etag, checksum)

    def _target(self, stored: StoredObject) -> str:
        return f"{self._root}/{quote(self._prefix + stored.path, safe='/-_.~')}"

    def _request(self, stored: StoredObject) -> bytes:
        target, headers = self._target(stored), condition(stored, 0, stored.size)
        if self._signed is None:
            return request_of("GET", target, self._headers(target, headers))
        return self._signed.request(self._clock(), target, headers)

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield small objects with their content, if they still have the listed ETag."""
        return pipelined(self._endpoint, objects, self._request)

    def read(self, stored: StoredObject, start: int, stop: int) -> AbstractContextManager[Response]:
        """Open a range of the object, if it still has the listed ETag."""
        target = self._target(stored)
        headers = self._headers(target, condition(stored, start, stop))
        return read_range(self._endpoint, target, headers, stored, (start, stop))

    def close(self) -> None:
        """Close connections."""
        self._endpoint.close()


def utc_now() -> datetime:
    """Return the time for signatures."""
    return datetime.now(UTC)


def _parse(content: bytes) -> "ET.Element":
    if b"<!" in content or b"\0" in content:  # which UTF-16 would hide it behind
        raise Refused("a listing with a document type, which S3 does not send")
    try:
        page = ET.fromstring(content)  # noqa: S314 - see the import
    except ET.ParseError as error:
        raise Temporary(f"a listing that is not XML: {error}") from error
    if not page.tag.endswith("ListBucketResult"):
        raise Refused(f"not an S3 listing, but <{page.tag.rpartition('}')[2][:40]}>")
    return page
