#!/usr/bin/env python3
"""scripts/words.py: words that Tessera does not use, in texts for users, docstrings, comments, docs and some names.

A text for users is a string of at least three words in src: an error, an event, a help. Spelling is American.
scripts/check runs it.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

EVERYWHERE = {
    "granted": "allocated",
    "sick": "unhealthy",
    "(?:some|any)body(?:'s)?": "a user, another program, each user who",
    "whoever": "a user, a client, an attacker",
    "whosoever": "a user",
    "is told": "gets, is reported",
    "are told": "get, are reported",
    "look at": "see, check, read",
    "looks at": "checks, reads",
    "looked at": "checked, read",
    "carr(?:y|ies|ied|ying)(?: [\\w`]+)? out": "reconcile, execute, done; a spec is valid or invalid",
    "(?:a|each|every|full|next|last|first|second|two|three|four|[0-9,]+) looks?(?! like)|looks of": "pass, scrape",
    "as ever": "leave it out",
    "heeds?": "ignores, follows",
    "are dear": "are expensive",
    "(?:behavio|colo|hono|neighbo|favo|labo)ur(?!ce)\\w*": "-or: behavior, color, honor, neighbor, favor, labor",
    "(?:un|re)?label(?:led|ling|ler)": "labeled, labeling",
    "cancel(?:led|ling)|modell(?:ed|ing)|travell(?:ed|ing)": "one l: canceled, modeled, traveling",
    "(?:un)?(?:recogn|organ|maxim|minim|optim|util|synchron|initial|normal|serial|summar|prior|author|custom|special|"
    "general|real|visual|virtual|final|standard)is(?:e|es|ed|er|ers|ing|ation)": "-iz-: recognize, maximize",
    "catalogues?|dialogues?": "catalog, dialog",
    "centred?|metres?|grey|towards|spelt|learnt|whilst|licence|defence|artefacts?|judgement": "center, gray, toward",
}
TEXTS = {
    "nobody": "no pod, no process, is unknown",
    "beside": "with, next to",
    "asks": "requests, queries",
    "asked": "requested, queried",
    "holds": "has, uses, is allocated",
    "held": "allocated, used",
    "seen": "observed",
    "told": "reported, started with",
    "waits": "is pending",
    "gone": "deleted, missing",
    "whatever": "leave it out",
    "wherever": "leave it out",
    "sits": "is on",
    "shall": "is desired",
}
IN_NAMES = {
    "held": "allocated, on_disk",
    "wanted": "desired, requested",
    "wants": "requests, shares",
    "seen": "observed, known",
    "whom": "peer_for",
    "said": "reported, response, text",
    "told": "reported, allocated",
    "sick": "unhealthy",
    "somebody": "a user, another program",
    "anybody": "a user, another program",
    "card": "gpu",
    "cards": "gpus",
    "asker": "target",
    "askers": "targets",
    "trouble": "error, problem",
    "troubled": "failed",
    "troubles": "errors",
}
"""Of variables, functions and classes."""
IN_DEFINITIONS = {
    "misfit": "mismatch",
    "made": "created, written, planned",
    "judge": "update, apply",
    "settle": "what it does: retry, drop, clear",
    "settled": "whether what: is_settled",
    "mend": "repair",
    "tidy": "clean_up",
    "there": "on_disk, present, value",
    "taken": "occupied, reserved, acquired",
    "kept": "retained, fixed, cached",
    "left": "free, remaining, unplaced",
    "own": "whose it is",
}
"""Whole names of functions, parameters, fields of records, attributes of `self` and variables of a module."""
IN_PARAMETERS = {
    "each": "what it is; a loop may have it",
    "found": "what it is; a loop, a local, or the text of an error may have it",
}
"""Of parameters of functions and fields of records."""
IN_TESTS = {"card": "gpu", "cards": "gpus", "asker": "target", "askers": "targets"}
"""Of the same in tests, whose names are sentences."""
PLACES = "src docs deploy examples scripts testbed generate bench tests *.md :!scripts/words.py"
ONLY_NAMES = {"testbed", "generate", "bench", "tests"}
"""Folders whose texts are for contributors."""
COMMENTS = {".js": r"(?<![:\w])//(.*)", ".css": r"/\*(.*?)\*/", ".yaml": r"(?<!\S)#(.*)", "": r"(?<!\S)#(.*)"}
"""How a comment begins, by suffix; programs of a shell have none."""
NAMES = re.compile(r"`[^`]*`|\{[^{}]*\}")


def words_in(text: str, banned: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the banned words of a text, each with what to write; code and placeholders are no words."""
    plain = NAMES.sub("", text)
    for word, instead in banned.items():
        if found := re.search(rf"(?<![\w./=-])(?:{word})(?![\w./-]*\w)", plain, re.IGNORECASE):
            yield found.group(), instead


