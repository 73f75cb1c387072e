"""The cheapest change from one MIG layout to another that keeps every used instance, or why there is none."""

from collections.abc import Mapping

import msgspec

from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.mig import Layout, Placement, is_legal, layouts_with, mask, open_placements, why_illegal
from tessera.errors import InvalidInput

__all__ = [
    "Create",
    "Destroy",
    "Repartition",
    "RepartitionRefusal",
    "Step",
    "plan_repartition",
    "restorable",
    "steps_between",
]


class Destroy(msgspec.Struct, frozen=True, tag=True):
    """Destroy the unused instance at this placement."""

    placement: Placement


class Create(msgspec.Struct, frozen=True, tag=True):
    """Create an instance at this placement."""

    placement: Placement


Step = Destroy | Create


class Repartition(msgspec.Struct, frozen=True, kw_only=True):
    """A change of one GPU's layout that touches no used instance."""

    model: GpuModel
    present: Layout
    used: Layout
    """Instances in use; all of them are in `present` and in `target`."""
    target: Layout
    steps: tuple[Step, ...]
    """In this order, one after the other; the layout is legal after each. Empty for no change."""


class RepartitionRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a GPU cannot reach the target now."""

    reason: str
    """One sentence for people, without full stop."""
    blockers: Layout = ()
    """The fewest used instances in the way; empty where the target never fits."""


def plan_repartition(
    model: GpuModel, present: Layout, used: Layout, target: Mapping[str, int] | Layout
) -> Repartition | RepartitionRefusal:
    """Return the change from `present` to `target` that destroys the fewest instances and none of `used`.

    Args:
        model: the GPU's model.
        present: the existing instances.
        used: those of them in use.
        target: the layout to reach, or how many instances of each profile it must have in all, including used ones;
            then placements are chosen so that most present instances stay. Of several equally cheap ones the layout
            wins that leaves the most placements open, then the first in order.

    Raises:
        InvalidInput: `present` is no layout of this model, or `used` is not part of it.

    """
    _check(model, present, used)
    desired = (tuple(sorted(target)),) if isinstance(target, tuple) else layouts_with(model, target)
    possible = [layout for layout in desired if is_legal(model, layout)]
    keeping = [layout for layout in possible if set(used).issubset(layout)]
    if not keeping:
        return _refuse(model, used, target, possible)
    existing = set(present)
    best = min(keeping, key=lambda new: (len(existing.difference(new)), -len(open_placements(model, new)), new))
    return Repartition(
        model=model,
        present=tuple(sorted(present)),
        used=tuple(sorted(used)),
        target=best,
        steps=steps_between(present, best),
    )


def steps_between(present: Layout, target: Layout) -> tuple[Step, ...]:
    """Return the steps from one legal layout to another, those that destroy first, so that all between is legal."""
    gone = (Destroy(each) for each in sorted(set(present).difference(target)))
    new = (Create(each) for each in sorted(set(target).difference(present)))
    return (*gone, *new)


def restorable(model: GpuModel, former: Layout, used: Layout) -> Layout:
    """Return the used instances and as much of the former layout as fits beside them."""
    beside = set(open_placements(model, tuple(sorted(used))))
    return tuple(sorted((*used, *(each for each in former if each in beside))))


def _check(model: GpuModel, present: Layout, used: Layout) -> None:
    wrong = why_illegal(model, present)
    if wrong:
        raise InvalidInput(
            f"present MIG layout of {model.name}",
            found=f"{wrong}, which does not fit the GPU",
            hint="observe the GPU again",
        )
    strangers = sorted(set(used).difference(present))
    if strangers:
        raise InvalidInput(
            f"used MIG instances of {model.name}",
            found=f"{_list(strangers)} do not exist",
            hint=f"observe the GPU again: it has {_list(present) if present else 'no instance'}",
        )


def _refuse(
    model: GpuModel, used: Layout, target: Mapping[str, int] | Layout, possible: list[Layout]
) -> RepartitionRefusal:
    if not possible:
        if isinstance(target, tuple):
            return RepartitionRefusal(reason=f"the target is no layout: {why_illegal(model, target)}")
        desired = ", ".join(f"{count} x {name}" for name, count in target.items() if count > 0)
        return RepartitionRefusal(reason=f"no layout of {model.name} has {desired}")
    nearest = min(possible, key=lambda new: (len(set(used).difference(new)), new))
    blockers = tuple(sorted(set(used).difference(nearest)))
    return RepartitionRefusal(reason="; ".join(_blocks(model, each, nearest) for each in blockers), blockers=blockers)


def _blocks(model: GpuModel, blocker: Placement, target: Layout) -> str:
    """Return how a used instance blocks a target without it."""
    in_use = f"{blocker.profile} at {blocker.start} is in use"
    needed = [each for each in target if each.mask & blocker.mask]
    if needed:
        needs = mask(needed) & blocker.mask
        slices = [str(each) for each in range(model.memory_slices) if needs & 1 << each]
        where = f"memory slice{'s' * (len(slices) > 1)} {', '.join(slices)}"
        return f"{in_use} and occupies {where}, needed for {_list(needed)}"
    barred = [each for each in target if each not in open_placements(model, (blocker,))]
    if barred:
        return f"{in_use} and has the media engines, needed for {_list(barred)}"
    return f"{in_use}, and the target has no room for it"


def _list(layout: Layout | list[Placement]) -> str:
    return ", ".join(f"{each.profile} at {each.start}" for each in layout)
