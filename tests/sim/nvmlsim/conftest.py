"""A simulated machine that this process sees through unmodified pynvml."""

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tessera.sim.nvmlsim import Machine, create_state, library

Start = Callable[..., Machine]


@pytest.fixture(scope="session")
def loaded() -> None:
    """Load the library before pynvml asks for it: one of the same name that is there already is not loaded again."""
    ctypes.CDLL(str(library()))


@pytest.fixture
def start(loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Give a function that makes a machine of these GPUs, initialises NVML on it and returns it."""
    del loaded
    machines: list[Machine] = []

    def begin(*gpus: str, **settings: Any) -> Machine:
        path = tmp_path / f"machine-{len(machines)}"
        create_state(path, gpus or ("A100-40GB",), **settings)
        monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(path))
        pynvml.nvmlInit()
        machines.append(Machine(path))
        return machines[-1]

    yield begin
    for machine in machines:
        machine.close()
        pynvml.nvmlShutdown()


@pytest.fixture
def machine(start: Start) -> Machine:
    """Give a machine with an A100 with MIG on and a T4."""
    made = start("A100-40GB", "T4")
    assert pynvml.nvmlDeviceSetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0), 1) == pynvml.NVML_SUCCESS
    return made


@pytest.fixture
def a100(machine: Machine) -> Any:
    """Give the handle of the A100 of `machine`."""
    del machine
    return pynvml.nvmlDeviceGetHandleByIndex(0)


@pytest.fixture
def t4(machine: Machine) -> Any:
    """Give the handle of the T4 of `machine`."""
    del machine
    return pynvml.nvmlDeviceGetHandleByIndex(1)