def strings(tree: ast.AST) -> Iterator[tuple[ast.expr, str, bool]]:
    """Yield the strings of a module, each with its node and whether it is a docstring."""
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values),
                False,
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node, node.value, node in docstrings


def texts_of(path: Path) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Yield the texts of a file: its line, the text, and the words it must not have."""
    if path.suffix not in {".py", ".md", *COMMENTS}:
        return
    content = path.read_text("utf-8")
    if path.suffix == ".py" and not path.stem.endswith("_pb2"):
        for node, text, is_docstring in strings(ast.parse(content)):
            user_text = not is_docstring and text.count(" ") > 1 and "\x1b" not in text
            yield node.lineno, text, EVERYWHERE if is_docstring else EVERYWHERE | TEXTS if user_text else {}
    elif path.suffix == ".md" and "decisions" not in path.parts:
        plain = re.sub(r"```.*?```", lambda block: "\n" * block.group().count("\n"), content, flags=re.DOTALL)
        for number, line in enumerate(plain.splitlines(), 1):
            yield number, line, EVERYWHERE
    elif path.suffix in COMMENTS:
        for number, line in enumerate(content.splitlines(), 1):
            for comment in re.findall(COMMENTS[path.suffix], line):
                yield number, comment, EVERYWHERE


WORD_IN_NAME = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
"""`held_shares` and `HeldShares` have the same words."""


def names_in(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the banned words in names of a module, each with its line and what to write."""
    tree = ast.parse(path.read_text("utf-8"))
    banned = IN_TESTS if path.parts[0] == "tests" else IN_NAMES
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            name = getattr(node, field, None)
            for word in WORD_IN_NAME.findall(name) if isinstance(name, str) else ():
                if word.lower() in banned:
                    yield getattr(node, "lineno", 1), word.lower(), banned[word.lower()]
    if path.parts[0] != "src":
        return
    for line, name, kind in parameters_in(tree):
        if name in IN_PARAMETERS and kind != "str":
            yield line, name, IN_PARAMETERS[name]
    for line, name in definitions_in(tree):
        if name.strip("_") in IN_DEFINITIONS:
            yield line, name, IN_DEFINITIONS[name.strip("_")]


def parameters_in(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield the parameters of functions and the fields of records: line, name, and type as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                yield each.lineno, each.arg, ast.unparse(each.annotation) if each.annotation else ""
        elif isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.lineno, field.target.id, ast.unparse(field.annotation)


def definitions_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that others use: of functions, classes, parameters, fields, attributes and module variables."""
    for line, name, _ in parameters_in(tree):
        yield line, name
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield statement.lineno, node.id


def main() -> int:
    """Print the words, and return 1 if there are any."""
    command = ["/usr/bin/env", "git", "ls-files", *PLACES.split()]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - our own words
    failed = False
    for path in map(Path, listed.stdout.splitlines()):
        found: list[tuple[int, str, str]] = []
        if path.parts[0] not in ONLY_NAMES:
            found += [(number, *each) for number, text, banned in texts_of(path) for each in words_in(text, banned)]
        found += names_in(path) if path.suffix == ".py" and not path.stem.endswith("_pb2") else ()
        for number, word, instead in found:
            print(f"{path}:{number}: {word}: write {instead}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
