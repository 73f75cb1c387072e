"""Manifests and journals: what is read back is what was written, and nothing else is accepted."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.api.tessera.storage.modelmanifests import (
    read_journal,
    read_manifest,
    read_verification,
    write_journal_line,
    write_manifest,
    write_verification,
)
from tessera.core.storage.models.revisions import Manifest, ModelFile
from tessera.core.storage.models.verifications import Verification
from tessera.errors import InvalidInput

MANIFEST = Manifest("s3://models/a", (ModelFile("a/b", 3, ("0" * 64,), "e", "md5:x"), ModelFile("c", 0, ("1" * 64,))))


def changed(**fields: object) -> bytes:
    return msgspec.json.encode({**msgspec.json.decode(write_manifest(MANIFEST)), **fields})


def test_a_comparison_is_read_back_and_a_broken_one_is_none() -> None:
    found = Verification(1000.5, ("a/b", "c"))
    assert read_verification(write_verification(found)) == found
    for broken in (b"", b"[]", b'{"at_s": "x"}', write_verification(found)[:-1]):
        assert read_verification(broken) == Verification()


def test_a_manifest_is_read_back() -> None:
    assert read_manifest(write_manifest(MANIFEST), subject="m.json") == MANIFEST


def test_the_forms_stay_as_they_are() -> None:
    """Nodes keep their models over an upgrade."""
    assert write_manifest(MANIFEST) == (
        b'{"version":1,"revision":"%s","source":"s3://models/a","files":['
        b'{"path":"a/b","size":3,"chunks":["%s"],"etag":"e","checksum":"md5:x"},'
        b'{"path":"c","size":0,"chunks":["%s"],"etag":"","checksum":""}]}'
    ) % (MANIFEST.revision.encode(), b"0" * 64, b"1" * 64)
    assert write_verification(Verification(1000.5, ("a/b",))) == b'{"at_s":1000.5,"damaged":["a/b"]}'


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (b"\xff{", "remove it, then sync again"),
        (b"[]", "remove it, then sync again"),
        (b'{"x": ' + b"[" * 100_000, "remove it, then sync again"),
        (changed(version=2), "version 2"),
        (changed(revision="0" * 64), "revision '0000"),
        (changed(files=[{"path": "../x", "size": 1, "chunks": ["0" * 64]}]), "leads out"),
        (changed(files=[{"path": "x", "size": -1, "chunks": ["0" * 64]}]), "do not fit"),
        (changed(files=[{"path": "x", "size": 1, "chunks": []}]), "do not fit"),
        (changed(files=[{"path": "x", "size": 1, "chunks": ["zz"]}]), "do not fit"),
    ],
)
def test_anything_else_is_refused(content: bytes, want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        read_manifest(content, subject="m.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_as_input(content: bytes) -> None:
    with pytest.raises(InvalidInput):
        read_manifest(content, subject="m.json")


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.just("a" * 64))), st.integers(0, 70))
@example([(0, 0, "a" * 64)], 68)
def test_a_torn_journal_loses_its_last_line_alone(rows: list[tuple[int, int, str]], cut: int) -> None:
    lines = [write_journal_line(*row) for row in rows]
    whole = {(index, chunk): digest for index, chunk, digest in rows}
    assert read_journal(b"".join(lines)) == whole
    torn = b"".join(lines)[: -cut or None] if cut < 67 else b"x\n" + b"".join(lines)
    assert read_journal(torn).items() <= whole.items()


@pytest.mark.parametrize("at_s", ["1e18", "-1e18", "-1", "253402300800"])
def test_a_verification_at_no_time_is_none_and_its_damage_stays(at_s: str) -> None:
    content = f'{{"at_s":{at_s},"damaged":["a"]}}'.encode()
    assert read_verification(content) == Verification(0.0, ("a",))
    assert read_verification(b'{"at_s":253402300799}') == Verification(253402300799.0)
