"""Regular expressions of Go: RE2, whose time grows with the text and no faster; the one importer of re2.

Source: github.com/google/re2, "Syntax"; Go `regexp` (`Regexp.Expand`).
"""

import re
from functools import lru_cache
from typing import Any, Final

import re2

from tessera.errors import InvalidInput, shown

__all__ = ["Pattern"]

_LONGEST: Final = 4096
"""Characters of an expression; those that are published have fewer than 100."""
_REFERENCE: Final = re.compile(r"\$(?:(?P<dollar>\$)|(?P<plain>[A-Za-z0-9_]+)|\{(?P<braced>[A-Za-z0-9_]+)\})")


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
