"""The offline optimum: an assignment that places the most pods, or the best found with a proven bound, by HiGHS.

An integer program over counts, not over pods: equal needs are interchangeable, so variables say how many pods of a need
run on a node and how many of their devices come from each GPU in each way. For small fleets, and as the yardstick in
tests. Higher priorities are served first, each class exactly; of the best assignments, one that opens the fewest GPUs.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from tessera.core.fit.admission import refusal
from tessera.core.linear import Program, Solution
from tessera.core.mig import ALL_MEDIA, Placement, placements
from tessera.core.need import Ask, Form, Need, Pod
from tessera.core.sharing import Mode, Option
from tessera.core.snapshot import Assignment, Gpu, Node, Share, Snapshot

__all__ = ["Bound", "assign"]


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """What the solver proved."""

    placed: int
    """Pods placed by the solution returned."""
    at_most: int
    """No assignment that serves higher priorities first places more pods than this."""
    optimal: bool


class _Key(NamedTuple):
    """Devices of one ask of one need that come from one GPU in one way."""

    kind: int
    ask: int
    node: int
    gpu: int
    option: Option


def assign(snapshot: Snapshot, *, limit_s: float = math.inf) -> tuple[tuple[Assignment, ...], Bound]:
    """Return assignments of pending pods, in order of arrival, and what was proved about their number.

    Running pods stay where they are. `limit_s` bounds the solver's time per priority class; what it has found by then
    is returned with the bound. Cost grows steeply with nodes times needs: tens of nodes, not thousands.
    """
    model = _Model(snapshot)
    solution, bound = model.solve(limit_s)
    return tuple(_read(model, solution)) if solution.feasible else (), bound


class _Model:
    """The program and the meaning of its variables."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.wanted = Counter((pod.priority, pod.need) for pod in snapshot.pending)
        self.kinds = tuple(self.wanted)
        self.program = Program()
        self.pods: dict[tuple[int, int], int] = {}
        self.serves: dict[_Key, int] = {}
        self.on_gpu = defaultdict[tuple[int, int], list[_Key]](list)
        self.cuts: dict[tuple[int, int, Placement], int] = {}
        self.opened: list[int] = []
        self.held = held_shares(snapshot)
        for n, node in enumerate(snapshot.nodes):
            self._node(n, node)
        for k, kind in enumerate(self.kinds):
            self.program.row(self._sum({k}), high=self.wanted[kind])

    def solve(self, limit_s: float) -> tuple[Solution, Bound]:
        """Serve one priority class after the other, highest first, then close as many GPUs as possible."""
        at_most, optimal = 0, True
        for priority in sorted({priority for priority, _ in self.kinds}, reverse=True):
            mine = self._sum({k for k, kind in enumerate(self.kinds) if kind[0] == priority})
            best = self.program.maximise(mine, limit_s=limit_s)
            asked = sum(count for kind, count in self.wanted.items() if kind[0] == priority)
            at_most += math.floor(min(best.bound + 1e-6, asked))
            optimal = optimal and best.optimal
            self.program.row(mine, low=round(best.objective) if best.feasible else 0)
        solution = self.program.minimise(dict.fromkeys(self.opened, 1.0), limit_s=limit_s)
        placed = sum(round(solution.values[v]) for v in self.pods.values()) if solution.feasible else 0
        return solution, Bound(placed=placed, at_most=at_most, optimal=optimal)

    def _sum(self, kinds: set[int]) -> dict[int, float]:
        return {variable: 1.0 for (kind, _), variable in self.pods.items() if kind in kinds}

    def _node(self, n: int, node: Node) -> None:
        running = [r.pod.need for r in self.snapshot.running if r.assignment.node == node.name]
        cpu, memory, count = dict[int, float](), dict[int, float](), dict[int, float]()
        for k, (priority, need) in enumerate(self.kinds):
            if refusal(need, node) is None:
                pods = self.program.variable(high=self.wanted[priority, need], integer=True)
                self.pods[k, n] = pods
                cpu[pods], memory[pods], count[pods] = float(need.cpu_milli), float(need.memory_mib), 1.0
                self._asks(n, node, k)
        self.program.row(cpu, high=node.cpu_milli - sum(need.cpu_milli for need in running))
        self.program.row(memory, high=node.memory_mib - sum(need.memory_mib for need in running))
        self.program.row(count, high=node.max_pods - len(running))
        for gpu in node.gpus:
            self._gpu(n, gpu)

    def _asks(self, n: int, node: Node, k: int) -> None:
        """Tie the devices served to the pods placed: `count` a pod, shares and needs on distinct GPUs."""
        need, pods = self.kinds[k][1], self.pods[k, n]
        for a, ask in enumerate(need.asks):
            total = {pods: -float(ask.count)}
            for gpu in node.gpus:
                keys = [_Key(k, a, n, gpu.index, option) for option in _ways(need, ask, gpu)]
                self.serves |= {key: self.program.variable(integer=True) for key in keys}
                self.on_gpu[n, gpu.index] += keys
                here = {self.serves[key]: 1.0 for key in keys}
                total |= here
                if ask.form is not Form.EXACT and ask.count > 1:
                    self.program.row(here | {pods: -1.0}, high=0)
            self.program.row(total, low=0, high=0)

    def _gpu(self, n: int, gpu: Gpu) -> None:
        shares = self.held[n, gpu.index]
        here = [(key.option, key, self.serves[key]) for key in self.on_gpu[n, gpu.index]]
        for option, free in free_devices(gpu, shares).items():
            self.program.row({v: 1.0 for o, _, v in here if o == option}, high=free)
        modes = {m: self.program.variable(_holds(shares, m), 1, integer=True) for m in _made(gpu)}
        self.program.row(dict.fromkeys(modes.values(), 1.0), high=1)
        if not shares:
            self.opened += modes.values()
        for mode, used in modes.items():
            made = [(key, v) for option, key, v in here if option.mode is mode and not option.exists]
            mine = [share for share in shares if share.mode is mode]
            if mode is Mode.MIG:
                self._instances(n, gpu, used, made)
            elif mode is Mode.WHOLE:
                self.program.row({v: 1.0 for _, v in made} | {used: -1.0}, high=-len(mine))
            else:
                self._amounts(gpu, used, made, mine)

    def _amounts(self, gpu: Gpu, used: int, made: list[tuple[_Key, int]], held: list[Share]) -> None:
        memory = {v: float(key.option.memory_mib) for key, v in made}
        compute = {v: float(key.option.compute_percent) for key, v in made}
        self.program.row(memory | {used: -float(gpu.memory_mib)}, high=-sum(s.memory_mib for s in held))
        self.program.row(compute | {used: -100.0}, high=-sum(s.compute_percent for s in held))

    def _instances(self, n: int, gpu: Gpu, used: int, made: list[tuple[_Key, int]]) -> None:
        """Cut instances: units and media engines at most once, held instances kept, devices served by what is cut."""
        shares = self.held[n, gpu.index]
        kept = {(s.profile, s.start) for s in shares}
        wanted = {key.option.profile for key, _ in made} | {s.profile for s in shares}
        cuts = {
            place: self.program.variable((place.profile, place.start) in kept, 1, integer=True)
            for place in placements(gpu.model)
            if place.profile in wanted
        }
        self.cuts |= {(n, gpu.index, place): v for place, v in cuts.items()}
        for unit in range(gpu.model.units):
            self.program.row({v: 1.0 for p, v in cuts.items() if p.mask >> unit & 1} | {used: -1.0}, high=0)
        media = {profile.name: profile.media for profile in gpu.model.profiles}
        for kind in gpu.model.at_most_one:
            self.program.row({v: 1.0 for p, v in cuts.items() if media[p.profile] == kind}, high=1)
        if ALL_MEDIA in gpu.model.at_most_one:
            most = float(gpu.model.units)
            weights = {"none": 0.0, ALL_MEDIA: most}
            self.program.row({v: weights.get(media[p.profile], 1.0) for p, v in cuts.items()}, high=most)
        for profile in wanted:
            served = {v: 1.0 for key, v in made if key.option.profile == profile}
            cut = {v: -1.0 for place, v in cuts.items() if place.profile == profile}
            self.program.row(served | cut, high=-sum(s.profile == profile for s in shares))


