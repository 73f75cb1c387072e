"""YAML and JSON text as plain values with their positions: source, document number and line.

The one importer of PyYAML. Scalars follow YAML 1.1 as `kubectl` reads them; numbers with a fraction become `Decimal`,
so that quantities stay exact. Hostile or ambiguous text is one `InvalidInput`: duplicate keys, unknown tags, deep
nesting, aliases that multiply, text that is not UTF-8.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache

import msgspec
import yaml

from tessera.errors import InvalidInput, shown

__all__ = ["Document", "Path", "Plain", "one", "read", "write"]

Plain = dict[str, "Plain"] | list["Plain"] | str | int | Decimal | bool | None
"""The values of a document."""

Path = tuple[str | int, ...]
"""Keys and indices that lead from a document's root to a value."""

_MAX_DEPTH = 100
"""Deepest nesting that is read; real manifests stay below 30."""
_MAX_NODES = 2_000_000
"""Most values of one YAML text, with aliases expanded."""
_MAX_YAML_CHARACTERS = 64 << 20
_MAX_JSON_CHARACTERS = 512 << 20
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVE: Callable[[type, str, tuple[bool, bool]], str] = lru_cache(1 << 14)(yaml.resolver.Resolver().resolve)
"""Return the tag of a scalar that has none; the same few thousand texts make up most manifests."""
_TAG = "tag:yaml.org,2002:"
_FILLED_IN = "a template with its {{ }} filled in: for a Helm chart what `helm template CHART` prints"
_UNPAIRED = re.compile(r"\\u[dD][89a-fA-F]")
_FOLDED = re.compile("[\x85\u2028\u2029\ufeff]")
"""Characters that YAML 1.1 reads as another where they are not escaped."""
_SPACE = re.compile(r"[ \t\r\n]*")


class _Mapping(dict[str, Plain]):
    """A YAML mapping with the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    def at(self, step: str | int) -> tuple[int, Plain] | None:
        """Return line and value of a key, if present."""
        return (self.lines[step], self[step]) if isinstance(step, str) and step in self else None


class _Sequence(list[Plain]):
    """A YAML sequence with the line of each element."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []

    def at(self, step: str | int) -> tuple[int, Plain] | None:
        """Return line and value of an element, if present."""
        return (self.lines[step], self[step]) if isinstance(step, int) and step < len(self) else None


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """One document of a text."""

    source: str
    """The file's name, or another name of the source."""
    number: int
    """Position in the text, from 1."""
    data: Plain
    first_line: int
    start: int = 0
    """Offset of a JSON document in `text`."""
    text: str = ""
    """The whole text of a JSON document, where lines are found when an error needs one; empty for YAML."""

    def line(self, path: Path) -> int:
        """Return the line of the value at `path`, or of the nearest value around it."""
        if self.text:
            return self.text.count("\n", 0, _json_offset(self.text, self.start, path)) + 1
        line, value = self.first_line, self.data
        for step in path:
            found = value.at(step) if isinstance(value, _Mapping | _Sequence) else None
            if found is None:
                return line
            line, value = found
        return line


def read(source: str, text: str | bytes) -> tuple[Document, ...]:
    """Return the documents of a YAML or JSON text in order, empty ones left out.

    A text that begins with a bracket is read as JSON, one value after another, and as YAML where it is not JSON.

    Args:
        source: name of the text in errors, usually the file's name.
        text: characters, or bytes in UTF-8 (or UTF-16 with a byte order mark, which Windows shells write).

    Raises:
        InvalidInput: broken or hostile text, with document and line.

    """
    characters = _decode(source, text)
    if characters.lstrip()[:1] in {"{", "["}:
        documents = _read_json(source, characters)
        if documents is not None:
            return documents
    if len(characters) > _MAX_YAML_CHARACTERS:
        found = f"{len(characters)} characters of YAML are more than {_MAX_YAML_CHARACTERS}"
        raise InvalidInput(source, found=found, hint="write JSON, which may be larger")
    return tuple(document for document in _read_yaml(source, characters) if document.data is not None)


