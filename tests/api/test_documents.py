"""YAML and JSON text: what is read, where each value stands, and that hostile text is one clear error."""

import contextlib
import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents
from tessera.errors import InvalidInput

READ: dict[str, tuple[str | bytes, list[documents.Plain]]] = {
    "one document": ("a: 1\n", [{"a": 1}]),
    "several documents, empty ones left out": ("---\na: 1\n---\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
    "nothing": ("", []),
    "a comment": ("# nothing\n", []),
    "JSON": ('{"a": [1, 2.5, null, true]}', [{"a": [1, Decimal("2.5"), None, True]}]),
    "JSON values one after another": ('{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}]),
    "null in JSON is an empty document": ("[1] null", [[1]]),
    "flow YAML that is not JSON": ("{a: 1, b: [x, y]}", [{"a": 1, "b": ["x", "y"]}]),
    "words for truth, as YAML 1.1": ("[yes, No, on, OFF, true, y]", [[True, False, True, False, True, "y"]]),
    "integers of every base": ("[10, 0x10, 0b11, 010, 1_000, -5, 0]", [[10, 16, 3, 8, 1000, -5, 0]]),
    "base 60 stays text": ("[1:30, 1:30.5]", [["1:30", "1:30.5"]]),
    "decimals are exact": ("[0.1, 1.5e+3]", [[Decimal("0.1"), Decimal("1.5E+3")]]),
    "infinities": ("[.inf, -.inf]", [[Decimal("Infinity"), Decimal("-Infinity")]]),
    "quotes make text": ("['1', \"true\", !!str 5]", [["1", "true", "5"]]),
    "explicit tags": ("[!!int '5', !!float '1.5', !!null '', !!bool 'no']", [[5, Decimal("1.5"), None, False]]),
    "explicit collections": ("!!map {a: !!seq [1]}", [{"a": [1]}]),
    "a date stays text": ("2024-01-01", ["2024-01-01"]),
    "keys are text": ("1: a\ntrue: b\n", [{"1": "a", "true": "b"}]),
    "an anchored scalar": ("a: &x 5\nb: *x\n", [{"a": 5, "b": 5}]),
    "an alias": ("a: &x {k: 1}\nb: *x\n", [{"a": {"k": 1}, "b": {"k": 1}}]),
    "a merge, own keys win": (
        "a: &x {k: 1, l: 2}\nb:\n  k: 3\n  <<: *x\n",
        [{"a": {"k": 1, "l": 2}, "b": {"k": 3, "l": 2}}],
    ),
    "a merge of a list, the first wins": (
        "a: &x {k: 1}\nb: &y {k: 2, m: 3}\nc:\n  <<: [*x, *y]\n",
        [{"a": {"k": 1}, "b": {"k": 2, "m": 3}, "c": {"k": 1, "m": 3}}],
    ),
    "a merge sign as a value": ("a: <<\nb: =\n", [{"a": "<<", "b": "="}]),
    "bytes": (b"a: \xc3\xb6\n", [{"a": "ö"}]),
    "a byte order mark": (b"\xef\xbb\xbfa: 1\n", [{"a": 1}]),
    "UTF-16 from a Windows shell": ("\ufeffa: 1\n".encode("utf-16-le"), [{"a": 1}]),
    "a pair of surrogate escapes in JSON": ('{"a": "\\ud83d\\ude00"}', [{"a": "\U0001f600"}]),
}


@pytest.mark.parametrize(("text", "want"), READ.values(), ids=READ)
def test_text_is_read(text: str | bytes, want: list[documents.Plain]) -> None:
    assert [document.data for document in documents.read("a.yaml", text)] == want


def test_documents_are_numbered_as_written() -> None:
    got = documents.read("a.yaml", "a: 1\n---\n---\n\nb: 2\n")
    assert [(document.number, document.first_line) for document in got] == [(1, 1), (3, 5)]


YAML_LINES = """\
kind: Pod
spec:
  containers:
  - name: a
    resources:
      limits:
        nvidia.com/gpu: 1
  - {name: b}
"""

LINES: dict[str, tuple[documents.Path, int]] = {
    "the root": ((), 1),
    "a key": (("spec",), 2),
    "an element": (("spec", "containers", 1), 8),
    "a deep value": (("spec", "containers", 0, "resources", "limits", "nvidia.com/gpu"), 7),
    "a missing key has the line of what it is missing from": (("spec", "containers", 0, "image"), 4),
    "a missing element": (("spec", "containers", 7, "name"), 3),
    "a path through a scalar": (("kind", "x", 3), 1),
}


@pytest.mark.parametrize(("path", "want"), LINES.values(), ids=LINES)
def test_lines(path: documents.Path, want: int) -> None:
    assert documents.read("a.yaml", YAML_LINES)[0].line(path) == want


def test_lines_of_json_are_looked_up_in_the_text() -> None:
    data: documents.Plain = {"a": 1, "list": [], "spec": [{"name": 'a"{'}, {"name": "b", "n": [1, {}]}]}
    document = documents.read("a.json", "\n" + json.dumps(data, indent=1) + "\n")[0]
    paths: tuple[documents.Path, ...] = ((), ("a",), ("a", "x"), ("list", 0), ("spec", 1, "n", 1), ("spec", 0, "name"))
    assert [document.line(path) for path in paths] == [2, 3, 3, 4, 13, 7]


def _bomb() -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    return "\n".join(lines)


def _merge_bomb() -> str:
    keys = ", ".join(f"k{i}: 1" for i in range(2000))
    return f"a: &a {{{keys}}}\nb:\n" + "\n".join(f"- {{<<: [{', '.join(['*a'] * 100)}]}}" for _ in range(100))


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "an unclosed bracket": ("a: [1, 2\n", "a.yaml, document 1, line 2, column 1: broken syntax (did not find"),
    "a tab for indentation": (
        "a:\n\tb: 1\n",
        "document 1, line 2, column 1: broken syntax (found character that",
    ),
    "the second document is broken": (
        "a: 1\n---\nb: c: d\n",
        "a.yaml, document 2, line 3, column 5: broken syntax",
    ),
    "a control character": ("a: 1\nb: ö\x07\n", r"a.yaml, line 2: character '\x07': write text without control"),
    "a duplicate key": (
        "a: 1\nb: 2\na: 3\n",
        "document 1, line 3: duplicate key 'a', first on line 1: write each key once",
    ),
    "a duplicate key in JSON": ('{"a": 1,\n "a": 2}', "a.yaml, document 1, line 2: duplicate key 'a'"),
    "an unknown tag": ("a: !!python/object:os.x y\n", "tag 'tag:yaml.org,2002:python/object:os.x': write plain"),
    "an unknown tag on a collection": ("a: !x [1]\n", "line 1: tag '!x': write plain YAML"),
    "bytes as a tag": ("a: !!binary aGk=\n", "line 1: tag 'tag:yaml.org,2002:binary'"),
    "a tag the value does not fit": ("a: !!int hello\n", "document 1, line 1: 'hello': write a value of tag int"),
    "a truth value that is none": ("a: !!bool maybe\n", "document 1, line 1: 'maybe': write a value of tag bool"),
    "a decimal that is none": ("a: !!float maybe\n", "document 1, line 1: 'maybe': write a value of tag float"),
    "an integer without end": (f"a: {'1' * 5000}\n", "a value of tag int"),
    "an integer without end in JSON": (f'{{"a": {"1" * 5000}}}', "document 1, line 1: '1111"),
    "deep nesting": ("[" * 500, "line 1: more than 100 levels of nesting"),
    "nesting that exhausts the stack in JSON": ("[" * 200_000, "a.yaml, document 1: it is nested too deeply"),
    "aliases that multiply": (_bomb(), "line 7: more than 2000000 values, aliases written out"),
    "merges that multiply": (_merge_bomb(), "more than 2000000 values, aliases written out"),
    "an alias of nothing": ("a: *x\n", "document 1, line 1: alias 'x': write an alias of a value that ended before"),
    "an alias of itself": (
        "a: &x [*x]\n",
        "document 1, line 1: alias 'x': write an alias of a value that ended before",
    ),
    "an alias of another document": ("a: &x 1\n---\nb: *x\n", "document 2, line 3: alias 'x'"),
    "a merge of a scalar": ("a:\n  <<: 5\n", "line 2: a merge of something else"),
    "a collection as a key": ("{{ .Values.name }}: x\n", "line 1: a collection as a key"),
    "an alias as a key": ("a: &x b\n*x : c\n", "line 2: alias 'x' as a key"),
    "not UTF-8": (b"a: 1\nb: \xff\n", "a.yaml, line 2: byte 0xff at offset 8 is not UTF-8: write text in UTF-8"),
    "not UTF-16": (b"\xff\xfedef", "a.yaml, line 1: byte 0x66 at offset 4 is not UTF-16, as which the text begins"),
    "half a surrogate": ("a: \ud800\n", "a.yaml, line 1: it has half of a surrogate pair"),
    "half a surrogate in JSON": ('{"a": "\\ud800"}', "a.yaml, document 1: it has half of a surrogate pair"),
    "a constant that is not JSON, as YAML": ('{"a": NaN, "a": 1}', "line 1: duplicate key 'a'"),
}


@pytest.mark.parametrize(("text", "want"), REFUSED.values(), ids=REFUSED)
def test_text_is_refused_with_its_place(text: str | bytes, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        documents.read("a.yaml", text)
    assert want in str(caught.value)
    assert "\n" not in str(caught.value)


BROKEN_JSON = {
    "a missing value": ('{\n "a": }', "a.json, document 1, line 2, column 7: broken syntax (Expecting value)"),
    "a constant of JavaScript": ('{"a": NaN}', "a.json, document 1: broken syntax (NaN is not JSON)"),
    "the second value": ("{} {", "a.json, document 2, line 1, column 5: broken syntax"),
}


@pytest.mark.parametrize(("text", "want"), BROKEN_JSON.values(), ids=BROKEN_JSON)
def test_a_json_file_gets_the_json_error(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        documents.read("a.json", text)
    assert want in str(caught.value)


def test_a_huge_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_MAX_YAML_CHARACTERS", 10)
    monkeypatch.setattr(documents, "_MAX_JSON_CHARACTERS", 20)
    with pytest.raises(InvalidInput, match="14 characters of YAML are more"):
        documents.read("a.yaml", "a: 123456789ab")
    with pytest.raises(InvalidInput, match="30 characters are more than 20 of JSON"):
        documents.read("a.json", f'"{"x" * 28}"'.replace('"', "[", 1))
    assert documents.read("a.json", '{"a": 1234567}')[0].data == {"a": 1234567}


@pytest.mark.parametrize(("text", "found"), [("", 0), ("a: 1\n---\nb: 2\n", 2), ("{}\n{}\n[]", 3), (b"---\n---\n", 0)])
def test_where_one_document_is_desired_others_are_counted(text: str | bytes, found: int) -> None:
    with pytest.raises(InvalidInput, match=f"a.yaml: it has {found} documents: write one document"):
        documents.one("a.yaml", text)


def test_one_document_may_be_anything() -> None:
    assert documents.one("a.yaml", b"# nothing else\n---\n- 1\n---\n").data == [1]


_PIECES = st.sampled_from(
    [*"abc:-{}[],\"'&*!|>%@`#?\n\t 0123456789.~<", "- ", ": ", "\n  ", "&a ", "*a", "<<: ", "---\n"]
)


@given(st.text() | st.binary() | st.lists(_PIECES).map("".join))
def test_any_text_is_read_or_refused(text: str | bytes) -> None:
    with contextlib.suppress(InvalidInput):
        for document in documents.read("a.yaml", text):
            assert document.line(("x", 0)) >= 1


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(_JSON_VALUES) | st.dictionaries(_TEXTS, _JSON_VALUES))
def test_what_json_writes_is_read_back(value: documents.Plain) -> None:
    assert [document.data for document in documents.read("a.json", json.dumps(value))] == [value]
    assert [document.data for document in documents.read("a.json", json.dumps(value, indent=2))] == [value]


@given(_JSON_VALUES.filter(lambda value: isinstance(value, dict | list)))
def test_every_line_of_json_is_found(value: documents.Plain) -> None:
    document = documents.read("a.json", json.dumps(value, indent=1))[0]
    lines = document.text.split("\n")

    def check(inner: documents.Plain, path: documents.Path) -> None:
        text = lines[document.line(path) - 1]
        assert (json.dumps(inner, indent=1).split("\n")[0]) in text
        members = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        for step, child in members:
            check(child, (*path, step))

    check(value, ())


@given(
    st.text(st.one_of(st.sampled_from("a \t\n\r\x85\u2028\u2029\ufeff#:-'\"|>%\x1b\x7f"), st.characters(codec="utf-8")))
)
def test_a_text_is_the_same_after_it_was_written_and_read(text: str) -> None:
    for block in (False, True):
        data: documents.Plain = {"env": [{"name": "A", "value": text}], "command": ["sh", "-c", text]}
        written = documents.write(data, block=block)
        assert documents.one("a.yaml", written).data == data
        assert not set(written) & set("\x85\u2028\u2029"), "which other readers of YAML fold"
