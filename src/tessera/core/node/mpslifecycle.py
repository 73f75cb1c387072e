"""The lifecycle of one MPS control daemon: its observed state, and the next step.

| observed | desired | step |
|---|---|---|
| nothing, or its process has ended | yes | `START`, after the back-off |
| it answers, with the limits desired | yes | `KEEP` |
| it answers, other limits | yes | `SET_LIMITS` |
| it answers, but serves another device or has a limit that is no longer desired | yes | `QUIT` when unused |
| it answers, but from another container's files | yes | `QUIT` when unused; else as if they were ours |
| it does not answer | yes | `WAIT`, and after three times `KILL` when unused |
| any that is used | no | `WAIT` |
| it answers | no | `QUIT` |
| it does not answer | no | `KILL` |
| its process has ended | no | `FORGET` |

A daemon with clients, or whose device a pod uses, is never ended.
"""

import enum
from collections.abc import Iterable
from typing import Literal

import msgspec

from tessera.core.cluster.instances import placement_of
from tessera.core.cluster.mpstargets import MpsTarget, mps_key
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.sharing import MPS_MODES, Mode
from tessera.errors import Unavailable

__all__ = [
    "DaemonPhase",
    "DaemonRecord",
    "DaemonState",
    "DaemonStep",
    "ObservedDaemon",
    "back_off_s",
    "check_daemons",
    "next_step",
    "ready_keys",
    "unlimited",
]

_PATIENCE = 3
"""Unanswered queries in a row before a daemon is ended."""
_FIRST_S, _LONGEST_S = 1.0, 60.0


class DaemonStep(enum.StrEnum):
    """The next step for a daemon."""

    START = "start"
    KEEP = "keep"
    SET_LIMITS = "set-limits"
    QUIT = "quit"
    KILL = "kill"
    WAIT = "wait"
    FORGET = "forget"


class DaemonRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record on disk of a started daemon, so that another agent can adopt it."""

    target: MpsTarget
    """Its target, with its current limits: `unlimited` until they are set."""
    pid: int
    started: str
    """Boot and start time of the process, without which a process id means nothing."""
    former_mode: str = ""
    """Former compute mode of the GPU, restored when the daemon ends; empty where it was not changed."""


class ObservedDaemon(msgspec.Struct, frozen=True, kw_only=True):
    """One observed daemon."""

    record: DaemonRecord | None = None
    alive: bool = False
    clients: int | None = None
    """None where the daemon does not answer."""
    silent: int = 0
    """Unanswered queries in a row."""
    failures: int = 0
    """Starts in a row that failed, or ended early."""
    idle_s: float = 0.0
    """Time since the last start."""
    foreign: bool = False
    """Whether it was started from another container's files, which may be removed while it runs."""


DaemonPhase = Literal["running", "failed", "draining"]


class DaemonState(msgspec.Struct, frozen=True, kw_only=True):
    """The reported state of a daemon."""

    key: str
    phase: DaemonPhase
    reason: str = ""
    """Why it is not running; empty where it is."""
    clients: int | None = None


def back_off_s(failures: int) -> float:
    """Return the back-off before the next start after failures in a row: 1 s, doubled up to 60 s."""
    return 0.0 if failures == 0 else min(_LONGEST_S, _FIRST_S * 2.0 ** min(failures - 1, 16))


def unlimited(target: MpsTarget) -> MpsTarget:
    """Return the record of a daemon until its limits are set, so that another agent sets them."""
    return msgspec.structs.replace(target, thread_percent=0)


def next_step(desired: MpsTarget | None, observed: ObservedDaemon, *, used: bool) -> DaemonStep:
    """Return the next step for a daemon.

    Args:
        desired: its target; None for none.
        observed: its observed state.
        used: whether a pod uses the device, by the kubelet's record.

    """
    if not observed.alive:
        if desired is None:
            return DaemonStep.FORGET
        return DaemonStep.START if observed.idle_s >= back_off_s(observed.failures) else DaemonStep.WAIT
    assert observed.record is not None
    in_use = used or bool(observed.clients)
    if desired is not None and observed.clients is not None:
        serves = _serves(observed.record.target, desired)
        if not in_use and (observed.foreign or not serves):
            return DaemonStep.QUIT
        adapted = DaemonStep.KEEP if observed.record.target == desired else DaemonStep.SET_LIMITS
        return adapted if serves else DaemonStep.WAIT
    if in_use or (desired is not None and observed.silent < _PATIENCE):
        return DaemonStep.WAIT
    return DaemonStep.QUIT if observed.clients is not None else DaemonStep.KILL


def _serves(running: MpsTarget, desired: MpsTarget) -> bool:
    """Return whether a running daemon can be changed to the target: a memory limit is never removed."""
    unlimited = desired.memory_limit_mib == 0 and running.memory_limit_mib > 0
    return running.visible == desired.visible and running.exclusive == desired.exclusive and not unlimited


def ready_keys(gpus: Iterable[Gpu], states: Iterable[DaemonState], *, available: bool) -> frozenset[str]:
    """Return the keys (`mps_key`) of devices that may offer MPS, for `core.cluster.enforcement.enforceable`.

    Devices with replicas need a running daemon. A managed GPU gets its daemon when the first pod needs it, so
    it may offer MPS where a daemon could be started and none has failed.

    Args:
        gpus: with the desired sharing.
        states: of all daemons.
        available: whether the node can run MPS.

    """
    phases = {state.key: state.phase for state in states}
    running = {key for key, phase in phases.items() if phase == "running"}
    amounts = {gpu.uuid for gpu in gpus if Mode.MPS in gpu.sharing.modes and gpu.sharing.creates_devices}
    return frozenset(running | (amounts - phases.keys() if available else set()))


def check_daemons(shares: Iterable[Share], inventory: Inventory, states: Iterable[DaemonState], *, unable: str) -> None:
    """Return the daemon of each share that needs one; shares of missing GPUs need none.

    Args:
        shares: of one container.
        inventory: of the driver.
        states: of all daemons.
        unable: why the node cannot run MPS; empty where it can.

    Raises:
        InvalidInput: a share of a MIG instance that its GPU cannot have.
        Unavailable: a daemon does not run; which and why.

    """
    gpus = {gpu.index: gpu for gpu in inventory.gpus}
    daemons = {state.key: state for state in states}
    for share in (each for each in shares if each.mode in MPS_MODES and each.gpu in gpus):
        facts = gpus[share.gpu]
        state = daemons.get(mps_key(facts.uuid, placement_of(share, facts)))
        if state is None or state.phase != "running":
            why = (state.reason or f"its daemon is {state.phase}") if state else (unable or "there is none")
            raise Unavailable(
                f"MPS share of GPU {share.gpu}",
                found=f"no MPS daemon limits its memory: {why}",
                hint="see `tessera doctor`",
            )
