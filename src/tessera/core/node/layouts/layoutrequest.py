"""The state machine of the configuration requested by a node's label, advanced with each observation.

               differs                         all as asked
    (none) ─────────────► pending ─────────────────────────────────► success
       ▲                   │ ▲  │ MIG switched, reboot allowed          │ differs: pending
       │ label gone        │ │  └──────────► rebooting ──┐             │
    any state     deadline │ │ it can go on,             │ deadline    │
                  or error ▼ │ and it is time            ▼             ▼
                          failed ◄──────────────────── failed        pending

Pending and rebooting have a deadline, so the label ends in success or failed, whatever happens. Failed is not final:
when the observation changes, or after a pause that doubles, it is tried again.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from tessera.core.gpu.inventory import Inventory, MigMode
from tessera.core.gpu.mig import Layout
from tessera.core.node.layouts.changes import (
    AwaitReset,
    Blocked,
    Change,
    ChangeInstances,
    DeviceUser,
    Impossible,
    Keep,
    SetMode,
    change,
    lost,
)
from tessera.core.node.layouts.configurations import Group, LayoutTarget, resolve, unseen_gpus
from tessera.errors import InvalidInput

__all__ = [
    "Attempted",
    "LayoutCause",
    "LayoutCondition",
    "LayoutEvent",
    "LayoutLimits",
    "LayoutRequest",
    "LayoutState",
    "NodeObserved",
    "NodeUnobserved",
    "NotRebooted",
    "Outlook",
    "advance",
    "outlook",
    "resumed",
]


class LayoutState(enum.StrEnum):
    """Value of the label `nvidia.com/mig.config.state`. Source: NVIDIA/mig-parted, cmd/nvidia-mig-manager."""

    PENDING = "pending"
    REBOOTING = "rebooting"
    SUCCESS = "success"
    FAILED = "failed"


class LayoutCause(enum.StrEnum):
    """Reason of the node's condition and event."""

    APPLIED = "LayoutApplied"
    PENDING = "LayoutPending"
    BLOCKED = "LayoutBlocked"
    FAILED = "LayoutFailed"
    REBOOTING = "LayoutRebooting"


class LayoutLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and permissions."""

    pending_s: float = 300.0
    """From pending to failed. Source: the MIG manager waits as long for pods to end."""
    rebooting_s: float = 1200.0
    """From rebooting to failed; a node with eight GPUs takes up to a quarter of an hour."""
    retry_s: float = 30.0
    """Pause after the first failure; it doubles with each further one."""
    retry_most_s: float = 600.0
    """The longest pause."""
    may_reboot: bool = False
    """Whether the node may be rebooted after a change of MIG mode, when none of its GPUs is in use."""


ObservedLayouts = tuple[tuple[str, bool, MigMode | None, Layout | None], ...]
"""What a failed attempt depends on, a row for each GPU: UUID, lost, MIG mode, layout."""


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The work to do, by label, files, GPUs and users."""

    observed: ObservedLayouts
    invalid: str = ""
    """Why the request is invalid on this node; empty where it is valid."""
    targets: tuple[LayoutTarget, ...] = ()
    """The desired layout of each GPU; GPUs without target are left out."""
    unseen: tuple[int, ...] = ()
    """Indices of GPUs with a desired layout that the driver never showed: lost before the agent started."""
    changes: tuple[tuple[str, Change], ...] = ()
    """The next step of each of them, by UUID."""
    idle: bool = True
    """Whether no GPU of the node is in use."""
    notes: tuple[str, ...] = ()
    """Further notes on what is in the way, such as why a pod is not evicted."""

    @property
    def done(self) -> bool:
        """Whether all GPUs match."""
        return not self.invalid and not self.unseen and all(isinstance(each, Keep) for _, each in self.changes)

    @property
    def feasible(self) -> tuple[tuple[str, ChangeInstances | SetMode], ...]:
        """The changes that can be made now, by GPU."""
        return tuple((gpu, each) for gpu, each in self.changes if isinstance(each, ChangeInstances | SetMode))

    @property
    def blocked(self) -> tuple[tuple[str, Blocked], ...]:
        """The changes that wait for users to end, by GPU."""
        return tuple((gpu, each) for gpu, each in self.changes if isinstance(each, Blocked))

    @property
    def awaits_reset(self) -> bool:
        """Whether MIG mode was switched on some GPU and only a reset is left."""
        return any(isinstance(each, AwaitReset) for _, each in self.changes)

    @property
    def reason(self) -> str:
        """What is in the way, for people; empty for nothing."""
        index = {target.gpu: target.index for target in self.targets}
        changes = (_shown(index[gpu], each) for gpu, each in self.changes)
        return self.invalid or "; ".join(filter(None, (*map(lost, self.unseen), *changes, *self.notes)))


class LayoutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The requested configuration, and its state."""

    name: str = ""
    """Empty if the node has no label; then nothing is done or reported."""
    state: LayoutState | None = None
    cause: LayoutCause = LayoutCause.PENDING
    reason: str = ""
    """For people; in the condition and the event."""
    until_s: float = 0.0
    """When pending or rebooting ends in failed."""
    retry_s: float = 0.0
    """When a failure may be retried though nothing changed."""
    attempts: int = 0
    """Failures since the last success or change of the label."""
    observed: ObservedLayouts = ()
    """The observation at the last failed attempt."""
    rebooted: bool = False
    """Whether the node was rebooted for this request; it is not rebooted twice."""

    @property
    def acts(self) -> bool:
        """Whether possible changes are made now."""
        return self.state is LayoutState.PENDING

    @property
    def condition(self) -> "LayoutCondition | None":
        """The node's condition; None without a request."""
        if self.state is None:
            return None
        return LayoutCondition(
            status=_STATUS[self.state], reason=self.cause.value, message=f"configuration {self.name}: {self.reason}"
        )


class LayoutCondition(msgspec.Struct, frozen=True, kw_only=True):
    """The condition `TesseraLayoutApplied` of a node, and the event about it."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


class NodeObserved(msgspec.Struct, frozen=True, tag=True):
    """An observation; comes again and again, even if nothing has happened."""

    name: str
    """Value of the label `nvidia.com/mig.config`; empty without it."""
    outlook: Outlook


class Attempted(msgspec.Struct, frozen=True, tag=True):
    """An attempt was made."""

    failures: tuple[str, ...]
    """A sentence for each GPU on which it failed, with what was restored; none on success."""
    observed: ObservedLayouts
    """The observation afterwards; empty where it failed."""


class NodeUnobserved(msgspec.Struct, frozen=True, tag=True):
    """A failed observation: driver or kubelet did not answer."""

    name: str
    reason: str


class NotRebooted(msgspec.Struct, frozen=True, tag=True):
    """The node was to be rebooted, and was not."""

    reason: str
    outlook: Outlook
    tried: bool
    """Whether a reboot was requested in vain; it is not requested twice for one request."""


LayoutEvent = NodeObserved | Attempted | NodeUnobserved | NotRebooted


def outlook(
    name: str, configurations: Mapping[str, tuple[Group, ...]], inventory: Inventory, users: Iterable[DeviceUser]
) -> Outlook:
    """Return the work for the configuration of this name on a node."""
    gpu_users = tuple(users)
    observed = tuple((gpu.uuid, gpu.lost, gpu.mig, gpu.layout) for gpu in inventory.gpus)
    try:
        targets = resolve(name, configurations, inventory)
    except InvalidInput as error:
        return Outlook(observed=observed, invalid=str(error), idle=not gpu_users)
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    changes = tuple((target.gpu, change(gpus[target.gpu], target, gpu_users)) for target in targets)
    unseen = unseen_gpus(name, configurations, inventory)
    return Outlook(observed=observed, targets=targets, unseen=unseen, changes=changes, idle=not gpu_users)


def resumed(name: str, state: str, now_s: float, limits: LayoutLimits, *, rebooted: bool = False) -> LayoutRequest:
    """Return the initial state of an agent that finds these two labels: after a requested reboot it continues there.

    Args:
        name: the requested configuration.
        state: as reported by the former agent.
        now_s: the time.
        limits: deadlines.
        rebooted: whether a reboot is recorded for this configuration.

    """
    if name and state == LayoutState.REBOOTING:
        until = now_s + limits.rebooting_s
        return LayoutRequest(
            name=name,
            state=LayoutState.REBOOTING,
            cause=LayoutCause.REBOOTING,
            reason=_REBOOT,
            until_s=until,
            rebooted=True,
        )
    return LayoutRequest(name=name, rebooted=True) if name and rebooted else LayoutRequest()


def advance(request: LayoutRequest, event: LayoutEvent, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """Return the state after an event."""
    match event:
        case Attempted():
            return _attempted(request, event, now_s, limits)
        case NotRebooted():
            return _not_rebooted(request, event, now_s, limits)
        case NodeObserved() | NodeUnobserved() if event.name:
            return _observed(request, event, now_s, limits)
        case _:
            return LayoutRequest()


def _observed(
    request: LayoutRequest, event: NodeObserved | NodeUnobserved, now_s: float, limits: LayoutLimits
) -> LayoutRequest:
    if event.name != request.name:
        request = LayoutRequest(name=event.name)
    if isinstance(event, NodeUnobserved):
        return _unseen(request, event, now_s, limits)
    current = event.outlook
    if current.invalid:
        return msgspec.structs.replace(
            request, state=LayoutState.FAILED, cause=LayoutCause.FAILED, reason=current.invalid
        )
    if current.done:
        return LayoutRequest(
            name=request.name,
            state=LayoutState.SUCCESS,
            cause=LayoutCause.APPLIED,
            reason="all GPUs have the requested layout",
        )
    return _NEXT[request.state](request, current, now_s, limits)


_STATUS: Mapping[LayoutState, Literal["True", "False", "Unknown"]] = MappingProxyType(
    {
        LayoutState.PENDING: "Unknown",
        LayoutState.REBOOTING: "Unknown",
        LayoutState.SUCCESS: "True",
        LayoutState.FAILED: "False",
    }
)
_MOST_DOUBLINGS = 16
_REBOOT = "MIG was switched; the node reboots"
_RESET = (
    "GPU {}: MIG is switched {} with the next reset: drain the node and reboot it, or reset the GPU once it is idle"
)


def _shown(index: int, step: Change) -> str:
    match step:
        case Blocked(reason=reason) | Impossible(reason=reason):
            return reason
        case AwaitReset(on=on):
            return _RESET.format(index, "on" if on else "off")
        case _:
            return ""


def _open(request: LayoutRequest, current: Outlook, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """Become pending, if there is something to wait for."""
    pending = msgspec.structs.replace(request, state=LayoutState.PENDING, until_s=now_s + limits.pending_s)
    return _wait(pending, current, now_s, limits)


def _wait(request: LayoutRequest, current: Outlook, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """Stay pending until the deadline or an impossibility."""
    reboots = _reboots(request, current, limits)
    if not current.feasible and not current.blocked:
        if reboots and current.idle:
            until = now_s + limits.rebooting_s
            return msgspec.structs.replace(
                request,
                state=LayoutState.REBOOTING,
                cause=LayoutCause.REBOOTING,
                reason=_REBOOT,
                until_s=until,
                rebooted=True,
            )
        if not reboots:
            return _fail(request, LayoutCause.FAILED, current.reason, current.observed)
    cause = LayoutCause.PENDING if current.feasible else LayoutCause.BLOCKED
    reason = current.reason
    if reboots and not current.feasible and not current.blocked:
        reason = f"{_REBOOT} once its GPUs are idle"
    if now_s >= request.until_s:
        late = f"not done in time; {reason}" if reason else "not done in time"
        failed = _fail(request, LayoutCause.BLOCKED if current.blocked else LayoutCause.FAILED, late, current.observed)
        return _pause(failed, now_s, limits) if current.feasible else failed
    return msgspec.structs.replace(request, cause=cause, reason=reason or "being applied")


def _return(request: LayoutRequest, current: Outlook, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """Continue after a reboot, or fail."""
    if current.feasible or current.blocked:
        return _open(request, current, now_s, limits)
    if now_s >= request.until_s:
        return _fail(request, LayoutCause.FAILED, f"the reboot did not help; {current.reason}", current.observed)
    return request


def _retry(request: LayoutRequest, current: Outlook, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """Retry a failure that can make progress, if the observation changed or the pause is over."""
    if current.feasible:
        again = (request.observed and current.observed != request.observed) or now_s >= request.retry_s
        return _open(request, current, now_s, limits) if again else request
    if current.idle and not current.blocked and _reboots(request, current, limits) and now_s >= request.retry_s:
        return _open(request, current, now_s, limits)
    if request.reason.endswith(current.reason):
        return request
    cause = LayoutCause.BLOCKED if current.blocked else LayoutCause.FAILED
    return _fail(request, cause, current.reason, current.observed)


def _attempted(request: LayoutRequest, event: Attempted, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    if request.state is not LayoutState.PENDING or not event.failures:
        return request
    return _pause(_fail(request, LayoutCause.FAILED, "; ".join(event.failures), event.observed), now_s, limits)


def _not_rebooted(request: LayoutRequest, event: NotRebooted, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """End in failed, with the reason that each later observation will find."""
    if request.state is not LayoutState.REBOOTING:
        return request
    reason = "; ".join(filter(None, (event.reason, event.outlook.reason)))
    request = msgspec.structs.replace(request, rebooted=event.tried)
    failed = _fail(request, LayoutCause.FAILED if event.tried else LayoutCause.BLOCKED, reason, event.outlook.observed)
    return _pause(failed, now_s, limits)


def _unseen(request: LayoutRequest, event: NodeUnobserved, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """Wait for an answer until the deadline; a reached state stays until another observation."""
    if request.state is None:
        until = now_s + limits.pending_s
        return msgspec.structs.replace(request, state=LayoutState.PENDING, reason=event.reason, until_s=until)
    if request.state in {LayoutState.SUCCESS, LayoutState.FAILED}:
        return request
    if now_s >= request.until_s:
        return _fail(request, LayoutCause.FAILED, f"not done in time; {event.reason}", request.observed)
    return msgspec.structs.replace(request, reason=event.reason)


def _reboots(request: LayoutRequest, current: Outlook, limits: LayoutLimits) -> bool:
    return current.awaits_reset and limits.may_reboot and not request.rebooted


def _fail(request: LayoutRequest, cause: LayoutCause, reason: str, observed: ObservedLayouts) -> LayoutRequest:
    return msgspec.structs.replace(request, state=LayoutState.FAILED, cause=cause, reason=reason, observed=observed)


def _pause(request: LayoutRequest, now_s: float, limits: LayoutLimits) -> LayoutRequest:
    """Set when a failure may be retried without a change."""
    pause = min(limits.retry_most_s, limits.retry_s * 2.0 ** min(request.attempts, _MOST_DOUBLINGS))
    return msgspec.structs.replace(request, retry_s=now_s + pause, attempts=request.attempts + 1)


_NEXT: Mapping[LayoutState | None, Callable[[LayoutRequest, Outlook, float, LayoutLimits], LayoutRequest]] = (
    MappingProxyType(
        {
            None: _open,
            LayoutState.SUCCESS: _open,
            LayoutState.PENDING: _wait,
            LayoutState.REBOOTING: _return,
            LayoutState.FAILED: _retry,
        }
    )
)
"""The transition for GPUs that do not match yet, by state."""
