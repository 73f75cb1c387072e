"""Which object keys become files: none leaves the folder, and no two become the same file."""

import fnmatch
import re
import unicodedata
from collections.abc import Iterable

from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import InvalidInput, shown

__all__ = ["NOTES", "checked_objects", "checked_path", "selected"]

NOTES = ".tessera"
"""The folder at the top of a destination with Tessera's own metadata."""

_COMPONENT_BYTES = 255
_PATH_BYTES = 4000
_PARTS = 256
"""Deeper than any model, and less than programs stand that visit folders by recursion."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_RENAME = "rename the object, or leave it out with --exclude"


def checked_path(path: str, *, source: str) -> str:
    """Return a path that stays below its folder.

    Raises:
        InvalidInput: it would not, or is not a valid file name.

    """
    parts = path.split("/")
    problem = ""
    if path.startswith("/") or ".." in parts:
        problem = "leads out of the folder"
    elif "" in parts or "." in parts:
        problem = "has an empty or `.` part, which no file can have"
    elif _CONTROL.search(path):
        problem = "has a control character"
    elif _SURROGATE.search(path):
        problem = "is no UTF-8"
    elif (size := len(path.encode())) > _PATH_BYTES or (
        size > _COMPONENT_BYTES and any(len(part.encode()) > _COMPONENT_BYTES for part in parts)
    ):
        problem = f"is too long for a file: at most {_COMPONENT_BYTES} bytes a part, {_PATH_BYTES} in all"
    elif len(parts) > _PARTS:
        problem = f"has {len(parts)} parts: at most {_PARTS}"
    elif parts[0].casefold() == NOTES:
        problem = f"begins with {NOTES}, where Tessera keeps its own notes"
    if problem:
        raise InvalidInput(f"{source}: object {shown(path)}", found=f"its name {problem}", hint=_RENAME)
    return path


def checked_objects(objects: Iterable[StoredObject], *, source: str) -> tuple[StoredObject, ...]:
    """Return the objects that become files, ordered by path; markers of folders (`a/`, no bytes) do not.

    Raises:
        InvalidInput: a name leads out of the folder, two names are one file regardless of case or Unicode form,
            or one is both file and folder.

    """
    files = [each for each in objects if not (each.path.endswith("/") and each.size == 0)]
    taken: dict[str, str] = {}
    for each in files:
        folded = _folded(checked_path(each.path, source=source))
        if folded in taken:
            raise _collision(source, each.path, taken[folded], "are one file where upper and lower case are the same")
        taken[folded] = each.path
    for folded, path in taken.items():
        parts = folded.split("/")
        for count in range(1, len(parts)):
            if (file := taken.get("/".join(parts[:count]))) is not None:
                raise _collision(source, path, file, "need a folder and a file of one name")
    return tuple(sorted(files, key=lambda each: each.path))


def selected(
    objects: Iterable[StoredObject], include: tuple[str, ...], exclude: tuple[str, ...]
) -> tuple[StoredObject, ...]:
    """Return the objects that a pattern of `include` matches (all where there is none) and none of `exclude`.

    A pattern is a shell's, and matches the whole path or the file's name: `*.safetensors`, `original/*`.
    """
    return tuple(
        each for each in objects if (not include or _matches(each.path, include)) and not _matches(each.path, exclude)
    )


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    name = path.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(path, each) or fnmatch.fnmatchcase(name, each) for each in patterns)


def _folded(path: str) -> str:
    if path.isascii():  # nearly all are, of 20,000
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _collision(source: str, path: str, other: str, problem: str) -> InvalidInput:
    found = f"it and {shown(other)} {problem}"
    return InvalidInput(f"{source}: object {shown(path)}", found=found, hint=_RENAME)