def held_shares(snapshot: Snapshot) -> dict[tuple[int, int], list[Share]]:
    """Return the shares running pods hold, by index of the node and of the GPU."""
    index = {node.name: n for n, node in enumerate(snapshot.nodes)}
    held = defaultdict[tuple[int, int], list[Share]](list)
    for running in snapshot.running:
        for share in running.assignment.shares:
            held[index[running.assignment.node], share.gpu].append(share)
    return held


def free_devices(gpu: Gpu, shares: Iterable[Share]) -> dict[Option, int]:
    """Return how many more clients each existing device kind of a GPU takes; nothing where Tessera may recut."""
    if gpu.sharing.cuttable:
        return {}
    free = Counter[Option]()
    taken = Counter((s.mode, s.profile, s.start) for s in shares)
    for device in gpu.devices:
        start = device.placement.start if device.placement else None
        free[device.option] += device.clients - taken[device.option.mode, device.option.profile, start]
    return free


def _ways(need: Need, ask: Ask, gpu: Gpu) -> tuple[Option, ...]:
    """Return the ways to serve an ask; where Tessera may recut, instances are chosen anew."""
    if need.models and gpu.model.name not in need.models:
        return ()
    return tuple(o for o in gpu.options(ask) if not (o.exists and gpu.sharing.cuttable))


