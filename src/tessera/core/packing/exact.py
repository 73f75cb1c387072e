"""The offline optimum: an assignment that places the most pods, or the best found with a proven bound, by HiGHS.

An integer program over counts, not over pods: equal needs are interchangeable, so variables say how many pods of a need
run on a node and how many of their devices come from each GPU in each way. For small fleets, and as the yardstick in
tests. Higher priorities are served first, each class exactly; of the best assignments, one that opens the fewest GPUs.
It improves on given assignments, so that it is never worse than these, however soon its time is up.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from tessera.core.cluster.compatibility import free_clients, with_reserved
from tessera.core.cluster.gputypes import GpuType
from tessera.core.cluster.occupancy import occupancy
from tessera.core.cluster.snapshot import Assignment, Gpu, Node, Share, Snapshot
from tessera.core.gpu.mig import ALL_MEDIA, Placement, placement_at, placements
from tessera.core.gpu.sharing import AMOUNT_MODES, Device, Mode, Option
from tessera.core.packing.fit.admission import admits
from tessera.core.packing.fit.mixednames import is_mixed
from tessera.core.packing.linear import LinearProgram, Solution, TimeBudget
from tessera.core.workload.need import DeviceRequest, Form, Need

__all__ = ["Bound", "assign", "free_devices", "made_modes", "ways"]


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What the solver proved."""

    placed: int
    """Pods placed by the solution returned."""
    at_most: int
    """No assignment that serves higher priorities first places more pods than this."""

    @property
    def optimal(self) -> bool:
        """Whether it is proved that no assignment places more pods."""
        return self.placed == self.at_most


class _Key(NamedTuple):
    """Devices of one request of one need that come from one GPU in one way."""

    kind: int
    request: int
    node: int
    gpu: int
    option: Option


def assign(
    snapshot: Snapshot, start: Sequence[Assignment] = (), *, budget: TimeBudget | None = None
) -> tuple[tuple[Assignment, ...], Bound]:
    """Return assignments of pending pods, in order of arrival, and the proven bound on their number.

    Running pods stay where they are. `start` are assignments to improve on: if nothing better is found, they are
    returned. `budget` limits the solver's total time: priority classes share it evenly, highest first, unused time
    goes to the next, and the rest closes GPUs. Cost grows steeply with nodes times needs: tens of nodes,
    not thousands.
    """
    model = _Model(snapshot)
    values, at_most = model.improve(start, budget or TimeBudget())
    assignments = tuple(start) if values is None else tuple(_read(model, values))
    return assignments, Bound(placed=len(assignments), at_most=at_most)


