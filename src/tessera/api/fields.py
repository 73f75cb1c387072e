"""A value in a document together with its position, so that errors can name it exactly."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from tessera.api.documents import Document, Path, Plain
from tessera.core.gpu.gpumodels import GpuModel, model
from tessera.core.workload.objectnames import is_subdomain
from tessera.errors import UNDECODABLE, InvalidInput, shown

__all__ = [
    "Field",
    "checked_name",
    "composed",
    "error_phrase",
    "identity",
    "in_place",
    "in_words",
    "objects",
    "read_model",
    "refused_form",
]

Word = TypeVar("Word", bound=str)
Number = TypeVar("Number")
Value = TypeVar("Value")

_NAME = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,251}[a-zA-Z0-9])?")
"""Longest part of an object's name in an error."""
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLACEHOLDER = re.compile(r"\{\{|\$\{?[A-Za-z_]")
_FILL_IN = (
    "a value; what stands there is a template's, so pass what `helm template`, `kustomize build` or `envsubst` prints"
)
_KINDS: Final = {
    "array": "a list",
    "bool": "true or false",
    "datetime": "a time",
    "float": "a number",
    "int": "an integer",
    "object": "a mapping",
    "str": "a text",
}
"""Types by their name in msgspec's errors."""
_PARTS: Final = {"array": "elements", "object": "members", "str": "characters"}
_BOUNDS: Final = {"<=": "at most", ">=": "at least", "<": "below", ">": "above", "": "just"}
_UNKNOWN: Final = object()


class Field:
    """A value, present or not, and its position: document, path, and its object.

    Readers return core values or raise `InvalidInput` naming source, document, line, object and path. A missing field
    and an explicit null are the same, as in Kubernetes.
    """

    __slots__ = ("document", "label", "path", "root", "value")

    def __init__(self, document: Document, value: Plain, path: Path = (), *, root: int = 0, label: str = "") -> None:
        self.document = document
        self.value = value
        self.path = path
        self.root = root
        """Length of the path to the object."""
        self.label = label
        """`Kind namespace/name` of the object, empty without one."""

    @property
    def present(self) -> bool:
        """Whether there is a value."""
        return self.value is not None

    @property
    def place(self) -> str:
        """Source, document and line: `pods.yaml, document 2, line 7`."""
        return f"{self.document.source}, document {self.document.number}, line {self.document.line(self.path)}"

    @property
    def subject(self) -> str:
        """Position, object and path, as errors begin."""
        text = ""
        for step in self.path[self.root :]:
            if isinstance(step, str) and _PLAIN_KEY.fullmatch(step):
                text += f".{step}"
            else:
                text += f"[{step}]" if isinstance(step, int) else f"[{shown(step)[1:-1]}]"
        return ": ".join(part for part in (self.place, self.label, text.removeprefix(".")) if part)

    def refuse(self, expected: str = "", hint: str = "", *, found: str = "") -> InvalidInput:
        """Return the error that this value is not the expected one; `found` is another cause, as a phrase."""
        if isinstance(self.value, str) and _PLACEHOLDER.search(self.value):
            hint = _FILL_IN
        if found:
            return InvalidInput(self.subject, found=found, expected=expected, hint=hint)
        if self.value is None:
            more = f": {hint.removeprefix('write ')}" if hint.startswith("write ") else hint and f", such as {hint}"
            return InvalidInput(self.subject, found="it is missing", hint=f"write {expected}{more}")
        return InvalidInput(self.subject, found=_shown(self.value), expected=expected, hint=hint)

    def _child(self, step: str | int, value: Plain) -> "Field":
        return Field(self.document, value, (*self.path, step), root=self.root, label=self.label)

    def get(self, *keys: str) -> "Field":
        """Return the field at `keys`, missing if one of them is; a value between must be a mapping."""
        field = self
        for key in keys:
            field = field._child(key, field.mapping().get(key))
        return field

    def mapping(self) -> dict[str, Plain]:
        """Return the mapping, empty where the field is missing."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.refuse("a mapping")
        return self.value

    def members(self) -> Iterator[tuple[str, "Field"]]:
        """Yield the keys and fields of a mapping in their order."""
        for key, value in self.mapping().items():
            yield key, self._child(key, value)

    def elements(self) -> Iterator["Field"]:
        """Yield the fields of a list, none where the field is missing."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            raise self.refuse("a list")
        for index, value in enumerate(self.value):
            yield self._child(index, value)

    def only(self, *keys: str) -> "Field":
        """Return this mapping, after rejecting all keys but these.

        Raises:
            InvalidInput: an unknown key, which is most often a misspelled one.

        """
        for key, field in self.members():
            if key not in keys:
                raise InvalidInput(
                    field.subject, found="it is an unknown field", hint=f"remove it, or write one of {', '.join(keys)}"
                )
        return self

    def read(self, reader: Callable[[object, str], Number], default: Number | None = None) -> Number:
        """Return the value by `reader`, a function of value and subject as in `core.workload.units`.

        The subject, whose line may take a search, is made only for an error.
        """
        if self.value is None and default is not None:
            return default
        try:
            return reader(self.value, "")
        except InvalidInput as error:
            raise self.refuse(error.expected, error.hint) from error

    def text(self, default: str | None = None) -> str:
        """Return the text; a number or boolean in its place is rejected, as in Kubernetes."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, str):
            raise self.refuse("a text", "" if self.value is None else "the value in quotes")
        return self.value

    def choice(self, *words: Word, default: Word | None = None) -> Word:
        """Return one of `words`."""
        if self.value is None and default is not None:
            return default
        for word in words:
            if word == self.value:
                return word
        raise self.refuse("one of the words accepted", ", ".join(words))

    def integer(self, default: int | None = None, *, least: int = 0, most: int = (1 << 31) - 1) -> int:
        """Return the integer, between `least` and `most`."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not least <= self.value <= most:
            raise self.refuse(f"an integer from {least} to {most}")
        return self.value

    def boolean(self, *, default: bool | None = None) -> bool:
        """Return the boolean."""
        if self.value is None and default is not None:
            return default
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value


