"""Errors common to all drivers, and the validation of calls."""

from collections.abc import Iterable

from tessera.core.gpu.inventory import ComputeMode, GpuFacts, Instance, MigMode
from tessera.core.gpu.mig import Placement, why_illegal
from tessera.errors import Conflict, InvalidInput, Unavailable, Unsupported

__all__ = [
    "bounded_clocks",
    "bounded_memory",
    "bounded_power",
    "check_compute_mode",
    "check_idle",
    "check_present",
    "check_room",
    "closed",
    "instance_at",
    "lost",
    "mig_of",
    "named",
    "no_gpu",
    "no_memory_limits",
    "place_named",
    "used",
]

_AGAIN = "read the inventory again"


def named(facts: GpuFacts) -> str:
    """Return the name of a GPU in errors."""
    return f"GPU {facts.index} ({facts.uuid})"


def place_named(facts: GpuFacts, placement: Placement) -> str:
    """Return the name of an instance in errors."""
    return f"{placement.profile} at {placement.start} on {named(facts)}"


def closed() -> Unavailable:
    """Return the error of a call after `close`."""
    return Unavailable("GPU driver", found="it is closed", hint="open it again")


def no_gpu(gpu: str, here: Iterable[str]) -> InvalidInput:
    """Return the error for a UUID that no GPU of this node has."""
    accepted = f"there are {', '.join(here)}" if here else "it has none: see `tessera doctor`"
    return InvalidInput(f"GPU {gpu}", found="this node has no such GPU", hint=accepted)


def lost(name: str) -> Unavailable:
    """Return the error for a GPU that the driver no longer reaches."""
    accepted = "reset the GPU or restart the node"
    return Unavailable(name, found="it is lost: the driver no longer reaches it", hint=accepted)


def used(facts: GpuFacts, placement: Placement, pids: Iterable[int] = ()) -> Conflict:
    """Return the error for an instance that processes use."""
    by = ", ".join(map(str, pids))
    found = f"in use by processes {by}" if by else "in use"
    subject = f"destroying {place_named(facts, placement)}"
    return Conflict(subject, found=found, hint="end its processes first")


def mig_of(facts: GpuFacts) -> MigMode:
    """Return a GPU's MIG mode.

    Raises:
        Unsupported: it has no MIG.

    """
    if facts.mig is None:
        found = f"{facts.model.name}, which has no MIG"
        raise Unsupported(f"MIG of {named(facts)}", found=found, hint="choose a GPU with MIG")
    return facts.mig


def check_idle(facts: GpuFacts, processes: int) -> None:
    """Check that nothing blocks another MIG mode.

    Raises:
        Conflict: instances or processes do.

    """
    instances = len(facts.layout or ())
    if instances or processes:
        raise Conflict(
            f"MIG mode of {named(facts)}",
            found=f"it has {instances} MIG instances, {processes} processes",
            hint="end the processes and destroy the instances, then set the mode again",
        )


def check_room(facts: GpuFacts, placement: Placement) -> None:
    """Check that an instance can be created at this placement.

    Raises:
        Conflict: MIG is off, or other instances are in the way.
        InvalidInput: the GPU has no such profile or placement.
        Unsupported: the GPU has no MIG.

    """
    subject = f"creating {place_named(facts, placement)}"
    if not mig_of(facts).current:
        raise Conflict(subject, found="MIG is off", hint="turn MIG on first")
    alone = why_illegal(facts.model, (placement,))
    if alone is not None:
        raise InvalidInput(subject, found=alone, hint="choose a placement from `tessera profiles`")
    blocked = why_illegal(facts.model, tuple(sorted((*(facts.layout or ()), placement))))
    if blocked is not None:
        raise Conflict(subject, found=blocked, hint=_AGAIN)


def instance_at(facts: GpuFacts, placement: Placement) -> Instance:
    """Return the instance at this placement.

    Raises:
        Conflict: there is none.

    """
    for each in facts.instances:
        if each.placement == placement:
            return each
    raise Conflict(place_named(facts, placement), found="there is no such instance", hint=_AGAIN)


def check_present(facts: GpuFacts, placement: Placement) -> None:
    """Check that there is an instance at this placement, complete or not.

    Raises:
        Conflict: there is none.

    """
    if placement not in facts.incomplete:
        instance_at(facts, placement)


def check_compute_mode(facts: GpuFacts, mode: ComputeMode) -> None:
    """Check that a GPU's compute mode can be set.

    Raises:
        Unsupported: MIG is on. Source: NVML, `nvmlDeviceSetComputeMode`.

    """
    if facts.layout is not None:
        subject = f"compute mode {mode} of {named(facts)}"
        raise Unsupported(subject, found="MIG is on", hint=f"leave it at {ComputeMode.DEFAULT}")


def bounded_power(facts: GpuFacts, watts: int | None) -> int:
    """Return the power limit to set.

    Raises:
        InvalidInput: outside the range that the GPU accepts.
        Unsupported: the GPU's power cannot be capped.

    """
    subject, ends = f"power limit of {named(facts)}", facts.power_range_watts
    if ends is None or facts.power_default_watts is None:
        raise Unsupported(subject, found="it has no power limits", hint="choose another GPU")
    if watts is not None and not ends[0] <= watts <= ends[1]:
        raise InvalidInput(subject, found=f"{watts} W", expected=f"between {ends[0]} and {ends[1]} W")
    return facts.power_default_watts if watts is None else watts


def bounded_clocks(facts: GpuFacts, range_mhz: tuple[int, int]) -> tuple[int, int]:
    """Return the range of clocks to lock to.

    Raises:
        InvalidInput: the lowest is above the highest, or below zero.

    """
    if not 0 <= range_mhz[0] <= range_mhz[1]:
        found = f"{range_mhz[0]} to {range_mhz[1]} MHz"
        raise InvalidInput(f"clocks of {named(facts)}", found=found, expected="the lowest clock, then the highest")
    return range_mhz


def bounded_memory(facts: GpuFacts, cgroup: str, hard_mib: int) -> int:
    """Return the memory limit to set.

    Raises:
        InvalidInput: below zero.

    """
    if hard_mib < 0:
        raise InvalidInput(f"{named(facts)}, cgroup {cgroup}", found=f"{hard_mib} MiB", expected="0 MiB or more")
    return hard_mib


def no_memory_limits(facts: GpuFacts, found: str) -> Unsupported:
    """Return the error of a driver or GPU that limits no memory."""
    accepted = "use a driver that limits memory by cgroup (615 or later) with MIG off, MPS, or MIG instances"
    return Unsupported(f"memory limit on {named(facts)}", found=found, hint=accepted)
