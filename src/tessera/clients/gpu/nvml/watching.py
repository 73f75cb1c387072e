"""NVML's events, read without waiting. Everything here runs in the driver's thread."""

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

import pynvml

from tessera.clients.gpu.nvml.faults import REFUSED
from tessera.core.gpu.inventory import GpuEvent

__all__ = ["FELL_OFF_THE_BUS", "Watch"]

FELL_OFF_THE_BUS = 79
"""The XID after which a GPU may be lost. Source: NVIDIA, XID Errors, "GPU has fallen off the bus"."""
_NONE = 0xFFFFFFFF
_AT_ONCE = 256
"""Most events read before the thread serves others."""


class Watch:
    """The events of some GPUs since its creation.

    Args:
        devices: NVML's handle of each GPU, by UUID.

    """

    def __init__(self, devices: Mapping[str, Any]) -> None:
        self._set = pynvml.nvmlEventSetCreate()
        self._uuids = {_address(device): uuid for uuid, device in devices.items()}
        """By handle, because a lost GPU does not report its UUID."""
        self.deaf: tuple[str, ...] = tuple(uuid for uuid, device in devices.items() if not self._register(device))
        """GPUs whose events the driver does not report."""

    def _register(self, device: Any) -> bool:
        desired = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventMigConfigChange
        try:
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(device) & desired
            if kinds:
                pynvml.nvmlDeviceRegisterEvents(device, kinds, self._set)
        except pynvml.NVMLError as error:
            if error.value in {*REFUSED, pynvml.NVML_ERROR_GPU_IS_LOST}:
                return False
            raise
        return bool(kinds & pynvml.nvmlEventTypeXidCriticalError)

    def read(self) -> Iterator[GpuEvent]:
        """Yield what has happened so far; `lost` without a GPU when NVML says that one of them is."""
        for _ in range(_AT_ONCE):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError_Timeout:
                return
            except pynvml.NVMLError_GpuIsLost:
                yield GpuEvent(gpu="", lost=True)
                return
            yield self._event(event)

    def _event(self, event: Any) -> GpuEvent:
        return GpuEvent(
            gpu=self._uuids.get(_address(event.device), ""),
            xid=event.eventData if event.eventType & pynvml.nvmlEventTypeXidCriticalError else None,
            gpu_instance=None if event.gpuInstanceId == _NONE else event.gpuInstanceId,
            compute_instance=None if event.computeInstanceId == _NONE else event.computeInstanceId,
        )

    def close(self) -> None:
        """Free the event set."""
        pynvml.nvmlEventSetFree(self._set)


def _address(device: Any) -> int | None:
    return ctypes.cast(device, ctypes.c_void_p).value
