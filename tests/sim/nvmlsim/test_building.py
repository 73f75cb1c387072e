"""How the simulated library is built: once, by the environment's compiler, or with what to install."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tessera.errors import Unavailable, Unsupported
from tessera.sim.nvmlsim import library
from tessera.sim.nvmlsim.building import FLAGS, compiler, environment, sources

STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")


def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    files = map(str, sorted(sources().glob("*.c")))
    command = [compiler(), *FLAGS, *STRICT, "-o", str(tmp_path / "strict.so"), *files]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


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


def test_a_compiler_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slow = tmp_path / "slow-cc"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", str(slow))
    with pytest.raises(Unavailable, match="it did not end within"):
        library(timeout_s=0.2)


def test_the_environment_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = str(library().parent)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/opt/one:{folder}:/opt/two")
    got = environment(tmp_path / "state")
    assert got["LD_LIBRARY_PATH"] == f"{folder}:/opt/one:/opt/two"
    assert got["TESSERA_NVMLSIM_STATE"] == str(tmp_path / "state")
    programs, _, former = got["PATH"].partition(":")
    assert former.split(":") == [each for each in os.environ["PATH"].split(":") if each != programs]
    assert shutil.which("nvidia-cuda-mps-control", path=programs)
