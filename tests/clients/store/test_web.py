"""A web server as a store: what every store does."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conformance.storesuite import StoreSuite
from harness.serving import served
from tessera.clients.store import ObjectStore, Refused, open_store, web
from tessera.clients.store.web import WebStore

T = TypeVar("T")


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


class Tree(NamedTuple):
    """A folder of a web server: how many files it has, and its folders."""

    files: int
    folders: tuple["Tree", ...] = ()

    @property
    def all_files(self) -> int:
        """Files in it and below."""
        return self.files + sum(each.all_files for each in self.folders)

    @property
    def all_folders(self) -> int:
        """It, and the folders below."""
        return 1 + sum(each.all_folders for each in self.folders)


class Slow(Quiet):
    """Index pages of a tree, or without an end, and sizes, each of which takes its time of a clock."""

    clock = page_s = size_s = 0.0
    tree: ClassVar[Tree | None] = None
    """None: each folder has a file and a folder."""
    times = 1
    """How often a page has each link."""
    lock = threading.Lock()

    def send_index(self, links: list[str]) -> None:
        page = "".join(f'<a href="{each}">x</a>' for each in links * self.times).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_GET(self) -> None:
        with self.lock:
            Slow.clock += self.page_s
        tree = self.tree or Tree(1, (Tree(0),))
        for each in self.path.strip("/").split("/")[1:] if self.tree is not None else ():
            tree = tree.folders[int(each)]
        files = [f"f{number}" for number in range(tree.files)]
        self.send_index(["../", "?C=N", *files, *(f"{number}/" for number in range(len(tree.folders)))])

    def do_HEAD(self) -> None:
        with self.lock:
            Slow.clock += self.size_s
        self.send_response(200)
        self.send_header("Content-Length", "1")
        self.end_headers()


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    """Return the address of a slow server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    with served(server):
        yield f"http://127.0.0.1:{server.server_port}/m/"


@contextmanager
def listing(address: str, tree: Tree | None, page_s: float, size_s: float) -> Iterator[WebStore]:
    Slow.clock, Slow.tree, Slow.page_s, Slow.size_s = 0.0, tree, page_s, size_s
    with closing(WebStore(address, now=lambda: Slow.clock)) as store:
        yield store


TREES = st.recursive(
    st.integers(0, 3).map(Tree),
    lambda each: st.builds(Tree, st.integers(0, 3), st.lists(each, max_size=4).map(tuple)),
    max_leaves=20,
)


@settings(max_examples=50)
@given(TREES, st.sampled_from([0.01, 1.0, 5.0, 40.0]), st.sampled_from([0.01, 1.0, 5.0, 40.0]))
@example(Tree(0, (Tree(1),) * 40), 1.0, 0.01)
@example(Tree(0, (Tree(0),) * 100), 5.0, 0.01)
@example(Tree(60), 40.0, 5.0)
def test_a_tree_of_any_shape_is_listed_however_long_it_takes_until_a_day(
    slow: str, tree: Tree, page_s: float, size_s: float
) -> None:
    with listing(slow, tree, page_s, size_s) as store:
        assert len(store.objects()) == tree.all_files
        assert store.requests == tree.all_folders + tree.all_files
    assert Slow.clock == pytest.approx(tree.all_folders * page_s + tree.all_files * size_s)


ENDLESS = {
    "folders in folders, at once": (None, 0.0, 0.0, "more than 10,000 folders", 50),
    "folders in folders, slowly": (None, 2000.0, 0.0, "within a day", 44),
    "files that take all day": (Tree(60), 0.0, 2000.0, "within a day", 44),
    "pages that take most of the day, then files": (Tree(60, (Tree(0),) * 40), 2000.0, 2000.0, "within a day", 44),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_listing_that_goes_on_is_refused_by_its_folders_or_after_a_day(
    case: str, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, page_s, size_s, found, most = ENDLESS[case]
    monkeypatch.setattr(web, "_FOLDERS", 50)
    with listing(slow, tree, page_s, size_s) as store, pytest.raises(Refused, match=found):
        store.objects()
    assert most <= store.requests < most + 16, "16 sizes are requested at once"


@pytest.mark.parametrize(
    ("tree", "pages"), [(Tree(10), 1), (Tree(0, (Tree(0),) * 10), 1), (Tree(4, (Tree(4),)), 2)], ids=str
)
def test_more_files_or_folders_than_a_model_has_are_refused_without_a_look_at_them(
    tree: Tree, pages: int, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_FILES", 9)
    with listing(slow, tree, 0.0, 0.0) as store, pytest.raises(Refused, match="a million files"):
        store.objects()
    assert store.requests == pages


def test_a_page_that_names_a_file_more_than_a_million_times_is_refused(
    slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_FILES", 9)
    monkeypatch.setattr(Slow, "times", 10)
    with listing(slow, Tree(1), 0.0, 0.0) as store, pytest.raises(Refused, match="a million files"):
        store.objects()


def test_each_page_and_each_size_is_waited_for_since_it_was_requested(slow: str) -> None:
    """So that one which does not come is given up by the patience of the retry, whatever the others took."""
    found = list[float]()

    def retry(request: Callable[[], T], since: float) -> T:
        found.append(since)
        return request()

    with listing(slow, Tree(40, (Tree(0),) * 3), 100.0, 1.0) as store:
        store.objects(retry)
    assert found[:4] == [0.0, 100.0, 200.0, 300.0]
    assert len(found) == 44
    assert all(400 + number - 16 <= since <= 400 + number for number, since in enumerate(sorted(found[4:])))


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