class _Model:
    """The program and the meaning of its variables."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.requested = Counter((pod.priority, pod.need) for pod in snapshot.pending)
        self.kinds = tuple(self.requested)
        self.program = LinearProgram()
        self.pods: dict[tuple[int, int], int] = {}
        self.serves: dict[_Key, int] = {}
        self.on_gpu = defaultdict[tuple[int, int], list[_Key]](list)
        self.instances: dict[tuple[int, int, Placement], int] = {}
        self.modes: dict[tuple[int, int, Mode], int] = {}
        self.opened: list[int] = []
        gpu_usage = occupancy(snapshot)
        self.shares = {
            (n, each.gpu.index): with_reserved(each.gpu, [pod_share.share for pod_share in each.pod_shares])
            for n, node in enumerate(snapshot.nodes)
            for each in gpu_usage[node.name]
        }
        for n, node in enumerate(snapshot.nodes):
            self._node(n, node)
        for k, kind in enumerate(self.kinds):
            self.program.row(self._sum({k}), high=self.requested[kind])

    def improve(self, start: Sequence[Assignment], budget: TimeBudget) -> tuple[tuple[float, ...] | None, int]:
        """Serve one priority class after the other, highest first, then close as many GPUs as possible.

        Return the variables' values, None where nothing is better than `start`, and the most pods that can be placed.
        """
        search = _Search(self.program, self._values(start), budget)
        priorities = sorted({priority for priority, _ in self.kinds}, reverse=True)
        at_most = 0
        for position, priority in enumerate(priorities):
            mine = self._sum({k for k, kind in enumerate(self.kinds) if kind[0] == priority})
            requested = sum(count for kind, count in self.requested.items() if kind[0] == priority)
            at_most += search.serve(mine, requested, budget.left_s / (len(priorities) - position))
        search.close(self.opened)
        return search.values if search.better else None, at_most

    def _values(self, assignments: Sequence[Assignment]) -> tuple[float, ...]:
        """Return the values of all variables for these assignments beside running pods."""
        values = list(self.program.lows)
        pending = {pod.key: pod for pod in self.snapshot.pending}
        kinds = {kind: k for k, kind in enumerate(self.kinds)}
        index = {node.name: n for n, node in enumerate(self.snapshot.nodes)}
        for each in assignments:
            pod, n = pending[each.pod], index[each.node]
            k = kinds[pod.priority, pod.need]
            values[self.pods[k, n]] += 1
            requests = ((a, request) for a, request in enumerate(pod.need.requests) for _ in range(request.count))
            for (a, request), share in zip(requests, each.shares, strict=True):
                for key in self._served_as(k, a, n, request, share):
                    values[self.serves[key]] += 1
                    for v in self._made_for(key, share):
                        values[v] = 1
        return tuple(values)

    def _served_as(self, k: int, a: int, n: int, request: DeviceRequest, share: Share) -> list[_Key]:
        """Return the way in which a request got its share; empty where the program does not have it."""
        found = [
            key
            for key in self.on_gpu[n, share.gpu]
            if (key.kind, key.request, key.option.mode, key.option.profile) == (k, a, share.mode, share.profile)
        ]
        return sorted(found, key=lambda key: Share.of(share.gpu, request, key.option, share.start) != share)[:1]

    def _made_for(self, key: _Key, share: Share) -> tuple[int, ...]:
        """Return the variables of what must be created for a share: the GPU's mode, and the instance."""
        if key.option.exists:
            return ()
        mode = self.modes[key.node, key.gpu, share.mode]
        if share.start is None:
            return (mode,)
        gpu = next(gpu for gpu in self.snapshot.nodes[key.node].gpus if gpu.index == key.gpu)
        return mode, self.instances[key.node, key.gpu, placement_at(gpu.model, share.profile or "", share.start)]

    def _sum(self, kinds: set[int]) -> dict[int, float]:
        return {variable: 1.0 for (kind, _), variable in self.pods.items() if kind in kinds}

    def _node(self, n: int, node: Node) -> None:
        running = [r.pod.need for r in self.snapshot.running if r.assignment.node == node.name]
        room = (
            node.cpu_milli - sum(need.cpu_milli for need in running),
            node.memory_mib - sum(need.memory_mib for need in running),
            node.max_pods - len(running),
        )
        taken: tuple[dict[int, float], ...] = ({}, {}, {})
        for k, (priority, need) in enumerate(self.kinds):
            able = admits(need, node) and not is_mixed(need, node.gpus)
            takes = (need.cpu_milli, need.memory_mib, 1)
            if able and all(take <= free for take, free in zip(takes, room, strict=True)):
                pods = self.program.variable(high=self.requested[priority, need], integer=True)
                self.pods[k, n] = pods
                for terms, take in zip(taken, takes, strict=True):
                    terms[pods] = float(take)
                self._requests(n, node, k)
        for terms, free in zip(taken, room, strict=True):
            # Running pods may exceed a node's capacity, as after it shrank: then no pod is added.
            self.program.row(terms, high=max(0, free))
        for gpu in node.gpus:
            self._gpu(n, gpu)

    def _requests(self, n: int, node: Node, k: int) -> None:
        """Tie the devices served to the pods placed: `count` a pod, shares and needs on distinct GPUs."""
        need, pods = self.kinds[k][1], self.pods[k, n]
        for a, request in enumerate(need.requests):
            total = {pods: -float(request.count)}
            for gpu in node.gpus:
                keys = [_Key(k, a, n, gpu.index, option) for option in ways(need, request, gpu)]
                self.serves |= {key: self.program.variable(integer=True) for key in keys}
                self.on_gpu[n, gpu.index] += keys
                here = {self.serves[key]: 1.0 for key in keys}
                total |= here
                if request.form is not Form.EXACT and request.count > 1:
                    self.program.row(here | {pods: -1.0}, high=0)
            self.program.row(total, low=0, high=0)

    def _gpu(self, n: int, gpu: Gpu) -> None:
        shares = self.shares[n, gpu.index]
        here = [(key.option, key, self.serves[key]) for key in self.on_gpu[n, gpu.index]]
        for option, free in free_devices(gpu, shares).items():
            self.program.row({v: 1.0 for o, _, v in here if o == option}, high=free)
        in_use = {share.mode for share in shares}
        modes = {m: self.program.variable(m in in_use, 1, integer=True) for m in made_modes(gpu)}
        self.modes |= {(n, gpu.index, mode): v for mode, v in modes.items()}
        # A mode in use that is not allowed any more keeps all others out.
        self.program.row(dict.fromkeys(modes.values(), 1.0), high=int(not in_use or not in_use.isdisjoint(modes)))
        if not shares:
            self.opened += modes.values()
        for mode, used in modes.items():
            created = [(key, v) for option, key, v in here if option.mode is mode and not option.exists]
            mine = [share for share in shares if share.mode is mode]
            if mode is Mode.MIG:
                self._instances(n, gpu, used, created)
            elif mode is Mode.WHOLE:
                self.program.row({v: 1.0 for _, v in created} | {used: -1.0}, high=-len(mine))
            else:
                self._amounts(gpu, used, created, mine)

    def _amounts(self, gpu: Gpu, used: int, created: list[tuple[_Key, int]], in_use: list[Share]) -> None:
        memory = {v: float(key.option.memory_mib) for key, v in created}
        compute = {v: float(key.option.compute_percent) for key, v in created}
        self.program.row(memory | {used: -float(gpu.memory_mib)}, high=-sum(s.memory_mib for s in in_use))
        self.program.row(compute | {used: -100.0}, high=-sum(s.compute_percent for s in in_use))

    def _instances(self, n: int, gpu: Gpu, used: int, created: list[tuple[_Key, int]]) -> None:
        """Create instances: memory slices and media engines at most once, used ones kept, devices on new ones."""
        shares = self.shares[n, gpu.index]
        kept = {(s.profile, s.start) for s in shares}
        requested = {key.option.profile for key, _ in created} | {s.profile for s in shares}
        instances = {
            place: self.program.variable((place.profile, place.start) in kept, 1, integer=True)
            for place in placements(gpu.model)
            if place.profile in requested
        }
        self.instances |= {(n, gpu.index, place): v for place, v in instances.items()}
        for unit in range(gpu.model.memory_slices):
            self.program.row({v: 1.0 for p, v in instances.items() if p.mask >> unit & 1} | {used: -1.0}, high=0)
        media = {profile.name: profile.media for profile in gpu.model.profiles}
        for kind in gpu.model.at_most_one:
            self.program.row({v: 1.0 for p, v in instances.items() if media[p.profile] == kind}, high=1)
        if ALL_MEDIA in gpu.model.at_most_one:
            most = float(gpu.model.memory_slices)
            weights = {"none": 0.0, ALL_MEDIA: most}
            self.program.row({v: weights.get(media[p.profile], 1.0) for p, v in instances.items()}, high=most)
        for profile in requested:
            served = {v: 1.0 for key, v in created if key.option.profile == profile}
            instances_of = {v: -1.0 for place, v in instances.items() if place.profile == profile}
            self.program.row(served | instances_of, high=-sum(s.profile == profile for s in shares))


