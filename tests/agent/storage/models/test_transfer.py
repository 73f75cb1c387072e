"""Objects fetched into files: what is cut off goes on, what changed or is damaged is noticed."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from harness.flakys3 import FlakyS3
from harness.modelsyncs import CONTENTS, LARGE, MANY, QUICK, content, run, s3
from harness.serving import served
from tessera.agent.storage.models.cancellation import Canceled, Cancellation
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.journal import Journal
from tessera.agent.storage.models.reading import TransferLimits
from tessera.agent.storage.models.sync import sync
from tessera.agent.storage.models.transfer import listed
from tessera.clients.store import Body, MemoryStore, ObjectStore, Retry, Temporary, open_store
from tessera.clients.store.protocol import Contents, once
from tessera.core.storage.models.revisions import CHUNK_BYTES, StoredObject
from tessera.core.storage.retries import Patience
from tessera.errors import Conflict, Unavailable


def test_many_small_objects_are_each_requested_once_and_go_on_where_they_were_cut_off(
    tmp_path: Path, server: FlakyS3
) -> None:
    server.contents = dict(MANY)
    server.fault = lambda number: "503" if number > 60 else ""
    with pytest.raises(Unavailable, match="503"):
        run(s3(server), tmp_path, limits=TransferLimits(Patience(give_up_s=0.5, first_wait_s=0.1)))
    assert not (tmp_path / "current").exists()
    server.fault = lambda _number: ""
    server.gets = 0
    done = run(s3(server), tmp_path)
    assert done.requests == server.gets + 1 == done.bytes // len(MANY["small/000"]) + 1  # the listing
    assert 0 < server.gets < len(MANY)
    assert content(tmp_path / "current") == MANY


def test_an_empty_object_of_a_store_whose_etags_are_no_checksums_is_no_error(tmp_path: Path, server: FlakyS3) -> None:
    server.encrypted = True
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == CONTENTS


def test_one_damaged_object_of_many_leaves_no_revision(tmp_path: Path, server: FlakyS3) -> None:
    server.contents = dict(MANY)
    server.fault = lambda number: "flip" if number == 77 else ""
    with pytest.raises(Unavailable, match="checksum"):
        run(s3(server), tmp_path)
    assert not (tmp_path / "current").exists()
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == MANY


def test_an_object_that_changes_meanwhile_is_noticed(tmp_path: Path, server: FlakyS3) -> None:
    def change(number: int) -> str:
        if number == 2:
            server.contents = dict.fromkeys(CONTENTS, LARGE[1:])
        return ""

    server.fault = change
    with pytest.raises(Conflict, match="changed while"):
        run(s3(server), tmp_path, limits=TransferLimits(QUICK.limits.patience, threads=1))
    assert not (tmp_path / "current").exists()


def test_a_sync_goes_on_where_it_was_cut_off(tmp_path: Path, server: FlakyS3) -> None:
    server.fault = lambda number: "503" if number > 2 else ""
    with pytest.raises(Unavailable):
        run(s3(server), tmp_path, limits=TransferLimits(QUICK.limits.patience, threads=1))
    server.fault = lambda _number: ""
    server.gets = 0
    done = run(s3(server), tmp_path)
    assert done.bytes == sum(map(len, CONTENTS.values())) - CHUNK_BYTES - len(CONTENTS["config.json"])
    assert content(tmp_path / "current") == CONTENTS


def test_after_a_flipped_bit_only_that_file_is_fetched_again(tmp_path: Path, server: FlakyS3) -> None:
    server.flipped = "config.json"
    with pytest.raises(Unavailable, match="content whose checksum is"):
        run(s3(server), tmp_path)
    server.flipped = ""
    assert run(s3(server), tmp_path).bytes == len(CONTENTS["config.json"])
    assert content(tmp_path / "current") == CONTENTS


def test_a_bit_that_flipped_in_an_attempt_that_was_cut_off_is_no_failure_of_the_next(
    tmp_path: Path, server: FlakyS3
) -> None:
    """The first attempt ends before it could compare; its journal says that what it has is what came."""
    several = {f"{number}.bin": os.urandom(200_000) for number in range(30)}
    server.contents = several
    server.flipped = "0.bin"
    server.fault = lambda number: "404" if number == len(several) else ""
    with pytest.raises(Unavailable, match="404"):
        run(s3(server), tmp_path)
    server.flipped, server.fault = "", lambda _number: ""
    told = list[tuple[int, int]]()
    store = s3(server)
    done = sync(store, ModelFolder(tmp_path), QUICK, lambda bytes_done, total: told.append((bytes_done, total)))
    store.close()
    assert content(tmp_path / "current") == several
    assert 2 * 200_000 <= done.bytes < 30 * 200_000  # what was not there yet, and what was wrong
    assert told[-1][0] == told[-1][1]


def test_a_transfer_that_is_canceled_before_it_fetches_wrong_objects_again_requests_nothing(
    tmp_path: Path, server: FlakyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, but the second pass begins after the cancel."""
    server.contents = {f"{number}.bin": os.urandom(200_000) for number in range(30)}
    server.flipped = "0.bin"
    server.fault = lambda number: "404" if number == len(server.contents) else ""
    with pytest.raises(Unavailable, match="404"):
        run(s3(server), tmp_path)
    server.flipped, server.fault = "", lambda _number: ""
    cancellation, store, forget = Cancellation(), s3(server), Journal.forget
    requests = list[int]()

    def cancel(self: Journal, objects: set[int]) -> None:
        forget(self, objects)
        cancellation.cancel()
        requests.append(server.gets)

    monkeypatch.setattr(Journal, "forget", cancel)
    with pytest.raises(Canceled):
        sync(store, ModelFolder(tmp_path), QUICK, cancellation=cancellation)
    store.close()
    assert requests == [server.gets]


