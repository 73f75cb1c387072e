"""A module's tests are found by its path: tests of `src/tessera/a/b.py` are in `tests/a/test_b.py`.

Where a package is tested as one, through what it offers others, they are in `tests/a/b/test_b.py` or
`tests/a/test_b.py`; where they are many, also in `test_b_<topic>.py` beside. A module that decides nothing needs none:
records, names, Protocols.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src/tessera", ROOT / "tests"

DECISIONS = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.Match, ast.Try, ast.BoolOp, ast.comprehension)

ELSEWHERE = {
    "__init__": "test_planning.py",
    "clients/kube/storage": "clients/kube/test_memory.py",
    "clients/registry/protocol": "conformance/registrysuite.py",
    "clients/runtime/real": "kube/test_container_runtime.py",
}
"""Modules whose tests are elsewhere: lazy imports of another, the inside of one, one for all clients, a real one."""


def decides(module: Path) -> bool:
    """Return whether a function of a module does not always do the same."""
    functions = (
        node
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return any(isinstance(node, DECISIONS) for function in functions for node in ast.walk(function))


def homes(module: Path) -> list[Path]:
    """Return where tests of a module may be."""
    path = module.relative_to(SOURCE)
    folder, package = TESTS / path.parent, path.parent.name or "tessera"
    if path.as_posix().removesuffix(".py") in ELSEWHERE:
        return [TESTS / ELSEWHERE[path.as_posix().removesuffix(".py")]]
    name = package if path.stem == "__init__" else path.stem.lstrip("_")
    inside = [] if path.stem == "__init__" else [folder / name / f"test_{name}.py", *folder.glob(f"test_{name}_*.py")]
    return [folder / f"test_{name}.py", *inside, folder / f"test_{package}.py", folder.parent / f"test_{package}.py"]


@pytest.mark.parametrize(
    "module",
    [
        each for each in sorted(SOURCE.rglob("*.py")) if not each.stem.endswith("_pb2") and decides(each)
    ],  # those are generated
    ids=lambda module: module.relative_to(SOURCE).as_posix(),
)
def test_a_module_has_tests_at_its_path(module: Path) -> None:
    found = homes(module)
    assert any(each.exists() for each in found), f"write {found[0].relative_to(ROOT)}"