def free_devices(gpu: Gpu, shares: Iterable[Share]) -> dict[Option, int]:
    """Return how many more clients each existing device kind of a GPU takes; nothing where Tessera may repartition."""
    if gpu.sharing.can_repartition:
        return {}
    free = Counter[Option]()
    for device, clients in _free_clients(gpu, shares):
        free[device.option] += clients
    return free


def _free_clients(gpu: Gpu, shares: Iterable[Share]) -> Iterator[tuple[Device, int]]:
    """Yield each existing device with how many more clients it takes: none beside a share of anything else."""
    gpu_type = GpuType.of(gpu)
    own: dict[int | None, list[Share]] = {}
    for share in shares:
        own.setdefault(gpu_type.device_of(share), []).append(share)
    for device in gpu.devices:
        if device.mode is Mode.WHOLE or None in own:
            yield device, int(not own)
            continue
        used = own.get(gpu_type.devices.index(device), ())
        memory_mib, percent = sum(share.memory_mib for share in used), sum(share.compute_percent for share in used)
        yield device, free_clients(gpu_type, device, len(used), memory_mib, percent)


def ways(need: Need, request: DeviceRequest, gpu: Gpu) -> tuple[Option, ...]:
    """Return the ways to serve a request; where Tessera may repartition, instances are chosen anew."""
    if need.models and gpu.model.name not in need.models:
        return ()
    options = gpu.options(request)
    if not gpu.sharing.can_repartition:
        return options
    created = [way for way in options if not way.exists]
    kept = [msgspec.structs.replace(way, exists=False, resource="") for way in options if way.exists]
    return tuple({(way.mode, way.profile): way for way in (*kept, *created)}.values())


def made_modes(gpu: Gpu) -> tuple[Mode, ...]:
    """Return the modes in which devices may be made on a GPU."""
    sharing = gpu.sharing
    if not sharing.creates_devices or sharing.modes == (Mode.WHOLE,):
        return ()
    created = {Mode.WHOLE, *AMOUNT_MODES} | ({Mode.MIG} if sharing.can_repartition else set())
    return tuple(mode for mode in sharing.modes if mode in created)


