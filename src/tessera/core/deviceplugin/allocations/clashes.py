"""Which allocations on record conflict: by UUID, as `Allocate` knows no pod and no share.

What may coexist on a GPU is for `core.cluster.compatibility` to say where the shares are known. Here devices are as the
kubelet chose them, of GPUs that may be lost or shared otherwise by now: what matters is who excludes whom from one.
"""

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, Exclusivity, replaces
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.workload.resources import SHARE_RESOURCES

__all__ = ["Clash", "clashes", "double_allocations"]


class Clash(msgspec.Struct, frozen=True, kw_only=True):
    """Why an allocation conflicts with another."""

    other: AgentAllocation | None
    """None where the new one alone is too large."""
    text: str
    """The conflicting devices, in words."""
    full: bool = False
    """Whether all together exceed the memory."""

    @property
    def holder(self) -> str:
        """The other holder, for people."""
        return "nobody else" if self.other is None else self.other.holder

    @property
    def cause(self) -> str:
        """Why it is not allocated, as a phrase for people."""
        if not self.full:
            return f"{self.holder} uses {self.text}"
        return (
            f"it requests {self.text}" if self.other is None else f"together with {self.holder} it requests {self.text}"
        )


def clashes(
    record: Iterable[AgentAllocation], new: AgentAllocation, capacity_mib: Mapping[DeviceId, int], *, ids: bool
) -> Iterator[Clash]:
    """Yield why an allocation conflicts with those of other pods in the record; nothing where it does not.

    Args:
        record: the allocations.
        new: the new one; an entry of the same pod, or one that it replaces, does not conflict.
        capacity_mib: allocatable memory of each device; a lost device, which is missing, has any amount.
        ids: whether equal ids of another pod conflict, too. For units of memory they do only while
            the kubelet allocates: it counts ids, and devices are counted by their memory.

    """
    beside = [each for each in record if not replaces(new, each)]
    own_ids, gpus = set(new.ids), {use.device.gpu for use in new.uses}
    for other in (each for each in beside if not each.uid or each.uid != new.uid):
        # Ids of devices are the same under each name; those of units are the same for both of their resources.
        alike = new.resource == other.resource or not {new.resource, other.resource}.intersection(SHARE_RESOURCES)
        common = own_ids.intersection(other.ids) if ids and alike else ()
        if common:
            yield Clash(other=other, text=f"device {min(common)} of {new.resource}")
            continue
        near = [each for each in other.uses if each.device.gpu in gpus]
        found = next((use for use in new.uses for each in near if use.excludes(each)), None)
        if found is not None:
            yield Clash(other=other, text=str(found.device))
    yield from _full(beside, new, capacity_mib)


def double_allocations(
    record: Iterable[AgentAllocation], capacity_mib: Mapping[DeviceId, int], ending: Container[str] = ()
) -> tuple[tuple[AgentAllocation, Clash], ...]:
    """Return conflicting allocations of two pods: each time the later one, and why.

    Only entries of known pods count. There should be none; any comes from before this record was kept, or
    from a defect.

    Args:
        record: the allocations.
        capacity_mib: as in `clashes`.
        ending: UIDs of terminating pods: a pod that waits for their devices waits only briefly.

    """
    known = [each for each in record if each.uid and each.uid not in ending]
    known.sort(key=lambda each: (each.at_ns, each.uid, each.container))
    found = []
    for i, each in enumerate(known):
        named = each.resource not in SHARE_RESOURCES
        clash = next(clashes(known[:i], each, capacity_mib, ids=named), None)
        if clash is not None:
            found.append((each, clash))
    return tuple(found)


def _full(
    beside: Iterable[AgentAllocation], new: AgentAllocation, capacity_mib: Mapping[DeviceId, int]
) -> Iterator[Clash]:
    """Yield devices that would have more memory allocated than they have, with all their holders, the latest first.

    A pod's containers use it together, and its init containers one after the other before them, each beside earlier
    sidecars: a pod uses the maximum of these.
    """
    for use in new.uses:
        most_mib = capacity_mib.get(use.device)
        if use.exclusivity is not Exclusivity.MEMORY or most_mib is None:
            continue
        pods = _pods([each for each in (*beside, new) if _memory_mib(each, use.device)])
        if sum(_most_mib(pod, use.device) for pod in pods) > most_mib:
            text = f"more memory than the {most_mib} MiB of {use.device}"
            others = [each for pod in pods if new not in pod for each in pod]
            others.sort(key=lambda each: each.at_ns, reverse=True)
            yield from (Clash(other=each, text=text, full=True) for each in others or (None,))


def _pods(entries: Iterable[AgentAllocation]) -> list[list[AgentAllocation]]:
    """Return entries by pod.

    An answer to `Allocate` with ids of a pod is for another container of that pod, unless the kubelet has forgotten
    an allocation; then the ids conflict.
    """
    pods: list[list[AgentAllocation]] = []
    for each in sorted(entries, key=lambda each: not each.uid):
        own = next((pod for pod in pods if any(_same_pod(each, known) for known in pod)), None)
        if own is None:
            pods.append([each])
        else:
            own.append(each)
    return pods


def _same_pod(entry: AgentAllocation, known: AgentAllocation) -> bool:
    if entry.uid:
        return entry.uid == known.uid
    return entry.resource == known.resource and not set(entry.ids).isdisjoint(known.ids)


def _most_mib(pod: Sequence[AgentAllocation], device: DeviceId) -> int:
    """Return the most memory that a pod uses of a device at once, by Kubernetes' rule.

    Init containers run one after another, each beside the sidecars that start before it; then all others run beside
    all sidecars. Source: kubernetes/component-helpers `resource/helpers.go` (`AggregateContainerRequests`).
    """
    lasting = [each for each in pod if not each.initial]
    steps = ([*(other for other in lasting if _starts_before(other, each)), each] for each in pod if each.initial)
    return max(_together_mib(step, device) for step in (lasting, *steps))


def _together_mib(entries: Iterable[AgentAllocation], device: DeviceId) -> int:
    """Return the most memory that containers use of a device side by side.

    A container may have a newer answer than that of its last start, which is that of an init container as well
    (`lastgate.possible_users`): it uses the one or the other.
    """
    found = dict[Hashable, int]()
    for i, each in enumerate(entries):
        key = each.container_key if each.uid else i
        found[key] = max(found.get(key, 0), _memory_mib(each, device))
    return sum(found.values())


def _starts_before(other: AgentAllocation, entry: AgentAllocation) -> bool:
    """Return whether a container of a pod starts before another; the kubelet allocates in that order."""
    if other.order < 0 or entry.order < 0:
        return other.at_ns < entry.at_ns
    return other.order < entry.order


def _memory_mib(entry: AgentAllocation, device: DeviceId) -> int:
    own = (use for use in entry.uses if use.device == device and not use.absent)
    return sum(use.memory_mib for use in own if use.exclusivity is Exclusivity.MEMORY)
