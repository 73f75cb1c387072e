"""The layout of a read-only EROFS image: one file that the kernel mounts in place of thousands.

Only what a data set needs is written: folders and regular files, uncompressed, each file in one run of blocks. The same
files give the same bytes on every machine.

Source: Linux, Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h (on-disk format since Linux 5.4).
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator

import msgspec

from tessera.errors import InvalidInput

__all__ = ["BLOCK_BYTES", "ImageLayout", "PackedFile", "image_layout"]

BLOCK_BYTES = 4096
_SUPER_OFFSET = 1024
_MAGIC = 0xE0F5E1E2
_SLOT_BYTES = 32
"""Inodes are numbered by slots of so many bytes from the first block."""
_INODE_SLOTS = 2
"""Extended inodes, which have room for sizes over 4 GiB, take 64 bytes."""
_ROOT = BLOCK_BYTES // _SLOT_BYTES
"""The first inode is behind the superblock's block."""
_MOST_BLOCKS = 2**32 - 1
_FOLDER_MODE, _FILE_MODE = 0o040555, 0o100444
_FOLDER_TYPE, _FILE_TYPE = 2, 1
_SUPER = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQB23x")
_INODE = struct.Struct("<HHHHQIIIIQII16x")
_ENTRY = struct.Struct("<QHBB")
_EXTENDED_PLAIN = 1
"""The format of an inode: extended, and its content is one run of blocks."""


class PackedFile(msgspec.Struct, frozen=True):
    """A file in an image.

    Args:
        path: below the image's root.
        size: bytes.
        offset: where its content begins in the image.

    """

    path: str
    size: int
    offset: int


class ImageLayout(msgspec.Struct, frozen=True):
    """An image without the content of its files.

    Args:
        head: its first bytes, a whole number of blocks.
        files: in the order of their content.
        size: bytes of the whole image.

    """

    head: bytes
    files: tuple[PackedFile, ...]
    size: int


class _Node:
    """A folder or a file on its way into the image."""

    def __init__(self, path: str, size: int, parent: "_Node | None") -> None:
        self.path = path
        self.size = size
        self.parent = parent or self
        self.children: dict[bytes, _Node] = {}
        self.is_folder = False
        self.number = 0
        self.block = 0


def image_layout(files: Iterable[tuple[str, int]]) -> ImageLayout:
    """Return the layout of an image with these files, by path and size.

    Content is ordered by path, so that reading the image from begin to end reads folder by folder.

    Args:
        files: paths that `checked_objects` has let pass.

    Raises:
        InvalidInput: more than the format can hold, 16 TiB.

    """
    # 1. Make the tree.
    root, leaves = _tree(files)
    nodes = list(_walk(root))
    for index, node in enumerate(nodes):
        node.number = _ROOT + index * _INODE_SLOTS
    # 2. Place inodes, then the folders' entries, then content.
    end = _blocks(BLOCK_BYTES + len(nodes) * _INODE_SLOTS * _SLOT_BYTES)
    for node in nodes:
        if node.is_folder:
            node.block, node.size = end, len(_entries(node))
            end += _blocks(node.size)
    first = end
    for node in leaves:
        node.block, end = end, end + _blocks(node.size)
    if end > _MOST_BLOCKS:
        raise InvalidInput(
            "an image", found=f"it would have {end * BLOCK_BYTES >> 40} TiB, more than 16 TiB", hint="do not pack it"
        )
    # 3. Write them.
    head = bytearray(first * BLOCK_BYTES)
    for node in nodes:
        _INODE.pack_into(head, node.number * _SLOT_BYTES, *_inode(node))
        if node.is_folder:
            start = node.block * BLOCK_BYTES
            head[start : start + node.size] = _entries(node)
    identity = hashlib.sha256(bytes(head)).digest()[:16]
    super_block = (_MAGIC, 0, 0, 12, 0, _ROOT, len(nodes), 0, 0, end, 0, 0, identity, b"", 0, 0, 0, 0, 0, 0, 0, 0, 0)
    _SUPER.pack_into(head, _SUPER_OFFSET, *super_block)
    packed = tuple(PackedFile(node.path, node.size, node.block * BLOCK_BYTES) for node in leaves)
    return ImageLayout(bytes(head), packed, end * BLOCK_BYTES)


def _tree(files: Iterable[tuple[str, int]]) -> tuple[_Node, list[_Node]]:
    """Return the root and the files in the order of their paths."""
    root, leaves = _Node("", 0, None), []
    root.is_folder = True
    folders = {"": root}
    for path, size in sorted(files):
        above = ""
        parent = root
        for part in path.split("/")[:-1]:
            here = f"{above}/{part}" if above else part
            if here not in folders:
                folders[here] = parent.children[part.encode()] = _Node(here, 0, parent)
                folders[here].is_folder = True
            above, parent = here, folders[here]
        leaf = parent.children[path.rpartition("/")[2].encode()] = _Node(path, size, parent)
        leaves.append(leaf)
    return root, leaves


def _walk(node: _Node) -> Iterator[_Node]:
    """Yield a folder before what is in it, without recursion: paths may be deep."""
    following = [node]
    while following:
        each = following.pop()
        yield each
        following.extend(each.children[name] for name in sorted(each.children, reverse=True))


def _inode(node: _Node) -> tuple[int, ...]:
    links = 2 + sum(child.is_folder for child in node.children.values()) if node.is_folder else 1
    mode = _FOLDER_MODE if node.is_folder else _FILE_MODE
    serial = (node.number - _ROOT) // _INODE_SLOTS + 1
    return (_EXTENDED_PLAIN, 0, mode, 0, node.size, node.block, serial, 0, 0, 0, 0, links)


def _entries(node: _Node) -> bytes:
    """Return the entries of a folder: blocks of which each has its entries first, then their names."""
    rows = sorted([(b".", node), (b"..", node.parent), *node.children.items()], key=lambda row: row[0])
    found, block, used = bytearray(), list[tuple[bytes, _Node]](), 0
    for name, child in rows:
        if used + _ENTRY.size + len(name) > BLOCK_BYTES:
            found += _entry_block(block).ljust(BLOCK_BYTES, b"\0")
            block, used = [], 0
        block.append((name, child))
        used += _ENTRY.size + len(name)
    return bytes(found + _entry_block(block))


def _entry_block(rows: list[tuple[bytes, _Node]]) -> bytes:
    entries, names = bytearray(), bytearray()
    for name, child in rows:
        kind = _FOLDER_TYPE if child.is_folder else _FILE_TYPE
        entries += _ENTRY.pack(child.number, len(rows) * _ENTRY.size + len(names), kind, 0)
        names += name
    return bytes(entries + names)


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES)
