"""Which withdrawn devices stay in the kubelet's list, as unhealthy ones.

The kubelet chooses ids, calls `Allocate`, and then reads the devices of these ids: if one has left its list meanwhile,
the kubelet crashes (docs/kubelet-races.md). An unhealthy device is never chosen, and can still be read. So a device
leaves the list in two steps, the second when no call can have chosen it.
"""

from collections.abc import Container, Iterable

import msgspec

from tessera.core.deviceplugin.offers.advertise import MOST_DEVICES, ListedDevice

__all__ = ["STAYS_S", "Withdrawn", "asked_for", "known_unhealthy", "listed", "staying", "withdrawn"]

STAYS_S = 10.0
"""How long a device stays listed after the kubelet was observed to have it as unhealthy.

Between its choice and `Allocate`, and between the answer and the read, the kubelet only waits for a
lock: microseconds, and the scheduling delay of a busy machine.
"""


class Withdrawn(msgspec.Struct, frozen=True, kw_only=True):
    """A withdrawn device."""

    device: ListedDevice
    """As an unhealthy one."""
    since_s: float
    """When it was withdrawn, or when the last call with it was answered."""
    known_s: float | None = None
    """When the kubelet was observed to have it as unhealthy, read after `since_s`; None before."""


def withdrawn(
    former: Iterable[ListedDevice], before: Iterable[Withdrawn], offered: Iterable[ListedDevice], now_s: float
) -> tuple[Withdrawn, ...]:
    """Return what stays listed beside what is advertised now.

    Args:
        former: the former list.
        before: what was withdrawn before.
        offered: what is advertised now.
        now_s: the time.

    """
    ids, known = {each.id for each in offered}, {each.device.id: each for each in before}
    return tuple(
        known.get(each.id) or Withdrawn(device=msgspec.structs.replace(each, healthy=False), since_s=now_s)
        for each in former
        if each.id not in ids
    )


def asked_for(parts: Iterable[Withdrawn], ids: Container[str], now_s: float) -> tuple[Withdrawn, ...]:
    """Return the same after a call of the kubelet with some of the ids, whose time starts again."""
    return tuple(Withdrawn(device=each.device, since_s=now_s) if each.device.id in ids else each for each in parts)


def known_unhealthy(
    parts: Iterable[Withdrawn], allocatable: Container[str], asked_s: float, now_s: float
) -> tuple[Withdrawn, ...]:
    """Return the same after the kubelet reported its healthy devices at `now_s`, requested at `asked_s`."""
    return tuple(
        msgspec.structs.replace(each, known_s=now_s)
        if each.known_s is None and each.since_s <= asked_s and each.device.id not in allocatable
        else each
        for each in parts
    )


def staying(parts: Iterable[Withdrawn], busy: Container[str], now_s: float) -> tuple[Withdrawn, ...]:
    """Return those that must stay listed.

    Args:
        parts: the withdrawn devices.
        busy: ids of calls in progress, or for which the kubelet has recorded no pod yet.
        now_s: the time.

    """
    return tuple(
        each for each in parts if each.known_s is None or now_s < each.known_s + STAYS_S or each.device.id in busy
    )


def listed(
    offered: Iterable[ListedDevice], parts: Iterable[Withdrawn], former: Iterable[ListedDevice]
) -> tuple[ListedDevice, ...]:
    """Return the list for the kubelet: advertised devices, then withdrawn ones.

    If that exceeds the kubelet's limit, new devices wait until withdrawn ones have left.
    """
    stays, here = [each.device for each in parts], {each.id for each in former}
    every = tuple(offered)
    room = MOST_DEVICES - len(stays) - sum(each.id in here for each in every)
    new = frozenset([each.id for each in every if each.id not in here][: max(room, 0)])
    return (*(each for each in every if each.id in here or each.id in new), *stays)