def _made(gpu: Gpu) -> tuple[Mode, ...]:
    """Return the modes in which devices may be made on a GPU."""
    sharing = gpu.sharing
    if not sharing.open or sharing.modes == (Mode.WHOLE,):
        return ()
    made = {Mode.WHOLE, Mode.MPS, Mode.MEMORY_SHARE} | ({Mode.MIG} if sharing.cuttable else set())
    return tuple(mode for mode in sharing.modes if mode in made)


def _holds(shares: Iterable[Share], mode: Mode) -> int:
    return int(any(share.mode is mode for share in shares))


class _Supply:
    """Devices the solution takes from each GPU, handed out one by one."""

    def __init__(self, model: _Model, values: tuple[float, ...]) -> None:
        self.snapshot = model.snapshot
        self.left = defaultdict[tuple[int, int, int], Counter[_Key]](Counter)
        for key, v in model.serves.items():
            self.left[key.kind, key.ask, key.node][key] += round(values[v])
        self.starts = defaultdict[tuple[int, int, str | None, bool], list[int]](list)
        for n, node in enumerate(model.snapshot.nodes):
            for gpu in node.gpus:
                self._existing(n, gpu, model.held[n, gpu.index])
        for (n, g, place), v in model.cuts.items():
            taken = {(s.profile, s.start) for s in model.held[n, g]}
            if round(values[v]) and (place.profile, place.start) not in taken:
                self.starts[n, g, place.profile, False].append(place.start)
        for starts in self.starts.values():
            starts.sort(reverse=True)

    def _existing(self, n: int, gpu: Gpu, shares: list[Share]) -> None:
        taken = Counter((s.profile, s.start) for s in shares)
        for device in gpu.devices:
            if device.placement and not gpu.sharing.cuttable:
                place = device.placement
                free = device.clients - taken[place.profile, place.start]
                self.starts[n, gpu.index, place.profile, True] += [place.start] * free

    def take(self, k: int, a: int, n: int, ask: Ask) -> Iterator[Share]:
        """Yield the shares of one pod's ask, from the GPUs with most left for it; shares and needs on distinct GPUs."""
        left = self.left[k, a, n]
        taken = set[int]()
        for _ in range(ask.count):
            open_keys = (key for key, count in left.items() if count > 0 and key.gpu not in taken)
            key = max(open_keys, key=lambda key: (self._of(left, key.gpu), -key.gpu))
            left[key] -= 1
            taken |= {key.gpu} if ask.form is not Form.EXACT else set()
            starts = self.starts[n, key.gpu, key.option.profile, key.option.exists]
            yield Share.of(key.gpu, ask, key.option, starts.pop() if key.option.profile else None)

    @staticmethod
    def _of(left: Counter[_Key], gpu: int) -> int:
        return sum(count for key, count in left.items() if key.gpu == gpu)


def _read(model: _Model, solution: Solution) -> Iterator[Assignment]:
    """Yield one assignment a placed pod: nodes in order take the first pods of each kind."""
    supply = _Supply(model, solution.values)
    room = Counter({key: round(solution.values[v]) for key, v in model.pods.items()})
    for pod in model.snapshot.pending:
        k = model.kinds.index((pod.priority, pod.need))
        n = next((n for n in range(len(model.snapshot.nodes)) if room[k, n] > 0), None)
        if n is not None:
            room[k, n] -= 1
            yield _assignment(supply, pod, k, n)


def _assignment(supply: _Supply, pod: Pod, k: int, n: int) -> Assignment:
    shares = (share for a, ask in enumerate(pod.need.asks) for share in supply.take(k, a, n, ask))
    return Assignment(pod=pod.key, node=supply.snapshot.nodes[n].name, shares=tuple(shares))
