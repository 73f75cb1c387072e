"""The MIG instance that a share is or lies on, existing or not."""

from collections.abc import Mapping

from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.mig import Placement, placements
from tessera.errors import InvalidInput, shown

__all__ = ["placement_of", "possible_instances"]


def placement_of(share: Share, facts: GpuFacts) -> Placement | None:
    """Return the MIG instance that a share is or lies on, existing or not; None for the whole GPU.

    Raises:
        InvalidInput: the GPU does not support the instance.

    """
    if share.profile is None and share.start is None:
        return None
    found = possible_instances(facts).get((share.profile, share.start))
    if found is None:
        profile = "no profile" if share.profile is None else f"profile {shown(share.profile)}"
        raise InvalidInput(
            f"share of GPU {facts.index} ({facts.uuid})",
            found=f"{profile} at {'no start' if share.start is None else share.start}",
            expected=f"a MIG instance that {facts.model.name} can have",
            hint=_accepted(share.profile, facts) or "use shares of the whole GPU: it has no MIG instances",
        )
    return found


def possible_instances(facts: GpuFacts) -> Mapping[tuple[str | None, int | None], Placement]:
    """Return the existing instances and those that could be created, by profile and start."""
    return {(each.profile, each.start): each for each in (*placements(facts.model), *(facts.layout or ()))}


def _accepted(profile: str | None, facts: GpuFacts) -> str:
    starts = [str(start) for name, start in possible_instances(facts) if name == profile]
    if starts:
        return f"{profile} at {', '.join(starts)}"
    return ", ".join(dict.fromkeys(str(name) for name, _ in possible_instances(facts)))