def test_what_the_journal_knows_and_somebody_removed_is_fetched_again(tmp_path: Path, server: FlakyS3) -> None:
    several = {f"{number}.bin": os.urandom(1_000) for number in range(30)}
    server.contents = several
    server.fault = lambda number: "404" if number == len(several) else ""
    with pytest.raises(Unavailable, match="404"):
        run(s3(server), tmp_path)
    (staged,) = (tmp_path / ".tessera/staging").iterdir()
    for path in (staged / "files").iterdir():
        path.unlink()
    server.fault = lambda _number: ""
    assert run(s3(server), tmp_path).bytes == 30_000
    assert content(tmp_path / "current") == several


class Untold:
    """A store of which nothing says whether an object has changed, and which changes them after some reads."""

    source = "memory://untold"
    pipelines = False

    def __init__(self, contents: dict[str, bytes], *, then: dict[str, bytes], after: int, breaks: bool = False) -> None:
        self.contents = contents
        self._then, self._after, self._breaks = then, after, breaks
        self.requests = 0

    def objects(self, *_: object) -> tuple[StoredObject, ...]:
        return tuple(StoredObject(path, len(data)) for path, data in self.contents.items())

    def read_small(self, objects: Iterable[StoredObject]) -> Contents:
        return ((each, None) for each in objects)

    @contextmanager
    def read(self, found: StoredObject, start: int, stop: int) -> Iterator[Body]:
        store = MemoryStore(self.contents)
        self.requests += 1
        if self.requests >= self._after:
            self.contents = self._then
        with store.read(next(each for each in store.objects() if each.path == found.path), start, stop) as body:
            yield _Breaking(body) if self._breaks and self.requests <= self._after else body

    def close(self) -> None:
        pass


class _Breaking:
    """Ends within the second chunk."""

    etag_is_checksum = True

    def __init__(self, body: Body) -> None:
        self._body, self._left = body, CHUNK_BYTES + 1

    def readinto(self, view: memoryview) -> int:
        if not self._left:
            raise Temporary("the connection ended too early")
        count = self._body.readinto(view[: self._left])
        self._left -= count
        return count


def test_an_object_without_a_validator_comes_in_one_piece(tmp_path: Path) -> None:
    before, after = (bytes((each,)) * (3 * CHUNK_BYTES) for each in b"ab")
    done = run(Untold({"f": before}, then={"f": after}, after=1), tmp_path)
    assert (done.requests, (tmp_path / "current/f").read_bytes()) == (1, before)


def test_an_object_without_a_validator_is_not_continued_where_it_was_cut_off(tmp_path: Path) -> None:
    before, after = (bytes((each,)) * (3 * CHUNK_BYTES) for each in b"ab")
    store = Untold({"f": before}, then={"f": after}, after=1, breaks=True)
    with pytest.raises(Unavailable, match=r"object f.*of the same state"):
        run(store, tmp_path)
    store.contents = {"f": after}
    done = run(store, tmp_path)
    assert (done.bytes, (tmp_path / "current/f").read_bytes()) == (3 * CHUNK_BYTES, after)


_AZURE = "<Blobs><Blob><Name>m/{}</Name><Properties><Content-Length>1</Content-Length></Properties></Blob></Blobs>"
PAGED: dict[str, tuple[str, dict[str, str], str, str]] = {
    "s3://models/m": (
        "AWS_ENDPOINT_URL",
        {"AWS_REGION": "r"},
        "<ListBucketResult><Contents><Key>m/{}</Key><Size>1</Size></Contents>{}</ListBucketResult>",
        "<IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>",
    ),
    "az://models/m": (
        "AZURE_STORAGE_SERVICE_ENDPOINT",
        {"AZURE_STORAGE_ACCOUNT": "account", "AZURE_STORAGE_AUTH_MODE": "anonymous"},
        f"<EnumerationResults>{_AZURE}{{}}</EnumerationResults>",
        "<NextMarker>next</NextMarker>",
    ),
    "gs://models/m": (
        "STORAGE_EMULATOR_HOST",
        {},
        '{{"items": [{{"name": "m/{}", "size": "1", "generation": "1"}}]{}}}',
        ', "nextPageToken": "next"',
    ),
    "hf://owner/name@main/m": (
        "HF_ENDPOINT",
        {},
        '[{{"type": "file", "path": "m/{}", "size": 1}}]{}',
        "",
    ),
}
"""For each source whose listing has pages: the variable with its endpoint, others, a page by name, and the next one."""


