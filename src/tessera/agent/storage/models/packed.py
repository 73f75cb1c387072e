"""Packed revisions, one image each: written from staged files, compared with their manifest, mounted for readers."""

import os
from collections.abc import Iterator
from pathlib import Path

from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.digests import chunk_digest, chunk_mismatch
from tessera.core.storage.models.erofs import ImageLayout, image_layout
from tessera.core.storage.models.revisions import Manifest, ModelFile, chunk_range
from tessera.errors import Unavailable

__all__ = ["copy_out", "damaged_in_image", "layout_of", "read_ahead", "write_image"]

_READ_BYTES = 2**20
_TRUNCATED = "the image is truncated"
_CHANGED = "the image's folders are not those that were written"


def layout_of(manifest: Manifest) -> ImageLayout:
    """Return the layout of a revision's image."""
    return image_layout((file.path, file.size) for file in manifest.files)


def write_image(manifest: Manifest, staged: Path, target: Path) -> None:
    """Write the image of a revision, synced to disk.

    Each staged file is removed once it is in the image, so that the disk needs no room for both.

    Raises:
        Unavailable: a staged file differs from what was fetched.
        OSError: the disk is full or broken.

    """
    layout, reads = layout_of(manifest), ChunkReads()
    files = {file.path: file for file in manifest.files}
    target.unlink(missing_ok=True)
    number = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
    try:
        os.ftruncate(number, layout.size)
        _write(number, memoryview(layout.head), 0)
        for each in layout.files:
            path = staged / each.path
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                for view, start in _checked(source, files[each.path], 0, reads):
                    _write(number, view, each.offset + start)
            finally:
                os.close(source)
            path.unlink()
        os.fsync(number)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(number)


def damaged_in_image(image: Path, manifest: Manifest, reads: ChunkReads | None) -> dict[str, str]:
    """Return the damaged files of an image, by their paths; of a damaged image all of them.

    Args:
        image: the file.
        manifest: its expected content.
        reads: reads the files; None to check the folders and the size alone.

    """
    layout, files = layout_of(manifest), {file.path: file for file in manifest.files}
    try:
        number = os.open(image, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return dict.fromkeys(files, error.strerror or str(error))
    try:
        problem = _TRUNCATED if os.fstat(number).st_size != layout.size else ""
        if not problem and os.pread(number, len(layout.head), 0) != layout.head:
            problem = _CHANGED
    finally:
        os.close(number)
    if problem or reads is None:
        return dict.fromkeys(files, problem) if problem else {}
    found, number = {}, reads.open(str(image))
    try:
        for each in layout.files:
            try:
                for _ in _checked(number, files[each.path], each.offset, reads):
                    pass
            except (Unavailable, OSError) as error:
                found[each.path] = error.found if isinstance(error, Unavailable) else str(error.strerror)
    finally:
        os.close(number)
    return found


def copy_out(image: Path, file: ModelFile, offset: int, target: Path) -> None:
    """Copy a file out of an image.

    Args:
        image: the image.
        file: the expected file.
        offset: where it begins in the image.
        target: the new file; must not exist.

    Raises:
        Unavailable: the content differs from what was fetched.

    """
    with image.open("rb", buffering=0) as source, target.open("xb", buffering=0) as copy:
        for view, start in _checked(source.fileno(), file, offset, ChunkReads(file.size)):
            _write(copy.fileno(), view, start)


def read_ahead(image: Path) -> int:
    """Read an image into the page cache, and return its bytes: then no reader waits for the disk."""
    total, buffer = 0, bytearray(_READ_BYTES)
    with image.open("rb", buffering=0) as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := source.readinto(buffer):
            total += count
    return total


def _checked(number: int, file: ModelFile, offset: int, reads: ChunkReads) -> Iterator[tuple[memoryview, int]]:
    """Yield the chunks of a file with their offsets, verified."""
    for index, digest in enumerate(file.chunks):
        first, last = chunk_range(file.size, index)
        view = reads.read(number, offset + first, last - first)
        if chunk_digest(view) != digest:
            raise Unavailable(
                file.path,
                found=chunk_mismatch(first, last),
                hint="sync --check, which fetches what is damaged again",
            )
        yield view, first


def _write(number: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.pwrite(number, view, offset)
        view, offset = view[count:], offset + count
