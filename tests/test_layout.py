"""A module's tests are found by its path: tests of `src/tessera/a/b.py` are in `tests/a/test_b.py`.

Where a package is tested as one, through what it offers others, they are in `tests/a/b/test_b.py` or
`tests/a/test_b.py`; where they are many, also in `test_b_<topic>.py` beside. What is tested in no other way is listed
here, and the list only shrinks (`LISTED`). A module that decides nothing needs no tests: records, names, Protocols.
"""

import ast
import re
from collections import Counter
from functools import cache
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

BY_PACKAGE = {
    "agent/exporter": "containers",
    "agent/storage/disks": "keeper preparing",
    "agent/storage/modelcache": "keeper peers plugin rechecks",
    "api/kubernetes/workloads": "counting shapes",
    "cli/drawing": "header",
    "cli/explain": "pod tables",
    "cli": "inputs nodeoptions",
    "cli/inspect": "bar devices summary",
    "cli/mig": "deviceusers node tables",
    "cli/processes": "controller disk_agent metrics metricsoptions peeroptions prometheusoptions server",
    "cli/sim_gpus": "tables",
    "cli/usage": "agents historyoptions tables top",
    "cli/work": "attach environmentcatalog jupyterlab_idle logs",
    "clients/gpu": "refusals",
    "clients/store": "peers ranges",
    "core/gpu/gpumodels": "migproducts",
    "core/packing/defrag": "search trial",
    "core/packing/fit": "demand fleet onenode ways",
    "core/packing/ledger": "records",
    "core/packing/pack": "fgd packer slicescores",
    "core/packing/partitioning": "matches turn",
    "sim/embedded": "nodes run scheduling workloads",
    "sim/nvmlsim": "products tree",
}
"""Modules that only the tests of their package test, by folder. A new one has tests of its own: none is added here."""
LISTED = 58
"""How many these are: a smaller number is written here, never a larger one."""


@cache
def parsed(module: Path) -> ast.Module:
    """Return the syntax of a module, which several tests here look at."""
    return ast.parse(module.read_text())


def decides(module: Path) -> bool:
    """Return whether a function of a module does not always do the same."""
    functions = (node for node in ast.walk(parsed(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(isinstance(node, DECISIONS) for function in functions for node in ast.walk(function))


def homes(module: Path) -> list[Path]:
    """Return where tests of a module may be."""
    path = module.relative_to(SOURCE)
    folder, name = TESTS / path.parent, path.stem.lstrip("_")
    if path.as_posix().removesuffix(".py") in ELSEWHERE:
        return [TESTS / ELSEWHERE[path.as_posix().removesuffix(".py")]]
    if path.stem == "__init__":
        return of_package(module)
    return [folder / f"test_{name}.py", folder / name / f"test_{name}.py", *folder.glob(f"test_{name}_*.py")]


def of_package(module: Path) -> list[Path]:
    """Return where a module's package may be tested as one."""
    folder = TESTS / module.relative_to(SOURCE).parent
    package = folder.name if folder != TESTS else "tessera"
    return [folder / f"test_{package}.py", folder.parent / f"test_{package}.py"]


@pytest.mark.parametrize(
    "module",
    [
        each for each in sorted(SOURCE.rglob("*.py")) if not each.stem.endswith("_pb2") and decides(each)
    ],  # those are generated
    ids=lambda module: module.relative_to(SOURCE).as_posix(),
)
def test_a_module_has_tests_at_its_path(module: Path) -> None:
    path = module.relative_to(SOURCE)
    found = homes(module)
    if module.stem in BY_PACKAGE.get(path.parent.as_posix(), "").split():
        assert not any(each.exists() for each in found), f"it has tests of its own: take {path} off BY_PACKAGE"
        found = of_package(module)
    assert any(each.exists() for each in found), f"write {found[0].relative_to(ROOT)}"


def test_what_only_its_package_tests_exists() -> None:
    listed = [SOURCE / folder / f"{name}.py" for folder, names in BY_PACKAGE.items() for name in names.split()]
    gone = [each.relative_to(SOURCE).as_posix() for each in listed if not each.exists() or not decides(each)]
    assert not gone, f"take {', '.join(gone)} off BY_PACKAGE"
    assert len(listed) <= LISTED, "a new module has tests at its own path"
    assert len(listed) == LISTED, f"write LISTED = {len(listed)}, so that none comes back"


def names_in(package: Path) -> set[str]:
    """Return the modules of a package, and every name that their code has."""
    return {each.stem for each in package.iterdir()}.union(*map(names_of, package.rglob("*.py")))


@cache
def names_of(module: Path) -> frozenset[str]:
    """Return every name that the code of a module has."""
    found = set[str]()
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Name | ast.Attribute | ast.arg | ast.alias | ast.FunctionDef):
            found.add(next(filter(None, (getattr(node, key, "") for key in ("id", "attr", "arg", "name")))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set(node.value.split())
    return frozenset(found)


@pytest.mark.parametrize(
    "package", sorted(SOURCE.rglob("__init__.py")), ids=lambda each: each.parent.relative_to(SOURCE).as_posix()
)
def test_what_the_docstring_of_a_package_names_is_there(package: Path) -> None:
    named = set(re.findall(r"`([a-z][a-z0-9_]*)`", ast.get_docstring(parsed(package)) or ""))
    assert not named - names_in(package.parent)


def test_the_name_of_a_class_is_defined_once() -> None:
    names = {
        (node.name, module)
        for module in SOURCE.rglob("*.py")
        if not module.stem.endswith("_pb2")
        for node in ast.walk(parsed(module))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    counted = Counter(name.casefold() for name, _ in names)
    several = sorted({name for name, _ in names if counted[name.casefold()] > 1})
    assert not several, f"give {', '.join(several)} names that no other class has"
