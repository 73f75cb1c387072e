"""Compares files on disk with their manifest, and reads them into the page cache."""

import io
import os
import stat
from pathlib import Path

from tessera.agent.nodefiles import open_regular
from tessera.agent.storage.models.chunkfiles import aligned_buffer
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.digests import chunk_digest, chunk_mismatch, matches, start_checksum
from tessera.core.storage.models.revisions import Manifest, ModelFile, StoredObject, chunk_count, chunk_range
from tessera.core.storage.models.syncplans import parents_of
from tessera.errors import Unavailable

__all__ = ["LINKED", "adopted_file", "damaged_files", "warm"]

LINKED = "a folder of its path is a symbolic link"
"""The problem of a file that is perhaps not the one that was fetched, and whose replacement would be elsewhere."""


def damaged_files(top: Path, manifest: Manifest, reads: ChunkReads | None, *, since_ns: int = 0) -> dict[str, str]:
    """Return the damaged files by path: missing, of another size, or of other content where that is read.

    Args:
        top: the folder.
        manifest: the expected files.
        reads: reads the files; None to compare sizes alone.
        since_ns: of the files, those that changed at this time or later are read, in nanoseconds since 1970.

    """
    found = {}
    folders = {folder for file in manifest.files for folder in parents_of(file.path)}
    links = {folder for folder in folders if (top / folder).is_symlink()}
    for file in manifest.files:
        if links.intersection(parents_of(file.path)):
            found[file.path] = LINKED
        elif problem := _problem(f"{top}/{file.path}", file, reads, since_ns):
            found[file.path] = problem
    return found


def adopted_file(path: Path, expected: StoredObject) -> ModelFile | None:
    """Return a file on disk as an object, by its size and the store's checksum; None if it differs."""
    checksum, digests = start_checksum(expected.checksum, expected.size), []
    try:
        if checksum is None or path.lstat().st_size != expected.size:
            return None
        number = open_regular(path)
    except OSError:
        return None
    with os.fdopen(number, "rb", buffering=0) as source:
        buffer = aligned_buffer(expected.size)
        for index in range(chunk_count(expected.size)):
            first, last = chunk_range(expected.size, index)
            done = _fill(source, buffer[: last - first])
            checksum.update(buffer[:done])
            digests.append(chunk_digest(buffer[:done]))
    if not matches(checksum, expected.checksum):
        return None
    return ModelFile(expected.path, expected.size, tuple(digests), expected.etag, expected.checksum)


def _fill(source: io.FileIO, view: memoryview) -> int:
    done = 0
    while done < len(view) and (count := source.readinto(view[done:])):
        done += count
    return done


def _problem(path: str, file: ModelFile, reads: ChunkReads | None, since_ns: int) -> str:
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if status.st_size != file.size:
            return f"{status.st_size} bytes in place of {file.size}"
        if reads is None or status.st_ctime_ns < since_ns:
            return ""
        number = reads.open(path)
        try:
            for index, digest in enumerate(file.chunks):
                first, last = chunk_range(file.size, index)
                if chunk_digest(reads.read(number, first, last - first)) != digest:
                    return chunk_mismatch(first, last)
        finally:
            os.close(number)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def warm(top: Path, manifest: Manifest) -> int:
    """Read all files into the page cache and return their bytes.

    Raises:
        Unavailable: a file is missing, or no regular one.

    """
    total = 0
    for file in manifest.files:
        try:
            number = open_regular(top / file.path)
        except OSError as error:
            found, fix = error.strerror or str(error), "sync again, which fetches it"
            raise Unavailable(str(top / file.path), found=found, hint=fix) from error
        with os.fdopen(number, "rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            buffer = bytearray(2**20)
            while count := source.readinto(buffer):
                total += count
    return total
