"""What import-linter does not see: homes of libraries, what importing loads, impure calls, sizes, docstrings."""

import ast
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "src" / "tessera").rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}
PURE = tuple(name for name in SOURCES if name.startswith(("tessera.core", "tessera.api")))

EVERYWHERE = {"msgspec", "numpy"}
LOADED_BY_MSGSPEC = {"typing_extensions"}
HOMES = {
    "aiohttp": "tessera.clients.connections",
    "azure": "tessera.clients.store",
    "blake3": "tessera.agent.storage.models.digests",
    "click": "tessera.cli",
    "cryptography": "tessera.signing",
    "google": "tessera.clients",
    "google_crc32c": "tessera.agent.storage.models.digests",
    "grpc": "tessera.clients",
    "highspy": "tessera.core.packing.linear",
    "httpx2": "tessera.clients.kube",
    "jupyter_server": "tessera.cli.work.jupyterlab_idle",
    "jupyter_server_terminals": "tessera.cli.work.jupyterlab_idle",
    "jupyterlab": "tessera.cli.work.jupyterlab_idle",
    "lightkube": "tessera.clients.kube",
    "matplotlib": "tessera.sim.report",
    "numba": "tessera.core.packing.pack.kernels",
    "pathspec": "tessera.cli.work.submit.ignorepatterns",
    "pynvml": "tessera.clients.gpu.nvml",
    "re2": "tessera.api.patterns",
    "rich": "tessera.cli",
    "starlette": "tessera.server",
    "structlog": "tessera.log",
    "uvicorn": "tessera.server.listening",
    "yaml": "tessera.api.documents",
    "yarl": "tessera.clients.connections",
}
"""Where each outside library may be imported: one module, or one package."""

PURE_MODULES = frozenset(
    [
        "ast",
        "base64",
        "binascii",
        "bisect",
        "codecs",
        "collections",
        "contextlib",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "fnmatch",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "inspect",
        "ipaddress",
        "itertools",
        "json",
        "math",
        "posixpath",
        "re",
        "statistics",
        "string",
        "struct",
        "types",
        "typing",
        "unicodedata",
    ]
)
"""What core, api and errors may import of the standard library: nothing with input or output, clock, randomness,
logging, processes or environment."""
GIVEN = {"random": "tessera.core"}
"""Modules of which a value may be handed in; that none is made or drawn from unasked is tested."""

IMPURE_BUILTINS = {"open", "print", "input", "exec", "eval", "compile", "breakpoint", "__import__"}
IMPURE_ATTRIBUTES = {
    "now",
    "today",
    "utcnow",
    "tofile",
    "default_rng",
}
"""Clock, files and randomness that are reached through modules which core may import: datetime and numpy."""
IMPURE_OF_NUMPY = {
    "DataSource",
    "fromfile",
    "fromregex",
    "genfromtxt",
    "lib",
    "load",
    "loadtxt",
    "memmap",
    "random",
    "save",
    "savetxt",
    "savez",
    "savez_compressed",
}
"""Files and randomness of numpy itself, whose names others may have."""

MODULE_LINES = 500
BODY_LINES = 50
ARGUMENTS = 6


def imported(tree: ast.AST) -> set[str]:
    """Return the top-level names of all imports, those inside functions too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_an_outside_library_has_one_home() -> None:
    importers = defaultdict(set)
    for module, tree in TREES.items():
        for library in imported(tree) - sys.stdlib_module_names - EVERYWHERE - {"tessera"}:
            importers[library].add(module)
    strangers = {
        library: sorted(module for module in modules if not f"{module}.".startswith(f"{HOMES.get(library, '?')}."))
        for library, modules in importers.items()
    }
    assert {library: modules for library, modules in strangers.items() if modules} == {}, "place the library in HOMES"


def test_the_contracts_count_imports_that_only_type_checkers_see(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    upward = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tessera.server.verbs import Verbs\n"
    with (tmp_path / "src" / "tessera" / "core" / "gpu" / "mig.py").open("a") as module:
        module.write(upward)
    lint = (Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    got = subprocess.run(lint, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (got.returncode, "tessera.core.gpu.mig -> tessera.server.verbs" in got.stdout) == (1, True), got.stdout


def test_importing_core_loads_msgspec_numpy_and_the_standard_library_alone() -> None:
    core = [module for module in SOURCES if module.startswith("tessera.core")]
    program = f"""
