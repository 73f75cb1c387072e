"""Why a pod waits: one sentence that says what is needed, what stands in the way, and where."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from tessera.core.cluster.occupancy import Occupancy, occupancy
from tessera.core.cluster.snapshot import Node, NodeName, Running, Snapshot
from tessera.core.gpu.mig import Placement, placements, placements_of, remaining
from tessera.core.gpu.sharing import Mode, Option, mig_resource, of_other_allocator
from tessera.core.packing.fit.admission import Refusal, refusal
from tessera.core.workload.foreignnames import foreign_names
from tessera.core.workload.need import Ask, Form, Need

__all__ = ["Verdict", "describe", "describe_need", "reason", "verdicts"]

_EXAMPLES = 2
"""Nodes named for each obstacle; the others are counted."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether one node could run a pod now."""

    node: NodeName
    obstacle: str = ""
    """What keeps the pod off, in the same words for the same obstacle; empty where nothing does."""
    detail: str = ""
    """What was found on this node."""
    near: int = 0
    """How near a miss it is, among nodes with the same obstacle; the nearest are told as examples."""


def describe(ask: Ask) -> str:
    """Return an ask in words: `2 x nvidia.com/gpu`, `37888 MiB, hardware isolation`."""
    many = f"{ask.count} x " if ask.count > 1 else ""
    if ask.form is Form.EXACT:
        return f"{many}{ask.resource}"
    compute = f" and {ask.compute_percent} % compute" if ask.compute_percent else ""
    grade = f", {ask.isolation} isolation" if ask.form is Form.NEED else " on a shared GPU"
    return f"{many}{ask.memory_mib} MiB{compute}{grade}"


def describe_need(need: Need) -> str:
    """Return a need in words: its GPU asks, or cpu and memory where it asks no GPU."""
    cpu_memory = f"{need.cpu_milli} milli cpu and {need.memory_mib} MiB memory"
    return ", ".join(describe(ask) for ask in need.asks) or cpu_memory


def verdicts(snapshot: Snapshot, need: Need) -> tuple[Verdict, ...]:
    """Return for each node whether one more pod with this need could run there, and what stands in the way."""
    held = occupancy(snapshot)
    running = defaultdict[NodeName, list[Running]](list)
    for each in snapshot.running:
        running[each.assignment.node].append(each)
    return tuple(_verdict(need, node, running[node.name], held[node.name]) for node in snapshot.nodes)


def reason(snapshot: Snapshot, need: Need) -> str:
    """Return why a pod with this need runs nowhere, all that `snapshot` calls running being in place."""
    found = defaultdict[str, list[Verdict]](list)
    for verdict in verdicts(snapshot, need):
        found[verdict.obstacle or _TOGETHER].append(verdict)
    ranked = sorted(found.items(), key=lambda item: (_rank(item[0]), -len(item[1])))
    told = "; ".join(_tell(what, nodes) for what, nodes in ranked)
    return "; ".join((f"needs {describe_need(need)}", told or "there are no nodes", *foreign_names(need.asks)))


def _tell(what: str, nodes: Sequence[Verdict]) -> str:
    nodes = sorted(nodes, key=lambda verdict: -verdict.near)
    examples = ", ".join(f"{each.node}: {each.detail}" if each.detail else each.node for each in nodes[:_EXAMPLES])
    rest = f" and {len(nodes) - _EXAMPLES} more" if len(nodes) > _EXAMPLES else ""
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} {what} ({examples}{rest})"


_FULL = "could serve it but every place is held"
_LACKS = "cannot serve it in any way"
_BY_NAME = "with devices that are allocated by name: ask for one, or set allocator: scheduler"
_BY_SCHEDULER = "with devices that are allocated by the scheduler: ask for an amount of GPU memory"
_FEW = "with too few devices for one such pod"
_TOGETHER = "with a place for each ask alone, but none for all together"
_REFUSALS = {
    Refusal.NODE_NAME: "not {}, to which the pod is pinned",
    Refusal.UNSCHEDULABLE: "cordoned",
    Refusal.TAINT: "with the taint {} that the pod does not tolerate",
    Refusal.SELECTOR: "without the label {} that the pod's node selector wants",
    Refusal.AFFINITY: "outside the pod's required node affinity",
}
_CPU, _MEMORY, _PODS = "short of cpu", "short of memory", "full of pods"
_ORDER = (_FULL, _CPU, _MEMORY, _PODS, _FEW, _BY_NAME, _BY_SCHEDULER)


