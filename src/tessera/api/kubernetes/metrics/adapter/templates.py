"""The subset of Go's templates that rules use, between `<<` and `>>`: fields, and `index` of one.

Source: Go `text/template` (actions, trimming, printing of maps and slices).
"""

import json
import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from tessera.errors import InvalidInput, shown

__all__ = ["Form", "Given", "Template", "read_template"]

Form: TypeAlias = Literal["text", "map", "list"]
Given: TypeAlias = str | Mapping[str, str] | tuple[str, ...]
"""What a field has: a text, a map or a list."""

_LONGEST: Final = 1 << 16
_FIELD: Final = re.compile(r"\.(\w+)(?:\.(\w+))?")
_INDEX: Final = re.compile(r'index\s+\.(\w+)\s+(?:("(?:[^"\\]|\\["\\])*")|`([^`]*)`|(\d{1,3}))')


class _Action(msgspec.Struct, frozen=True):
    """A field, or what it has under a key or at a place."""

    field: str
    key: str | int | None = None
    absent: str = ""
    """Output for a missing key."""


class Template(msgspec.Struct, frozen=True):
    """A parsed template."""

    parts: tuple[str | _Action, ...]

    def fields(self) -> frozenset[str]:
        """Return the names of the fields that it prints."""
        return frozenset(each.field for each in self.parts if isinstance(each, _Action))

    def filled(self, fields: Mapping[str, Given]) -> str:
        """Return the text with these values of its fields.

        Raises:
            InvalidInput: a place of a list that it does not have.

        """
        return "".join(each if isinstance(each, str) else _printed(each, fields[each.field]) for each in self.parts)


def _printed(action: _Action, value: Given) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        if action.key is None:
            return f"map[{' '.join(f'{key}:{each}' for key, each in sorted(value.items()))}]"
        return value.get(str(action.key), action.absent)
    if action.key is None:
        return f"[{' '.join(value)}]"
    place = int(action.key)
    if place >= len(value):
        found = f"there are {len(value)} elements"
        raise InvalidInput(f"index .{action.field} {place}", found=found, hint="count from 0")
    return value[place]


def read_template(text: str, fields: Mapping[str, Form]) -> Template:
    """Return a template.

    Args:
        text: with actions between `<<` and `>>`.
        fields: what it may name.

    Raises:
        InvalidInput: another action than those above, or one that does not end.

    """
    if len(text) > _LONGEST:
        raise InvalidInput("template", found=f"{len(text)} characters are more than {_LONGEST}")
    parts, at, trim = list[str | _Action](), 0, False
    while (start := text.find("<<", at)) >= 0:
        end = text.find(">>", start)
        if end < 0:
            raise InvalidInput("template", found=f"{shown(text[start:])} has no end", hint="write >> after it")
        before, inside = text[at:start], text[start + 2 : end]
        left, right = re.match(r"-\s", inside), re.search(r"\s-\Z", inside)
        before = before.lstrip() if trim else before
        parts.append(before.rstrip() if left else before)
        inside = inside[1 if left else 0 : -1 if right else None].strip()
        if not (inside.startswith("/*") and inside.endswith("*/")):
            parts.append(_action(inside, fields))
        at, trim = end + 2, bool(right)
    parts.append(text[at:].lstrip() if trim else text[at:])
    return Template(tuple(each for each in parts if each))


def _action(text: str, fields: Mapping[str, Form]) -> _Action:
    action = None
    if found := _FIELD.fullmatch(text):
        action = _Action(found[1], found[2], "<no value>")
    elif found := _INDEX.fullmatch(text):
        key = json.loads(found[2], strict=False) if found[2] else found[3]
        action = _Action(found[1], int(found[4]) if found[4] else key)
    known = ", ".join(f"<<.{name}>>" for name in fields)
    if action is None or action.field not in fields:
        raise InvalidInput("template", found=shown(f"<<{text}>>"), expected="one that is read", hint=f"use {known}")
    form = fields[action.field]
    wrong = {"text": action.key is not None, "map": isinstance(action.key, int), "list": isinstance(action.key, str)}
    if wrong[form]:
        raise InvalidInput(
            "template", found=f"{shown(f'<<{text}>>')} does not work, because .{action.field} is a {form}"
        )
    return action
