"""All tests of the library once more, on a build that stops at a wrong access or undefined behavior."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.sim.nvmlsim import environment
from tessera.sim.nvmlsim.building import STATE_VARIABLE, compiler

FOLDER = Path(__file__).parent
CFLAGS = "-g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"

OVERFLOW = """
import ctypes, sys
loaded, libc = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
gpu = ctypes.c_void_p()
assert loaded.nvmlInit_v2() == 0
assert loaded.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(gpu)) == 0
print(loaded.nvmlDeviceGetName(gpu, ctypes.c_void_p(libc.malloc(4)), 96))
"""
"""Gives the library a buffer of 4 bytes and says that there are 96."""


@pytest.fixture(scope="module")
def sanitized() -> dict[str, str]:
    """Return the environment of programs that use the sanitized library."""
    name = "libasan.so"
    command = [compiler(), f"-print-file-name={name}"]
    runtime = subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip()
    if runtime in {"", name}:
        pytest.skip(f"{compiler()} has no {name}: the sanitizers were not run")
    return {**os.environ, "CFLAGS": CFLAGS, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}


def test_an_overflow_would_be_seen(sanitized: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows proves nothing unless this fails."""
    monkeypatch.setenv("CFLAGS", CFLAGS)
    create_with_sanitized_library(tmp_path / "state", sanitized)
    settings = {**sanitized, **environment(tmp_path / "state")}
    result = subprocess.run([sys.executable, "-c", OVERFLOW], check=False, env=settings, capture_output=True, text=True)
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr
    assert "put_text" in result.stderr


def create_with_sanitized_library(path: Path, sanitized: dict[str, str]) -> None:
    """Make a machine in a program of its own: this one cannot load the sanitized library."""
    text = "import sys, pathlib, tessera.sim.nvmlsim as s; s.create_state(pathlib.Path(sys.argv[1]), ['T4'])"
    subprocess.run([sys.executable, "-c", text, str(path)], check=True, env=sanitized)


def test_no_test_of_the_library_meets_a_wrong_access(sanitized: dict[str, str]) -> None:
    settings = {name: value for name, value in sanitized.items() if name != STATE_VARIABLE}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(FOLDER)]
    command += ["--ignore", str(Path(__file__)), "-k", "not compile and not built and not shows"]
    result = subprocess.run(
        command, check=False, env=settings, cwd=FOLDER.parents[2], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout
