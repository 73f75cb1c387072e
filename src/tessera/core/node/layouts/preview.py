"""Previews the steps that would give a GPU a layout, and the users each would disturb; changes nothing."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from tessera.core.gpu.inventory import GpuFacts, Instance, MigMode
from tessera.core.gpu.mig import Placement
from tessera.core.node.layouts.changes import Blocked, ChangeInstances, DeviceUser, SetMode, change
from tessera.core.node.layouts.configurations import LayoutTarget
from tessera.core.node.repartition import Create, Repartition

__all__ = ["Action", "preview"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One step on one GPU."""

    gpu: str
    """UUID."""
    index: int
    what: Literal["destroy", "create", "switch MIG on", "switch MIG off"]
    placement: Placement | None = None
    """The instance; None for a switch of MIG mode."""
    disturbs: tuple[DeviceUser, ...] = ()
    """Users that must end first."""


def preview(gpu: GpuFacts, target: LayoutTarget, users: Iterable[DeviceUser]) -> tuple[Action, ...]:
    """Return the steps that lead a GPU to its target, in order; none where none is needed or possible.

    With users in the way, the steps are those without these users, which each step names.
    """
    own = tuple(user for user in users if user.device.gpu == gpu.uuid)
    staying = () if isinstance(change(gpu, target, own), Blocked) else own
    actions: list[Action] = []
    facts, needed = gpu, change(gpu, target, staying)
    while isinstance(needed, ChangeInstances | SetMode):
        plan = needed.plan if isinstance(needed, ChangeInstances) else needed.clear
        actions += _steps(gpu, plan, own) if plan else ()
        if isinstance(needed, SetMode):
            actions.append(_switch(facts, needed, own))
        facts = _after(facts, needed, plan)
        needed = change(facts, target, staying)
    return tuple(actions)


def _switch(gpu: GpuFacts, needed: SetMode, users: tuple[DeviceUser, ...]) -> Action:
    undone = gpu.mig is not None and gpu.mig.current == needed.on
    what: Literal["switch MIG on", "switch MIG off"] = "switch MIG on" if needed.on else "switch MIG off"
    return Action(gpu=gpu.uuid, index=gpu.index, what=what, disturbs=() if undone else users)


def _steps(gpu: GpuFacts, plan: Repartition, users: tuple[DeviceUser, ...]) -> Iterable[Action]:
    for step in plan.steps:
        made = isinstance(step, Create)
        disturbed = () if made else tuple(user for user in users if user.device.placement in {None, step.placement})
        what: Literal["create", "destroy"] = "create" if made else "destroy"
        yield Action(gpu=gpu.uuid, index=gpu.index, what=what, placement=step.placement, disturbs=disturbed)


def _after(gpu: GpuFacts, needed: ChangeInstances | SetMode, plan: Repartition | None) -> GpuFacts:
    """Return a GPU after a step; only the placements of new instances are known."""
    if plan is not None:
        made = tuple(
            Instance(placement=each, uuid="", gpu_instance=0, compute_instance=0, memory_mib=0) for each in plan.target
        )
        gpu = msgspec.structs.replace(gpu, instances=made, incomplete=())
    on = needed.on if isinstance(needed, SetMode) else True
    return msgspec.structs.replace(gpu, mig=MigMode(current=on, pending=on))
