"""The command of each step, for running it and for showing a plan."""

from typing import assert_never

from tessera.core.storage.disks.steps import (
    AssembleArray,
    CreateArray,
    ForgetCreation,
    MakeFilesystem,
    MountFilesystem,
    RecordCreation,
    Step,
    StopArray,
    WipeSignatures,
)

__all__ = ["command"]

_CHUNK_KIB = 512
"""mdadm's default, fixed here so that other versions create the same array."""


def command(step: Step) -> tuple[str, ...]:
    """Return the program of a step and its arguments; nothing if Tessera does the step itself."""
    match step:
        case RecordCreation() | ForgetCreation():
            return ()
        case StopArray() | AssembleArray():
            return _start_or_stop(step)
        case WipeSignatures(devices=devices):
            return ("wipefs", "--all", "--quiet", *devices)
        case CreateArray():
            return _create(step)
        case MakeFilesystem():
            return _mkfs(step)
        case MountFilesystem(device=device, path=path):
            return ("mount", "-o", "noatime", device, path)
        case _:
            assert_never(step)


def _create(step: CreateArray) -> tuple[str, ...]:
    # The home host is "any", so that a node that was renamed takes the array for its own.
    array = (f"--name={step.name}", f"--uuid={step.uuid}", "--homehost=any", "--metadata=1.2")
    shape = ("--level=0", f"--chunk={_CHUNK_KIB}", f"--raid-devices={len(step.devices)}")
    return ("mdadm", "--create", f"/dev/md/{step.name}", "--run", "--quiet", *array, *shape, *step.devices)


def _start_or_stop(step: AssembleArray | StopArray) -> tuple[str, ...]:
    if isinstance(step, StopArray):
        return ("mdadm", "--stop", step.device)
    return ("mdadm", "--assemble", f"/dev/md/{step.name}", "--quiet", f"--uuid={step.uuid}", *step.devices)


def _mkfs(step: MakeFilesystem) -> tuple[str, ...]:
    if step.filesystem == "ext4":
        # No block is reserved for root, and nothing is discarded: both cost, and a cache needs neither.
        extended = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
        options = ("-q", "-F", "-m", "0", "-L", step.label, "-U", step.uuid, "-E", extended)
        return ("mkfs.ext4", *options, step.device)
    # The log's stripe is limited below the array's chunk; named here, mkfs.xfs does not warn of it.
    log = ("-l", "su=32k") if step.striped else ()
    return ("mkfs.xfs", "-q", "-f", "-K", "-L", step.label, "-m", f"uuid={step.uuid}", *log, step.device)
