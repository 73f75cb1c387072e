"""Which devices are healthy: a driver error makes one unhealthy, quiet and probation heal it.

                 error, lost                 quiet for its rest, and reached
    healthy ─────────────────► unhealthy ────────────────────────────────────► probation
       ▲                        ▲  │  ▲                                          │   │
       │                        └──┘  └──────────── error, lost ─────────────────┘   │
       │                        error                                                │
       └──────────────────────────── quiet until its end, and reached ───────────────┘

Each relapse doubles the rest, up to a limit, and is forgiven after a long healthy time. An error that names a MIG
instance is that instance's alone; every other is the GPU's, and with it of all its instances and shares.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import msgspec

from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import GpuEvent, GpuFacts, Inventory
from tessera.errors import InvalidInput, shown

__all__ = [
    "Health",
    "HealthChange",
    "HealthPhase",
    "HealthPolicy",
    "HealthState",
    "XidClass",
    "Xids",
    "counts",
    "observed",
    "reported",
    "xid_class",
]

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors that an application causes for itself. Source: NVIDIA k8s-device-plugin, `internal/rm/health.go`."""

GRAVE_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120, 140})
"""Errors after which NVIDIA recommends a reset or a hardware inspection, so that quiet alone proves little.

Source: NVIDIA, XID Errors: double bit ECC, halted controller, failed row remapping, NVLink, off the bus, uncontained
memory error, GSP timeout and error, unrecovered ECC.
"""

XidClass: TypeAlias = Literal["application", "hardware", "other"]


def xid_class(xid: int) -> XidClass:
    """Return who should handle an error: the application's authors, the node's operators, or both."""
    if xid in APPLICATION_XIDS:
        return "application"
    return "hardware" if xid in GRAVE_XIDS else "other"


_LARGEST_XID = 1 << 31
_ALL = frozenset({"all", "xids"})


class HealthPhase(enum.StrEnum):
    """Health phase of a device."""

    HEALTHY = "healthy"
    """No known problem; it is advertised."""
    UNHEALTHY = "unhealthy"
    """It had an error lately, or the driver does not reach it; it is not advertised."""
    PROBATION = "probation"
    """It has been quiet and is reached again; it is not advertised until that has lasted."""


class Xids(msgspec.Struct, frozen=True, kw_only=True):
    """Which errors make a device unhealthy: all but those ignored."""

    ignored: frozenset[int] = APPLICATION_XIDS
    enabled: frozenset[int] = frozenset()
    """Counted in any case."""
    none: bool = False
    """Whether all but those enabled are ignored."""

    @classmethod
    def of(cls, disabled: str, enabled: str = "") -> "Xids":
        """Return the policy by DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS of NVIDIA's device plugin.

        Args:
            disabled: numbers to ignore beside the default ones, or `all` or `xids`; separated by commas.
            enabled: numbers that count although they are ignored otherwise, or `all` for all numbers.

        Raises:
            InvalidInput: neither a number nor one of these words.

        """
        off, off_numbers = _listed(disabled, "DP_DISABLE_HEALTHCHECKS")
        on, on_numbers = _listed(enabled, "DP_ENABLE_HEALTHCHECKS")
        if on:
            return cls(ignored=frozenset())
        return cls(ignored=APPLICATION_XIDS | off_numbers, enabled=on_numbers, none=off)

    def count(self, xid: int) -> bool:
        """Return whether this error makes a device unhealthy."""
        return xid in self.enabled or not (self.none or xid in self.ignored)


def _listed(text: str, subject: str) -> tuple[bool, frozenset[int]]:
    """Return whether a list contains `all`, and its numbers."""
    words = [word for part in text.split(",") if (word := part.strip().lower())]
    numbers = set()
    for word in words:
        number = int(word) if word.isascii() and word.isdecimal() and len(word) < len(str(_LARGEST_XID)) else None
        if number is None and word not in _ALL:
            accepted = "write numbers, all, or xids, separated by commas"
            raise InvalidInput(subject, found=shown(word), expected="the number of an XID", hint=accepted)
        numbers |= set() if number is None else {number}
    return not _ALL.isdisjoint(words), frozenset(numbers)


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How errors are judged, and how long a device is unhealthy for them."""

    xids: Xids = Xids()
    rest_s: float = 60.0
    """Quiet after a first error. Twice as much after each relapse."""
    longest_rest_s: float = 3600.0
    """Longest quiet, and that after a grave error."""
    probation_s: float = 60.0
    """From the end of the rest until it is advertised again."""
    forgive_s: float = 24 * 3600.0
    """Healthy time after which earlier errors no longer count."""

    def rest(self, relapses: int, *, grave: bool = False) -> float:
        """Return how long a device must be quiet."""
        if grave:
            return self.longest_rest_s
        doublings = min(relapses, 64)  # further ones cannot matter, and would overflow
        return min(self.rest_s * 2.0**doublings, self.longest_rest_s)


class HealthState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a device that is or was unhealthy."""

    phase: HealthPhase
    reason: str
    """The last error, in words."""
    since_s: float
    """When the phase began."""
    until_s: float
    """When it may end."""
    relapses: int = 0
    rest_s: float = 0.0
    """How long it must be quiet, counted from the last error."""


