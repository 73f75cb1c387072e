"""The description of the chart's values: values.yaml with comments, its JSON schema, and the table in docs/install.md.

`scripts/generate` writes them from the records of `api/tessera/chart/installation` and their docstrings.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tessera.api.tessera.chart.installation import MODULE, Values
from tessera.api.tessera.v1alpha1.crds import descriptions

__all__ = ["schema_of_values", "table_of_values", "values_file"]


def schema_of_values(source: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON schema of the values, with the description of each.

    Args:
        source: the text of `api/tessera/chart/installation` by its `MODULE`.

    """
    words = descriptions(source)
    schema: dict[str, Any] = msgspec.json.schema(Values, ref_template="#/definitions/{name}")
    for name, definition in schema["$defs"].items():
        definition.pop("title", None)
        definition["description"] = words[f"{MODULE}.{name}", ""]
        definition["required"] = list(definition["properties"])  # Helm takes null for a value that is not there
        for key, each in definition["properties"].items():
            each.pop("default", None)
            if text := words.get((f"{MODULE}.{name}", _snake(key))):
                each["description"] = text
    definitions = schema["$defs"]
    root = definitions.pop("Values")
    # The words of draft 7, which every Helm knows.
    return {"$schema": "http://json-schema.org/draft-07/schema#", **root, "definitions": definitions}


def values_file(source: Mapping[str, str]) -> str:
    """Return values.yaml: each value with its description."""
    return "".join(_yaml(Values(), descriptions(source), 0))


def _yaml(record: msgspec.Struct, words: Mapping[tuple[str, str], str], depth: int) -> Iterator[str]:
    margin = "  " * depth
    for field, value in _members(record):
        text = words.get((f"{MODULE}.{type(record).__name__}", _snake(field))) or words.get(
            (f"{MODULE}.{type(value).__name__}", ""), ""
        )
        yield from (f"{margin}# {line}\n" for line in textwrap.wrap(text, 100 - 2 * depth))
        if isinstance(value, msgspec.Struct):
            yield f"{margin}{field}:\n"
            yield from _yaml(value, words, depth + 1)
        else:
            yield f"{margin}{field}: {_flow(value)}\n"
        yield "" if depth else "\n"


def table_of_values(source: Mapping[str, str]) -> str:
    """Return a Markdown table of all values."""
    words = descriptions(source)
    rows = [f"| `{key}` | `{_flow(value)}` | {text} |\n" for key, value, text in _rows(Values(), words, "")]
    return "".join(("| value | default | |\n", "| --- | --- | --- |\n", *rows))


def _rows(record: msgspec.Struct, words: Mapping[tuple[str, str], str], prefix: str) -> Iterator[tuple[str, Any, str]]:
    for field, value in _members(record):
        if isinstance(value, msgspec.Struct):
            yield from _rows(value, words, f"{prefix}{field}.")
        else:
            yield f"{prefix}{field}", value, words[f"{MODULE}.{type(record).__name__}", _snake(field)]


def _members(record: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(record):
        yield field.encode_name, getattr(record, field.name)


def _snake(name: str) -> str:
    return re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", name)


def _flow(value: Any) -> str:
    """Return a value on one line, as YAML and JSON read it."""
    return msgspec.json.encode(value).decode()
