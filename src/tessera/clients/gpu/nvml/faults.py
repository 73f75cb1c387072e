"""NVML's error codes as Tessera's errors."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pynvml

from tessera.clients.gpu.refusals import lost
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

__all__ = ["REFUSED", "Answer", "optional", "translated"]

Answer = TypeVar("Answer")

REFUSED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
)
"""Codes for what this GPU or driver does not support."""

_LATER = "try again later; the kernel's log (dmesg) may say more"
_MEANINGS: dict[int, tuple[type[TesseraError], str]] = {
    **dict.fromkeys(REFUSED, (Unsupported, "use another GPU, or a newer driver")),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (InvalidInput, "see what the GPU's product documentation allows"),
    pynvml.NVML_ERROR_NO_PERMISSION: (Unavailable, "run as root with access to the devices /dev/nvidia*"),
    pynvml.NVML_ERROR_NOT_FOUND: (Conflict, "read the inventory again"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (Unavailable, "load the kernel module: modprobe nvidia"),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        Unsupported,
        "install NVIDIA's driver, or let the process see libnvidia-ml.so.1, by the dynamic linker, and /dev/nvidia*",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        Unavailable,
        "reset the GPU: nvidia-smi --gpu-reset, or restart the node",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        Unavailable,
        "restart the node: the driver was replaced while its kernel module was in use",
    ),
    pynvml.NVML_ERROR_IN_USE: (Conflict, "end the processes that use it"),
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (Conflict, "read the inventory again"),
    pynvml.NVML_ERROR_INVALID_STATE: (Conflict, "read the inventory again"),
}


@contextlib.contextmanager
def translated(subject: str) -> Iterator[None]:
    """Raise NVML's errors as Tessera's.

    Args:
        subject: the object the calls are about: `MIG mode of GPU 0 (GPU-...)`.

    """
    try:
        yield
    except pynvml.NVMLError as error:
        raise _meaning(error, subject) from error


def _meaning(error: pynvml.NVMLError, subject: str) -> TesseraError:
    if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
        return lost(subject)
    branch, accepted = _MEANINGS.get(error.value, (Unavailable, _LATER))
    return branch(subject, found=f"NVML: {error} ({error.value})", hint=accepted)


def optional(function: Callable[..., Answer], *arguments: Any) -> Answer | None:
    """Return the result of an NVML call; None if this GPU or driver does not support it."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in REFUSED:
            return None
        raise
