"""Revisions, plans, names: what a sync decides."""

from tessera.core.storage.models.revisions import Manifest, ModelFile


def test_a_revision_is_named_by_paths_sizes_and_content_alone() -> None:
    file = ModelFile("a", 1, ("0" * 64,), etag="x")
    same = Manifest("s3://a", (file,)), Manifest("s3://b", (ModelFile("a", 1, ("0" * 64,)),))
    assert len({each.revision for each in same}) == 1
    others = (ModelFile("b", 1, ("0" * 64,)), ModelFile("a", 2, ("0" * 64,)), ModelFile("a", 1, ("1" * 64,)))
    assert len({Manifest("s3://a", (each,)).revision for each in (file, *others)}) == 4
    assert same[0].size == 1


def test_what_the_store_has_no_checksum_for_is_counted() -> None:
    files = (
        ModelFile("a", 3, ("0" * 64,), "e", "md5:x"),
        ModelFile("b", 5, ("1" * 64,)),
        ModelFile("c", 0, ("2" * 64,)),
    )
    assert Manifest("https://models.example/a/", files).unverified_bytes == 5
