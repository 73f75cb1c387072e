"""HTTP servers as stores: a folder with an index page, or a single file."""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from urllib.parse import quote, unquote, urljoin, urlsplit

from tessera.clients.store.http1 import Endpoint, Response, request_of
from tessera.clients.store.pages import refuse_long
from tessera.clients.store.pipelines import pipelined
from tessera.clients.store.protocol import Contents, Refused, Retry, Temporary, once
from tessera.clients.store.ranges import condition, read_range
from tessera.core.storage.models.revisions import StoredObject

__all__ = ["WebStore"]

_ANCHOR = re.compile(r"<a\s", re.IGNORECASE)
_HREF = re.compile(r"""href\s*=\s*["']([^"'<>]+)["']""", re.IGNORECASE)
_FILES, _FOLDERS = 1_000_000, 10_000
_HEADS = 16
"""Files whose sizes are requested at once."""
_MOST_SEARCHED = 2**16
"""Characters of an index page at once: meanwhile no other thread runs. An anchor is read no further."""
_REDIRECT = 300
_SIZE = re.compile(r"[0-9]{1,15}")
_TOO_MANY = f"more than {_FOLDERS:,} folders or a million files: not the index of a model"


def _hrefs(page: str) -> Iterator[str]:
    """Yield the links of a page, in time that is linear in its length, with pauses for other threads."""
    position = end = 0
    while position < len(page):
        anchor = _ANCHOR.search(page, position, position + _MOST_SEARCHED)
        if anchor is None:
            position += _MOST_SEARCHED - 2  # one may begin at the end
            continue
        if anchor.end() > end:
            found = page.find(">", anchor.end(), anchor.end() + _MOST_SEARCHED)
            end = found if found >= 0 else anchor.end() + _MOST_SEARCHED
        href = _HREF.search(page, anchor.end(), end)
        position = href.end() if href else end
        if href:
            yield href[1]


class WebStore:
    """The files that the index pages below an address link to, or the one file at the address.

    Index pages of nginx (`autoindex`), Apache and Python's `http.server`: links to files and folders below.

    Args:
        address: ends with `/` for a folder.
        timeout_s: how long a connection may be silent.
        now: seconds of a monotonic clock.

    """

    pipelines = True

    def __init__(self, address: str, timeout_s: float = 10.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        parts = urlsplit(address)
        self._endpoint = Endpoint(parts, timeout_s)
        self._top = quote(unquote(parts.path or "/"), safe="/-_.~")
        query = quote(parts.query, safe="%/?:@!$&'()*+,;=-._~")
        self._query = f"?{query}" if query else ""
        self.source = f"{parts.scheme}://{self._endpoint.host}{self._top}"

    @property
    def requests(self) -> int:
        """Number of requests."""
        return self._endpoint.requests

    def objects(self, retry: Retry = once, /) -> tuple[StoredObject, ...]:
        """Return the files; their sizes and ETags are requested one by one, several at a time.

        Args:
            retry: requests each index page, and each size, for which patience begins when it is requested: each is
                progress, as a folder is read once. What came before is kept.

        Raises:
            Temporary: a page or a size did not come.
            Refused: an answer makes no sense, there are too many, or they take a day.

        """
        if not self._top.endswith("/"):
            return (self._object(self._top, unquote(self._top.rpartition("/")[2])),)
        begun_s, read = self._now(), 0
        paths: list[str] = []
        folders, known = [self._top], {self._top}
        while folders:
            refuse_long(self._now() - begun_s)
            folder, read = folders.pop(), read + 1
            for link in retry(partial(self._links, folder), self._now()):
                if link not in known:
                    known.add(link)
                    (folders if link.endswith("/") else paths).append(link)
            if len(known) > _FILES or read + len(folders) > _FOLDERS:
                raise Refused(_TOO_MANY)

        def sized(path: str) -> StoredObject:
            refuse_long(self._now() - begun_s)
            return retry(partial(self._object, path, unquote(path.removeprefix(self._top))), self._now())

        # Not more at once: it is a server that others use, too.
        threads = ThreadPoolExecutor(_HEADS)
        try:
            return tuple(threads.map(sized, paths))
        finally:
            threads.shutdown(cancel_futures=True)

    def _get(self, target: str) -> str:
        headers = {"Host": self._endpoint.host, "Accept-Encoding": "identity"}
        with self._endpoint.request("GET", target + self._query, headers) as response:
            if response.status >= _REDIRECT:
                raise Refused(f"{target}: status {response.status}; end the address of a folder with /")
            return response.content().decode("utf-8", "replace")

    def _links(self, folder: str) -> list[str]:
        """Return the quoted paths below a folder that its index links to."""
        found = []
        for link in _hrefs(self._get(folder)):
            try:
                target = urlsplit(urljoin(f"http://index{folder}", link.replace("&amp;", "&")))
            except ValueError:  # an address of IPv6 that is none
                continue
            path = quote(unquote(target.path), safe="/-_.~")
            if target.netloc == "index" and not target.query and path.startswith(folder) and path != folder:
                found.append(path)
            if len(found) > _FILES:  # a page of 64 MiB may have six million
                raise Refused(_TOO_MANY)
        return found

    def _object(self, path: str, name: str) -> StoredObject:
        headers = {"Host": self._endpoint.host, "Accept-Encoding": "identity"}
        with self._endpoint.request("HEAD", path + self._query, headers) as response:
            if response.status >= _REDIRECT:
                raise Refused(f"{path}: status {response.status}")
            length = response.headers.get("content-length", "")
            if not _SIZE.fullmatch(length):
                raise Temporary(f"{path}: no Content-Length")
            etag = response.headers.get("etag", "").strip('"')
            modified = response.headers.get("last-modified", "")
            ranges = response.headers.get("accept-ranges", "") == "bytes"
            return StoredObject(name, int(length), etag or (f"time:{modified}" if modified else ""), "", ranges)

    def _target(self, stored: StoredObject) -> str:
        path = self._top + quote(stored.path, safe="/-_.~") if self._top.endswith("/") else self._top
        return path + self._query

    def _headers(self, stored: StoredObject, start: int, stop: int) -> dict[str, str]:
        return {"Host": self._endpoint.host, **condition(stored, start, stop)}

    def _request(self, stored: StoredObject) -> bytes:
        return request_of("GET", self._target(stored), self._headers(stored, 0, stored.size))

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        """Yield small files with their content.

        Each connection carries one request at a time: an ETag of size and time, as nginx sends, may be another file's,
        so that nothing would tell if a proxy lost a request of several.
        """
        return pipelined(self._endpoint, objects, self._request, depth=1)

    def read(self, stored: StoredObject, start: int, stop: int) -> AbstractContextManager[Response]:
        """Open a range of a file."""
        return read_range(
            self._endpoint, self._target(stored), self._headers(stored, start, stop), stored, (start, stop)
        )

    def close(self) -> None:
        """Close connections."""
        self._endpoint.close()
