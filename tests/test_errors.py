"""Errors say cause and fix, in every place that raises one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

ROOT = Path(__file__).parents[1] / "src/tessera"
BRANCHES = {each.__name__ for each in (InvalidInput, Conflict, Unavailable, Unsupported)}
PHRASE = re.compile(r"(no|none|nothing|neither|it|its|there|another|several) ", re.IGNORECASE)
"""How a cause begins that is no value: `no answer is not an answer` helps nobody."""
NOUN = re.compile(r"(a|an) |\w+ing ")
NO_VERB = re.compile(r"(known|pending|nodes|those|it has|there are|none|its \w+ (is|are))\b")
"""How a list begins that leaves open what to do with it."""
LIMIT = re.compile(r"\b(not|more than|cannot|need|needed)\b")
"""What a cause has that itself says what would be accepted."""


def text_of(node: ast.expr | None) -> str:
    """Return the text of a literal as far as it is written there; what is put into it as one letter."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) if isinstance(each, ast.Constant) else "X" for each in node.values)
    return ""


def texts_of(node: ast.expr) -> Iterator[str]:
    """Yield the text of a literal, or those of a choice between literals."""
    if isinstance(node, ast.IfExp):
        yield from texts_of(node.body)
        yield from texts_of(node.orelse)
    elif text := text_of(node):
        yield text


def hints() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each fix that any call is given, also by a variable `hint`."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            given = [each.value for each in node.keywords if each.arg == "hint"] if isinstance(node, ast.Call) else []
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "hint":
                given = [node.value]
            place = path.relative_to(ROOT)
            yield from ((f"{place}:{each.lineno}", text) for each in given for text in texts_of(each))


def raised() -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Yield the place and the named arguments of each call that makes an error."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BRANCHES:
                named = {each.arg: each.value for each in node.keywords if each.arg}
                yield f"{path.relative_to(ROOT)}:{node.lineno}", named


SITES = tuple(raised())

TEXTS: dict[str, tuple[TesseraError, str]] = {
    "a value, and what it is not": (
        InvalidInput("a.yaml, line 7: count", found="0.5", expected="a whole number"),
        "a.yaml, line 7: count: 0.5 is not a whole number",
    ),
    "a value, and what would be accepted": (
        InvalidInput("policy", found="'fg'", expected="a policy", hint="fgd, tessera"),
        "policy: 'fg' is not a policy: fgd, tessera",
    ),
    "another cause, and what to do": (
        InvalidInput("fleet", found="it has no node", hint="give --cluster FILE"),
        "fleet: it has no node: give --cluster FILE",
    ),
    "a cause alone": (Unavailable("x", found="HTTP 500"), "x: HTTP 500"),
}


@pytest.mark.parametrize(("error", "want"), TEXTS.values(), ids=TEXTS)
def test_an_error_is_object_cause_and_fix(error: TesseraError, want: str) -> None:
    """One line, each part where there is one; parts of it are had by name."""
    assert str(error) == want
    assert str(error) == f"{error.subject}: {error.advice}"
    assert error.advice.startswith(error.cause)


def test_sites_are_found() -> None:
    """The tests below look at something."""
    assert len(SITES) > 300


def test_a_phrase_is_a_cause_and_not_a_value() -> None:
    """What is no value is not said to be "not" something."""
    assert [place for place, named in SITES if "expected" in named and PHRASE.match(text_of(named.get("found")))] == []


def test_every_error_has_a_fix_or_says_what_is_accepted() -> None:
    """Whoever reads it knows what to do next."""
    bare = [(place, text_of(named["found"])) for place, named in SITES if not named.keys() & {"expected", "hint"}]
    assert [place for place, cause in bare if not LIMIT.search(cause)] == []


def test_a_fix_says_what_to_do() -> None:
    """`give --cluster FILE`, not `a cluster` or `giving --cluster FILE`."""
    fixes = [(place, text_of(named["hint"])) for place, named in SITES if "hint" in named and "expected" not in named]
    assert [(place, text) for place, text in fixes if NOUN.match(text)] == []


def test_a_list_says_what_to_do_with_it() -> None:
    """`name one of a, b`, not `known are a, b`, in every error, however it is made."""
    fixes = tuple(hints())
    assert len(fixes) > 500
    assert [(place, text) for place, text in fixes if NO_VERB.match(text)] == []