def _rank(what: str) -> int:
    """Tell the nearest miss first: held devices, then cpu and memory, then nodes that never could."""
    return next((rank for rank, known in enumerate(_ORDER) if what.startswith(known)), len(_ORDER))


def _verdict(need: Need, node: Node, running: Sequence[Running], gpus: Sequence[Occupancy]) -> Verdict:
    refused = refusal(need, node)
    if refused:
        rule, culprit = refused
        return Verdict(node.name, _REFUSALS[rule].format(culprit))
    allowed = [gpu for gpu in gpus if not need.models or gpu.gpu.model.name in need.models]
    if need.models and not allowed:
        return Verdict(node.name, f"without {' or '.join(need.models)}")
    asks = (_device_obstacle(ask, allowed) for ask in need.asks)
    found = next((found for found in asks if found), None) or _node_obstacle(need, node, running)
    return Verdict(node.name, *found)


def _device_obstacle(ask: Ask, gpus: Sequence[Occupancy]) -> tuple[str, str, int] | None:
    able = [gpu for gpu in gpus if gpu.gpu.options(ask)]
    if not able:
        others = any(_of_other(ask, held) for held in gpus)
        other = _BY_SCHEDULER if ask.form is Form.EXACT else _BY_NAME
        return other if others else _LACKS, _offers(ask, gpus), 0
    most = _room(ask, [Occupancy(gpu=gpu.gpu) for gpu in able])
    if most < ask.count:
        return _FEW, f"{most} at most", most
    return (_FULL, *_nearest(ask, able)) if _room(ask, able) < ask.count else None


def _of_other(ask: Ask, held: Occupancy) -> bool:
    gpu = held.gpu
    return bool(of_other_allocator(ask, gpu.model, gpu.memory_mib, gpu.sharing))


def _node_obstacle(need: Need, node: Node, running: Sequence[Running]) -> tuple[()] | tuple[str, str, int]:
    cpu = node.cpu_milli - sum(each.pod.need.cpu_milli for each in running)
    memory = node.memory_mib - sum(each.pod.need.memory_mib for each in running)
    if need.cpu_milli > cpu:
        return f"{_CPU} for {need.cpu_milli} milli", f"{cpu} left", cpu
    if need.memory_mib > memory:
        return f"{_MEMORY} for {need.memory_mib} MiB", f"{memory} left", memory
    return (_PODS, f"{node.max_pods} run", 0) if len(running) >= node.max_pods else ()


def _offers(ask: Ask, gpus: Sequence[Occupancy]) -> str:
    """Name what a node has instead: each kind of GPU once, with what it could give to an ask of this form."""
    kinds = Counter((gpu.gpu.model.name, _gives(ask, gpu)) for gpu in gpus)
    return ", ".join(f"{count} x {name}{gives}" for (name, gives), count in kinds.items()) or "no GPU"


def _gives(ask: Ask, held: Occupancy) -> str:
    gpu = held.gpu
    names = sorted({device.resource for device in gpu.devices})
    if names:
        return f" offering {', '.join(names)}"
    if ask.resource.startswith(mig_resource("")):
        profiles = ", ".join(profile.name for profile in gpu.model.profiles if profile.starts)
        if profiles and gpu.sharing.can_repartition:
            return f" with profiles {profiles}"
        return " kept from MIG" if profiles else " without MIG"
    size = "" if ask.form is Form.EXACT else f" of {gpu.memory_mib} MiB"
    modes = (mode for mode in gpu.sharing.modes if mode is not Mode.MIG or placements(gpu.model))
    return f"{size} shared as {', '.join(modes)}"


def _room(ask: Ask, gpus: Iterable[Occupancy]) -> int:
    """Return how many devices of an ask still have a place: for shares and needs at most one a GPU."""
    rooms = (max(_places(option, gpu) for option in gpu.gpu.options(ask)) for gpu in gpus)
    return sum(room if ask.form is Form.EXACT else min(room, 1) for room in rooms)


