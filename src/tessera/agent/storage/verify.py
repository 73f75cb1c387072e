"""Compares files on the disk with their manifest, and reads them into the page cache."""

import os
import stat
from pathlib import Path

from tessera.agent.storage.chunkfiles import aligned_buffer
from tessera.agent.storage.digests import chunk_digest
from tessera.core.storage.revisions import Manifest, ModelFile, chunk_range

__all__ = ["damaged_files", "warm"]


def damaged_files(top: Path, manifest: Manifest, *, content: bool) -> dict[str, str]:
    """Return what is wrong with files, by their paths: missing, another size, another content where that is read."""
    buffer = aligned_buffer()
    found = {}
    for file in manifest.files:
        if problem := _problem(f"{top}/{file.path}", file, buffer if content else None):
            found[file.path] = problem
    return found


def _problem(path: str, file: ModelFile, buffer: memoryview | None) -> str:
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            return "no regular file"
        if status.st_size != file.size:
            return f"{status.st_size} bytes in place of {file.size}"
        if buffer is None:
            return ""
        with open(path, "rb", buffering=0) as source:  # noqa: PTH123 - one of 20,000
            for index, digest in enumerate(file.chunks):
                first, last = chunk_range(file.size, index)
                done = 0
                while done < last - first and (count := source.readinto(buffer[done : last - first])):
                    done += count
                if chunk_digest(buffer[:done]) != digest:
                    return f"bytes {first} to {last} are not those that were fetched"
    except OSError as error:
        return error.strerror or str(error)
    return ""


def warm(top: Path, manifest: Manifest) -> int:
    """Read all files into the page cache and return the bytes."""
    total = 0
    for file in manifest.files:
        with (top / file.path).open("rb", buffering=0) as source:
            os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            buffer = bytearray(2**20)
            while count := source.readinto(buffer):
                total += count
    return total
