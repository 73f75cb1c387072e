"""Power limits and locked clocks: what to set on each GPU, and what to restore when the policy goes."""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.core.gpu.inventory import GpuFacts
from tessera.core.node.nodesharing import GpuSettings

__all__ = ["LockClocks", "Original", "PowerAction", "SetPower", "forgotten", "power_actions", "remembered"]


class Original(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's settings before a policy changed them; kept on disk, to survive a crash."""

    gpu: str
    """UUID."""
    power: bool = False
    """Whether the power limit was changed."""
    power_limit_watts: int | None = None
    """The former limit; None for the driver's default."""
    clocks: bool = False
    """Whether clocks were locked; before, the driver chose them."""


class SetPower(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Limit a GPU's power."""

    gpu: str
    watts: int | None
    """None for the driver's default."""
    restores: bool = False


class LockClocks(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Keep a GPU's clock between two frequencies."""

    gpu: str
    mhz: tuple[int, int] | None
    """None for the driver's choice."""
    restores: bool = False


PowerAction = SetPower | LockClocks


def power_actions(
    policies: Sequence[GpuSettings],
    gpus: Sequence[GpuFacts],
    originals: Mapping[str, Original],
    locked: Mapping[str, tuple[int, int]],
) -> tuple[PowerAction, ...]:
    """Return the differences from the policies; a lost GPU is left alone.

    Args:
        policies: those of the node's GPUs.
        gpus: as the driver shows them.
        originals: former settings, by UUID.
        locked: clocks locked by this process; the driver does not report them.

    """
    desired = {each.uuid: each for each in policies}
    actions: list[PowerAction] = []
    for facts in gpus:
        if facts.lost:
            continue
        policy = desired.get(facts.uuid, GpuSettings(uuid=facts.uuid))
        before = originals.get(facts.uuid, Original(gpu=facts.uuid))
        if policy.power_limit_watts is not None:
            if policy.power_limit_watts != facts.power_limit_watts:
                actions.append(SetPower(gpu=facts.uuid, watts=policy.power_limit_watts))
        elif before.power:
            actions.append(SetPower(gpu=facts.uuid, watts=before.power_limit_watts, restores=True))
        if policy.clocks_mhz is not None:
            if policy.clocks_mhz != locked.get(facts.uuid):
                actions.append(LockClocks(gpu=facts.uuid, mhz=policy.clocks_mhz))
        elif before.clocks:
            actions.append(LockClocks(gpu=facts.uuid, mhz=None, restores=True))
    return tuple(actions)


def remembered(action: PowerAction, facts: GpuFacts, before: Original) -> Original:
    """Return the record to write before an action is taken."""
    if action.restores:
        return before
    if isinstance(action, LockClocks):
        return msgspec.structs.replace(before, clocks=True)
    if before.power:
        return before
    limit = None if facts.power_limit_watts == facts.power_default_watts else facts.power_limit_watts
    return msgspec.structs.replace(before, power=True, power_limit_watts=limit)


def forgotten(action: PowerAction, before: Original) -> Original | None:
    """Return the record to write after an action was taken; None where nothing is left to restore."""
    after = before
    if action.restores:
        changed = {"clocks": False} if isinstance(action, LockClocks) else {"power": False, "power_limit_watts": None}
        after = msgspec.structs.replace(before, **changed)
    return after if after.power or after.clocks else None
