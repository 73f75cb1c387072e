"""Strict reading of CSV files: every error names file, line and column."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import msgspec

from tessera.errors import InvalidInput

__all__ = ["Bounds", "Row", "rows"]

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class Bounds(msgspec.Struct, frozen=True):
    """The whole numbers a column may hold, both ends included."""

    low: int
    high: int
    unit: str = ""

    def __str__(self) -> str:
        """Return the range as a person reads it: `0 to 64 GPUs`."""
        return f"{self.low:,} to {self.high:,} {self.unit}".rstrip()


class Row(msgspec.Struct, frozen=True):
    """One record of a table, and where it stands."""

    path: Path
    line: int
    values: dict[str, str]

    def text(self, column: str, expected: str) -> str:
        """Return the value of a column that may not be empty."""
        value = self.values[column]
        if not value:
            raise self.wrong(column, expected)
        return value

    def number(self, column: str, bounds: Bounds) -> int:
        """Return the whole number of a column, in decimal digits."""
        value = self.values[column]
        if not _WHOLE.fullmatch(value) or not bounds.low <= int(value) <= bounds.high:
            raise self.wrong(column, f"a whole number, {bounds}")
        return int(value)

    def wrong(self, column: str, expected: str, *, accepted: str = "") -> InvalidInput:
        """Return the error for the value of one column."""
        value = self.values[column]
        where = f"{self.path}, line {self.line}, column {column}"
        if not value:
            return InvalidInput(where, found="it is empty", hint=f"write {expected}")
        return InvalidInput(where, found=_quoted(value), expected=expected, hint=accepted)


def _quoted(value: str) -> str:
    longest = 80
    return f'"{value}"' if len(value) <= longest else f'"{value[:longest]}..."'


def rows(path: Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> Iterator[Row]:
    """Yield the records of a CSV file with a header line, values stripped of surrounding blanks.

    Columns that are neither required nor optional are left out; optional ones that are absent read as empty.

    Raises:
        InvalidInput: no such file, not UTF-8 or not CSV, a required column missing or twice, a record with more or
            fewer fields than the header, no records at all.

    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _records(path, file, required, optional)
    except OSError as error:
        raise InvalidInput(
            str(path), found=error.strerror or "no file", hint="name a CSV file that can be read"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), found=f"byte {error.start} is not UTF-8", hint="name a CSV file") from error


def _records(path: Path, file: TextIO, required: tuple[str, ...], optional: tuple[str, ...]) -> Iterator[Row]:
    reader = csv.reader(file, strict=True)
    header: tuple[str, ...] = ()
    line, found = 0, False
    try:
        for fields in reader:
            started, line = line + 1, reader.line_num
            if not fields:
                continue
            if not header:
                header = _header(path, fields, required)
                continue
            if len(fields) != len(header):
                expected = f"{len(header)} fields as in the header"
                raise InvalidInput(f"{path}, line {started}", found=f"it has {len(fields)} fields, not {expected}")
            values = dict.fromkeys(optional, "") | dict(zip(header, map(str.strip, fields), strict=True))
            found = True
            yield Row(path, started, values)
    except csv.Error as error:
        raise InvalidInput(f"{path}, line {line + 1}", found=str(error), hint="write a CSV record") from error
    if not found:
        accepted = f"write a header with {', '.join(required)} and one line for each record"
        raise InvalidInput(str(path), found="it has no records", hint=accepted)


def _header(path: Path, fields: list[str], required: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(map(str.strip, fields))
    missing = [column for column in required if column not in names]
    if missing:
        found = f"no column {', '.join(missing)} (columns: {', '.join(names)})"
        raise InvalidInput(f"{path}, line 1", found=found, hint=f"required columns: {', '.join(required)}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(
            f"{path}, line 1", found=f"column {', '.join(twice)} is there twice", hint="name each column once"
        )
    return names
