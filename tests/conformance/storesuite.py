"""What every store does, whatever serves it; each is run through it by a subclass."""

from collections.abc import Callable

import pytest

from tessera.clients.store import Changed, ObjectStore, Refused
from tessera.core.storage.models.revisions import StoredObject

ODD = (
    "plain.bin",
    "a b.bin",
    "plus+percent%41.bin",
    "question?hash#.bin",
    "ampersand&equals=;,.bin",
    "quote'(1)!*~@$:.bin",
    "späß/模型.safetensors",
    "deep/er/and/deeper/file",
    "UPPER/lower.JSON",
    ".hidden",
)
CONTENTS = {name: f"content of {name}".encode() * 9 for name in ODD} | {"empty": b""}

Fill = Callable[[dict[str, bytes]], None]


def read(store: ObjectStore, found: StoredObject, start: int, stop: int) -> bytes:
    """Return a range, by small pieces."""
    data = bytearray()
    buffer = memoryview(bytearray(7))
    with store.read(found, start, stop) as body:
        while len(data) < stop - start:
            count = body.readinto(buffer[: stop - start - len(data)])
            assert count, "the body ended too early"
            data += buffer[:count]
    return bytes(data)


class StoreSuite:
    """A subclass has the fixtures `store` and `fill`, which puts files in place of those that are there."""

    many = 2_100
    """Objects, which are more than a page of the store has."""

    def test_all_names_are_listed_with_their_sizes(self, store: ObjectStore, fill: Fill) -> None:
        fill(CONTENTS)
        got = {each.path: each.size for each in store.objects()}
        assert got == {name: len(data) for name, data in CONTENTS.items()}

    def test_whole_objects_and_ranges_are_read(self, store: ObjectStore, fill: Fill) -> None:
        fill(CONTENTS)
        for each in store.objects():
            data = CONTENTS[each.path]
            assert read(store, each, 0, each.size) == data if data else each.size == 0
            if data:
                assert read(store, each, 3, 20) == data[3:20]
                assert read(store, each, each.size - 1, each.size) == data[-1:]

    def test_small_objects_come_whole_or_have_to_be_read_alone(self, store: ObjectStore, fill: Fill) -> None:
        fill(CONTENTS)
        listed = [each for each in store.objects() if each.size]
        before = store.requests
        got = {found: None if content is None else bytes(content) for found, content in store.read_small(listed)}
        assert got == {each: CONTENTS[each.path] if store.pipelines else None for each in listed}
        assert store.requests == before + (len(listed) if store.pipelines else 0)
        assert read(store, listed[0], 2, 5) == CONTENTS[listed[0].path][2:5]

    def test_of_small_objects_one_that_is_gone_is_left_to_be_refused(self, store: ObjectStore, fill: Fill) -> None:
        contents = {f"{number:02}": b"%d" % number for number in range(50)}
        fill({**contents, "gone": b"before"})
        listed = store.objects()
        fill(contents)
        if not store.pipelines:
            return
        got = {found.path: content and bytes(content) for found, content in store.read_small(listed)}
        assert got.pop("gone") is None
        assert {path: content for path, content in got.items() if content is not None}.items() <= contents.items()
        assert got.keys() == contents.keys()

    def test_more_than_a_page_is_listed(self, store: ObjectStore, fill: Fill) -> None:
        contents = {f"{number % 7}/{number:05}": b"%d" % number for number in range(self.many)}
        fill(contents)
        found = store.objects()
        assert len(found) == len(contents)
        assert {each.path for each in found} == contents.keys()

    def test_an_object_that_was_replaced_is_noticed(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"before"})
        (listed,) = store.objects()
        fill({"file": b"another"})
        with pytest.raises(Changed):
            read(store, listed, 0, listed.size)
        (again,) = store.objects()
        assert read(store, again, 0, again.size) == b"another"

    def test_an_object_that_is_gone_is_refused(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"before", "other": b""})
        gone = next(each for each in store.objects() if each.path == "file")
        fill({"other": b""})
        with pytest.raises((Refused, Changed)):
            read(store, gone, 0, gone.size)

    def test_requests_are_counted(self, store: ObjectStore, fill: Fill) -> None:
        fill({"file": b"content"})
        (listed,) = store.objects()
        before = store.requests
        read(store, listed, 0, 7)
        assert store.requests == before + 1
