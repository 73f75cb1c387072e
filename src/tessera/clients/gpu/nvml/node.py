"""All GPUs of this node by NVML. Everything here runs in the driver's thread."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pynvml

from tessera.clients.gpu.nvml.changing import limits_memory
from tessera.clients.gpu.nvml.faults import translated
from tessera.clients.gpu.nvml.reading import KnownGpu, read, used_mib
from tessera.clients.gpu.nvml.watching import FELL_OFF_THE_BUS, Watch
from tessera.clients.gpu.refusals import lost, no_gpu
from tessera.core.gpu.inventory import GpuEvent, GpuFacts, Inventory

__all__ = ["NvmlNode"]

Answer = TypeVar("Answer")

_DRIVER_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION,
)
"""Errors of the driver, not of the requested GPU."""


class NvmlNode:
    """The GPUs that NVML enumerated when this was made; their order stays as long as it lives.

    Handles are fetched for each call, because a reset invalidates former ones.

    A GPU that is lost at that time is searched again with each inventory.

    Args:
        sysfs: where the operating system shows its devices.
        publish: called with every event, in the driver's thread.

    Raises:
        Unavailable, Unsupported: there is no driver, or it does not answer.

    """

    def __init__(self, sysfs: Path, publish: Callable[[GpuEvent], None]) -> None:
        self._sysfs = sysfs
        self._publish = publish
        self._facts: dict[str, GpuFacts] = {}
        """The last read facts, by UUID."""
        self._lost: set[str] = set()
        self._watch: Watch | None = None
        self._watched: set[str] = set()
        self._known: dict[str, KnownGpu] = {}
        """By UUID, in the driver's order."""
        self._unseen: tuple[int, ...] = ()
        """GPUs without a known UUID."""
        with translated("GPU driver"):
            pynvml.nvmlInit()
            try:
                self._find(range(pynvml.nvmlDeviceGetCount()))
                self._listen()
            except pynvml.NVMLError:
                pynvml.nvmlShutdown()
                raise

    def _find(self, indices: Iterable[int]) -> None:
        """Add the GPUs of these indices, as far as the driver shows them."""
        found, unseen = dict(self._known), []
        for index in indices:
            try:
                uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index))
            except pynvml.NVMLError as error:
                if error.value in _DRIVER_GONE:
                    raise
                unseen.append(index)
            else:
                if found.setdefault(uuid, KnownGpu(index=index, uuid=uuid, sysfs=self._sysfs)).index != index:
                    unseen.append(index)  # a broken driver gives two the same UUID: one of them has it
        self._known = dict(sorted(found.items(), key=lambda each: each[1].index))
        self._unseen = tuple(unseen)

    def close(self) -> None:
        """Shut NVML down."""
        with translated("GPU driver"):
            self._deafen()
            pynvml.nvmlShutdown()

    # Reading

    def inventory(self) -> Inventory:
        """Return all GPUs as they are now."""
        asked_ns = time.monotonic_ns()
        notes: dict[tuple[str, str], list[int]] = {}
        limits = False
        with translated("GPU driver"):
            if self._unseen:
                self._find(self._unseen)
            for gpu in self._known.values():
                clauses = self._read(gpu)
                facts = self._facts.get(gpu.uuid)
                for clause in clauses:
                    notes.setdefault((facts.product if facts else "", clause), []).append(gpu.index)
                if facts is not None and not facts.lost and facts.layout is None and not limits:
                    limits = limits_memory(self._handle(gpu))
            cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
            unread = (gpu.index for uuid, gpu in self._known.items() if uuid not in self._facts)
            return Inventory(
                gpus=tuple(self._facts[uuid] for uuid in self._known if uuid in self._facts),
                driver=pynvml.nvmlSystemGetDriverVersion(),
                nvml=pynvml.nvmlSystemGetNVMLVersion(),
                cuda=(cuda // 1000, cuda % 1000 // 10),
                memory_limits=limits,
                notes=(*_sentences(notes), *self._silent()),
                unseen=tuple(sorted((*self._unseen, *unread))),
                asked_ns=asked_ns,
            )

    def _read(self, gpu: KnownGpu) -> tuple[str, ...]:
        """Read a GPU and return notes about it; an unreadable one is lost."""
        try:
            facts, clauses = read(gpu, self._handle(gpu))
        except pynvml.NVMLError as error:
            if error.value in _DRIVER_GONE:
                raise
            self._lose(gpu)
            return (f"it cannot be read: {error} ({error.value})",)
        self._facts[gpu.uuid] = facts
        self._lost.discard(gpu.uuid)
        return clauses

    def _silent(self) -> Iterable[str]:
        deaf = self._watch.deaf if self._watch else ()
        for uuid in deaf:
            if uuid not in self._lost:
                index = self._known[uuid].index
                yield f"GPU {index}: the driver does not report its errors, so only its loss is noticed"

    def _handle(self, gpu: KnownGpu) -> Any:
        return pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)

    def _lose(self, gpu: KnownGpu) -> None:
        known = self._facts.get(gpu.uuid)
        if known is not None:
            self._facts[gpu.uuid] = msgspec.structs.replace(known, lost=True)
        if gpu.uuid not in self._lost:
            self._lost.add(gpu.uuid)
            self._publish(GpuEvent(gpu=gpu.uuid, lost=True))

    # Acting

    def on(self, gpu: str, act: Callable[[GpuFacts, Any], Answer]) -> Answer:
        """Return the result of a function of a GPU's current facts and NVML's handle of it.

        Raises:
            InvalidInput: there is no such GPU.
            Unavailable: it is lost.

        """
        known = self._known.get(gpu)
        if known is None:
            raise no_gpu(gpu, self._known)
        name = f"GPU {known.index} ({gpu})"
        with translated(name):
            try:
                handle = self._handle(known)
                facts, _ = read(known, handle)
            except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound) as error:
                self._lose(known)
                raise lost(name) from error
            self._facts[gpu] = facts
            return act(facts, handle)

    def of_last(self, gpu: str, act: Callable[[GpuFacts, Any], Answer]) -> Answer:
        """Return the result of a function of a GPU's last read facts and NVML's handle of it: reading takes many calls.

        Raises:
            InvalidInput: there is no such GPU.
            Unavailable: it is lost.

        """
        known, facts = self._known.get(gpu), self._facts.get(gpu)
        if known is None:
            raise no_gpu(gpu, self._known)
        if facts is None:
            return self.on(gpu, act)
        name = f"GPU {known.index} ({gpu})"
        with translated(name):
            try:
                return act(facts, self._handle(known))
            except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound) as error:
                self._lose(known)
                raise lost(name) from error

    def renewed(self, gpu: str) -> GpuFacts:
        """Read a GPU again after a change."""
        return self.on(gpu, lambda facts, _: facts)

    # Events

    def report(self) -> None:
        """Publish what has happened since the last time."""
        with translated("GPU driver"):
            if self._watch is None or self._watched != {*self._known} - self._lost:
                self._listen()
            for event in self._watch.read() if self._watch else ():
                if not event.lost:
                    self._publish(event)
                if event.lost or event.xid == FELL_OFF_THE_BUS:
                    self._find_lost()

    def _listen(self) -> None:
        """Watch all GPUs that are not lost; earlier events are published first."""
        self._deafen()
        devices = {}
        for uuid, gpu in self._known.items():
            if uuid not in self._lost:
                try:
                    devices[uuid] = self._handle(gpu)
                except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound):
                    self._lose(gpu)
        self._watched = set(devices)
        self._watch = Watch(devices)

    def _deafen(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _find_lost(self) -> None:
        """Call every GPU in a way that reaches its driver."""
        for uuid in self._watched - self._lost:
            try:
                used_mib(self._handle(self._known[uuid]))
            except (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_NotFound):
                self._lose(self._known[uuid])


def _sentences(notes: dict[tuple[str, str], list[int]]) -> Iterable[str]:
    for (product, clause), indices in notes.items():
        numbers = ", ".join(map(str, indices))
        yield f"GPU {numbers} ({product}): {clause}" if product else f"GPU {numbers}: {clause}"