class _Composed(Field):
    """A mapping or list composed of fields from elsewhere in the document, which keep their positions."""

    __slots__ = ("parts",)

    def __init__(self, base: Field, value: Plain, parts: Mapping[str | int, Field]) -> None:
        super().__init__(base.document, value, base.path, root=base.root, label=base.label)
        self.parts = parts

    def _child(self, step: str | int, value: Plain) -> Field:
        part = self.parts.get(step)
        return super()._child(step, value) if part is None else part


def composed(base: Field, parts: Mapping[str, Field] | list[Field]) -> Field:
    """Return a mapping or list of fields as if it stood at `base`; each part keeps its own position in errors."""
    if isinstance(parts, list):
        return _Composed(base, [part.value for part in parts], dict(enumerate(parts)))
    present: dict[str | int, Field] = {key: part for key, part in parts.items() if part.present}
    return _Composed(base, {str(key): part.value for key, part in present.items()}, present)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 1 << 8:
        return f"an integer of {value.bit_length()} bits"
    return str(value) if isinstance(value, int | float | Decimal) else shown(value)


def in_words(error: InvalidInput, field: Field) -> str:
    """Return an error about an object in one line that names the field in it, without the object and its position."""
    place = re.escape(field.place.rpartition(" ")[0])
    subject = re.sub(rf"^{place} [0-9]+(: |$)({re.escape(field.label)}(: |$))?", "", error.subject)
    return f"{subject + ': ' if subject else ''}{error.advice}"


def objects(document: Document) -> Iterator[Field]:
    """Yield the Kubernetes objects of a document, those in lists (`List`, `PodList`, ...) one by one, in order.

    Raises:
        InvalidInput: a document without `kind`, or a list inside a list.

    """
    whole = Field(document, document.data)
    if not isinstance(document.data, dict):
        raise whole.refuse("an object with apiVersion and kind", "kubectl prints objects with -o yaml or -o json")
    kind = whole.get("kind").text("")
    items = whole.get("items")
    if not kind.endswith("List") or not items.present:
        yield _named(whole, kind)
        return
    for item in items.elements():
        inner = item.get("kind").text(kind.removesuffix("List"))
        if inner.endswith("List") and item.get("items").present:
            raise item.refuse(found="it is a list in a list", hint="write objects in one list")
        yield _named(item, inner)


