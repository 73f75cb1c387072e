"""Regular expressions of RE2, as Go has them, whose time grows with the text and no faster; the one importer of re2.

Source: github.com/google/re2, "Syntax"; Go `regexp` (`Regexp.Expand`).
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

from tessera.errors import InvalidInput, shown

__all__ = ["Pattern", "PatternSet"]

_LONGEST: Final = 4096
"""Characters of an expression; those that are published have fewer than 100."""
_REFERENCE: Final = re.compile(r"\$(?:(?P<dollar>\$)|(?P<plain>[A-Za-z0-9_]+)|\{(?P<braced>[A-Za-z0-9_]+)\})")
_SET_BYTES: Final = 1 << 28
"""Most memory of a set of expressions; RE2's own limit, 8 MiB, is too little for some thousand."""


@lru_cache(1 << 12)
def _compiled(text: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(text, options)


class Pattern:
    """A regular expression.

    Args:
        text: as it was written.

    Attributes:
        groups: how many groups it captures.

    Raises:
        InvalidInput: it is not a pattern, or is too long.

    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise InvalidInput("regular expression", found=f"{len(text)} characters are more than {_LONGEST}")
        try:
            self._compiled = _compiled(text)
        except re2.error as error:
            cause = error.args[0].decode(errors="replace")
            expected = "a regular expression of RE2, as Go and Prometheus have them"
            raise InvalidInput("regular expression", found=f"{shown(text)} ({cause})", expected=expected) from error
        self.groups: int = self._compiled.groups

    def matches(self, text: str) -> bool:
        """Return whether it is found in a text."""
        return self._compiled.search(text) is not None

    def group(self, text: str, name: str) -> str | None:
        """Return what a group captures in a text, empty where the expression has no such group; None for no match."""
        found = self._compiled.search(text)
        if found is None:
            return None
        return (found.group(name) or "") if name in self._compiled.groupindex else ""

    def expanded(self, text: str, template: str) -> str | None:
        """Return a template with what was captured in a text: `${1}_per_second`; None where it is not found.

        A group that is not there is empty, as `$1_per_second` is, which names a group `1_per_second`.
        """
        found = self._compiled.search(text)
        if found is None:
            return None

        def captured(reference: re.Match[str]) -> str:
            if reference["dollar"]:
                return "$"
            name = reference["plain"] or reference["braced"]
            numbers = {str(number): number for number in range(self.groups + 1)}
            key = numbers.get(name, name)
            return (found.group(key) or "") if name in numbers or name in self._compiled.groupindex else ""

        return _REFERENCE.sub(captured, template)


class PatternSet:
    """Regular expressions that are all searched for in a text at once, byte by byte; `.` matches every byte.

    Args:
        patterns: as they were written.
        any_case: whether ASCII letters match in either case.

    Raises:
        InvalidInput: one is not a pattern, or together they are too large.

    """

    def __init__(self, patterns: Iterable[bytes], *, any_case: bool = False) -> None:
        options = re2.Options()
        options.encoding, options.dot_nl, options.max_mem = re2.Options.Encoding.LATIN1, True, _SET_BYTES
        options.log_errors, options.case_sensitive = False, not any_case
        self._set = re2.Set.SearchSet(options)
        try:
            for pattern in patterns:
                self._set.Add(pattern)
            self._set.Compile()
        except re2.error as error:
            expected = "a regular expression of RE2"
            raise InvalidInput("regular expressions", found=shown(error.args[0]), expected=expected) from error

    def matches(self, text: bytes) -> tuple[int, ...]:
        """Return which are found in a text, by their numbers from 0 in ascending order."""
        return tuple(sorted(self._set.Match(text) or ()))
