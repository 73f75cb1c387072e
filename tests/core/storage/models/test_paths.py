"""Names of objects as names of files."""

import pytest

from tessera.core.storage.models.paths import checked_objects, selected
from tessera.core.storage.models.revisions import StoredObject
from tessera.errors import InvalidInput


def objects(*paths: str) -> list[StoredObject]:
    return [StoredObject(path, 1) for path in paths]


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/etc/passwd", "leads out"),
        ("a/../../b", "leads out"),
        ("a//b", "empty"),
        ("./a", "empty"),
        ("a\nb", "control"),
        ("a\x00", "control"),
        ("\ud800", "UTF-8"),
        ("a" * 256, "too long"),
        ("a/" * 256 + "b", "257 parts: at most 256"),
        (".Tessera/lock", "own notes"),
    ],
)
def test_a_name_that_cannot_be_a_file_is_refused(path: str, want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        checked_objects(objects(path), source="s3://models")


@pytest.mark.parametrize(
    ("paths", "want"),
    [(("A/x", "a/X"), "upper and lower"), (("é", "e\u0301"), "upper and lower"), (("a", "a/b/c"), "folder and a file")],
)
def test_two_names_of_one_file_are_refused(paths: tuple[str, ...], want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        checked_objects(objects(*paths), source="s3://models")


def test_markers_of_folders_are_no_files_and_empty_files_are() -> None:
    listing = [StoredObject("b/", 0), StoredObject("b/c", 0), StoredObject("a", 1)]
    assert [each.path for each in checked_objects(listing, source="x")] == ["a", "b/c"]
    assert len(checked_objects(objects("a/" * 255 + "b"), source="x")) == 1


def test_patterns_select() -> None:
    found = tuple(objects("a.bin", "o/a.bin", "o/x.txt"))
    assert [each.path for each in selected(found, ("*.bin",), ("o/*",))] == ["a.bin"]
    assert selected(found, (), ()) == found
