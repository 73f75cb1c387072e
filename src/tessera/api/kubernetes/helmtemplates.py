"""The subset of Helm's template language used in `deploy/chart`, so that the chart renders without Helm.

Actions are values, `if`, `else if`, `else`, `end`, `define` and comments; there is no `range`, `with` or variable, and
functions other than those below are rejected. A missing value is an error, where Helm prints `<no value>`.
tests/kube/test_chart.py compares the objects with those of the real Helm.

Source: Go `text/template` (syntax, trimming, truth), Helm `pkg/engine/funcs.go`, Sprig.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from tessera.api import documents
from tessera.errors import InvalidInput, shown

__all__ = ["Chart", "at_least", "render"]

_ACTION = re.compile(r"\{\{(?P<left>-(?=\s))?\s*(?P<inside>/\*.*?\*/|.*?)\s*(?P<right>(?<=\s)-)?\}\}", re.DOTALL)
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>\d+)|(?P<path>\.[\w.]*)|(?P<word>\w+)|(?P<mark>[()|]))'
)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """A chart's files, and the data of its templates besides the values."""

    files: Mapping[str, str]
    """Text by path: `templates/agent.yaml`, `files/scheduler.yaml`."""
    built_in: Mapping[str, Any]
    """`Chart`, `Release` and `Capabilities`, as templates name them."""


class _Text(msgspec.Struct, frozen=True):
    text: str


class _Print(msgspec.Struct, frozen=True):
    words: tuple[str, ...]
    place: str


class _If(msgspec.Struct, frozen=True):
    branches: tuple[tuple[_Print | None, tuple[Any, ...]], ...]
    """Conditions with what follows them; the last may have none."""


