"""The reference of labels, annotations, taints and resources, from the constants that hold them.

A constant is on the page if the docstring below it reads `Label of a node: what it says. Set by X; read by Y.`, once or
for each kind of name that it is.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import tessera
from generate.reference.tables import plain, table

__all__ = ["names", "page"]

_DOCSTRING = re.compile(
    r"(?P<kind>Label|Annotation|Taint|Resource) of (?P<owner>[^:]*): (?P<says>.*?\.) "
    r"Set by (?P<writer>[^;]*); read by (?P<reader>.*?)\.(?: |$)"
)
_HEAD = """# Labels, annotations and resources

Admission policies refuse assignments and reports that others write ([security](../security.md)). What Tessera
understands of other systems' resources and annotations is in [requests](../requests.md). The labels of GPU Feature
Discovery, which the agent writes, are NVIDIA's.
"""
_TITLES = {"Resource": "Resources", "Annotation": "Annotations", "Label": "Labels", "Taint": "Taints"}


def page() -> str:
    """Return all names, by what they are."""
    parts = [_HEAD]
    found = sorted(names(), key=lambda each: each[0])
    for kind, title in _TITLES.items():
        rows = [
            (f"`{name}`", plain(facts["owner"]), plain(facts["says"]), facts["writer"], plain(facts["reader"]))
            for name, facts in found
            if facts["kind"] == kind
        ]
        parts.append(f"\n## {title}\n\n{table(('name', 'of', 'meaning', 'set by', 'read by'), rows)}")
    return "".join(parts)


def names() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each name with the parts of its docstring."""
    for path in sorted(Path(tessera.__file__).parent.rglob("*.py")):
        body = ast.parse(path.read_text()).body
        for statement, below in itertools.pairwise(body):
            match statement, below:
                case (
                    ast.Assign(value=ast.Constant(value=str(name)))
                    | ast.AnnAssign(value=ast.Constant(value=str(name))),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    for found in _DOCSTRING.finditer(" ".join(text.split())):
                        yield name, found.groupdict()
