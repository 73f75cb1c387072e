"""What one GPU needs to reach its target, and which users are in the way."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from tessera.core.gpu.deviceids import DeviceId, devices_of_ids
from tessera.core.gpu.inventory import GpuFacts, GpuProcess, Inventory
from tessera.core.gpu.mig import Layout, Placement, counts_of, is_legal, why_illegal
from tessera.core.node.layouts.configurations import LayoutTarget, exact
from tessera.core.node.repartition import Destroy, Repartition, RepartitionRefusal, plan_repartition

__all__ = [
    "AwaitReset",
    "Blocked",
    "Change",
    "ChangeInstances",
    "DeviceUser",
    "Difference",
    "Impossible",
    "Keep",
    "SetMode",
    "change",
    "differences",
    "lost",
    "users_of",
    "with_instance",
]


class DeviceUser(msgspec.Struct, frozen=True, kw_only=True):
    """The user of a GPU or of one of its MIG instances: a pod, or a process of no known pod."""

    device: DeviceId
    """The whole GPU also where it is not known which of its instances."""
    pod: str = ""
    """`namespace/name`; empty for a process, and for a pod that is about to start and not known yet."""
    pid: int = 0
    """0 for a pod."""

    def order(self) -> tuple[tuple[str, Layout], str, int]:
        """Return the sort key of users."""
        return self.device.order(), self.pod, self.pid

    @property
    def name(self) -> str:
        """The user in messages."""
        who = f"pod {self.pod}" if self.pod else f"process {self.pid}" if self.pid else "a pod that is about to start"
        place = self.device.placement
        return f"{who} on {place.profile} at {place.start}" if place else who


class Keep(msgspec.Struct, frozen=True, tag=True):
    """The GPU is as desired."""


class ChangeInstances(msgspec.Struct, frozen=True, tag=True):
    """MIG is on; instances must be destroyed or created. Observe the GPU again afterwards: a change may take two."""

    plan: Repartition


class SetMode(msgspec.Struct, frozen=True, tag=True):
    """MIG mode must change, for which the GPU must be idle; instances are destroyed first."""

    on: bool
    clear: Repartition | None = None


class AwaitReset(msgspec.Struct, frozen=True, tag=True):
    """MIG mode is switched already and takes effect with the GPU's next reset, or a reboot of the node."""

    on: bool


class Blocked(msgspec.Struct, frozen=True, tag=True):
    """Instances in the way are in use; it changes when they are free."""

    reason: str
    """One sentence for people, without full stop."""
    users: tuple[DeviceUser, ...]
    withdraw: Layout = ()
    """The instances to destroy, used or not: not advertised while the change is pending."""


class Impossible(msgspec.Struct, frozen=True, tag=True):
    """The GPU cannot reach the layout now, even when it is idle."""

    reason: str
    """One sentence for people, without full stop."""