def one(source: str, text: str | bytes) -> Document:
    """Return the document of a text that must have exactly one; read as `read` does.

    Raises:
        InvalidInput: broken or hostile text, or none or several documents.

    """
    found = read(source, text)
    if len(found) != 1:
        raise InvalidInput(source, found=f"it has {len(found)} documents", hint="write one document")
    return found[0]


def write(data: Plain, *, block: bool = False) -> str:
    """Return a value as one YAML document: keys in the order given, innermost collections on one line, or in blocks."""
    style = False if block else None
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, default_flow_style=style, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a literal block, and repeats values rather than alias them."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _FOLDED.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _decode(source: str, text: str | bytes) -> str:
    wide = isinstance(text, bytes) and text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        if isinstance(text, str):
            text.encode()
            return text
        return text.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        encoding = "UTF-16, as which the text begins" if wide else "UTF-8"
        raise InvalidInput(
            f"{source}, line {line}", found=found, expected=encoding, hint="write text in UTF-8"
        ) from error
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start) + 1
        raise InvalidInput(
            f"{source}, line {line}", found="it has half of a surrogate pair", hint="write text in UTF-8"
        ) from error


# JSON


class _DuplicateKeyError(ValueError):
    """A JSON object has a key twice; the YAML reader knows where."""


def _unique(pairs: list[tuple[str, Plain]]) -> Plain:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _DuplicateKeyError
    return mapping


def _no_constant(name: str) -> Plain:
    raise ValueError(f"{name} is not JSON")


_PLAIN_JSON = json.JSONDecoder()
"""Skips values that were read before."""
_JSON = json.JSONDecoder(parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_unique)


def _read_json(source: str, text: str) -> tuple[Document, ...] | None:
    """Return the JSON values of a text; None where it may be YAML instead."""
    if len(text) > _MAX_JSON_CHARACTERS:
        raise InvalidInput(source, found=f"{len(text)} characters are more than {_MAX_JSON_CHARACTERS} of JSON")
    documents: list[Document] = []
    start = _skip(text, 0)
    while start < len(text):
        number = len(documents) + 1
        try:
            data, end = _JSON.raw_decode(text, start)
        except RecursionError:
            subject = f"{source}, document {number}"
            raise InvalidInput(
                subject, found="it is nested too deeply", hint=f"nest at most {_MAX_DEPTH} levels"
            ) from None
        except ValueError as error:
            if isinstance(error, _DuplicateKeyError) or not source.endswith(".json"):
                return None
            raise _not_json(f"{source}, document {number}", error) from error
        line = text.count("\n", 0, start) + 1
        documents.append(Document(source=source, number=number, data=data, first_line=line, start=start, text=text))
        start = _skip(text, end)
    if _UNPAIRED.search(text):
        _refuse_unpaired(documents)
    return tuple(document for document in documents if document.data is not None)


def _not_json(subject: str, error: ValueError) -> InvalidInput:
    if isinstance(error, json.JSONDecodeError):
        subject = f"{subject}, line {error.lineno}, column {error.colno}"
        return InvalidInput(subject, found=f"broken syntax ({error.msg})", hint="write valid JSON")
    return InvalidInput(subject, found=f"broken syntax ({error})", hint="write valid JSON")


