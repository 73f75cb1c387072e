"""Why a value of the Helm chart is rejected, in an administrator's terms."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from tessera.errors import InvalidInput, shown

__all__ = ["refused_value"]

_TYPES = {"int": "a whole number", "str": "text", "bool": "true or false", "array": "a list", "object": "a mapping"}


def refused_value(message: str, values: Mapping[str, Any], schema: Mapping[str, Any]) -> InvalidInput:
    """Return why values are rejected: which one, what it is and what it may be.

    Args:
        message: of msgspec, as "Expected `int`, got `str` - at `$.server.replicas`".
        values: all values.
        schema: of msgspec for the record of all values; a pattern's description says what it admits.

    """
    cause, _, place = message.partition(" - at `$")
    path = place.strip("`.")
    definitions: dict[str, Any] = schema["$defs"]
    node: dict[str, Any] = definitions[schema["$ref"].rpartition("/")[2]]
    value: Any = values
    for step in path.split(".") if path else ():
        node = node.get("properties", {}).get(step, {})
        node = definitions.get(node.get("$ref", "").rpartition("/")[2], node)
        value = value.get(step) if isinstance(value, Mapping) else None
    if cause.startswith("Object contains unknown field"):
        name = cause.split("`")[1]
        near = difflib.get_close_matches(name, node["properties"], 1)
        subject, *alike = (".".join(filter(None, (path, each))) for each in (name, *near))
        hint = f"did you mean {alike[0]}?" if alike else "see deploy/chart/values.yaml"
        return InvalidInput(f"values: {subject}", found="the chart has no such value", hint=hint)
    words = re.sub(r"`(\w+)`", lambda word: _TYPES.get(word[1], word[1]), cause)
    expected, _, got = words.removeprefix("Expected ").partition(", got ")
    if "enum" in node:
        expected = f"one of {', '.join(node['enum'])}"
    elif "pattern" in node and not got:
        expected = node["description"]
    hint = "write the value in quotes" if expected == "text" else ""
    return InvalidInput(f"values: {path}", found=got if "[" in path else shown(value), expected=expected, hint=hint)
