"""One partitioning pass: the plan for the pending pods, and the resulting desired devices of each GPU."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from tessera.core.cluster.closing import closed_gpus, reserved_shares
from tessera.core.cluster.compatibility import faults
from tessera.core.cluster.gpunodestate import DesiredDevices, UnhealthyDevice
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.snapshot import Assignment, Gpu, NodeName, Running, Share, Snapshot
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.sharing import Sharing
from tessera.core.packing.partitioning.managedgpus import (
    ManagedGpu,
    creates_by_name,
    desired_of,
    device_of,
    managed_gpus,
    reserved,
    shown,
    with_unrecorded,
)
from tessera.core.packing.partitioning.matches import served_as_it_is
from tessera.core.packing.partitioning.records import (
    NodeEvent,
    PartitioningDecision,
    PartitioningLimits,
    PartitioningMemory,
    PartitioningState,
)
from tessera.core.packing.plan import PendingPod, Plan, placed_by_priority, plan
from tessera.core.workload.need import Form, Need, Pod, PodKey

__all__ = ["advance"]

_CLOSED = Sharing(modes=())
_LONE = 0.25
"""Part of the idle time for which a pod that comes alone waits for others."""
_RESERVED = "desired devices of GPU {}"


def advance(
    memory: PartitioningMemory, observed: PartitioningState, now_s: float, limits: PartitioningLimits
) -> tuple[PartitioningMemory, PartitioningDecision]:
    """Return the new state and the decision for an observation.

    Repeating the observation changes nothing once the decision is executed. Cost: one plan a batch, three if pods
    cannot be placed and needs are pending.
    """
    return _Pass(memory, observed, now_s, limits).decide()


class _Planned(msgspec.Struct, frozen=True):
    """A plan's assignments on one GPU."""

    exact: frozenset[DeviceId] = frozenset()
    other: tuple[Share, ...] = ()
    urgent: bool = False
    """Whether a starving pod gets some of it."""


