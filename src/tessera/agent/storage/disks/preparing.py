"""Prepares local disks: observe, plan, do one step, until no step is left."""

import uuid
from collections.abc import Callable

from tessera.clients.disks import Disks
from tessera.core.storage.disks.blockdevices import Creation
from tessera.core.storage.disks.plan import DiskPlan, DiskSpec, plan_disks
from tessera.core.storage.disks.steps import Step
from tessera.errors import Unavailable

__all__ = ["new_creation", "observe_plan", "prepare"]

_MOST_STEPS = 20
"""More than any plan has; if a node always needs another step, another program changes it too."""


def new_creation() -> Creation:
    """Return unused UUIDs."""
    digits = uuid.uuid4().hex
    array = ":".join(digits[start : start + 8] for start in range(0, len(digits), 8))
    return Creation(array=array, filesystem=str(uuid.uuid4()))


async def observe_plan(disks: Disks, spec: DiskSpec) -> DiskPlan:
    """Return the plan; changes nothing."""
    return plan_disks(await disks.observe(spec), spec, new_creation())


async def prepare(disks: Disks, spec: DiskSpec, done: Callable[[Step], None] = lambda _: None) -> DiskPlan:
    """Execute the plan, and return the final one, in which no step is left, or that refuses one.

    Disks are observed and planned again before each step, so nothing is written by an old observation.

    Args:
        disks: of the node.
        spec: what is desired.
        done: called after each step.

    Raises:
        Conflict: another process works on the disks.
        Unavailable: a step failed, or something undoes the steps.
        Unsupported: a program is missing.

    """
    async with disks.hold():
        for _ in range(_MOST_STEPS):
            plan = await observe_plan(disks, spec)
            if not plan.steps:
                return plan
            await disks.apply(plan.steps[0])
            done(plan.steps[0])
    raise Unavailable(
        f"disks at {spec.mount}",
        found=f"there is more to do after {_MOST_STEPS} steps",
        hint="see which other program assembles, mounts or unmounts them",
    )
