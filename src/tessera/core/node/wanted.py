"""Managed GPUs: which of their devices the kubelet is offered, and what each of them shall be cut into.

Pods come first: what they hold stays, what they were assigned is made. Then comes what the controller wants for pods
that ask for devices by name (`spec.wanted` of the GPUNode). MIG instances that are neither stay where nothing needs
their place; they are nobody's, so that they are offered to nobody.
"""

from collections.abc import Iterable, Mapping

import msgspec

from tessera.core.cluster.advertise import DeviceKey
from tessera.core.cluster.gpunodestate import Wanted
from tessera.core.cluster.snapshot import Gpu
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.mig import Layout, Placement, is_legal
from tessera.core.node.layouts import Target, User, exact

__all__ = ["Spots", "chosen_devices", "fixed", "targets"]

Spots = frozenset[Placement | None]
"""Devices of one GPU: MIG instances, and None for the whole GPU."""


def fixed(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs of a node whose layouts an administrator's label decides: none of them is managed."""
    return tuple(
        msgspec.structs.replace(gpu, sharing=msgspec.structs.replace(gpu.sharing, recut=False)) for gpu in gpus
    )


def chosen_devices(
    gpus: Iterable[Gpu], wanted: Iterable[Wanted], held: Iterable[DeviceKey], assigned: Iterable[DeviceKey]
) -> Mapping[str, Spots]:
    """Return by UUID the devices to offer of each managed GPU: those that exist and are wanted or held.

    A wanted device is kept back while it overlaps another that a pod holds or was assigned.

    Args:
        gpus: with the sharing in force and the layout that exists.
        wanted: `spec.wanted` of the GPUNode.
        held: devices that pods got by name, by the kubelet's record.
        assigned: what assignments name: MIG instances, made already or not, and GPUs of which pods were assigned all
            or an amount.

    """
    wishes = {each.gpu: each for each in wanted}
    keys = tuple(held), tuple(assigned)
    return {
        gpu.uuid: _chosen(gpu, wishes.get(gpu.uuid, Wanted(gpu=gpu.uuid)), *(_on(gpu.uuid, each) for each in keys))
        for gpu in gpus
        if gpu.sharing.managed
    }


def _chosen(gpu: Gpu, wish: Wanted, held: Spots, assigned: Spots) -> Spots:
    layout = gpu.sharing.layout
    there: Spots = frozenset((None,) if layout is None else layout)
    wishes: Spots = frozenset((None,) if wish.whole else wish.instances)
    return frozenset(
        each
        for each in there & (held | wishes)
        if each in held or (each not in assigned and _beside(gpu.model, each, held | assigned))
    )


def _beside(model: GpuModel, spot: Placement | None, others: Spots) -> bool:
    """Return whether a device can be there together with the others."""
    placed = _placed(others)
    return not others if spot is None else None not in others and is_legal(model, (*placed, spot))


def targets(
    gpus: Iterable[Gpu],
    inventory: Inventory,
    wanted: Iterable[Wanted],
    users: Iterable[User],
    assigned: Iterable[DeviceKey],
) -> tuple[Target, ...]:
    """Return what each managed GPU shall be that is not so yet, by index; a used instance is in every target.

    Where a GPU cannot be what is asked because somebody uses it, it has no target; it is as soon as they are gone.

    Args:
        gpus: with the sharing in force.
        inventory: what the driver shows.
        wanted: `spec.wanted` of the GPUNode.
        users: who uses GPUs and instances, by the kubelet's record and the processes on them.
        assigned: as in `chosen_devices`.

    """
    facts = {each.uuid: each for each in inventory.gpus}
    wishes = {each.gpu: each for each in wanted}
    everybody, keys = tuple(users), tuple(assigned)
    found = (
        _target(
            gpu,
            facts[gpu.uuid],
            wishes.get(gpu.uuid, Wanted(gpu=gpu.uuid)),
            frozenset(user.placement for user in everybody if user.gpu == gpu.uuid),
            _on(gpu.uuid, keys),
        )
        for gpu in gpus
        if gpu.uuid in facts and gpu.sharing.managed
    )
    return tuple(each for each in found if each is not None)


def _target(gpu: Gpu, facts: GpuFacts, wish: Wanted, used: Spots, assigned: Spots) -> Target | None:
    if facts.lost or facts.mig is None:
        return None
    if None in assigned or (wish.whole and not assigned):
        idle = not used and not _placed(assigned)
        return exact(facts, None) if idle and facts.layout is not None else None
    if not gpu.sharing.can_repartition or (facts.layout is None and used):
        return None
    there = tuple(each.placement for each in facts.instances)
    goal = _goal(facts, wish, there if None in used else _among(there, used), assigned)
    return exact(facts, goal) if set(goal).difference(there) else None


def _goal(facts: GpuFacts, wish: Wanted, keep: Layout, assigned: Spots) -> Layout:
    """Return what is kept, and of the rest in order of claim what fits beside it."""
    there = tuple(each.placement for each in facts.instances)
    goal = keep
    for each in (*_among(there, assigned), *_placed(assigned), *wish.instances, *there):
        if each not in goal and is_legal(facts.model, (*goal, each)):
            goal = (*goal, each)
    return tuple(sorted(goal))


def _on(gpu: str, keys: Iterable[DeviceKey]) -> Spots:
    """Return the devices of one GPU among those of a node."""
    pairs = (key if isinstance(key, tuple) else (key, None) for key in keys)
    return frozenset(spot for uuid, spot in pairs if uuid == gpu)


def _placed(spots: Spots) -> Layout:
    return tuple(sorted(each for each in spots if each is not None))


def _among(layout: Layout, spots: Spots) -> Layout:
    return tuple(each for each in layout if each in spots)
