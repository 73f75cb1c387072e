"""One simulated machine: a state file, made and played through the library's own control functions.

Only the C library knows what lies where in the file; this module calls it by ctypes and knows names of fields alone.
"""

import ctypes
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tessera.core.gpu.gpumodels import GpuModel, Profile
from tessera.core.gpu.mig import is_legal, placements_of
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable
from tessera.sim.nvmlsim.building import library
from tessera.sim.nvmlsim.products import SimulatedGpu, api_index, engines, gpus_of, product

__all__ = ["ANY", "FOREVER", "NO_INSTANCE", "XID", "Machine", "Process", "create_state"]

ANY = 0xFFFFFFFF
"""Every GPU, where one may be named."""
NO_INSTANCE = 0xFFFFFFFF
FOREVER = 0xFFFFFFFF
XID = 0x8
"""The event type of XIDs."""

_DRIVER, _CUDA = "615.71.09", 13040
_ARCHITECTURES = {
    "Pascal": 4,
    "Volta": 5,
    "Turing": 6,
    "Ampere": 7,
    "Ada Lovelace": 8,
    "Hopper": 9,
    "Blackwell": 10,
    "Blackwell Ultra": 10,
}
"""Source: nvidia-ml-py, NVML_DEVICE_ARCH_*."""
_BRANDS = (("Tesla", 2), ("NVIDIA GeForce", 5), ("NVIDIA RTX", 13), ("NVIDIA", 14))
"""Source: nvidia-ml-py, NVML_BRAND_*; by how the name begins."""
_RESERVED_PART = 72
"""A driver keeps about this part of the memory for itself: 571 MiB of an A100's 40960 were seen."""
_CORES = {(6, 0): 64, (7, 0): 64, (7, 5): 64, (8, 0): 64}
"""CUDA cores of an SM by compute capability; 128 of all others."""

_OK, _NOT_FOUND, _NO_PERMISSION, _NOT_LOADED = 0, 6, 4, 9
_INVALID, _SMALL, _CORRUPTED, _LOST, _VERSION, _IN_USE, _MEMORY, _FULL = 2, 7, 14, 15, 18, 19, 20, 23


def create_state(
    path: Path, gpus: Iterable[str], *, seed: str = "", driver: str = _DRIVER, replace: bool = False
) -> None:
    """Make a state file with these GPUs, as `gpus_of` reads them: `["2xA100-40GB", "T4"]`.

    Args:
        path: appears whole, or not at all.
        gpus: models and counts.
        seed: UUIDs and serial numbers follow from it, so that two machines with different seeds differ.
        driver: version of the driver to play; before 615 there are no memory limits.
        replace: take the place of an older file; programs that use the older machine see their driver go away.

    Raises:
        InvalidInput: unknown model, a version that is none, or a file that is there or cannot be written.
        Unsupported: the library cannot be built.

    """
    desired = gpus_of(gpus)
    if not driver.partition(".")[0].isdecimal():
        raise InvalidInput("driver version", found=repr(driver), expected="a version such as 615.71.09")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            made = Path(folder) / "state"
            _make(made, desired, seed, driver)
            _place(made, path, replace=replace)
    except OSError as error:
        raise InvalidInput(
            str(path), found=error.strerror or str(error), hint="name a path where a file can be created"
        ) from error


def _place(source: Path, path: Path, *, replace: bool) -> None:
    if replace:
        source.replace(path)
        return
    try:
        os.link(source, path)
    except FileExistsError as error:
        raise InvalidInput(
            str(path), found="there is a file of that name", hint="give --replace, or another name"
        ) from error


def _make(path: Path, gpus: tuple[SimulatedGpu, ...], seed: str, driver: str) -> None:
    _check(_control().nvmlsim_create(_bytes(path)), str(path))
    with Machine(path, in_the_making=True) as machine:
        call = machine.call
        source = uuid.uuid5(uuid.NAMESPACE_OID, f"tessera nvmlsim {seed}")
        for field, value in {
            "driver_version": driver,
            "nvml_version": f"13.{driver}",
            "cuda_version": _CUDA,
            "seed": source.int >> 64,
        }.items():
            call("set", -1, -1, field.encode(), str(value).encode())
        for index, gpu in enumerate(gpus):
            _add_gpu(machine, index, gpu, source)
        call("seal")


