"""A web server as a store: what every store does."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.storesuite import StoreSuite
from harness.serving import served
from tessera.clients.store import ObjectStore, Temporary, open_store, web
from tessera.clients.store.web import WebStore


class Quiet(SimpleHTTPRequestHandler):
    """Python's own server: no ranges, no ETags."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        pass


class Together(Quiet):
    """Answers no HEAD before four of them have come."""

    four = threading.Barrier(4, timeout=10)

    def do_HEAD(self) -> None:
        self.four.wait()
        super().do_HEAD()


def test_sizes_of_files_are_requested_side_by_side(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / str(number)).write_bytes(bytes(number))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Together, directory=str(tmp_path)))
    server.daemon_threads = True
    with served(server), closing(open_store(f"http://127.0.0.1:{server.server_port}/", {})) as store:
        assert sorted((each.path, each.size) for each in store.objects()) == [(str(size), size) for size in range(8)]
        assert store.requests == 1 + 8


class Slow(Quiet):
    """Index pages of a folder each, without an end, and sizes, each of which takes its time of a clock."""

    clock: ClassVar = [0.0]
    page_s = size_s = 0.0
    lock = threading.Lock()

    def send_index(self, links: list[str]) -> None:
        page = "".join(f'<a href="{each}">x</a>' for each in links).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_GET(self) -> None:
        with self.lock:
            self.clock[0] += self.page_s
        self.send_index(["d/"] if self.path.startswith("/deep/") else [str(each) for each in range(500)])

    def do_HEAD(self) -> None:
        with self.lock:
            self.clock[0] += self.size_s
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()


@pytest.mark.parametrize(
    ("top", "page_s", "size_s", "found"),
    [
        ("deep", 0.4, 0.0, "fewer than 100 links in 36 s"),
        ("deep", 3.0, 0.0, "fewer than 100 links in 36 s"),
        ("flat", 40.0, 0.4, "fewer than 100 sizes of files in 36 s"),
        ("flat", 40.0, 3.0, "fewer than 100 sizes of files in 36 s"),
        ("flat", 40.0, 0.3, ""),
    ],
)
def test_a_listing_without_progress_is_given_up(
    top: str, page_s: float, size_s: float, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(Slow, "clock", clock)
    monkeypatch.setattr(Slow, "page_s", page_s)
    monkeypatch.setattr(Slow, "size_s", size_s)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    address = f"http://127.0.0.1:{server.server_port}/{top}/"
    with served(server), closing(WebStore(address, now=lambda: clock[0])) as store:
        if not found:
            assert len(store.objects()) == 500
            return
        with pytest.raises(Temporary, match=found):
            store.objects()
        assert top == "flat" or clock[0] < 36 + 2 * page_s


def index(page: str) -> list[str]:
    """Return the links that an index page is read for."""
    return list(web._hrefs(page))


TOKENS = ["<a ", "<A\n", "<b ", "href", "HREF", " = ", "=", '"', "'", ">", "x/", "<", " ", "a", "&amp;"]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(TOKENS), max_size=14).map("".join), st.sampled_from([0, *range(65530, 65540)]))
def test_the_links_of_an_index_are_all_that_anchors_have(page: str, spaces: int) -> None:
    """By a search that goes back and forth: right, and too slow for a page that is made for it."""
    page = " " * spaces + page
    pattern = r"""<a\s[^>]*?href\s*=\s*["']([^"'<>]+)["']"""
    assert index(page) == re.findall(pattern, page, re.IGNORECASE)


@pytest.mark.parametrize("each", ["<a ", "<", ">", "<a href", "<a href=", '<a href="', "<a x='", "a>", " ", "href ="])
def test_no_page_takes_a_time_that_grows_faster_than_its_length(each: str) -> None:
    begun = time.monotonic()
    page = each * (2**19 // len(each))
    assert index(page + '><a href="f">') == ["f"]
    assert index("<a " + page + '><a href="f">')[-1:] == ["f"]
    assert time.monotonic() - begun < 30, "under 1 s; with the square of its length hours"


class TestWebStore(StoreSuite):
    @pytest.fixture
    def store(self, folder: Path) -> Iterator[ObjectStore]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder.parent)))
        server.daemon_threads = True
        with served(server), closing(open_store(f"http://127.0.0.1:{server.server_port}/m/", {})) as made:
            yield made
