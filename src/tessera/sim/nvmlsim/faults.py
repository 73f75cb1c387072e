"""Names for faults: what an NVML call may return, and which functions the library has."""

import difflib
import re
from collections.abc import Iterable
from functools import cache

from tessera.errors import InvalidInput, shown
from tessera.sim.nvmlsim.building import sources

__all__ = ["CODES", "code_of", "code_text", "function_of", "functions"]

CODES = {
    "SUCCESS": 0,
    "UNINITIALIZED": 1,
    "INVALID_ARGUMENT": 2,
    "NOT_SUPPORTED": 3,
    "NO_PERMISSION": 4,
    "ALREADY_INITIALIZED": 5,
    "NOT_FOUND": 6,
    "INSUFFICIENT_SIZE": 7,
    "INSUFFICIENT_POWER": 8,
    "DRIVER_NOT_LOADED": 9,
    "TIMEOUT": 10,
    "IRQ_ISSUE": 11,
    "LIBRARY_NOT_FOUND": 12,
    "FUNCTION_NOT_FOUND": 13,
    "CORRUPTED_INFOROM": 14,
    "GPU_IS_LOST": 15,
    "RESET_REQUIRED": 16,
    "OPERATING_SYSTEM": 17,
    "LIB_RM_VERSION_MISMATCH": 18,
    "IN_USE": 19,
    "MEMORY": 20,
    "NO_DATA": 21,
    "VGPU_ECC_NOT_SUPPORTED": 22,
    "INSUFFICIENT_RESOURCES": 23,
    "FREQ_NOT_SUPPORTED": 24,
    "ARGUMENT_VERSION_MISMATCH": 25,
    "DEPRECATED": 26,
    "NOT_READY": 27,
    "GPU_NOT_FOUND": 28,
    "INVALID_STATE": 29,
    "RESET_TYPE_NOT_SUPPORTED": 30,
    "UNKNOWN": 999,
}
"""Return codes by name. Source: nvidia-ml-py 13.615.71, NVML_ERROR_*."""


def code_of(text: str) -> int:
    """Return the code of a name, with or without `NVML_ERROR_`, or of a number.

    Raises:
        InvalidInput: no such name.

    """
    plain = text.strip().upper().removeprefix("NVML_").removeprefix("ERROR_")
    if plain in CODES:
        return CODES[plain]
    if plain.isdecimal() and int(plain) in CODES.values():
        return int(plain)
    raise InvalidInput("NVML return code", found=shown(text), expected="a name or a number", hint=_near(plain, CODES))


def code_text(code: int) -> str:
    """Return the name of a code."""
    return next((name for name, number in CODES.items() if number == code), str(code))


@cache
def functions() -> frozenset[str]:
    """Return the NVML functions that are simulated; others say that they are not supported."""
    return frozenset(re.findall(r"^NVML_API .*?\b(nvml[A-Z]\w*)\(", (sources() / "nvml.h").read_text(), re.MULTILINE))


def function_of(text: str) -> str:
    """Return a function's name as faults have it; a `*` at its end stands for any ending, no `_v2` for any version.

    Raises:
        InvalidInput: the library has none of that name.

    """
    known = {name.partition("_v")[0] for name in functions()} | functions()
    plain = text.strip()
    stem = plain.removesuffix("*")
    if plain in known or (plain != stem and any(name.startswith(stem) for name in known)):
        return plain
    raise InvalidInput(
        "NVML function", found=shown(text), expected="one that the simulator has", hint=_near(plain, sorted(known))
    )


def _near(text: str, names: Iterable[str]) -> str:
    return ", ".join(difflib.get_close_matches(text, names, n=4, cutoff=0.4)) or "see docs/simulated-gpus.md"
