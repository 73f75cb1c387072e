"""How the library is built, and what it shows to those who load it."""

import ctypes
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import cut_whole
from tessera.sim.nvmlsim import library
from tessera.sim.nvmlsim.building import sources
from tessera.sim.nvmlsim.faults import CODES, functions


def exported(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", str(path)], check=True, capture_output=True, text=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


def requested() -> set[str]:
    """Return the functions that nvidia-ml-py asks for."""
    return set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text()))


def test_it_shows_nvml_and_its_control_functions_alone() -> None:
    names = exported(library())
    assert {name for name in names if not name.startswith("nvmlsim_")} == functions() | requested()


def test_what_is_simulated_is_what_nvidia_ml_py_asks_for_or_an_older_version_of_it() -> None:
    stems = {re.sub(r"_v\d$", "", name) for name in requested()}
    assert {name for name in functions() if re.sub(r"_v\d$", "", name) not in stems} == {"nvmlInit", "nvmlInit_v2"}


def test_the_rest_says_that_it_is_not_supported(t4: Any) -> None:
    loaded = ctypes.CDLL(str(library()))
    rest = requested() - functions()
    assert len(rest) > 200
    assert {getattr(loaded, name)(t4, None, None, None) for name in rest} == {pynvml.NVML_ERROR_NOT_SUPPORTED}
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuFabricInfo(t4, None)


def test_codes_are_those_of_nvidia_ml_py() -> None:
    want = {
        name.removeprefix("NVML_ERROR_"): code for name, code in vars(pynvml).items() if name.startswith("NVML_ERROR_")
    }
    assert {name: code for name, code in CODES.items() if name != "SUCCESS"} == want


def test_files_of_the_library_are_small_and_say_what_they_are() -> None:
    for path in sources().glob("*.[ch]"):
        lines = path.read_text().splitlines()
        assert lines[0].startswith("/*"), path.name
        assert len(lines) <= 600, path.name
        assert max(map(len, lines)) <= 120, path.name


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


@pytest.mark.parametrize("name", sorted(functions()))
def test_nothing_but_zeros_is_refused(start: object, machine: object, name: str) -> None:
    """With NVML initialised: null handles and pointers give a code, never a crash."""
    del start, machine
    if name in {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"}:
        return
    code = getattr(ctypes.CDLL(str(library())), name)(*[ctypes.c_void_p(0)] * 6)
    assert code == pynvml.NVML_ERROR_INVALID_ARGUMENT


def declarations() -> dict[str, str]:
    """Return the parameters of each function, as nvml.h has them."""
    text = re.sub(r"\s+", " ", (sources() / "nvml.h").read_text())
    return dict(re.findall(r"NVML_API nvmlReturn_t (nvml\w+)\(([^)]*)\);", text))


@pytest.mark.parametrize("name", sorted(declarations()))
def test_a_handle_and_nothing_else_is_refused_where_something_is_to_be_told(a100: Any, t4: Any, name: str) -> None:
    instance, compute = cut_whole(a100, 19, 0, 1)
    handles = {"nvmlDevice_t": t4, "nvmlGpuInstance_t": instance, "nvmlComputeInstance_t": compute}
    parameters = [each.strip() for each in declarations()[name].split(",")]
    handle = handles.get(parameters[0].split(" ")[0])
    if handle is None:
        return
    code = getattr(ctypes.CDLL(str(library())), name)(handle, *[ctypes.c_void_p(0)] * 5)
    if "*" in declarations()[name]:
        assert code != pynvml.NVML_SUCCESS
    assert code != pynvml.NVML_ERROR_UNINITIALIZED


def test_older_ways_to_initialise(start: Callable[[], object]) -> None:
    start()
    for name in ("nvmlInit", "nvmlInit_v2"):
        loaded = ctypes.CDLL(str(library()))
        assert getattr(loaded, name)() == pynvml.NVML_SUCCESS
        assert loaded.nvmlShutdown() == pynvml.NVML_SUCCESS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nvmlDeviceSetPowerManagementLimit_v2", 3),
        ("nvmlDeviceGetTemperatureV", 3),
        ("nvmlDeviceGetRunningProcessDetailList", 6),
        ("nvmlDeviceGetPciInfoExt", 16),
        ("nvmlDeviceGetMemoryInfo_v2", 10),
    ],
)
@pytest.mark.parametrize("version", [0, 0xFFFFFFFF, 0x01000001])
def test_a_struct_of_another_version_is_refused(t4: Any, name: str, words: int, version: int) -> None:
    struct = (ctypes.c_uint * words)(version)
    code = getattr(ctypes.CDLL(str(library())), name)(t4, ctypes.byref(struct))
    assert code == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    assert list(struct) == [version, *[0] * (words - 1)], "nothing was written"


def test_a_uuid_struct_of_another_version_is_refused(t4: Any) -> None:
    del t4
    found = ctypes.c_void_p()
    code = ctypes.CDLL(str(library())).nvmlDeviceGetHandleByUUIDV((ctypes.c_uint * 13)(1, 1), ctypes.byref(found))
    assert (code, found.value) == (pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, None)