def _named(field: Field, kind: str) -> Field:
    metadata = field.get("metadata")
    name, namespace = metadata.get("name").value, metadata.get("namespace").value
    parts = (str(part) for part in (namespace, name) if isinstance(part, str) and _NAME.fullmatch(part))
    label = f"{kind} {'/'.join(parts)}".strip() if _NAME.fullmatch(kind) else ""
    value = {"kind": kind, **field.mapping()} if kind else field.value
    return Field(field.document, value, field.path, root=len(field.path), label=label)


def identity(field: Field) -> tuple[str, str]:
    """Return the validated namespace and name of an object; the namespace is `default` if there is none.

    Raises:
        InvalidInput: an invalid name, or none.

    """
    metadata = field.get("metadata")
    return checked_name(metadata.get("namespace"), "default"), checked_name(metadata.get("name"))


def checked_name(field: Field, default: str | None = None) -> str:
    """Return a text that Kubernetes accepts as a name.

    Raises:
        InvalidInput: another text, or none.

    """
    name = field.text(default)
    if not is_subdomain(name):
        raise field.refuse("a name of lower-case letters, digits, - and .", found=shown(name))
    return name


def in_place(place: Field | str, read: Callable[[], Value]) -> Value:
    """Return the result of `read`; its errors get the position of their field.

    Raises:
        InvalidInput: the error of `read`, its subject preceded by source, document, line, object and path; the
            object is named once.

    """
    try:
        return read()
    except InvalidInput as error:
        outer, label = (place, "") if isinstance(place, str) else (place.subject, place.label)
        subject = ": ".join(filter(None, (outer, error.subject.removeprefix(label).removeprefix(": "))))
        raise InvalidInput(subject, found=error.found, expected=error.expected, hint=error.hint) from error


def read_model(field: Field) -> GpuModel:
    """Return the GPU model a field names.

    Raises:
        InvalidInput: a model Tessera does not know.

    """
    name = field.text()
    return in_place(field, partial(model, name))


def refused_form(error: Exception, value: object, subject: str, hint: str = "", *, form: Any = None) -> InvalidInput:
    """Return why msgspec does not read a value, in the words of `Field`: which field, what it is and what it may be.

    Args:
        error: msgspec's, or another that reading ended with.
        value: what was read; bytes are JSON.
        subject: names it.
        hint: what would be accepted.
        form: the type it was read as; its accepted values and the most similar field are named.

    """
    message, _, place = str(error).partition(" - at `")
    path = place.removeprefix("key` in `").strip("`").removeprefix("$").removeprefix(".")
    there = _UNKNOWN if place.startswith("key") else _at(path, value)
    name = message.split("`")[1] if message.startswith("Object ") else ""
    expected, similar = "", list[str]()
    if isinstance(error, RecursionError):
        found = "it is nested too deeply"
    elif isinstance(error, UnicodeDecodeError):
        found = "it is not UTF-8"
    elif isinstance(error, UnicodeError):
        found = "it has half of a character, a surrogate"
    elif not isinstance(error, msgspec.DecodeError):
        found = f"it is unreadable ({shown(error)})"
    elif not isinstance(error, msgspec.ValidationError):
        found = "it is not complete JSON" if "truncated" in message else "it is not JSON"
    elif name:
        found = "it is missing" if "missing" in message else "it is an unknown field"
        known = [] if "missing" in message else _fields_at(form, path)
        similar = difflib.get_close_matches(name, known, 1)
    elif message.startswith("Expected "):
        found, expected = _mismatch(message.removeprefix("Expected "), there)
    elif not message.startswith("Invalid "):
        found = f"it is unreadable ({shown(message)})"
    elif " value " in message:
        choices = _choices_at(form, path)
        found, expected = message.partition(" value ")[2], _one_of(choices)
        similar = difflib.get_close_matches(found.strip("'"), choices, 1)
    else:
        found, expected = _found(there), f"a valid {message.removeprefix('Invalid ')}"
    where = ".".join(filter(None, (f"a key of {path}" if place.startswith("key") else path, name)))
    hint = f"did you mean {similar[0]}?" if similar else hint
    return InvalidInput(": ".join(filter(None, (subject, where))), found=found, expected=expected, hint=hint)


