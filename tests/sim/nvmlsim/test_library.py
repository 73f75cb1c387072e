"""How the library is built, and what it shows to those who load it."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from tessera.errors import Unsupported
from tessera.sim.nvmlsim import library
from tessera.sim.nvmlsim.faults import CODES, functions
from tessera.sim.nvmlsim.library import FLAGS, compiler, environment, sources

STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")


def exported(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(path)], check=True, capture_output=True, text=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def test_it_shows_nvml_and_its_control_functions_alone() -> None:
    names = exported(library())
    assert {name for name in names if not name.startswith("nvmlsim_")} == functions()


def test_every_function_is_one_that_nvidia_ml_py_asks_for_or_an_older_version_of_one() -> None:
    text = Path(pynvml.__file__).read_text()
    asked = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', text))
    stems = {re.sub(r"_v\d$", "", name) for name in asked}
    assert {name for name in functions() if re.sub(r"_v\d$", "", name) not in stems} == {"nvmlInit", "nvmlInit_v2"}


def test_codes_are_those_of_nvidia_ml_py() -> None:
    want = {
        name.removeprefix("NVML_ERROR_"): code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_")
    }
    assert {name: code for name, code in CODES.items() if name != "SUCCESS"} == want


def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    files = map(str, sorted(sources().glob("*.c")))
    command = [compiler(), *FLAGS, *STRICT, "-o", str(tmp_path / "strict.so"), *files]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_files_of_the_library_are_small_and_say_what_they_are() -> None:
    for path in sources().glob("*.[ch]"):
        lines = path.read_text().splitlines()
        assert lines[0].startswith("/*"), path.name
        assert len(lines) <= 600, path.name
        assert max(map(len, lines)) <= 120, path.name


def test_it_is_built_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CFLAGS", "-O0")
    first = library()
    made = first.stat().st_mtime_ns
    assert library() == first
    assert first.stat().st_mtime_ns == made
    assert first.name == "libnvidia-ml.so.1"
    assert [each.name for each in first.parent.iterdir()] == ["libnvidia-ml.so.1"]
    monkeypatch.setenv("CFLAGS", "-O0 -DANOTHER=1")
    assert library() != first


def test_before_initialisation_every_call_says_so() -> None:
    """Each function with nothing but zeros: none of them follows a pointer it should not."""
    text = """
import ctypes, sys
loaded = ctypes.CDLL(sys.argv[1])
for name in sys.argv[2:]:
    print(name, getattr(loaded, name)(*[ctypes.c_void_p(0)] * 6))
"""
    names = sorted(functions() - {"nvmlErrorString", "nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"})
    command = [sys.executable, "-c", text, str(library()), *names]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    codes = {int(line.split()[1]) for line in result.stdout.splitlines()}
    assert codes <= {pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_INVALID_ARGUMENT}
    assert len(result.stdout.splitlines()) == len(names)


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(Unsupported, match="install gcc or clang"):
        compiler()


def test_a_compiler_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CFLAGS", "-include nothing-of-that-name.h")
    with pytest.raises(Unsupported, match=r"nothing-of-that-name\.h"):
        library()
    assert list(tmp_path.rglob("*.so*")) == []


def test_the_environment_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = str(library().parent)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/one:{folder}:/opt/two")
    got = environment(tmp_path / "state")
    assert got["LD_LIBRARY_PATH"] == f"{folder}:/opt/one:/opt/two"
    assert got["TESSERA_NVMLSIM_STATE"] == str(tmp_path / "state")


@pytest.mark.parametrize("name", sorted(functions()))
def test_nothing_but_zeros_is_refused(start: object, machine: object, name: str) -> None:
    """With NVML initialised: null handles and pointers give a code, never a crash."""
    del start, machine
    if name in {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"}:
        return
    code = getattr(ctypes.CDLL(str(library())), name)(*[ctypes.c_void_p(0)] * 6)
    assert code == pynvml.NVML_ERROR_INVALID_ARGUMENT