class _Error(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a device."""

    reason: str
    grave: bool = False


_LOST = _Error(reason="the driver no longer reaches it")


class HealthChange(msgspec.Struct, frozen=True, kw_only=True):
    """A phase change of a device."""

    device: DeviceId
    before: HealthPhase
    after: HealthPhase
    reason: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The known health of a node's devices; others are healthy."""

    states: tuple[tuple[DeviceId, HealthState], ...] = ()

    @property
    def unhealthy(self) -> frozenset[DeviceId]:
        """The GPUs and instances that must not be advertised."""
        return frozenset(device for device, state in self.states if state.phase is not HealthPhase.HEALTHY)

    @property
    def wake_s(self) -> float | None:
        """When the next device may recover, to reconcile by then; None where none may."""
        return min((state.until_s for _, state in self.states if state.phase is not HealthPhase.HEALTHY), default=None)

    def phase(self, device: DeviceId) -> HealthPhase:
        """Return the health of a device by itself: an unhealthy GPU's instances are not marked one by one."""
        return dict(self.states)[device].phase if device in dict(self.states) else HealthPhase.HEALTHY


def counts(event: GpuEvent, policy: HealthPolicy) -> bool:
    """Return whether an event concerns a device's health."""
    return event.lost or (event.xid is not None and policy.xids.count(event.xid))


def reported(
    health: Health, event: GpuEvent, inventory: Inventory, now_s: float, policy: HealthPolicy
) -> tuple[Health, tuple[HealthChange, ...]]:
    """Return the health after an event, and what changed.

    An error of a deleted instance is ignored. One whose GPU the driver does not know counts against
    all of them: they recover by themselves, and none is advertised that may be broken.

    Args:
        health: before the event.
        event: of the driver.
        inventory: read after the event.
        now_s: the time, of any monotonic clock.
        policy: how errors are judged.

    """
    states = dict(health.states)
    changes: list[HealthChange] = []
    if counts(event, policy):
        error = _LOST if event.lost else _Error(reason=f"XID {event.xid}", grave=event.xid in GRAVE_XIDS)
        for device in _struck(event, inventory):
            changes += _mark_unhealthy(states, device, error, now_s, policy)
    return _health(states), tuple(changes)


def _struck(event: GpuEvent, inventory: Inventory) -> Iterable[DeviceId]:
    for facts in inventory.gpus:
        if event.gpu in {facts.uuid, ""}:
            if event.gpu_instance is None:
                yield DeviceId(facts.uuid)
            for each in facts.instances:
                if each.gpu_instance == event.gpu_instance:
                    yield DeviceId(facts.uuid, each.placement)


def _mark_unhealthy(
    states: dict[DeviceId, HealthState], device: DeviceId, error: _Error, now_s: float, policy: HealthPolicy
) -> tuple[HealthChange, ...]:
    """Record an error; errors while a device is unhealthy are one failure, any later one a relapse."""
    former = states.get(device)
    before = former.phase if former else HealthPhase.HEALTHY
    same = former is not None and before is HealthPhase.UNHEALTHY
    relapses = 0 if former is None else former.relapses + (not same)
    rest_s = max(policy.rest(relapses, grave=error.grave), former.rest_s if former and same else 0.0)
    states[device] = HealthState(
        phase=HealthPhase.UNHEALTHY,
        reason=error.reason,
        since_s=former.since_s if former and same else now_s,
        until_s=now_s + rest_s,
        relapses=relapses,
        rest_s=rest_s,
    )
    return (
        () if same else (HealthChange(device=device, before=before, after=HealthPhase.UNHEALTHY, reason=error.reason),)
    )


def observed(
    health: Health, inventory: Inventory, now_s: float, policy: HealthPolicy
) -> tuple[Health, tuple[HealthChange, ...]]:
    """Return the health after an inventory, and what changed.

    Instances and GPUs that no longer exist are forgotten: recreated ones start healthy.
    """
    gpus = {facts.uuid: facts for facts in inventory.gpus}
    states = {device: state for device, state in health.states if _present(device, gpus)}
    changes: list[HealthChange] = []
    for facts in inventory.gpus:
        if facts.lost:
            changes += _mark_unhealthy(states, DeviceId(facts.uuid), _LOST, now_s, policy)
    for device in tuple(states):
        if not gpus[device.gpu].lost:
            changes += _recover(states, device, now_s, policy)
    return _health(states), tuple(changes)


def _present(device: DeviceId, gpus: Mapping[str, GpuFacts]) -> bool:
    facts = gpus.get(device.gpu)
    if facts is None or device.placement is None:
        return facts is not None
    return facts.lost or any(each.placement == device.placement for each in facts.instances)


def _recover(
    states: dict[DeviceId, HealthState], device: DeviceId, now_s: float, policy: HealthPolicy
) -> tuple[HealthChange, ...]:
    """Advance a reached device to its next phase when its time has come."""
    state = states[device]
    if now_s < state.until_s:
        return ()
    if state.phase is HealthPhase.HEALTHY:
        del states[device]
        return ()
    better = HealthPhase.PROBATION if state.phase is HealthPhase.UNHEALTHY else HealthPhase.HEALTHY
    lasts_s = policy.probation_s if better is HealthPhase.PROBATION else policy.forgive_s
    states[device] = msgspec.structs.replace(state, phase=better, since_s=now_s, until_s=now_s + lasts_s)
    return (HealthChange(device=device, before=state.phase, after=better, reason=state.reason),)


def _health(states: Mapping[DeviceId, HealthState]) -> Health:
    return Health(states=tuple(sorted(states.items(), key=lambda each: DeviceId.order(each[0]))))
