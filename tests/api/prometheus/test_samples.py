"""Reading the text format: what counts as a sample, and that nothing hostile gets past as anything but an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.prometheus.samples import Sample, read_samples
from tessera.errors import InvalidInput

GOOD = {
    "a plain series": (b"a 1\n", [Sample("a", 1.0)]),
    "a line that ends in the middle of its number": (b"a 12\na:b 12", [Sample("a", 12.0)]),
    "labels, and what their values escape": (
        b'a{b="c",d="\\"x\\"\\n{}, \\\\"} 2 1700000000000\n',
        [Sample("a", 2.0)],
    ),
    "blanks, and a comma at the end": (b'a { b = "1" , c="2", }\t3 \n', [Sample("a", 3.0)]),
    "a colon in the name": (b"a:b 3\n", [Sample("a:b", 3.0)]),
    "series of the same name": (
        b'a{b="1"} 1\na{b="2"} 2\na{c="1"} 3\n',
        [Sample("a", 1.0), Sample("a", 2.0), Sample("a", 3.0)],
    ),
    "comments and others' series, broken ones too": (
        b"# TYPE a counter\n# HELP a x\nab 1\nz{ nothing\na\t1\n",
        [Sample("a", 1.0)],
    ),
    "nothing": (b"", []),
    "Windows' line ends": (b"a 1\r\n", [Sample("a", 1.0)]),
    "infinite, for the reader to judge": (b"a +Inf\n", [Sample("a", float("inf"))]),
    "a long answer with few series of its own": (b"\n" * 19_999 + b"a 1\n", [Sample("a", 1.0)]),
}


@pytest.mark.parametrize("case", GOOD)
def test_samples(case: str) -> None:
    content, want = GOOD[case]
    assert list(read_samples("pod p", content, {"a", "a:b"})) == want


BAD = {
    "a label that is not closed": (b'a{b="c} 1\n', "'a{b=\"c} 1' is not a line NAME"),
    "no value": (b'a{b="c"}\n', "is not a line NAME"),
    "a word as value": (b"a many\n", "'a many' is not a line NAME"),
    "a label without quotes": (b"a{b=c} 1\n", "is not a line NAME"),
    "a series twice": (b'a{b="1",c="2"} 1\na{c="2",b="1"} 2\n', "a repeated series"),
    "not UTF-8": (b"a 1\n\xff", "metrics in UTF-8"),
    "a label twice": (b'a{b="1",b="2"} 1\n', "is not a line NAME"),
    "two labels without a comma": (b'a{b="1"c="2"} 1\n', "is not a line NAME"),
    "an exemplar, which the format does not have": (b'a 1 # {b="1"} 1\n', "is not a line NAME"),
    "digits of another alphabet": ("a \u0663\n".encode(), "'a \u0663' is not a line NAME"),
    "digits of another width": ("a \uff11\uff12\n".encode(), "is not a line NAME"),
    "a number as Python writes it": (b"a 1_000\n", "is not a line NAME"),
    "too many": (b"".join(b'a{b="%d"} 1\n' % number for number in range(2501)), "2501 lines of its series are more"),
    "too long": (b'a{b="' + b"x" * 262_144 + b'"} 1\n', "262152 characters of its series are more than 262144"),
    "too many lines of others": (b"a 1\n" + b"\n" * ((2 << 20) - 4), "2097149 lines are more than 20000"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_none_is_refused(case: str) -> None:
    content, want = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        read_samples("pod p", content, {"a"})
    assert str(caught.value).startswith("pod p: ")
    assert want in str(caught.value)


@given(st.text(alphabet='a{}="\\,# \t\n1eN.-+:\x00\u00e9', max_size=60))
def test_no_text_gets_anything_but_samples_or_our_error(text: str) -> None:
    try:
        found = read_samples("pod p", text.encode(), {"a"})
    except InvalidInput:
        return
    assert {each.name for each in found} <= {"a"}


@given(st.dictionaries(st.from_regex(r"[a-z]+", fullmatch=True), st.text(st.characters(codec="utf-8"))), st.floats())
def test_what_is_written_is_read(labels: dict[str, str], value: float) -> None:
    escaped = {
        name: text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for name, text in labels.items()
    }
    line = "a{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + "} " + repr(value) + "\n"
    (found,) = read_samples("pod p", line.encode(), {"a"})
    assert repr(found.value) == repr(value)
    with pytest.raises(InvalidInput, match="a repeated series"):
        read_samples("pod p", (line + line).encode(), {"a"})
    other = line.replace("a{", 'a{_b="",', 1)
    assert len(read_samples("pod p", (line + other).encode(), {"a"})) == 2, "series that differ by a label"