class _Pass:
    """One pass over what was observed: what is desired now, and what to remember."""

    def __init__(
        self, memory: PartitioningMemory, observed: PartitioningState, now_s: float, limits: PartitioningLimits
    ) -> None:
        self.observed = with_unrecorded(observed)
        self.before = memory
        self.now_s = now_s
        self.limits = limits
        self.managed = {managed.gpu.uuid: managed for managed in managed_gpus(self.observed)}
        self.arrived = {pod.key: memory.arrived.get(pod.key, now_s) for pod in observed.pending}
        present = (each for managed in self.managed.values() for each in managed.present)
        self.since = {each: memory.desired.get(each, now_s) for each in present}
        self.idle = {each: memory.idle.get(each, now_s) for managed in self.managed.values() for each in managed.idle}
        used = {each for managed in self.managed.values() for each in managed.allocated & managed.present}
        self.served = frozenset((memory.served & self.since.keys()) | used)
        self.left_alone = {gpu: until_s for gpu, until_s in memory.left_alone.items() if until_s > now_s}
        self.again = list(self.left_alone.values())
        self.unhealthy = [each for state in observed.states for each in state.unhealthy]
        self.events: list[NodeEvent] = []

    def decide(self) -> tuple[PartitioningMemory, PartitioningDecision]:
        # 1. Skip GPUs that do not reach what is desired of them.
        self._leave_alone()
        # 2. Plan, once the batch of new pods has ended.
        over = self._batch_is_over()
        planned, pending = self._planned() if over else ({}, None)
        # 3. What is desired of each GPU by the plan, and where that differs.
        after = {gpu: self._after(managed, planned.get(gpu, _Planned())) for gpu, managed in self.managed.items()}
        new = {gpu: devices for gpu, devices in after.items() if devices != self.managed[gpu].present}
        # 4. Change what is not protected, no more GPUs at once than allowed.
        urgent = {gpu for gpu, each in planned.items() if each.urgent}
        disputed = {gpu for gpu, managed in self.managed.items() if managed.disputed}
        changed = self._limited(self._not_protected(new, urgent | disputed), disputed)
        # 5. Say it, and remember it.
        self._record_events(changed)
        later = min((moment for moment in self.again if moment > self.now_s), default=None)
        decision = PartitioningDecision(
            desired=self._written(changed), events=tuple(self.events), pending=pending, again_s=later
        )
        return self._remembered(changed, planned_now=over, pending=pending), decision

    def _remembered(
        self, changed: Mapping[str, frozenset[DeviceId]], *, planned_now: bool, pending: tuple[PendingPod, ...] | None
    ) -> PartitioningMemory:
        since = {each: self.since.get(each, self.now_s) for gpu in self.managed for each in self._now(changed, gpu)}
        return PartitioningMemory(
            arrived=self.arrived,
            idle={each: since_s for each, since_s in self.idle.items() if each in since},
            desired=since,
            served=self.served & since.keys(),
            left_alone=self.left_alone,
            planned_s=self.now_s if planned_now else self.before.planned_s,
            unplaced=self.before.unplaced & self.arrived.keys()
            if pending is None
            else frozenset(each.pod for each in pending),
        )

    # The batch

    def _batch_is_over(self) -> bool:
        """Return whether to plan now: at once for pods that were planned for before, at a batch's end for new ones.

        The wait for the next pod is as long as pods have been coming: a lone one is hardly delayed.
        """
        new = [since_s for since_s in self.arrived.values() if since_s > self.before.planned_s]
        if not new:
            return bool(self.arrived)
        first_s, last_s, idle_s = min(new), max(new), self.limits.idle_s
        next_s = last_s + min(max(last_s - first_s, _LONE * idle_s), idle_s)
        over_s = min(next_s, first_s + self.limits.longest_s)
        self.again.append(over_s)
        return self.now_s >= over_s

    def _planned(self) -> tuple[dict[str, _Planned], tuple[PendingPod, ...]]:
        """Plan for pods with exact requests, and for other pods that only idle desired devices block."""
        pods = self._kept_out() | {pod.key for pod in self.observed.pending if _asks_exactly(pod.need)}
        snapshot = self._snapshot(lambda pod: pod.key in pods)
        planned = self._least_changing(snapshot)
        requests = {
            pod.key: [request for request in pod.need.requests for _ in range(request.count)]
            for pod in snapshot.pending
        }
        uuids = {(node.name, gpu.index): gpu.uuid for node in snapshot.nodes for gpu in node.gpus}
        exact: dict[str, set[DeviceId]] = defaultdict(set)
        other: dict[str, list[Share]] = defaultdict(list)
        urgent = set()
        for assignment in planned.assignments:
            for request, share in zip(requests[assignment.pod], assignment.shares, strict=True):
                gpu = uuids[assignment.node, share.gpu]
                if gpu in self.managed:
                    if request.form is Form.EXACT:
                        exact[gpu].add(device_of(self.managed[gpu].gpu, share))
                    else:
                        other[gpu].append(share)
                    urgent |= {gpu} if self._starves(assignment.pod) else set()
        gpus = exact.keys() | other.keys()
        found = {gpu: _Planned(frozenset(exact[gpu]), tuple(other[gpu]), gpu in urgent) for gpu in gpus}
        return found, planned.pending

    def _least_changing(self, snapshot: Snapshot) -> Plan:
        """Return a plan that uses existing devices, if it leaves no more pods pending.

        Devices that have just become desired are kept, so that no pod that can be served elsewhere
        waits for them; they give way to a starving pod.
        """
        protected = {each: self._protected_until_s(each) for managed in self.managed.values() for each in managed.idle}
        protected = {each: until_s for each, until_s in protected.items() if until_s > self.now_s}
        planned = self._served_first(snapshot, protected.keys())
        if not planned.pending or not protected:
            return planned
        self.again += protected.values()
        starving = {each.pod for each in planned.pending if self._starves(each.pod)}
        if starving:
            at_once = self._served_first(snapshot, frozenset())
            if not starving.issubset(each.pod for each in at_once.pending):
                return at_once
        return planned

    def _served_first(self, snapshot: Snapshot, protected: AbstractSet[DeviceId]) -> Plan:
        """Return a plan that leaves protected devices where they are.

        First come the pods that are served without any change, then the others around them. If some stay pending, and
        planning for all together places more, that is the plan.
        """
        gpus = self._usable(snapshot)
        served = served_as_it_is(snapshot, gpus)
        uuids = {(managed.node, managed.gpu.index): managed.gpu.uuid for managed in gpus}
        devices = {
            each.pod: {device_of(self.managed[uuids[each.node, share.gpu]].gpu, share) for share in each.shares}
            for each in served
        }
        taken = {device for each in devices.values() for device in each}
        running = (*snapshot.running, *_reservations(gpus, protected - taken))
        kept = self._around(snapshot, running, served)
        fixed = tuple(each for each in served if devices[each.pod] & protected)
        if not kept.pending or len(fixed) == len(served):
            return kept
        around = self._around(snapshot, running, fixed)
        return max(kept, around, key=lambda each: placed_by_priority(snapshot, each.assignments))

    def _around(self, snapshot: Snapshot, others: tuple[Running, ...], served: tuple[Assignment, ...]) -> Plan:
        """Return a plan for the pods that are not served yet, including these assignments."""
        pods = {pod.key: pod for pod in snapshot.pending}
        running = tuple(Running(pod=pods.pop(each.pod), assignment=each) for each in served)
        rest = Snapshot(nodes=snapshot.nodes, running=(*others, *running), pending=tuple(pods.values()))
        planned = plan(rest, policy=self.limits.policy)
        return msgspec.structs.replace(planned, assignments=(*served, *planned.assignments))

    def _kept_out(self) -> set[PodKey]:
        """Return the pods without exact requests that do not fit beside all desired devices."""
        others = {pod.key for pod in self.observed.pending if not _asks_exactly(pod.need)}
        if not others or not any(managed.idle for managed in self.managed.values()):
            return set()
        alone = self._snapshot(lambda pod: pod.key in others)
        gpus = self._usable(alone)
        placeholders = _reservations(gpus, {device for managed in gpus for device in managed.idle})
        planned = plan(
            msgspec.structs.replace(alone, running=(*alone.running, *placeholders)), policy=self.limits.policy
        )
        return others - {assignment.pod for assignment in planned.assignments}

    def _usable(self, snapshot: Snapshot) -> list[ManagedGpu]:
        """Return the managed GPUs of a snapshot that are not closed there, with their healthy desired devices."""
        open_gpus = {gpu.uuid for node in snapshot.nodes for gpu in node.gpus if gpu.sharing != _CLOSED}
        return [
            msgspec.structs.replace(managed, present=managed.present - self._over_unhealthy(managed.present))
            for gpu, managed in self.managed.items()
            if gpu in open_gpus
        ]

    def _over_unhealthy(self, devices: Iterable[DeviceId]) -> frozenset[DeviceId]:
        """Return the devices that overlap an unhealthy one, which is not destroyed for them."""
        return frozenset(each for each in devices if any(overlap(each, other.device) for other in self.unhealthy))

    def _snapshot(self, chosen: Callable[[Pod], bool]) -> Snapshot:
        """Return the snapshot to plan, with these pods pending."""
        unhealthy = {state.name: state.unhealthy for state in self.observed.states}
        in_use = self._shares_in_use()
        nodes = tuple(
            msgspec.structs.replace(
                node,
                gpus=tuple(
                    self._as_planned(gpu, unhealthy.get(node.name, ()), in_use.get((node.name, gpu.index), {}))
                    for gpu in node.gpus
                ),
            )
            for node in self.observed.nodes
        )
        names = {node.name for node in nodes}
        open_gpus = {(node.name, gpu.index) for node in nodes for gpu in node.gpus if gpu.sharing != _CLOSED}
        running = tuple(_possible(each, open_gpus) for each in self.observed.running if each.assignment.node in names)
        pending = tuple(  # starving pods before others of their priority
            msgspec.structs.replace(pod, priority=2 * pod.priority + self._starves(pod.key))
            for pod in self.observed.pending
            if chosen(pod)
        )
        return Snapshot(nodes=nodes, running=running, pending=pending)

    def _shares_in_use(self) -> dict[tuple[NodeName, int], dict[PodKey, list[Share]]]:
        """Return the shares in use of each GPU, by pod."""
        in_use: dict[tuple[NodeName, int], dict[PodKey, list[Share]]] = {}
        for assignment in (running.assignment for running in self.observed.running):
            for share in assignment.shares:
                in_use.setdefault((assignment.node, share.gpu), {}).setdefault(assignment.pod, []).append(share)
        return in_use

    def _as_planned(
        self, gpu: Gpu, unhealthy: Sequence[UnhealthyDevice], in_use: Mapping[PodKey, Sequence[Share]]
    ) -> Gpu:
        """Return a managed GPU as if it had only its instances in use; all such GPUs are of one type.

        A GPU that is unhealthy, skipped, or whose shares in use conflict offers nothing; unhealthy instances are
        reserved.
        """
        sharing = gpu.sharing
        if gpu.uuid in self.managed:
            sharing = msgspec.structs.replace(sharing, layout=None)
        planned = msgspec.structs.replace(gpu, sharing=sharing, reserved=tuple(reserved_shares(gpu, unhealthy)))
        unmanaged = gpu.uuid not in self.managed and creates_by_name(gpu)
        skipped = unmanaged or gpu.uuid in closed_gpus(unhealthy) or gpu.uuid in self.left_alone
        if skipped or (in_use and any(faults(GpuType.of(planned), in_use))):
            return msgspec.structs.replace(planned, sharing=_CLOSED, healthy=planned, reserved=())
        return planned

    def _starves(self, pod: PodKey) -> bool:
        return self.now_s - self.arrived[pod] >= self.limits.starving_s

    # The result for a GPU

    def _leave_alone(self) -> None:
        """Skip for a while the GPUs that did not get their desired devices."""
        for gpu, managed in self.managed.items():
            if gpu in self.left_alone or not managed.lacking:
                continue
            late_s = max(self.since[each] for each in managed.lacking) + self.limits.stuck_s
            if late_s <= self.now_s:
                late_s = self.left_alone[gpu] = self.now_s + self.limits.stuck_s
                message = f"GPU {managed.gpu.index} does not have {shown(managed.lacking)} yet; it is tried again later"
                self.events.append(
                    NodeEvent(node=managed.node, reason="DevicesNotCreated", message=message, warning=True)
                )
            self.again.append(late_s)

    def _after(self, managed: ManagedGpu, planned: _Planned) -> frozenset[DeviceId]:
        """Return the desired devices of a GPU: those in use and planned, and idle ones that may stay."""
        kept = managed.allocated | planned.exact
        may_stay = managed.idle - kept
        may_stay -= self._over_unhealthy(may_stay & managed.lacking)
        if managed.gpu.uuid in self.left_alone:
            may_stay -= managed.lacking
        for each in sorted(may_stay, key=lambda each: (self.since[each], shown((each,)))):
            until_s = self.idle[each] + self.limits.keep_s
            if until_s > self.now_s and managed.agrees((*kept, each), (*managed.other, *planned.other)):
                self.again.append(until_s)
                kept |= {each}
        return kept

    def _not_protected(
        self, new: Mapping[str, frozenset[DeviceId]], urgent: set[str]
    ) -> dict[str, frozenset[DeviceId]]:
        """Return the changes without those that would remove devices that have just become desired."""
        unprotected = {}
        for gpu, devices in new.items():
            gone = self.managed[gpu].present - devices
            until_s = max((self._protected_until_s(each) for each in gone), default=0.0)
            if not gone or gpu in urgent or gpu in self.left_alone or until_s <= self.now_s:
                unprotected[gpu] = devices
            else:
                self.again.append(until_s)
        return unprotected

    def _protected_until_s(self, device: DeviceId) -> float:
        """Return until when a desired device is kept for its pods; one that a pod has used is free."""
        return self.since[device] + (0.0 if device in self.served else self.limits.protect_s)

    def _limited(self, new: Mapping[str, frozenset[DeviceId]], disputed: set[str]) -> dict[str, frozenset[DeviceId]]:
        """Return as many of the changes as are allowed at once, those that add most first.

        A GPU that is changing anyway may change further, and devices in use are released at once.
        """
        if not self.limits.most_changing:
            return dict(new)
        changing = {gpu for gpu, managed in self.managed.items() if managed.lacking or managed.leaving} | disputed
        room = max(0, self.limits.most_changing - len(changing))
        others = sorted(new.keys() - changing, key=lambda gpu: (-len(new[gpu] - self.managed[gpu].present), gpu))
        if len(others) > room:
            self.again.append(self.now_s + self.limits.idle_s)
        return {gpu: new[gpu] for gpu in new if gpu in changing or gpu in others[:room]}

    # Events

    def _now(self, changed: Mapping[str, frozenset[DeviceId]], gpu: str) -> frozenset[DeviceId]:
        return changed.get(gpu, self.managed[gpu].present)

    def _written(
        self, changed: Mapping[str, frozenset[DeviceId]]
    ) -> tuple[tuple[NodeName, tuple[DesiredDevices, ...]], ...]:
        names = dict.fromkeys(self.managed[gpu].node for gpu in self.managed if gpu in changed)
        desired: dict[NodeName, list[DesiredDevices]] = {name: [] for name in names}
        for gpu, managed in self.managed.items():
            devices = self._now(changed, gpu)
            if managed.node in desired and devices:
                desired[managed.node].append(desired_of(gpu, devices))
        return tuple((name, tuple(each)) for name, each in desired.items())

    def _record_events(self, changed: Mapping[str, frozenset[DeviceId]]) -> None:
        for gpu, devices in changed.items():
            managed = self.managed[gpu]
            came, gone = devices - managed.present, managed.present - devices
            used = came & managed.allocated
            instead = f" instead of {shown(gone)}" if gone else ""
            if not came:
                change = f"{shown(gone)}, which no pod uses"
            elif came == used:
                change = f"{shown(used)}{instead}, which a pod uses"
            else:
                change = f"{shown(came - used)}{instead}, for pending pods"
                change += f"; {shown(used)}, which a pod uses" if used else ""
            reason, message = "DevicesDesired" if came else "DevicesReleased", f"GPU {managed.gpu.index}: {change}"
            self.events.append(NodeEvent(node=managed.node, reason=reason, message=message))


def _reservations(gpus: Iterable[ManagedGpu], devices: AbstractSet[DeviceId]) -> Iterator[Running]:
    """Yield placeholder pods that use these idle desired devices."""
    for managed in gpus:
        shares = tuple(share for share in reserved(managed) if device_of(managed.gpu, share) in devices)
        if shares:
            key = PodKey(_RESERVED.format(managed.gpu.uuid))
            yield Running(
                pod=Pod(key=key, need=Need()), assignment=Assignment(pod=key, node=managed.node, shares=shares)
            )


def _asks_exactly(need: Need) -> bool:
    return any(request.form is Form.EXACT for request in need.requests)


def _possible(running: Running, open_gpus: AbstractSet[tuple[NodeName, int]]) -> Running:
    """Return a pod with its shares of these GPUs."""
    node = running.assignment.node
    shares = tuple(share for share in running.assignment.shares if (node, share.gpu) in open_gpus)
    return msgspec.structs.replace(running, assignment=msgspec.structs.replace(running.assignment, shares=shares))
