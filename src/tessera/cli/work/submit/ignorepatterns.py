"""Lines of a `.gitignore` as regular expressions of bytes, as git reads them.

pathspec translates what is between bracket expressions; it has no classes, reversed ranges and escapes in those, lets
them match slashes, and takes white space off the end of a line that git keeps.
Source: git `wildmatch.c` (`dowild`), `dir.c` (`trim_trailing_spaces`).
"""

import os
import re
import string
from typing import Final

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

__all__ = ["expression"]

_FOLDER_MARK: Final = "(?P<ps_d>/)"
"""In the expression of a pattern the end of a matched folder. Source: pathspec,
`patterns/gitignore/spec.py` (`_DIR_MARK_CG`)."""
_PART: Final = re.compile(r"\\.|\[[!^]?(?:\]|\[:[^]]*:\]|\\.|[^]\\])(?:\[:[^]]*:\]|\\.|[^]\\])*\]|.", re.DOTALL)
"""An escaped character, a bracket expression, or a character."""
_ITEM: Final = re.compile(r"\[:([^]]*):\]|(?:\\(.)|(.))(?:-(?:\\(.)|([^]])))?", re.DOTALL)
"""In a bracket expression a class, a range or a character."""
_FIRST_MARK: Final = 0x10000
"""Characters from here on stand for parts that pathspec does not read: no byte is one of them."""
_MARK: Final = re.compile("[\U00010000-\U0010ffff]")
_STARS: Final = re.compile(r"(?<![^/!])\*{3,}(?![^/])")
"""More than two stars between slashes; git reads them as two, pathspec as one."""
_ALL: Final = frozenset(range(256))
_CLASSES: Final = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, (*range(32), 127))),
    "digit": string.digits,
    "graph": "".join(map(chr, range(33, 127))),
    "lower": string.ascii_lowercase,
    "print": "".join(map(chr, range(32, 127))),
    "punct": string.punctuation,
    "space": " \t\n\v\f\r",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}


def expression(line: str) -> tuple[bytes, bool] | None:
    """Return the expression that finds in a path what a line names, and whether the line leaves that out.

    None for a line that names nothing: a comment, a pattern that is never matched.

    Raises:
        ValueError: no pattern.

    """
    marked, parts = "", list[bytes]()
    all_parts = _PART.findall(os.fsencode(line).decode("latin-1"))
    for part in all_parts:
        read = _read(part)
        if read is None:
            return None
        if read:
            marked += chr(_FIRST_MARK + len(parts))
            parts.append(read)
        else:
            marked += part
    marked = marked.rstrip(" ")
    if marked in {"!", "!/"}:
        return None
    if any(part[0] == "[" and "/" in part for part in all_parts):  # a slash anywhere is one for git
        sign = marked[: marked.startswith("!")]
        marked = f"{sign}/{marked[len(sign) :].removeprefix('/')}"
    marked = _STARS.sub("**", marked)
    if marked.endswith("/**/"):  # folders below, for pathspec also the one that has them
        marked += "*/"
    text, excludes = GitIgnoreSpecPattern.pattern_to_regex(marked)
    if text is None or excludes is None:
        return None
    # A pattern decides about what it names; what matches a folder around it was decided before.
    pieces = _MARK.split(text := text.replace(_FOLDER_MARK, "/$"))
    numbers = [ord(each) - _FIRST_MARK for each in _MARK.findall(text)]
    found = pieces[0].encode("latin-1")
    for number, piece in zip(numbers, pieces[1:], strict=True):
        found += parts[number] + piece.encode("latin-1")
    return found, excludes


def _read(part: str) -> bytes | None:
    """Return the expression of a part that pathspec does not read; empty if it does, None if it is never matched."""
    if part[0] == "[":
        if len(part) == 1:  # it has no end
            return None
        inner = part[1:-1]
        negated = inner[0] in "!^"
        members = _members(inner[negated:])
        return None if members is None else _one_of((_ALL - members if negated else members) - {ord("/")})
    if part[-1].isspace() and part != " ":  # and so escaped spaces
        return b"\\x%02x" % ord(part[-1])
    return b""


def _members(inner: str) -> frozenset[int] | None:
    """Return the bytes that a bracket expression names; None for an unknown class, with which nothing is matched."""
    found = frozenset[int]()
    for name, escaped, plain, escaped_last, plain_last in _ITEM.findall(inner):
        if name or not (escaped or plain):
            if name not in _CLASSES:
                return None
            found |= frozenset(map(ord, _CLASSES[name]))
            continue
        first = ord(escaped or plain)
        last = ord(escaped_last or plain_last) if escaped_last or plain_last else first
        found |= frozenset((first, *range(first, last + 1)))
    return found


def _one_of(members: frozenset[int]) -> bytes:
    ranges = list[list[int]]()
    for each in sorted(members):
        if ranges and ranges[-1][1] == each - 1:
            ranges[-1][1] = each
        else:
            ranges.append([each, each])
    return b"[%s]" % (b"".join(b"\\x%02x-\\x%02x" % (first, last) for first, last in ranges) or rb"^\x00-\xff")