def _places(option: Option, held: Occupancy) -> int:
    if option.exists and not held.gpu.sharing.can_repartition:
        devices = (device for device in held.gpu.devices if device.option == option)
        return sum(device.clients - len(held.clients(device.placement)) for device in devices)
    if option.amount:
        fits = option.memory_mib <= held.left_mib and option.compute_percent <= held.left_percent
        return int(fits and held.amounts in {None, option.mode})
    if option.mode is Mode.WHOLE:
        return int(not held.holdings)
    return _instances(option, held)


def _instances(option: Option, held: Occupancy) -> int:
    if held.holdings and not held.instances:
        return 0
    return remaining(held.gpu.model, _used(held))[option.profile or ""]


def _used(held: Occupancy) -> tuple[Placement, ...]:
    return tuple(place for place in held.instances if held.clients(place))


def _nearest(ask: Ask, gpus: Sequence[Occupancy]) -> tuple[str, int]:
    """Describe the nearest miss on a node, by the way its GPUs would serve the ask first; unlike GPUs one by one."""
    kinds: dict[Option, list[Occupancy]] = {}
    for gpu in gpus:
        ways = gpu.gpu.options(ask)
        made = (way for way in ways if not (way.exists and gpu.gpu.sharing.can_repartition))
        kinds.setdefault(next(made, ways[0]), []).append(gpu)
    told = [_near(ask, option, alike) for option, alike in kinds.items()]
    return ", ".join(text for text, _ in told), max(near for _, near in told)


def _near(ask: Ask, option: Option, gpus: Sequence[Occupancy]) -> tuple[str, int]:
    if option.exists:
        ways = [(way, gpu) for gpu in gpus for way in gpu.gpu.options(ask) if way.exists]
        clients = sum(_places(way, Occupancy(gpu=gpu.gpu)) for way, gpu in ways)
        free = sum(_places(way, gpu) for way, gpu in ways)
        return (f"{free} of {clients} free" if free else f"all {clients} taken") + f" on {_count(gpus)}", free
    if option.mode is Mode.WHOLE:
        free = sum(not gpu.holdings for gpu in gpus)
        return f"{free} of {_count(gpus)} free", free
    if option.amount:
        return _most_left(option.mode, gpus)
    best = max(gpus, key=lambda gpu: (_free_units(gpu).bit_count(), -gpu.gpu.index))
    return _blocked(option.profile or "", best), _free_units(best).bit_count()


def _most_left(mode: Mode, gpus: Sequence[Occupancy]) -> tuple[str, int]:
    shared = [gpu for gpu in gpus if gpu.amounts == mode or not gpu.holdings]
    if not shared:
        return f"{_count(gpus)} given to other modes than {mode}", 0
    best = max(shared, key=lambda gpu: (gpu.left_mib, gpu.left_percent))
    return f"most left in one GPU is {best.left_mib} MiB and {best.left_percent} % compute", best.left_mib


def _count(gpus: Sequence[Occupancy]) -> str:
    return f"{len(gpus)} {'GPU' if len(gpus) == 1 else 'GPUs'}"


def _free_units(held: Occupancy) -> int:
    if held.holdings and not held.instances:
        return 0
    return (1 << held.gpu.model.units) - 1 & ~sum(place.mask for place in _used(held))


def _blocked(profile: str, held: Occupancy) -> str:
    """Say which units of the emptiest GPU are free and who holds the one in the way."""
    free, index = _free_units(held), held.gpu.index
    if not free:
        return f"no GPU has a free unit; GPU {index} is held by {', '.join(h.pod for h in held.holdings[:_EXAMPLES])}"
    units = [unit for unit in range(held.gpu.model.units) if free >> unit & 1]
    places = placements_of(held.gpu.model, profile)
    place = min(places, key=lambda place: ((place.mask & ~free).bit_count(), place.start))
    has = f"GPU {index} has {'unit' if len(units) == 1 else 'units'} {_list(units)} free"
    starts = f"{profile} starts at {_list([place.start for place in places])}"
    blocked = place.mask & ~free
    if not blocked:
        return f"{has}, but a GPU holds one {profile} at most"
    unit = (blocked & -blocked).bit_length() - 1
    holder = next(pod for p in held.instances if p.mask >> unit & 1 for pod in held.clients(p))
    return f"{has}, but {starts} and unit {unit} is held by {holder}"


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
