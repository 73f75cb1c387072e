"""Words of a command line: taken as Kubernetes takes them, else refused with what is expected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.cli.work.submit.validation import NameFormat, checked, checked_folder, checked_text
from tessera.errors import InvalidInput

FORMS: dict[NameFormat, tuple[tuple[str, ...], tuple[str, ...]]] = {
    NameFormat.LABEL: (("a", "a-0", "x" * 63), ("", "-a", "a-", "A", "a.b", "x" * 64, "a\n")),
    NameFormat.OBJECT: (("a.b-c", "x" * 253), ("", ".a", "a.", "a/b", "x" * 254)),
    NameFormat.KEY: (("tls.crt", "_A"), ("", "a/b", "a b")),
    NameFormat.VARIABLE: (("A_1", "-x", ".y"), ("", "1A", "A B", "A=B")),
    NameFormat.IMAGE: (("r.example/a:1@sha256:0", "a"), ("", "a b", "a\t", "\u00e9")),
}


@pytest.mark.parametrize("form", NameFormat)
def test_words_of_a_form_are_taken_and_others_refused(form: NameFormat) -> None:
    good, bad = FORMS[form]
    assert [checked("--x", each, form) for each in good] == list(good)
    for each in bad:
        with pytest.raises(InvalidInput, match="--x: ") as refused:
            checked("--x", each, form)
        assert refused.value.expected == form.value[1]


@given(st.text())
def test_text_is_taken_as_far_as_a_job_can_have_it(text: str) -> None:
    assert checked_text("--x", text) == text
    with pytest.raises(InvalidInput, match="bring bytes along in a file"):
        checked_text("--x", f"{text}\udcff")


@pytest.mark.parametrize(("folder", "want"), [("/a", "/a"), ("//a/./b/", "/a/b"), ("/a b", "/a b")])
def test_a_folder_has_one_form(folder: str, want: str) -> None:
    assert checked_folder("--x", folder) == want


@pytest.mark.parametrize("folder", ["", "a", "/", "//", "/a/..", "/a:b", "/a\n"])
def test_what_no_volume_can_be_mounted_at_is_refused(folder: str) -> None:
    with pytest.raises(InvalidInput, match="a folder of the container"):
        checked_folder("--x", folder)
