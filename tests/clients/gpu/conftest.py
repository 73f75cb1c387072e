"""Simulated machines that this process sees through unmodified pynvml."""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.gpuworlds import Start
from tessera.sim.nvmlsim import Machine, create_state, library


@pytest.fixture(scope="session")
def simulated() -> None:
    """Load the simulator before pynvml asks for it: one of the same name that is there already is not loaded again."""
    ctypes.CDLL(str(library()))


@pytest.fixture
def start(simulated: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Give a function that makes the machine that NVML will show; call it before a driver is opened."""
    del simulated
    with contextlib.ExitStack() as made:

        def begin(*gpus: str, driver: str = "615.71.09") -> Machine:
            create_state(tmp_path / "state", gpus, driver=driver)
            monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(tmp_path / "state"))
            return made.enter_context(Machine(tmp_path / "state"))

        yield begin


@pytest.fixture
def machine(start: Start) -> Machine:
    return start("A100-40GB", "T4")