class PagedServer(ThreadingHTTPServer):
    """A listing of two pages, with `a` and with `b`; the second is unavailable for some requests."""

    daemon_threads = True

    def __init__(self, source: str, failures: int) -> None:
        super().__init__(("127.0.0.1", 0), PagedAnswers)
        self.page, self.following = PAGED[source][2:]
        self.failures = failures
        self.asked = list[str]()


class PagedAnswers(BaseHTTPRequestHandler):
    server: PagedServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass

    def do_GET(self) -> None:
        if "/revision/" in self.path:
            self.answer(200, f'{{"sha": "{"0" * 40}"}}')
            return
        name = "b" if "=next" in self.path else "a"
        self.server.asked.append(name)
        fails = name == "b" and self.server.asked.count("b") <= self.server.failures
        text = self.server.page.format(name, self.server.following if name == "a" else "")
        self.answer(503 if fails else 200, text, f'<{self.path}&cursor=next>; rel="next"' if name == "a" else "")

    def answer(self, status: int, text: str, link: str = "") -> None:
        self.send_response(status)
        if link:
            self.send_header("Link", link)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def paged(source: str, failures: int) -> Iterator[tuple[PagedServer, ObjectStore]]:
    endpoint, others, *_ = PAGED[source]
    with served(PagedServer(source, failures)) as server:
        environ = {endpoint: f"http://127.0.0.1:{server.server_port}", **others}
        with closing(open_store(source, environ)) as store:
            yield server, store


@pytest.mark.parametrize("source", PAGED)
def test_a_page_that_fails_is_requested_again_without_those_before(source: str) -> None:
    with paged(source, failures=2) as (server, store):
        objects = listed(store, Patience(give_up_s=60.0, first_wait_s=0.01), Cancellation())
        assert [each.path for each in objects] == ["a", "b"]
        assert server.asked == ["a", "b", "b", "b"]


class IndexServer(ThreadingHTTPServer):
    """Two folders and three files; all but the first page is unavailable for some requests each."""

    daemon_threads = True

    def __init__(self, failures: int) -> None:
        super().__init__(("127.0.0.1", 0), IndexPages)
        self.failures = failures
        self.asked = Counter[str]()


class IndexPages(BaseHTTPRequestHandler):
    server: IndexServer
    protocol_version = "HTTP/1.1"
    pages: ClassVar = {"/m/": '<a href="f/">f/</a><a href="a">a</a>', "/m/f/": '<a href="b">b</a><a href="c">c</a>'}

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        fails = self.path != "/m/" and self.server.asked[self.path] <= self.server.failures
        text = self.pages.get(self.path, "1").encode()
        self.send_response(503 if fails else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    def do_HEAD(self) -> None:
        self.do_GET()


@pytest.mark.parametrize("failures", [1, 1000])
def test_an_index_page_or_a_size_that_fails_is_requested_again_alone(failures: int) -> None:
    server = IndexServer(failures)
    with served(server), closing(open_store(f"http://127.0.0.1:{server.server_port}/m/", {})) as store:
        if failures > 1:
            with pytest.raises(Unavailable, match="503"):
                listed(store, Patience(give_up_s=0.3, first_wait_s=0.01), Cancellation())
            assert server.asked["/m/"] == 1
            return
        objects = listed(store, Patience(give_up_s=60.0, first_wait_s=0.01), Cancellation())
    assert sorted(each.path for each in objects) == ["a", "f/b", "f/c"]
    assert server.asked == {"/m/": 1, "/m/f/": 2, "/m/a": 2, "/m/f/b": 2, "/m/f/c": 2}


@pytest.mark.parametrize("source", PAGED)
def test_a_page_that_fails_on_and_on_is_given_up(source: str) -> None:
    with paged(source, failures=1000) as (server, store), pytest.raises(Unavailable, match="503"):
        listed(store, Patience(give_up_s=0.3, first_wait_s=0.01), Cancellation())
    assert server.asked[:2] == ["a", "b"]
    assert server.asked.count("a") == 1


@pytest.mark.parametrize(("ahead_s", "is_retried"), [(1000.0, True), (0.0, False), (-1000.0, False)])
def test_the_patience_with_a_page_begins_with_the_last_progress(ahead_s: float, *, is_retried: bool) -> None:
    class Failing(MemoryStore):
        """A store whose first request fails, after so much time without progress."""

        def objects(self, retry: Retry = once, /) -> tuple[StoredObject, ...]:
            return retry(self.page, time.monotonic() + ahead_s)

        def page(self) -> tuple[StoredObject, ...]:
            found = super().objects()
            if self.requests == 1:
                raise Temporary("status 503")
            return found

    store = Failing({"a": b"1"})
    if is_retried:
        assert [each.path for each in listed(store, Patience(give_up_s=0.0), Cancellation())] == ["a"]
    else:
        with pytest.raises(Unavailable, match="503"):
            listed(store, Patience(give_up_s=0.0), Cancellation())