class _Search:
    """The best known solution of a program, and the time left to improve it."""

    def __init__(self, program: LinearProgram, start: tuple[float, ...], budget: TimeBudget) -> None:
        self.program = program
        self.values = start
        self.better = False
        self.budget = budget

    def serve(self, pods: dict[int, float], requested: int, limit_s: float) -> int:
        """Place as many of these pods as possible in the time, fix them, and return the upper bound."""
        have, most = self._sum(pods), requested
        if have < requested and limit_s > 0:
            found = self._take(self.program.maximize(pods, limit_s=limit_s, start=self.values), pods, 1)
            have = self._sum(pods)
            # A bound below the placed pods would be of another problem: it proves nothing.
            most = math.floor(min(found.bound + 1e-6, requested)) if found.bound + 1e-6 >= have else requested
        self.program.row(pods, low=have)
        return most

    def close(self, gpus: Iterable[int]) -> None:
        """Close as many GPUs as possible in the time."""
        opened = dict.fromkeys(gpus, 1.0)
        if self.budget.left_s > 0:
            self._take(self.program.minimize(opened, limit_s=self.budget.left_s, start=self.values), opened, -1)

    def _take(self, solution: Solution, terms: dict[int, float], sign: int) -> Solution:
        """Take a solution if it is better than the known one."""
        self.budget.spend(solution.took_s)
        if solution.feasible and sign * round(solution.objective) > sign * self._sum(terms):
            self.values, self.better = solution.values, True
        return solution

    def _sum(self, terms: Iterable[int]) -> int:
        return sum(round(self.values[v]) for v in terms)


class _Supply:
    """The solution's devices from each GPU, handed out one by one."""

    def __init__(self, model: _Model, values: Sequence[float]) -> None:
        self.snapshot = model.snapshot
        self.remaining = defaultdict[tuple[int, int, int], Counter[_Key]](Counter)
        for key, v in model.serves.items():
            self.remaining[key.kind, key.request, key.node][key] += round(values[v])
        self.starts = defaultdict[tuple[int, int, str | None, bool], list[int]](list)
        for n, node in enumerate(model.snapshot.nodes):
            for gpu in node.gpus:
                self._existing(n, gpu, model.shares[n, gpu.index])
        for (n, g, place), v in model.instances.items():
            taken = {(s.profile, s.start) for s in model.shares[n, g]}
            if round(values[v]) and (place.profile, place.start) not in taken:
                self.starts[n, g, place.profile, False].append(place.start)
        for starts in self.starts.values():
            starts.sort(reverse=True)

    def _existing(self, n: int, gpu: Gpu, shares: list[Share]) -> None:
        for device, free in () if gpu.sharing.can_repartition else _free_clients(gpu, shares):
            if device.placement:
                place = device.placement
                self.starts[n, gpu.index, place.profile, True] += [place.start] * free

    def take(self, k: int, a: int, n: int, request: DeviceRequest) -> Iterator[Share]:
        """Yield the shares of a pod's request, from the GPUs with most left; shares and needs on distinct GPUs."""
        remaining = self.remaining[k, a, n]
        taken = set[int]()
        for _ in range(request.count):
            open_keys = (key for key, count in remaining.items() if count > 0 and key.gpu not in taken)
            on_gpu = Counter[int]()
            for key, count in remaining.items():
                on_gpu[key.gpu] += count
            key = max(open_keys, key=lambda key: (on_gpu[key.gpu], -key.gpu))
            remaining[key] -= 1
            taken |= {key.gpu} if request.form is not Form.EXACT else set()
            starts = self.starts[n, key.gpu, key.option.profile, key.option.exists]
            yield Share.of(key.gpu, request, key.option, starts.pop() if key.option.profile else None)


def _read(model: _Model, values: Sequence[float]) -> Iterator[Assignment]:
    """Yield one assignment a placed pod: nodes in order take the first pods of each kind."""
    supply = _Supply(model, values)
    room = Counter({key: round(values[v]) for key, v in model.pods.items()})
    for pod in model.snapshot.pending:
        k = model.kinds.index((pod.priority, pod.need))
        n = next((n for n in range(len(model.snapshot.nodes)) if room[k, n] > 0), None)
        if n is not None:
            room[k, n] -= 1
            shares = (share for a, request in enumerate(pod.need.requests) for share in supply.take(k, a, n, request))
            yield Assignment(pod=pod.key, node=model.snapshot.nodes[n].name, shares=tuple(shares))
