"""Azure Blob Storage: listing, ranges, signatures.

Source: https://learn.microsoft.com/rest/api/storageservices (List Blobs, Get Blob, Authorize with Shared Key), looked
up 2026-11-24.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from email.utils import format_datetime
from typing import Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit
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

__all__ = ["AzureCredential", "AzureSettings", "AzureStore", "shared_key"]

_VERSION = "2023-11-03"
_SCOPE = "https://storage.azure.com/.default"
_SIGNED = ("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date")
_SIGNED_CONDITIONS = ("If-Modified-Since", "If-Match", "If-None-Match", "If-Unmodified-Since", "Range")


class AccessToken(Protocol):
    """A token of azure-identity."""

    @property
    def token(self) -> str:
        """For the header."""


class AzureCredential(Protocol):
    """An identity from azure-identity; it keeps its token until that expires."""

    def get_token(self, *scopes: str) -> AccessToken:
        """Return a valid token."""


class AzureSettings(msgspec.Struct, frozen=True):
    """Account and credentials, from the environment variables that Azure's own programs read.

    Args:
        account: the storage account's name.
        key: of the account, base64; empty for none.
        sas: a shared access signature, `sv=...&sig=...`; empty for none.
        endpoint: an address such as `http://127.0.0.1:10000/devstoreaccount1`; empty for Azure.
        timeout_s: how long a connection may be silent.

    """

    account: str
    key: str = ""
    sas: str = ""
    endpoint: str = ""
    timeout_s: float = 10.0

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> "AzureSettings":
        """Return the settings of `AZURE_STORAGE_ACCOUNT`, `AZURE_STORAGE_KEY` and so on.

        Raises:
            InvalidInput: there is no account, or the key is invalid.

        """
        settings = cls(
            account=environ.get("AZURE_STORAGE_ACCOUNT", ""),
            key=environ.get("AZURE_STORAGE_KEY", ""),
            sas=environ.get("AZURE_STORAGE_SAS_TOKEN", "").lstrip("?"),
            endpoint=environ.get("AZURE_STORAGE_SERVICE_ENDPOINT", "").rstrip("/"),
        )
        if not settings.account:
            raise InvalidInput("AZURE_STORAGE_ACCOUNT", found="it is not set", hint="give the storage account's name")
        if not re.fullmatch("[a-z0-9]{3,24}", settings.account):
            desired = "the storage account's name, 3 to 24 lower-case letters and digits"
            raise InvalidInput("AZURE_STORAGE_ACCOUNT", found=shown(settings.account), expected=desired)
        try:
            base64.b64decode(settings.key, validate=True)
        except binascii.Error as error:
            raise InvalidInput(
                "AZURE_STORAGE_KEY", found="it is not base64", hint="give a key of the account"
            ) from error
        return settings


def shared_key(settings: AzureSettings, target: str, headers: Mapping[str, str]) -> str:
    """Return the Authorization header that signs a GET request with the account's key.

    Args:
        settings: with a key.
        target: path and query, both quoted.
        headers: those to send, `x-ms-date` and `x-ms-version` among them.

    """
    path, _, query = target.partition("?")
    special = sorted((name.lower(), value) for name, value in headers.items() if name.lower().startswith("x-ms-"))
    rows = ["GET", *(headers.get(name, "") for name in (*_SIGNED, *_SIGNED_CONDITIONS))]
    rows += [f"{name}:{value}" for name, value in special]
    rows.append(f"/{settings.account}{path}")
    rows += [f"{name.lower()}:{value}" for name, value in sorted(parse_qsl(query, keep_blank_values=True))]
    signature = hmac.digest(base64.b64decode(settings.key), "\n".join(rows).encode(), hashlib.sha256)
    return f"SharedKey {settings.account}:{base64.b64encode(signature).decode()}"


class AzureStore:
    """The blobs of a container whose names begin with a prefix.

    Args:
        container: its name.
        prefix: without `/` at its ends; empty for the whole container.
        settings: account and credentials.
        credential: returns a token if the settings have neither key nor signature; None for public containers.
        clock: the time for signatures.

    """

    pipelines = True

    def __init__(
        self,
        container: str,
        prefix: str,
        settings: AzureSettings,
        credential: AzureCredential | None,
        clock: Callable[[], datetime],
    ) -> None:
        if not re.fullmatch(r"[a-z0-9$](-?[a-z0-9]){2,62}", container):
            raise no_bucket("az", "container", container, prefix)
        self.source = f"az://{container}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._settings = settings
        self._credential = credential
        self._clock = clock
        address = urlsplit(settings.endpoint or f"https://{settings.account}.blob.core.windows.net")
        if address.scheme not in {"http", "https"} or not address.hostname:
            desired = "an address such as https://account.blob.core.windows.net"
            raise InvalidInput("AZURE_STORAGE_SERVICE_ENDPOINT", found=settings.endpoint, expected=desired)
        self._root = f"{address.path.rstrip('/')}/{container}"
        self._endpoint = Endpoint(address, settings.timeout_s)

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self._endpoint.requests

    def _headers(self, target: str, more: Mapping[str, str]) -> dict[str, str]:
        time = format_datetime(self._clock(), usegmt=True)
        headers = {"Host": self._endpoint.host, "x-ms-date": time, "x-ms-version": _VERSION, **more}
        if self._settings.key:
            headers["Authorization"] = shared_key(self._settings, target, headers)
        elif self._credential is not None and not self._settings.sas:
            try:
                headers["Authorization"] = f"Bearer {self._credential.get_token(_SCOPE).token}"
            except Exception as error:  # the library's own base class is not a stable import
                raise Temporary(f"no token of Azure: {type(error).__name__}") from error
        return headers

    def _signed(self, target: str) -> str:
        """Add the shared access signature, if there is one and no key."""
        if not self._settings.sas or self._settings.key:
            return target
        return f"{target}{'&' if '?' in target else '?'}{self._settings.sas}"

    def objects(self, retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return all blobs, page by page."""
        return tuple(all_pages(self._read_page, retry))

    def _read_page(self, marker: str) -> tuple[list[StoredObject], str | None]:
        query = {"comp": "list", "prefix": self._prefix, "restype": "container"}
        query |= {"marker": marker} if marker else {}
        text = "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted(query.items()))
        target = self._signed(f"{self._root}?{text}")
        with self._endpoint.request("GET", target, self._headers(target, {})) as response:
            page = _parse(response.content())
        return list(self._page(page)), page.findtext("NextMarker") or None

    def _page(self, page: "ET.Element") -> Iterator[StoredObject]:
        for row in page.iterfind("Blobs/Blob"):
            name, size = row.find("Name"), row.findtext("Properties/Content-Length") or ""
            key = "" if name is None else name.text or ""
            key = unquote(key) if name is not None and name.get("Encoded") == "true" else key
            if not key.startswith(self._prefix) or not re.fullmatch("[0-9]{1,15}", size):
                raise Temporary(f"a listing with name {key[:60]!r} and size {size[:20]!r}")
            if key == self._prefix or row.findtext("Properties/ResourceType") == "directory":
                continue
            etag = (row.findtext("Properties/Etag") or "").strip('"')
            yield StoredObject(key.removeprefix(self._prefix), int(size), etag, _checksum(row))

    def _target(self, stored: StoredObject) -> str:
        return self._signed(f"{self._root}/{quote(self._prefix + stored.path, safe='/-_.~')}")

    def _request(self, stored: StoredObject) -> bytes:
        target = self._target(stored)
        return request_of("GET", target, self._headers(target, condition(stored, 0, stored.size)))

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield small blobs with their content, if they still have the listed ETag."""
        return pipelined(self._endpoint, objects, self._request)

    def read(self, stored: StoredObject, start: int, stop: int) -> AbstractContextManager[Response]:
        """Open a range of the blob, if it still has the listed ETag."""
        target = self._target(stored)
        headers = self._headers(target, condition(stored, start, stop))
        return read_range(self._endpoint, target, headers, stored, (start, stop))

    def close(self) -> None:
        """Close connections."""
        self._endpoint.close()


def _checksum(row: "ET.Element") -> str:
    text = row.findtext("Properties/Content-MD5") or ""
    try:
        return f"md5:{base64.b64decode(text, validate=True).hex()}" if text else ""
    except binascii.Error as error:
        raise Temporary("a listing with an invalid MD5") from error


def _parse(content: bytes) -> "ET.Element":
    if b"<!" in content or b"\0" in content:  # which UTF-16 would hide it behind
        raise Refused("a listing with a document type, which Azure does not send")
    try:
        page = ET.fromstring(content)  # noqa: S314 - documents with a type were refused
    except ET.ParseError as error:
        raise Temporary(f"a listing that is not XML: {error}") from error
    if page.tag != "EnumerationResults":
        raise Refused(f"not a listing of Azure, but <{page.tag[:40]}>")
    return page