def _add_gpu(machine: "Machine", index: int, gpu: SimulatedGpu, source: uuid.UUID) -> None:
    machine.call("add_gpu")
    for field, value in _facts(index, gpu, source).items():
        machine.call("set", index, -1, field.encode(), str(value).encode())
    for number, profile in enumerate(_offered(gpu.model)):
        machine.call("add_profile", index)
        for field, value in _profile_facts(gpu.model, profile).items():
            machine.call("set", index, number, field.encode(), str(value).encode())
        for start in profile.starts:
            machine.call("add_start", index, start)


def _facts(index: int, gpu: SimulatedGpu, source: uuid.UUID) -> dict[str, int | str]:
    shown, own = product(gpu.model), gpu.model
    identity = uuid.uuid5(source, str(index))
    pci = int(own.pci[0], 16) if own.pci else shown.pci
    lowest_w, most_w = shown.power_w
    mig = own.memory_slices > 0
    return {
        "name": gpu.name,
        "uuid": f"GPU-{identity}",
        "serial": f"{identity.int % 10**13:013}",
        "model": own.name,
        "minor": index,
        "pci_bus": 0x07 + 8 * (index % 30),
        "pci_domain": index // 30,
        "pci_device_id": pci,
        "pci_subsystem_id": 0x145F10DE,
        "architecture": _ARCHITECTURES[own.arch],
        "brand": next(brand for begin, brand in _BRANDS if gpu.name.startswith(begin)),
        "compute_major": shown.compute[0],
        "compute_minor": shown.compute[1],
        "multiprocessors": shown.multiprocessors,
        "cores": shown.multiprocessors * _CORES.get(shown.compute, 128),
        "memory_mib": own.memory_mib,
        "reserved_mib": own.memory_mib // _RESERVED_PART,
        "bar1_mib": 1 << max(own.memory_mib - 1, 1).bit_length(),
        "memory_bus_bits": shown.bus_bits,
        "ecc": int("GeForce" not in gpu.name),
        "sm_clock_mhz": shown.clocks_mhz[0],
        "memory_clock_mhz": shown.clocks_mhz[1],
        "power_min_mw": lowest_w * 1000,
        "power_max_mw": most_w * 1000,
        "power_default_mw": most_w * 1000,
        "temperature_c": 34,
        "mig_units": own.memory_slices,
        "mig_slices": own.compute_slices if mig else 0,
        # From Hopper on the mode does not outlive a reboot. Source: MIG User Guide, "Enable MIG Mode".
        "mig_persistent": int(own.arch == "Ampere"),
    }


def _offered(gpu: GpuModel) -> tuple[Profile, ...]:
    """Return the profiles whose placements and ids are known."""
    return tuple(each for each in gpu.profiles if each.starts and each.profile_id is not None)


def _excludes(gpu: GpuModel, profile: Profile) -> int:
    """Return as bits the offered profiles of which no instance may be beside one of this, though there is room."""
    bits = 0
    for number, other in enumerate(_offered(gpu)):
        pairs = [
            tuple(sorted((one, two)))
            for one in placements_of(gpu, profile.name)
            for two in placements_of(gpu, other.name)
            if not one.mask & two.mask
        ]
        if pairs and not any(is_legal(gpu, pair) for pair in pairs):
            bits |= 1 << number
    return bits


def _profile_facts(gpu: GpuModel, profile: Profile) -> dict[str, int | str]:
    has = engines(gpu, profile)
    assert profile.profile_id is not None, "profiles without an id are left out"
    whole = product(gpu).multiprocessors
    return {
        "name": profile.name,
        "id": profile.profile_id,
        "api_index": api_index(gpu, profile),
        "slices": profile.compute_slices,
        "size": profile.size,
        "max_instances": profile.max_instances,
        "excludes": _excludes(gpu, profile),
        "graphics": int(profile.graphics),
        "memory_mib": profile.memory_mib,
        "multiprocessors": profile.sm or whole * profile.compute_slices // gpu.compute_slices,
        "copy_engines": has.copy,
        "decoders": has.decoders,
        "encoders": has.encoders,
        "jpegs": has.jpegs,
        "ofas": has.ofas,
    }


