"""Images as a reader of the format finds them; the kernel reads them in tests/agent/storage/models/test_packed.py."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.erofs import BLOCK_BYTES, ImageLayout, image_layout
from tessera.core.storage.models.paths import checked_objects
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import InvalidInput

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=60)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


def accepted(paths: dict[str, int]) -> dict[str, int]:
    """Return the paths that can be files beside each other, as a sync takes them."""
    found: dict[str, int] = {}
    for path, size in paths.items():
        try:
            checked_objects([StoredObject(each, 1) for each in (*found, path)], source="test")
        except InvalidInput:
            continue
        found[path] = size
    return found


FILES = st.dictionaries(PATHS, st.integers(0, 3 * BLOCK_BYTES), max_size=30).map(accepted)


def read_folder(head: bytes, inode: int) -> dict[bytes, tuple[int, int]]:
    """Return number and kind of what is in a folder, and check that a binary search finds it."""
    size, block = struct.unpack_from("<QI", head, inode * 32 + 8)
    content = head[block * BLOCK_BYTES : block * BLOCK_BYTES + size]
    found: dict[bytes, tuple[int, int]] = {}
    for start in range(0, size, BLOCK_BYTES):
        part = content[start : start + BLOCK_BYTES]
        first = struct.unpack_from("<H", part, 8)[0]
        rows = [struct.unpack_from("<QHB", part, index * 12) for index in range(first // 12)]
        ends = [row[1] for row in rows[1:]] + [len(part)]
        for (number, offset, kind), end in zip(rows, ends, strict=True):
            found[part[offset:end].rstrip(b"\0")] = number, kind
    assert list(found) == sorted(found)
    return found


def read_files(layout: ImageLayout) -> dict[str, tuple[int, int]]:
    """Return size and offset of each file, as a reader of the format finds them from the superblock on."""
    magic, root = struct.unpack_from("<I10xH", layout.head, 1024)
    assert magic == 0xE0F5E1E2
    found, waiting = {}, [("", root, root)]
    while waiting:
        path, number, parent = waiting.pop()
        entries = read_folder(layout.head, number)
        assert (entries.pop(b"."), entries.pop(b"..")) == ((number, 2), (parent, 2))
        links = struct.unpack_from("<I", layout.head, number * 32 + 44)[0]
        assert links == 2 + sum(kind == 2 for _, kind in entries.values())
        for name, (inode, kind) in entries.items():
            here = f"{path}{name.decode()}"
            if kind == 2:
                waiting.append((f"{here}/", inode, number))
            else:
                size, block = struct.unpack_from("<QI", layout.head, inode * 32 + 8)
                found[here] = size, block * BLOCK_BYTES
    return found


@given(FILES)
def test_a_reader_finds_each_file_and_no_other(files: dict[str, int]) -> None:
    layout = image_layout(files.items())
    found = read_files(layout)
    assert {path: size for path, (size, _) in found.items()} == files
    assert found == {each.path: (each.size, each.offset) for each in layout.files}


@given(FILES)
def test_contents_are_whole_blocks_in_the_order_of_the_paths_and_overlap_nowhere(files: dict[str, int]) -> None:
    layout = image_layout(files.items())
    assert [each.path for each in layout.files] == sorted(files)
    end = len(layout.head)
    for each in layout.files:
        assert each.offset == end
        end += -(-each.size // BLOCK_BYTES) * BLOCK_BYTES
    assert layout.size == end
    assert len(layout.head) % BLOCK_BYTES == 0


@given(FILES)
def test_the_same_files_give_the_same_image(files: dict[str, int]) -> None:
    assert image_layout(reversed(files.items())) == image_layout(files.items())


def test_a_folder_of_many_files_takes_several_blocks() -> None:
    files = {f"d/{number:05}.bin": 16384 for number in range(2000)}
    layout = image_layout(files.items())
    assert {path: size for path, (size, _) in read_files(layout).items()} == files


def test_what_no_image_can_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="16 TiB"):
        image_layout([("a", 2**44)])