import sys
before = set(sys.modules)
import tessera, {", ".join(core)}
print(*{{name.partition(".")[0] for name in set(sys.modules) - before}})
"""
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "tessera" in loaded
    assert set(loaded) - sys.stdlib_module_names - EVERYWHERE - LOADED_BY_MSGSPEC - {"tessera"} == set()


def impure(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name):
            return name in IMPURE_BUILTINS
        case ast.Attribute(value=ast.Name(id="random"), attr=name):
            return name != "Random"
        case ast.Call(func=ast.Attribute(value=ast.Name(id="random"))):
            return True
        case ast.Attribute(value=owner, attr=name):
            of_numpy = ast.unparse(owner) in {"np", "numpy"} and name in IMPURE_OF_NUMPY
            return of_numpy or name in IMPURE_ATTRIBUTES
        case ast.ImportFrom(module=str(name), names=names):
            paths = {f"{name}.{each.name}" for each in names}
            names_of_numpy = {path.split(".")[1] for path in paths if path.startswith("numpy.")}
            return name == "random" or not names_of_numpy.isdisjoint(IMPURE_OF_NUMPY)
    return False


@pytest.mark.parametrize("module", [*PURE, "tessera.errors"])
def test_pure_code_imports_only_what_is_pure(module: str) -> None:
    given = {name for name, home in GIVEN.items() if module.startswith(home)}
    homes = {library for library, home in HOMES.items() if f"{module}.".startswith(f"{home}.")}
    assert imported(TREES[module]) - PURE_MODULES - EVERYWHERE - given - homes - {"tessera"} == set()


@pytest.mark.parametrize("module", PURE)
def test_pure_code_calls_nothing_impure(module: str) -> None:
    got = [ast.unparse(node) for node in ast.walk(TREES[module]) if impure(node)]
    assert got == []


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("def f(rng: random.Random) -> int: return rng.randrange(3)", False),
        ("random.Random(3)", True),
        ("random.random()", True),
        ("from random import Random", True),
        ("np.random.default_rng()", True),
        ("datetime.now(tz)", True),
        ("np.load(name)", True),
        ("numpy.save(name, array)", True),
        ("from numpy import genfromtxt", True),
        ("from numpy.lib.npyio import load", True),
        ("from numpy import int64", False),
        ("observed.load", False),
        ("open(name)", True),
        ("message.opened", False),
    ],
)
def test_what_counts_as_impure(code: str, *, want: bool) -> None:
    assert any(impure(node) for node in ast.walk(ast.parse(code))) is want


@pytest.mark.parametrize("module", [each for each in SOURCES if not each.endswith("_pb2")])  # those are generated
def test_a_module_is_small_and_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(TREES[module]), "the first line says what is inside"
    assert len(SOURCES[module].read_text().splitlines()) <= MODULE_LINES, (
        "a module that outgrows its lines becomes a package"
    )
    for function in functions(TREES[module]):
        has_docstring = ast.get_docstring(function) is not None
        body = function.body[1:] if has_docstring and len(function.body) > 1 else function.body
        lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
        assert lines <= BODY_LINES, f"{function.name} has {lines} lines"
        taken = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        count = len([argument for argument in taken if argument.arg not in {"self", "cls"}])
        is_command = module.startswith("tessera.cli") and function.decorator_list
        assert count <= ARGUMENTS or is_command, f"{function.name} takes {count} arguments: name a record"