_MODES = ("compute", "graphics", "mps")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process that uses a GPU."""

    pid: int
    memory_mib: int = 512
    sm_percent: int = 0
    """How much of the GPU's time it takes. The driver counts a client of MPS as its server's."""
    mode: Literal["compute", "graphics", "mps"] = "compute"
    name: str = ""
    """The program; the MPS server of a GPU is a process of `nvidia-cuda-mps-server`."""
    cgroup: str = ""
    """Path of its cgroup, which memory limits name."""
    gpu_instance: int = NO_INSTANCE
    """Id of the GPU instance it runs on."""
    compute_instance: int = NO_INSTANCE


class Machine:
    """A simulated machine, open for the person or test that plays what surrounds NVML. Use as a context manager.

    Args:
        path: the state file.
        in_the_making: accept a file that is not complete yet.

    Raises:
        InvalidInput: no such file, not a state file, or one of another version of Tessera.
        Unsupported: the library cannot be built.

    """

    def __init__(self, path: Path, *, in_the_making: bool = False) -> None:
        self.path = path
        self._opened = ctypes.c_void_p()
        code = _control().nvmlsim_open(_bytes(path), int(in_the_making), ctypes.byref(self._opened))
        _check(code, str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del kind, error, trace
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        _control().nvmlsim_close(self._opened)
        self._opened = ctypes.c_void_p()

    def call(self, function: str, *values: Any) -> None:
        """Call the control function `nvmlsim_<function>` on this machine; raises what its code means."""
        _check(getattr(_control(), f"nvmlsim_{function}")(self._opened, *values), f"{self.path}: {function}")

    def describe(self) -> dict[str, Any]:
        """Return the whole machine: driver, GPUs with their instances, processes, memory limits, faults due."""
        return next(self._descriptions())

    def _descriptions(self) -> Iterator[dict[str, Any]]:
        size = ctypes.c_uint(0)
        while True:  # the machine may grow between the calls
            text = ctypes.create_string_buffer(size.value)
            code = _control().nvmlsim_describe(self._opened, text, ctypes.byref(size))
            if code == _SMALL:
                continue
            _check(code, str(self.path))
            described: dict[str, Any] = msgspec.json.decode(text.value)
            yield described

    def inject_xid(
        self, gpu: int, xid: int, *, gpu_instance: int = NO_INSTANCE, compute_instance: int = NO_INSTANCE
    ) -> None:
        """Let all who wait for XIDs of this GPU see one; with ids, one that names an instance."""
        self.call("post_event", gpu, XID, xid, gpu_instance, compute_instance)

    def add_process(self, gpu: int, process: Process) -> None:
        """Put a process on a GPU or, with MIG on, on one of its compute instances.

        Raises:
            InvalidInput: no such GPU, or the instance is not there; with MIG on one has to be named.
            Conflict: the memory does not fit, or the GPU's compute mode refuses it, or it is there already.

        """
        self.call(
            "add_process",
            gpu,
            process.gpu_instance,
            process.compute_instance,
            process.pid,
            _MODES.index(process.mode),
            process.memory_mib,
            process.sm_percent,
            process.name.encode(),
            process.cgroup.encode(),
        )

    def remove_process(self, pid: int, *, gpu: int = ANY) -> None:
        """Take a process off a GPU, or off all."""
        self.call("remove_process", gpu, pid)

    def fault(
        self, function: str, *, code: int = 0, gpu: int = ANY, skip: int = 0, times: int = 1, latency_ms: float = 0
    ) -> None:
        """Let the next calls of an NVML function fail, or take long.

        Args:
            function: its name, with suffix; a `*` at the end stands for any ending.
            code: the NVML code it returns; 0 is latency alone.
            gpu: index of the GPU that is asked about; calls that name no GPU are struck by `ANY` alone.
            skip: so many calls pass first: 2 fails the third creation.
            times: so many are struck; `FOREVER` is all.
            latency_ms: each takes so much longer.

        """
        self.call("add_fault", function.encode(), gpu, skip, times, code, round(latency_ms * 1000))

    def clear_faults(self) -> None:
        """Forget all faults; lost GPUs are back."""
        self.call("clear_faults")

    def set(self, gpu: int, field: str, value: int) -> None:
        """Set what may change from outside: the fields that `control.c` lists as live, as `temperature_c`."""
        self.call("set", gpu, -1, field.encode(), str(value).encode())

    def lose(self, gpu: int, *, xid: int = 79) -> None:
        """Let a GPU fall off the bus: an XID is seen, unless it is 0, then every call on it fails."""
        if xid:
            self.inject_xid(gpu, xid)
        self.set(gpu, "lost", 1)

    def reset_gpu(self, gpu: int) -> None:
        """Do what `nvidia-smi --gpu-reset` does: a pending MIG mode comes into force, instances are gone.

        Raises:
            Conflict: a process uses the GPU, or it is lost.

        """
        self.call("reset_gpu", gpu)

    def reboot(self) -> None:
        """Let the machine start anew: processes, instances and settings are gone; MIG mode stays on Ampere alone."""
        self.call("reboot")

    def renew(self) -> None:
        """Bring the machine back to what it was when it was made; UUIDs of GPUs stay."""
        self.call("renew")


@cache
def _control() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library()))
    number, text, handle = ctypes.c_uint, ctypes.c_char_p, ctypes.c_void_p
    long = ctypes.c_ulonglong
    for name, kinds in {
        "create": (text,),
        "open": (text, number, handle),
        "close": (handle,),
        "set": (handle, ctypes.c_int, ctypes.c_int, text, text),
        "add_gpu": (handle,),
        "add_profile": (handle, number),
        "add_start": (handle, number, number),
        "seal": (handle,),
        "add_process": (handle, number, number, number, number, number, number, number, text, text),
        "remove_process": (handle, number, number),
        "post_event": (handle, number, long, long, number, number),
        "add_fault": (handle, text, number, number, number, number, number),
        "clear_faults": (handle,),
        "reset_gpu": (handle, number),
        "reboot": (handle,),
        "renew": (handle,),
        "describe": (handle, text, handle),
    }.items():
        getattr(loaded, f"nvmlsim_{name}").argtypes = kinds
    return loaded


def _bytes(path: Path) -> bytes:
    return os.fsencode(path)


def _check(code: int, subject: str) -> None:
    """Raise what a code of a control function means."""
    if code != _OK:
        kind, found, desired, accepted = _MEANINGS.get(
            code, (InvalidInput, f"NVML code {code}", "a machine that accepts this", "")
        )
        raise kind(subject, found=found, hint=accepted or f"use {desired}")


_MEANINGS: dict[int, tuple[type[TesseraError], str, str, str]] = {
    _INVALID: (
        InvalidInput,
        "a value is out of range",
        "one that this machine has",
        "`tessera sim-gpus list` shows it",
    ),
    _NOT_FOUND: (
        InvalidInput,
        "no such process, or none there: with MIG on it needs an instance, with MIG off none",
        "one that is there; with MIG on an instance, with MIG off none",
        "`tessera sim-gpus list` shows them",
    ),
    _NO_PERMISSION: (
        InvalidInput,
        "it is not permitted",
        "a file that can be read and written, or a GPU that accepts it",
        "",
    ),
    _NOT_LOADED: (InvalidInput, "there is no such file", "a state file", "`tessera sim-gpus create` makes one"),
    _CORRUPTED: (
        InvalidInput,
        "it is not a state file, or a broken one",
        "a state file",
        "`tessera sim-gpus create --replace` makes another",
    ),
    _VERSION: (
        InvalidInput,
        "a state file of another version of Tessera",
        "one of this version",
        "`tessera sim-gpus create --replace` makes another",
    ),
    _LOST: (Conflict, "a lost GPU", "one that responds", "`tessera sim-gpus reset` brings it back"),
    _IN_USE: (Conflict, "in use", "no process on it that stands in the way", "`tessera sim-gpus list` shows them"),
    _MEMORY: (Conflict, "too little free memory, or a limit on its cgroup", "memory for the process", ""),
    _FULL: (Unavailable, "a full table", "room for one more", "remove some first"),
}