def error_phrase(error: Exception, value: object) -> str:
    """Return the same as a phrase, for brackets: `[0].gpu: 'x' is not an integer`."""
    if not isinstance(error, msgspec.DecodeError | RecursionError | UnicodeError):
        return shown(error)
    refused = refused_form(error, value, "")
    return ": ".join(filter(None, (refused.subject, refused.cause)))


def _steps(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+|\.\.\.", path)


def _at(path: str, value: object) -> object:
    """Return the value at a path as msgspec writes it: `status.gpus[0].index`, `limits[...]` for any member."""
    found = value
    if isinstance(value, bytes):
        try:
            found = msgspec.json.decode(value)
        except UNDECODABLE:
            return _UNKNOWN
    for step in _steps(path):
        match found:
            case Mapping() if step in found:
                found = found[step]
            case list() | tuple() if step.isdecimal():
                found = found[int(step)]
            case _:
                return _UNKNOWN
    return found


def _one_of(choices: Sequence[str]) -> str:
    """Return what a value must be, of some choices; none where they are unknown."""
    if not choices:
        return "a value that is accepted there"
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last


def _fields_at(form: Any, path: str) -> list[str]:
    """Return the fields of the objects at a path of a type."""
    found = (each for each in _types_at(form, path) if isinstance(each, inspect.StructType))
    return [field.encode_name for each in found for field in each.fields]


def _choices_at(form: Any, path: str) -> list[str]:
    """Return the values of the enumerations at a path of a type."""
    found = list[Any]()
    for each in _types_at(form, path):
        match each:
            case inspect.EnumType():
                found += [one.value for one in each.cls]
            case inspect.LiteralType():
                found += each.values
    return [str(each) for each in found]


def _types_at(form: Any, path: str) -> list[inspect.Type]:
    """Return the types at a path as msgspec writes it; none without a type."""
    found = [] if form is None else _alternatives(inspect.type_info(form))
    for step in _steps(path):
        found = [one for each in found for part in _parts_at(each, step) for one in _alternatives(part)]
    return found


def _parts_at(parent: inspect.Type, step: str) -> list[inspect.Type]:
    match parent:
        case inspect.StructType():
            return [field.type for field in parent.fields if field.encode_name == step]
        case inspect.DictType():
            return [parent.value_type]
        case inspect.ListType() | inspect.VarTupleType():
            return [parent.item_type]
    return []


def _alternatives(form: inspect.Type) -> list[inspect.Type]:
    return [*form.types] if isinstance(form, inspect.UnionType) else [form]


def _mismatch(expected: str, value: object) -> tuple[str, str]:
    """Return a value and what it is not, or the cause alone, by msgspec's words: "`int` <= 9", "`str`, got `int`"."""
    kinds, _, rest = expected.removeprefix("`").partition("`")
    rule, _, got = rest.partition(", got ")
    kind = kinds.partition(" |")[0]
    if " of length" in rule:
        bound, _, number = rule.removeprefix(" of length ").rpartition(" ")
        has = f"it has {len(value)} {_PARTS[kind]}, and " if isinstance(value, str | list | tuple | Mapping) else ""
        parts = "" if has else f" {_PARTS[kind]}"
        return f"{has}{_BOUNDS[bound]} {number}{parts} are accepted", ""
    found = _KINDS.get(got.strip("`"), "null") if value is _UNKNOWN and got else _found(value)
    if not rule:
        return found, " or ".join(_KINDS.get(each, each) for each in kinds.split(" | ") if each != "null")
    if rule.startswith(" matching regex "):
        return found, f"a text that matches {rule.removeprefix(' matching regex ')[1:-1]}"
    bound, _, number = rule.strip().partition(" ")
    return found, f"{_BOUNDS[bound]} {number.removesuffix('.0')}" if bound in _BOUNDS else rule.partition("'s ")[2]


def _found(value: object) -> str:
    if value is _UNKNOWN:
        return "what is there"
    return "null" if value is None else _shown(value)