Change = Keep | ChangeInstances | SetMode | AwaitReset | Blocked | Impossible


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between a GPU and its target."""

    gpu: str
    index: int
    found: str
    expected: str


def lost(index: int) -> str:
    """Return that the driver has lost a GPU, with the fix, as a sentence without full stop."""
    return f"the driver has lost GPU {index}; reset it or reboot the node"


def differences(
    inventory: Inventory, targets: Iterable[LayoutTarget], unseen: Iterable[int] = ()
) -> tuple[Difference, ...]:
    """Return the differences of the node's GPUs from their targets; nothing where the configuration is applied.

    A GPU without target is left alone and so never differs. Instances are compared by profile and count; if the
    target fixes placements, by these.

    Args:
        inventory: of the driver.
        targets: the desired layouts.
        unseen: indices of GPUs with a desired layout that the driver never showed.

    """
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    found = [Difference(gpu="", index=index, found=_LOST[0], expected=_LOST[1]) for index in unseen]
    for target in targets:
        gpu = gpus.get(target.gpu)
        differs = ("no such GPU", "it") if gpu is None else _difference(gpu, target)
        if differs:
            found.append(Difference(gpu=target.gpu, index=target.index, found=differs[0], expected=differs[1]))
    return tuple(found)


_LOST = "the GPU is lost", "one that the driver reaches"


def _difference(gpu: GpuFacts, target: LayoutTarget) -> tuple[str, str] | None:
    if gpu.lost:
        return _LOST
    if gpu.mig is None:
        return ("no MIG", "MIG on") if target.mig else None
    if gpu.mig.current != target.mig or gpu.mig.needs_reset:
        after = f", {_mode(on=gpu.mig.pending)} after a reset" if gpu.mig.needs_reset else ""
        return f"{_mode(on=gpu.mig.current)}{after}", _mode(on=target.mig)
    if not target.mig or _is_there(gpu, target):
        return None
    present = tuple(each.placement for each in gpu.instances)
    broken = f", incomplete: {_places(gpu.incomplete)}" if gpu.incomplete else ""
    numbers = ", ".join(f"{count} x {name}" for name, count in target.counts) or "no instance"
    desired = numbers if target.layout is None else _places(target.layout)
    return f"{_places(present)}{broken}", desired


def change(gpu: GpuFacts, target: LayoutTarget, users: Iterable[DeviceUser]) -> Change:
    """Return the next step for a GPU, which never touches a used instance.

    Args:
        gpu: from the inventory.
        target: its desired layout.
        users: of GPUs and instances, including other GPUs'.

    """
    own = tuple(sorted((user for user in users if user.device.gpu == gpu.uuid), key=DeviceUser.order))
    if gpu.lost:
        return Impossible(lost(gpu.index))
    if gpu.mig is None:
        return Impossible(f"GPU {gpu.index} ({gpu.model.name}) has no MIG") if target.mig else Keep()
    if gpu.mig.current != target.mig and gpu.mig.pending == target.mig:
        return AwaitReset(target.mig)
    if gpu.mig.current != target.mig:
        return _switch(gpu, target, own)
    if gpu.mig.needs_reset:
        return SetMode(target.mig)
    return _instances(gpu, target, own) if target.mig else Keep()


def _switch(gpu: GpuFacts, target: LayoutTarget, users: tuple[DeviceUser, ...]) -> Change:
    if users:
        return Blocked(
            f"GPU {gpu.index}: switching MIG {'on' if target.mig else 'off'} requires an idle GPU; "
            f"it is in use by {_names(users)}",
            users,
            gpu.layout or (),
        )
    present = gpu.layout or ()
    plan = plan_repartition(gpu.model, present, (), ()) if present else None
    assert not isinstance(plan, RepartitionRefusal), "an empty layout is possible without used instances"
    return SetMode(target.mig, plan)


def _instances(gpu: GpuFacts, target: LayoutTarget, users: tuple[DeviceUser, ...]) -> Change:
    if _is_there(gpu, target):
        return Keep()
    present = gpu.layout or ()
    wrong = why_illegal(gpu.model, present)
    if wrong:
        return Impossible(f"GPU {gpu.index}: the driver reports an impossible layout: {wrong}")
    used = tuple(sorted({user.device.placement for user in users if user.device.placement in present}))
    whole = tuple(each.placement for each in gpu.instances)
    goal = whole if gpu.incomplete else target.layout if target.layout is not None else dict(target.counts)
    plan = plan_repartition(gpu.model, present, used, goal)
    if isinstance(plan, RepartitionRefusal):
        holding = tuple(user for user in users if user.device.placement in plan.blockers)
        if not holding:
            return Impossible(f"GPU {gpu.index}: {plan.reason}")
        rest = plan_repartition(gpu.model, present, tuple(each for each in used if each not in plan.blockers), goal)
        assert isinstance(rest, Repartition), "without the blockers there is a way"
        doomed = tuple(each for each in present if each not in rest.target)
        return Blocked(f"GPU {gpu.index}: {plan.reason}; used by {_names(holding)}", holding, doomed)
    unknown = tuple(user for user in users if user.device.placement is None)
    if unknown and any(isinstance(step, Destroy) for step in plan.steps):
        return Blocked(f"GPU {gpu.index}: the instances that {_names(unknown)} uses are unknown", unknown)
    return ChangeInstances(plan)


def with_instance(gpu: GpuFacts, placement: Placement, users: Iterable[DeviceUser]) -> LayoutTarget | None:
    """Return the target with one more instance: all used ones stay, and as many others as possible.

    None if used instances leave no room, or MIG is off on a GPU in use.
    """
    present = tuple(each.placement for each in gpu.instances)
    own = {user.device.placement for user in users if user.device.gpu == gpu.uuid}
    used = tuple(each for each in present if each in own)
    if (gpu.layout is None and own) or not is_legal(
        gpu.model, (*(each for each in used if each != placement), placement)
    ):
        return None
    layout = tuple(sorted({*used, placement}))
    for each in present:
        if each not in layout and is_legal(gpu.model, (*layout, each)):
            layout = tuple(sorted((*layout, each)))
    return exact(gpu, layout)


def _is_there(gpu: GpuFacts, target: LayoutTarget) -> bool:
    """Return whether a GPU with MIG on has the instances of its target, all of them complete."""
    if target.mode_only:
        return True
    present = tuple(each.placement for each in gpu.instances)
    if gpu.incomplete:
        return False
    if target.layout is not None:
        return set(present) == set(target.layout)
    return dict(counts_of(gpu.model, present)) == dict(target.counts)


def users_of(
    inventory: Inventory, allocated: Iterable[tuple[str, Iterable[str]]], processes: Mapping[str, Iterable[GpuProcess]]
) -> tuple[DeviceUser, ...]:
    """Return the users of each GPU and instance, sorted: pods, and processes of none of these pods.

    A process on an instance that is not in the inventory has an unknown instance.

    Args:
        inventory: of existing instances.
        allocated: pods as `namespace/name`, empty for one that is not known yet, each with its device ids:
            GPU and MIG UUIDs, replicas of them (`<uuid>::<n>`), units of memory (`<gpu uuid>-_-<n>`). Ids of instances
            that no longer exist stand for nothing.
        processes: those with a context, by GPU UUID.

    """
    found = {
        DeviceUser(device=device, pod=pod)
        for pod, ids in allocated
        for device in devices_of_ids((name.partition("-_-")[0] for name in ids), inventory)
    }
    explained = {user.device for user in found}
    found.update(user for user in _process_users(inventory, processes) if user.device not in explained)
    return tuple(sorted(found, key=DeviceUser.order))


def _process_users(inventory: Inventory, processes: Mapping[str, Iterable[GpuProcess]]) -> Iterator[DeviceUser]:
    for gpu in inventory.gpus:
        instances = {each.gpu_instance: each.placement for each in gpu.instances}
        for process in processes.get(gpu.uuid, ()):
            place = None if process.gpu_instance is None else instances.get(process.gpu_instance)
            yield DeviceUser(device=DeviceId(gpu.uuid, place), pid=process.pid)


def _mode(*, on: bool) -> str:
    return "MIG on" if on else "MIG off"


def _names(users: tuple[DeviceUser, ...]) -> str:
    return ", ".join(dict.fromkeys(user.name for user in users))


def _places(layout: Layout) -> str:
    return ", ".join(f"{each.profile} at {each.start}" for each in layout) or "no instance"
