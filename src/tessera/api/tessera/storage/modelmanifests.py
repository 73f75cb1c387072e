"""The metadata beside the revisions of a model: manifests, and the journal of a sync in progress."""

import re

import msgspec

from tessera.api.fields import error_phrase
from tessera.core.storage.models.paths import checked_objects
from tessera.core.storage.models.revisions import Manifest, ModelFile, StoredObject, chunk_count
from tessera.core.storage.models.verifications import Verification
from tessera.errors import UNDECODABLE, InvalidInput, shown

__all__ = [
    "read_journal",
    "read_manifest",
    "read_verification",
    "write_journal_line",
    "write_manifest",
    "write_verification",
]

_VERSION = 1
_YEAR_10000_S = 253402300800.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(rb"([0-9]{1,9}) ([0-9]{1,9}) ([0-9a-f]{64})")


class _FileFields(msgspec.Struct, frozen=True):
    path: str
    size: int
    chunks: tuple[str, ...]
    etag: str = ""
    checksum: str = ""


class _ManifestFields(msgspec.Struct, frozen=True):
    version: int
    revision: str
    source: str
    files: tuple[_FileFields, ...]


class _VerificationFields(msgspec.Struct, frozen=True):
    at_s: float = 0.0
    damaged: tuple[str, ...] = ()


def write_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON."""
    files = tuple(_FileFields(each.path, each.size, each.chunks, each.etag, each.checksum) for each in manifest.files)
    return msgspec.json.encode(_ManifestFields(_VERSION, manifest.revision, manifest.source, files))


def read_manifest(content: bytes, *, subject: str, fix: str = "remove it, then sync again") -> Manifest:
    """Return the manifest in a file.

    Args:
        content: what `write_manifest` wrote, or anything else.
        subject: the file, as errors name it.
        fix: what to do about one that is broken.

    Raises:
        InvalidInput: it is not a manifest, is one of another version, or one that was changed.

    """
    try:
        wire = msgspec.json.decode(content, type=_ManifestFields)
    except UNDECODABLE as error:
        raise InvalidInput(subject, found=error_phrase(error, content), hint=fix) from error
    if wire.version != _VERSION:
        raise InvalidInput(
            subject, found=f"version {wire.version}", expected=f"version {_VERSION}", hint="update Tessera on this node"
        )
    checked_objects((StoredObject(file.path, file.size) for file in wire.files), source=subject)
    for file in wire.files:
        right = file.size >= 0 and len(file.chunks) == chunk_count(file.size)
        if not right or not all(_DIGEST.fullmatch(chunk) for chunk in file.chunks):
            found = f"file {shown(file.path)} whose size and digests do not fit"
            raise InvalidInput(subject, found=found, hint=fix)
    files = tuple(ModelFile(each.path, each.size, each.chunks, each.etag, each.checksum) for each in wire.files)
    manifest = Manifest(wire.source, files)
    if manifest.revision != wire.revision:
        found = f"revision {shown(wire.revision)} for files that are {manifest.revision}"
        raise InvalidInput(subject, found=found, hint=fix)
    return manifest


def write_verification(verification: Verification) -> bytes:
    """Return the last comparison of a revision as JSON."""
    return msgspec.json.encode(_VerificationFields(verification.at_s, verification.damaged))


def read_verification(content: bytes) -> Verification:
    """Return the last comparison in a file; none for a file that is broken, at no time for a time that none is."""
    try:
        found = msgspec.json.decode(content, type=_VerificationFields)
    except UNDECODABLE:
        return Verification()
    return Verification(found.at_s if 0 <= found.at_s < _YEAR_10000_S else 0.0, found.damaged)


def write_journal_line(object_index: int, chunk: int, digest: str) -> bytes:
    """Return the journal line of a chunk on the disk, with its digest."""
    return b"%d %d %s\n" % (object_index, chunk, digest.encode())


def read_journal(content: bytes) -> dict[tuple[int, int], str]:
    """Return the digests of chunks by index of object and chunk; torn lines are left out."""
    found = {}
    for line in content.split(b"\n")[:-1]:
        if (match := _LINE.fullmatch(line)) is not None:
            found[int(match[1]), int(match[2])] = match[3].decode()
    return found