def render(chart: Chart, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each template by its path; those whose names begin with an underscore only define parts.

    Raises:
        InvalidInput: what the templates refuse by `fail`, a value that is not there, or a template in another language.

    """
    one = _Renderer(chart, values)
    paths = sorted(path for path in chart.files if path.startswith("templates/"))
    parsed = {path: _Parser(path, chart.files[path], one.parts).parsed() for path in paths}
    return {path: one.text(nodes, one.root) for path, nodes in parsed.items() if "/_" not in path}


class _Parser:
    """Parses one template."""

    def __init__(self, path: str, text: str, parts: dict[str, tuple[Any, ...]]) -> None:
        self._path = path
        self._source = text
        self._parts = parts
        self._pieces = self._split()

    def parsed(self) -> tuple[Any, ...]:
        """Return its nodes; definitions are added to the parts."""
        nodes, ended_by = self._block()
        if ended_by:
            raise self._refuse(ended_by, "an action that it ends")
        return nodes

    def _refuse(self, action: _Print, desired: str) -> InvalidInput:
        return InvalidInput(action.place, found=shown(" ".join(action.words)), expected=desired)

    def _split(self) -> Iterator[_Text | _Print]:
        """Yield text and actions in turn, trimmed where a dash says so."""
        at, trim = 0, False
        for found in _ACTION.finditer(self._source):
            text = self._source[at : found.start()]
            text = text.lstrip() if trim else text
            yield _Text(text.rstrip() if found["left"] else text)
            at, trim = found.end(), bool(found["right"])
            if not found["inside"].startswith("/*"):
                line = self._source.count("\n", 0, found.start()) + 1
                yield _Print(self._words(found["inside"]), f"{self._path}, line {line}")
        rest = self._source[at:]
        yield _Text(rest.lstrip() if trim else rest)

    def _words(self, text: str) -> tuple[str, ...]:
        words, at = list[str](), 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise InvalidInput(self._path, found=shown(text[at:]), expected="a value or function of the subset")
            words.append(found[0].strip())
            at = found.end()
        return tuple(words)

    def _block(self) -> tuple[tuple[Any, ...], _Print | None]:
        """Return nodes up to an `else` or `end`, and that."""
        nodes = list[Any]()
        for piece in self._pieces:
            if isinstance(piece, _Text):
                nodes.append(piece)
                continue
            match piece.words:
                case ("if", *_):
                    nodes.append(self._branches(piece))
                case ("define", name):
                    self._parts[json.loads(name)], _ = self._block()
                case ("else" | "end", *_):
                    return tuple(nodes), piece
                case _:
                    nodes.append(piece)
        return tuple(nodes), None

    def _branches(self, opened: _Print) -> _If:
        branches = list[tuple[_Print | None, tuple[Any, ...]]]()
        condition: _Print | None = _Print(opened.words[1:], opened.place)
        while True:
            nodes, last = self._block()
            branches.append((condition, nodes))
            if last is None:
                raise self._refuse(opened, "an end")
            if last.words == ("end",):
                return _If(tuple(branches))
            condition = _Print(last.words[2:], last.place) if last.words[1:2] == ("if",) else None


class _Renderer:
    """Renders parsed templates with one set of values."""

    def __init__(self, chart: Chart, values: Mapping[str, Any]) -> None:
        self.parts: dict[str, tuple[Any, ...]] = {}
        """What templates define, by name."""
        self.root: Mapping[str, Any] = {**chart.built_in, "Values": values}
        self._files = chart.files

    def text(self, nodes: Sequence[Any], dot: Mapping[str, Any]) -> str:
        """Return the output of nodes, where `.` is `dot`."""
        return "".join(self._printed(node, dot) for node in nodes)

    def _printed(self, node: _Text | _Print | _If, dot: Mapping[str, Any]) -> str:
        if isinstance(node, _Text):
            return node.text
        if isinstance(node, _If):
            for condition, body in node.branches:
                if condition is None or self._value(condition, dot):
                    return self.text(body, dot)
            return ""
        value = self._value(node, dot)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _value(self, action: _Print, dot: Mapping[str, Any]) -> Any:
        words = list(action.words)
        value = self._pipeline(words, dot, action.place)
        if words:
            raise InvalidInput(action.place, found=shown(" ".join(words)), expected="the end of the action")
        return value

    def _pipeline(self, words: list[str], dot: Mapping[str, Any], place: str) -> Any:
        """Take the words of a pipeline and return its value: each part is the last argument of the next."""
        value = self._command(words, dot, place)
        while words and words[0] == "|":
            words.pop(0)
            value = self._command(words, dot, place, value)
        return value

    def _command(self, words: list[str], dot: Mapping[str, Any], place: str, *piped: Any) -> Any:
        first = words[0] if words else ""
        if not re.fullmatch(r"[a-z]\w*|\.Files\.Get", first) or first in {"true", "false"}:
            return self._operand(words, dot, place)
        words.pop(0)
        arguments = list[Any]()
        while words and words[0] not in {"|", ")"}:
            arguments.append(self._operand(words, dot, place))
        return self._call(first, (*arguments, *piped), place)

    def _operand(self, words: list[str], dot: Mapping[str, Any], place: str) -> Any:
        word = words.pop(0) if words else ""
        if word == "(":
            value = self._pipeline(words, dot, place)
            if words[:1] != [")"]:
                raise InvalidInput(place, found="a parenthesis is not closed", hint="close it")
            words.pop(0)
            return value
        if word.startswith("."):
            return self._reached(word, dot, place)
        if word[:1].isdigit() or word[:1] == '"' or word in {"true", "false"}:
            return json.loads(word)
        raise InvalidInput(place, found=shown(word), expected="a value")

    def _reached(self, path: str, dot: Mapping[str, Any], place: str) -> Any:
        value: Any = dot
        for step in filter(None, path.split(".")):
            if not isinstance(value, Mapping) or step not in value:
                raise InvalidInput(place, found=f"there is no value {path}", hint="name one of the chart's")
            value = value[step]
        return value

    def _call(self, name: str, arguments: tuple[Any, ...], place: str) -> Any:
        match name, arguments:
            case "include", (str() as part, dot) if part in self.parts:
                return self.text(self.parts[part], dot)
            case ".Files.Get", (str() as path,) if path in self._files:
                return self._files[path]
            case "tpl", (str() as text, dot):
                return self.text(_Parser(place, text, self.parts).parsed(), dot)
            case "fail", (str() as message,):
                raise InvalidInput("the chart", found=message, hint="see docs/install.md")
        try:
            return _FUNCTIONS[name](*arguments)
        except (KeyError, TypeError) as error:
            raise InvalidInput(
                place, found=f"{name} {shown(arguments)}", expected="a function of the subset"
            ) from error


def _and(*values: Any) -> Any:
    return next((each for each in values if not each), values[-1])


def _or(*values: Any) -> Any:
    return next((each for each in values if each), values[-1])


def _indented(width: int, text: str) -> str:
    return "\n".join(f"{' ' * width}{line}" for line in text.split("\n"))


def at_least(constraint: str, version: str) -> bool:
    """Return whether a version satisfies a constraint; of these there is one form here, `>=1.36-0`."""
    least, found = _VERSION.search(constraint), _VERSION.match(version)
    assert constraint.startswith(">=")
    assert least is not None
    assert found is not None
    return (int(found[1]), int(found[2])) >= (int(least[1]), int(least[2]))


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[0] if found else ""


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "and": _and,
    "default": lambda default, value: value or default,
    "dict": lambda *parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "eq": lambda first, *others: first in others,
    "indent": _indented,
    "ne": lambda one, other: one != other,
    "nindent": lambda width, text: f"\n{_indented(width, text)}",
    "not": lambda value: not value,
    "or": _or,
    "printf": lambda pattern, *values: pattern % values,
    "quote": lambda value: json.dumps(str(value)),
    "regexFind": _found,
    "replace": lambda old, new, text: text.replace(old, new),
    "semverCompare": at_least,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toYaml": lambda value: documents.write(value, block=True).rstrip("\n"),
}
"""Functions of one result each, with the order of arguments that Sprig has; `and` and `or` read all of theirs."""