def _refuse_unpaired(documents: list[Document]) -> None:
    """Reject half a surrogate pair, which no output could represent."""
    for document in documents:
        try:
            json.dumps(document.data, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            subject = f"{document.source}, document {document.number}"
            raise InvalidInput(subject, found="it has half of a surrogate pair", hint="write text in UTF-8") from error


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _json_offset(text: str, start: int, path: Path) -> int:
    """Return the offset of the value at `path` in a JSON value at `start`; siblings are skipped at C speed."""
    at = start
    for step in path:
        members = _json_members(text, at)
        if step not in members:
            return at
        at = members[step]
    return at


@lru_cache(maxsize=64)
def _json_members(text: str, at: int) -> Mapping[str | int, int]:
    """Return the offset of each member of the valid JSON value at `at` by key or index; a scalar has none.

    Cached for a few values, so that many errors in one large list do not each parse it again.
    """
    opened, index = text[at], 0
    members: dict[str | int, int] = {}
    if opened not in "{[":
        return members
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        name: str | int = index
        if opened == "{":
            name, at = _PLAIN_JSON.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        members[name] = at
        _, at = _PLAIN_JSON.raw_decode(text, at)
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at] == "," else at
        index += 1
    return members


# YAML


def _read_yaml(source: str, text: str) -> Iterator[Document]:
    reader = _Yaml(source)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            reader.take(event)
            if isinstance(event, yaml.DocumentEndEvent):
                yield reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        found = " ".join(part for part in (error.problem, error.context) if part)
        raise InvalidInput(
            f"{reader.subject}{place}",
            found=f"broken syntax ({found})",
            hint=_FILLED_IN if "{{" in text else "write valid YAML",
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        found = f"character {shown(chr(error.character))}"
        raise InvalidInput(
            f"{source}, line {line}", found=found, hint="write text without control characters"
        ) from error


class _Open:
    """A collection whose end has not been read."""

    def __init__(self, value: "_Mapping | _Sequence", line: int, anchor: str | None, values_before: int) -> None:
        self.value = value
        self.line = line
        self.anchor = anchor
        self.values_before = values_before
        self.key: str | None = None
        self.key_line = 0
        self.merging = False
        self.merged: list[tuple[Plain, int]] = []


class _Yaml:
    """Builds documents from parser events; never recursive, so nesting cannot exhaust the stack."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.number = 0
        self.first_line = 1
        self.values = 0
        self.open: list[_Open] = []
        self.root: Plain = None
        self.anchors: dict[str, tuple[Plain, int]] = {}

    @property
    def subject(self) -> str:
        """Source and number of the document being read."""
        return f"{self.source}, document {max(1, self.number)}"

    def document(self) -> Document:
        return Document(source=self.source, number=self.number, data=self.root, first_line=self.first_line)

    def take(self, event: yaml.Event) -> None:
        """Process one parser event."""
        assert event.start_mark is not None
        line = event.start_mark.line + 1
        match event:
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.DocumentStartEvent():
                self.number += 1
                self.first_line, self.root, self.anchors = line, None, {}
            case yaml.MappingStartEvent():
                self._begin(_Mapping(), event, line)
            case yaml.SequenceStartEvent():
                self._begin(_Sequence(), event, line)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()
            case yaml.AliasEvent():
                self._alias(event, line)
            case _:
                pass

    def _refuse(self, line: int, found: str, desired: str, accepted: str = "") -> InvalidInput:
        fix = f"write {desired}"
        return InvalidInput(f"{self.subject}, line {line}", found=found, hint=f"{fix}: {accepted}" if accepted else fix)

    def _count(self, values: int, line: int) -> None:
        self.values += values
        if self.values > _MAX_NODES:
            raise self._refuse(line, f"more than {_MAX_NODES} values, aliases written out", "fewer")

    def _awaits_key(self) -> bool:
        return bool(self.open) and isinstance(self.open[-1].value, _Mapping) and self.open[-1].key is None

    def _begin(self, value: "_Mapping | _Sequence", event: yaml.CollectionStartEvent, line: int) -> None:
        if self._awaits_key():
            raise self._refuse(line, "a collection as a key", "a text", _FILLED_IN)
        if event.tag not in {None, "!", f"{_TAG}map", f"{_TAG}seq"}:
            raise self._refuse(line, f"tag {shown(event.tag)}", "plain YAML")
        if len(self.open) >= _MAX_DEPTH:
            raise self._refuse(line, f"more than {_MAX_DEPTH} levels of nesting", "fewer")
        self._count(1, line)
        if not self.open:
            self.first_line = line
        self.open.append(_Open(value, line, event.anchor, self.values - 1))

    def _end(self) -> None:
        done = self.open.pop()
        if isinstance(done.value, _Mapping):
            for source, merge_line in done.merged:
                self._merge(done.value, source, merge_line)
        if done.anchor:
            self.anchors[done.anchor] = done.value, self.values - done.values_before
        self._put(done.value, done.line)

    def _merge(self, target: _Mapping, source: Plain, line: int) -> None:
        """Add the mapping of `<<`; existing keys win. Source: YAML 1.1 merge key type."""
        for mapping in source if isinstance(source, list) else [source]:
            if not isinstance(mapping, _Mapping):
                raise self._refuse(line, "a merge of something else", "a mapping or a list of mappings after <<")
            self._count(len(mapping), line)
            for key, value in mapping.items():
                if key not in target:
                    target[key], target.lines[key] = value, mapping.lines[key]

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        self._count(1, line)
        tag = event.tag
        if tag in {None, "!"}:
            tag = _RESOLVE(yaml.ScalarNode, event.value, event.implicit)
        if self._awaits_key():
            self._key(event.value, line, merge=tag == f"{_TAG}merge")
            return
        if not self.open:
            self.first_line = line
        value = self._value(tag, event.value, line)
        if event.anchor:
            self.anchors[event.anchor] = value, 1
        self._put(value, line)

    def _value(self, tag: str, text: str, line: int) -> Plain:
        convert = _SCALARS.get(tag.removeprefix(_TAG))
        if convert is None:
            raise self._refuse(line, f"tag {shown(tag)}", "plain YAML")
        try:
            return convert(text)
        except (ValueError, ArithmeticError, KeyError) as error:
            raise self._refuse(line, shown(text), f"a value of tag {tag.removeprefix(_TAG)}") from error

    def _key(self, key: str, line: int, *, merge: bool) -> None:
        opened = self.open[-1]
        if not merge and isinstance(opened.value, _Mapping) and key in opened.value:
            first = opened.value.lines[key]
            raise self._refuse(line, f"duplicate key {shown(key)}, first on line {first}", "each key once")
        opened.key, opened.key_line, opened.merging = key, line, merge

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        if self._awaits_key():
            raise self._refuse(line, f"alias {shown(event.anchor)} as a key", "a text")
        if event.anchor not in self.anchors:
            raise self._refuse(line, f"alias {shown(event.anchor)}", "an alias of a value that ended before")
        value, values = self.anchors[event.anchor]
        self._count(values, line)
        self._put(value, line)

    def _put(self, value: Plain, line: int) -> None:
        if not self.open:
            self.root = value
            return
        opened = self.open[-1]
        if isinstance(opened.value, _Sequence):
            opened.value.append(value)
            opened.value.lines.append(line)
        elif opened.merging:
            opened.merged.append((value, opened.key_line))
            opened.key = None
        else:
            assert opened.key is not None
            opened.value[opened.key], opened.value.lines[opened.key] = value, opened.key_line
            opened.key = None


_TRUTH = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}


def _integer(text: str) -> Plain:
    """Read decimal, 0x, 0b and leading-zero octal; base 60 stays text, as in kubectl."""
    digits = text.replace("_", "")
    if ":" in digits:
        return text
    octal = digits.lstrip("+-").startswith("0") and digits.lstrip("+-0").isdecimal()
    return int(digits, 8 if octal else 0)


def _decimal(text: str) -> Plain:
    digits = text.replace("_", "")
    if ":" in digits:
        return text
    return Decimal(digits.lower().replace(".inf", "Infinity").replace(".nan", "NaN"))


_SCALARS: dict[str, Callable[[str], Plain]] = {
    "str": str,
    "timestamp": str,
    "merge": str,
    "value": str,
    "null": lambda _: None,
    "bool": lambda text: _TRUTH[text.lower()],
    "int": _integer,
    "float": _decimal,
}
