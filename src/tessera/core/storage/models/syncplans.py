"""What a sync has to do: nothing, link unchanged files, fetch the others in chunks; and when it packs them."""

import hashlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from tessera.core.storage.models.revisions import Manifest, ModelFile, StoredObject, chunk_count
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = [
    "MirrorPlan",
    "Pack",
    "Span",
    "SyncPlan",
    "is_packed",
    "parents_of",
    "plan_mirror",
    "plan_sync",
    "refuse_empty",
    "refuse_unverified",
    "spans",
]

Pack = Literal["Auto", "Never", "Always"]
"""When files are packed: if they are many and small, never, or always."""

_INTERLEAVED = 8
"""Files fetched side by side: a file's checksum is computed in order, so that one file keeps one core busy."""
_MANY = 1000
_SMALL_BYTES = 256 * 1024
"""Files of 256 KiB are read as fast one by one as an image is; smaller ones cost a folder entry, an inode and a
removal each (docs/decisions/0032-data-sets-are-packed.md)."""


class SyncPlan(msgspec.Struct, frozen=True):
    """How the files of a listing are obtained.

    Args:
        reused: files that an older revision has: its name, and the file there, by the path they get.
        fetched: objects to fetch, in the order of their paths.

    """

    reused: dict[str, tuple[str, ModelFile]]
    fetched: tuple[StoredObject, ...]

    @property
    def bytes_to_fetch(self) -> int:
        """Bytes of all objects to fetch."""
        return sum(each.size for each in self.fetched)

    @property
    def identity(self) -> str:
        """Its identity while the same files are to be obtained: the name under which a sync is resumed.

        What another sync has staged must be none of this one's, also where both have it from older revisions.
        """
        rows = msgspec.json.encode(self.fetched)
        if self.reused:  # without these it is the name of all versions
            rows += msgspec.json.encode(sorted((path, file.chunks) for path, (_, file) in self.reused.items()))
        return hashlib.sha256(rows).hexdigest()[:32]


class MirrorPlan(msgspec.Struct, frozen=True):
    """How plain files become those of a listing.

    Args:
        unchanged: files that stay, by their paths.
        fetched: what is new.
        removed: paths of files that left the store.

    """

    unchanged: dict[str, ModelFile]
    fetched: tuple[StoredObject, ...]
    removed: tuple[str, ...]


class Span(msgspec.Struct, frozen=True):
    """Chunks of an object that one request fetches.

    Args:
        object: index in `SyncPlan.fetched`.
        first: index of its first chunk.
        stop: index behind its last one.

    """

    object: int
    first: int
    stop: int


def plan_sync(
    objects: tuple[StoredObject, ...],
    source: str,
    revisions: Mapping[str, Manifest],
    unusable: Collection[tuple[str, str]] = (),
) -> SyncPlan:
    """Return which files are taken from older revisions and which are fetched.

    A file is unchanged if its size and the store's checksum of the content are the same, under any name and from any
    source, or, if the store has no checksum, if source, path, size and ETag are. A CRC32C is compared under the same
    name alone: of many files two may have the same one.

    Args:
        objects: the listing, checked.
        source: where it is from.
        revisions: those on the disk, by name; of several with a file the first is used.
        unusable: revision and path of files that are not reused, such as damaged ones.

    """
    known: dict[tuple[str, ...], tuple[str, ModelFile]] = {}
    for name, manifest in revisions.items():
        for file in manifest.files:
            if (name, file.path) not in unusable:
                for key in _keys(manifest.source, file):
                    known.setdefault(key, (name, file))
    reused, fetched = {}, []
    for each in objects:
        found = next((known[key] for key in _keys(source, each) if key in known), None)
        if found is None:
            fetched.append(each)
        else:
            reused[each.path] = (found[0], _renewed(found[1], each))
    return SyncPlan(reused, tuple(fetched))


def plan_mirror(
    objects: tuple[StoredObject, ...], source: str, manifest: Manifest | None, unusable: Collection[str] = ()
) -> MirrorPlan:
    """Return which plain files stay, which are fetched and which are removed.

    A file is unchanged as in `plan_sync`, under its own name alone.

    Args:
        objects: the listing, checked.
        source: where it is from.
        manifest: of the plain files; None where there are none.
        unusable: paths of files that do not stay, such as damaged ones.

    """
    here = {file.path: file for file in manifest.files} if manifest else {}
    unchanged, fetched = {}, []
    for each in objects:
        file = here.get(each.path)
        known = () if file is None or manifest is None or each.path in unusable else _keys(manifest.source, file)
        if file is None or set(known).isdisjoint(_keys(source, each)):
            fetched.append(each)
        else:
            unchanged[each.path] = _renewed(file, each)
    removed = here.keys() - {each.path for each in objects}
    return MirrorPlan(unchanged, tuple(fetched), tuple(sorted(removed)))


def parents_of(path: str) -> tuple[str, ...]:
    """Return the parent folders of a path, the nearest first."""
    parts = path.split("/")
    return tuple("/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1))


def _renewed(file: ModelFile, stored: StoredObject) -> ModelFile:
    """Return an unchanged file with the ETag that it has now; its checksum is the one that it was compared with."""
    if file.etag == stored.etag:
        return file  # all of them, most often
    return msgspec.structs.replace(file, etag=stored.etag)


def _keys(source: str, file: StoredObject | ModelFile) -> Iterator[tuple[str, ...]]:
    """Yield the keys by which a file is recognized, the best first."""
    if file.etag:
        yield source, file.path, str(file.size), file.etag
    if file.checksum.startswith("crc32c:"):
        yield file.path, str(file.size), file.checksum
    elif file.checksum:
        yield str(file.size), file.checksum


def is_packed(sizes: Sequence[int], pack: Pack, *, can_mount: bool = True) -> bool:
    """Return whether files of these sizes are packed: at least 1,000, of less than 256 KiB on average.

    Args:
        sizes: of the files, in bytes.
        pack: the setting.
        can_mount: whether the node can mount an image; without it `Auto` packs nothing.

    """
    if pack == "Auto":
        return can_mount and len(sizes) >= _MANY and sum(sizes) < _SMALL_BYTES * len(sizes)
    return pack == "Always"


def refuse_empty(objects: tuple[StoredObject, ...], *, source: str) -> None:
    """Reject a listing without objects, which is more often a wrong name or a broken store than an empty model.

    Raises:
        Unavailable: there are none.

    """
    if not objects:
        raise Unavailable(
            source,
            found="it has no objects; the disk is not changed",
            hint="check the name, the credentials, --include and --exclude",
        )


def refuse_unverified(files: Iterable[StoredObject | ModelFile], *, source: str) -> None:
    """Reject files with content that no checksum of their store verifies.

    Raises:
        InvalidInput: there are some; the first is named.

    """
    paths = [each.path for each in files if each.size and not each.checksum]
    if paths:
        others = f", and none of {len(paths) - 1} others" if len(paths) > 1 else ""
        raise InvalidInput(
            f"{source}: object {shown(paths[0])}",
            found=f"the source gives no checksum that verifies it{others}",
            hint="name a source with checksums, or do not require them (spec.verification, --require-checksums)",
        )


def spans(objects: tuple[StoredObject, ...]) -> Iterator[Span]:
    """Yield all chunks in fetching order: large objects first, several side by side.

    A chunk comes after those before it of the same object. An object that is not served in parts, or of which no change
    is noticed, is one span.
    """
    order = sorted(range(len(objects)), key=lambda index: chunk_count(objects[index].size) == 1)
    following = deque(order)
    going: defaultdict[int, int] = defaultdict(int)
    row = deque(following.popleft() for _ in range(min(_INTERLEAVED, len(following))))
    while row:
        index = row.popleft()
        count = chunk_count(objects[index].size)
        first = going[index]
        stop = first + 1 if objects[index].ranges and objects[index].has_validator else count
        yield Span(index, first, stop)
        if stop < count:
            going[index] = stop
            row.append(index)
        elif following:
            row.append(following.popleft())
