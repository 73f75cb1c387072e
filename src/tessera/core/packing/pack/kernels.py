"""Tessera's scores node by node, in plain loops compiled by numba: the same integers as the array form, faster.

The array form in `tessera` defines the scores; this is for fleets on which it is too slow, if the extra `fast`
is installed. Everything here is written so that numba can compile it, and runs uncompiled as well, which is how tests
compare it with the array form.
"""

import functools
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.core.cluster.gputypes import Ints

__all__ = ["Kernels", "PodTables", "State", "Tables", "compiled", "plain"]

_FULL: Final = 100
_NOWHERE: Final = -(1 << 39)
"""The score of a node where no GPU serves the pod."""


class Tables(NamedTuple):
    """The tables of a mix; see `potentials` and `fit.fragmentation`."""

    fed_cpu: Ints
    """Steps of milli cpu in `fed_one` and `fed_many`."""
    fed_one: Ints
    """Usable by pods for one GPU, if cpu is shared out: `(types, cpu steps, 101)`."""
    fed_many: Ints
    """Usable by pods for several: `(groups, types, cpu steps, free GPUs)`."""
    cpu: Ints
    """Steps of milli cpu in `one` and `many`."""
    one: Ints
    """Usable by pods for one GPU: `(types, cpu steps, 101)`."""
    many: Ints
    """Usable by pods for several: `(types, cpu steps, free GPUs)`."""
    value: Ints
    """Value of what is left of a GPU: `(types, 101, cpu prices)`."""
    prices: Ints
    """Value of a milli cpu, `(cpu prices,)`."""
    rates: Ints
    """The weight of the mix, what a unit of usable and one of value weigh, and what makes a step of the score."""
    scratch: Ints
    """Scratch memory: `(6, most of GPUs and cpu prices)`."""


class State(NamedTuple):
    """The free resources of nodes: see `Fleet`."""

    remaining: Ints
    kind: Ints
    cpu: Ints


class PodTables(NamedTuple):
    """A pod."""

    numbers: Ints
    """Its milli cpu and its devices."""
    sizes: Ints
    """Percent of a GPU that a device takes, by GPU type."""
    gain: Ints
    """What a device adds to the usable of the mix: `(types, cpu steps, 101)`."""
    opened: Ints
    """The same on a node where it takes one of so many free GPUs: `(types, cpu steps, free GPUs)`."""


_Kernel = Callable[[Tables, State, PodTables, Ints, NDArray[np.int8]], Ints]


class Kernels(NamedTuple):
    """Score and first GPU of each of `nodes`, `(2, len(nodes))`, given which GPUs can serve, `(gpus, len(nodes))`."""

    amounts: _Kernel
    """For a pod that takes an amount of one GPU."""
    devices: _Kernel
    """For a pod that takes devices, those with least left, or none."""


def _amounts(tables: Tables, state: State, pod: PodTables, nodes: Ints, room: NDArray[np.int8]) -> Ints:
    found = np.empty((2, len(nodes)), dtype=np.int64)
    one, many, value, prices, rates = tables.one, tables.many, tables.value, tables.prices, tables.rates
    sizes, pod_gain, opened = pod.sizes, pod.gain, pod.opened
    kind, remaining, worth = tables.scratch[0], tables.scratch[1], tables.scratch[5]
    for i in range(len(nodes)):
        found[0, i], found[1, i] = _NOWHERE, 0
        if not _any(room, i):
            continue
        cpu = state.cpu[nodes[i]]
        less = cpu - pod.numbers[0]
        now, then = _level(tables.cpu, cpu), _level(tables.cpu, less)
        usable, free = 0, 0
        worth[:] = 0
        for gpu in range(len(room)):
            kind[gpu], remaining[gpu] = state.kind[gpu, nodes[i]], state.remaining[gpu, nodes[i]]
            if remaining[gpu]:  # an exhausted GPU is worth nothing
                usable += one[kind[gpu], then, remaining[gpu]] - one[kind[gpu], now, remaining[gpu]]
                free += remaining[gpu] == _FULL
                for price in range(len(prices)):
                    worth[price] += value[kind[gpu], remaining[gpu], price]
        usable += many[kind[0], then, free] - many[kind[0], now, free]
        before = _least(worth, prices, cpu)
        for gpu in range(len(room)):
            if room[gpu, i]:
                of, full = kind[gpu], remaining[gpu]
                rest = full - min(sizes[of], full)
                gain = usable + pod_gain[of, then, full] + (full == _FULL) * opened[kind[0], then, free]
                gained = _least_moved(worth, value[of, full], value[of, rest], prices, less) - before
                score = (gain * rates[1] + gained * rates[2]) // rates[3]
                if score > found[0, i]:
                    found[0, i], found[1, i] = score, gpu
    return found


def _devices(tables: Tables, state: State, pod: PodTables, nodes: Ints, room: NDArray[np.int8]) -> Ints:
    found = np.empty((2, len(nodes)), dtype=np.int64)
    gpus, worth = tables.scratch[:5, : len(room)], tables.scratch[5]
    remaining, after, ordered, value, prices, rates = (
        gpus[1],
        gpus[2],
        gpus[4],
        tables.value,
        tables.prices,
        tables.rates,
    )
    for i in range(len(nodes)):
        found[0, i], found[1, i] = _NOWHERE, 0
        if pod.numbers[1] and not _any(room, i):
            continue
        cpu = state.cpu[nodes[i]]
        less = cpu - pod.numbers[0]
        for gpu in range(len(room)):
            gpus[0, gpu], gpus[3, gpu] = state.kind[gpu, nodes[i]], room[gpu, i]
            remaining[gpu] = after[gpu] = state.remaining[gpu, nodes[i]]
        found[1, i] = _take(gpus, pod.sizes, pod.numbers[1])
        first = state.kind[0, nodes[i]]
        gain = _fed(tables.fed_cpu, tables.fed_one[first], tables.fed_many[:, first], _falling(after, ordered), less)
        gain -= _fed(
            tables.fed_cpu, tables.fed_one[first], tables.fed_many[:, first], _falling(remaining, ordered), cpu
        )
        for gpu in range(len(room)):
            gain += rates[0] * (remaining[gpu] - after[gpu])
        gained = _gained(value, prices, gpus, worth, cpu, less) if pod.numbers[1] else 0
        found[0, i] = (gain * rates[1] + gained * rates[2]) // rates[3]
    return found


def _any(room: NDArray[np.int8], node: int) -> bool:
    """Return whether any GPU of the node can serve."""
    for gpu in range(len(room)):  # noqa: SIM110 - numba knows loops, not generators
        if room[gpu, node]:
            return True
    return False


def _take(gpus: Ints, sizes: Ints, count: int) -> int:
    """Take devices of the GPUs with least left that can serve; return the first of them, 0 if there is none.

    The rows of `gpus` are types, what is left before and after, and whether each can serve.
    """
    kind, remaining, after, able = gpus[0], gpus[1], gpus[2], gpus[3]
    first = -1
    for _ in range(count):
        chosen = -1
        for gpu in range(len(remaining)):
            if able[gpu] and (chosen < 0 or remaining[gpu] < remaining[chosen]):
                chosen = gpu
        if chosen >= 0:
            able[chosen] = 0
            after[chosen] -= min(sizes[kind[chosen]], remaining[chosen])
            first = chosen if first < 0 else first
    return max(first, 0)


def _gained(value: Ints, prices: Ints, gpus: Ints, worth: Ints, cpu: int, less: int) -> int:
    """Return the change of a node's value, see `potentials.Value`; `gpus` as for `_take`, `worth` for scratch."""
    kind, remaining, after = gpus[0], gpus[1], gpus[2]
    worth[:] = 0
    for gpu in range(len(remaining)):
        for price in range(len(prices)):
            worth[price] += value[kind[gpu], remaining[gpu], price]
    before = _least(worth, prices, cpu)
    for gpu in range(len(remaining)):
        if after[gpu] < remaining[gpu]:
            for price in range(len(prices)):
                worth[price] += value[kind[gpu], after[gpu], price] - value[kind[gpu], remaining[gpu], price]
    return _least(worth, prices, less) - before


def _falling(remaining: Ints, ordered: Ints) -> Ints:
    """Return the rest of the GPUs in `ordered`, the most first."""
    for gpu in range(len(remaining)):
        at = gpu
        while at > 0 and ordered[at - 1] < remaining[gpu]:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = remaining[gpu]
    return ordered


def _fed(cpus: Ints, one: Ints, many: Ints, ordered: Ints, cpu: int) -> int:
    """Return the usable part of a node, as `potentials.Usable`."""
    free = 0
    while free < len(ordered) and ordered[free] == _FULL:
        free += 1
    level = _level(cpus, cpu)
    usable = 0
    for n in range(len(ordered)):
        if ordered[n] == 0:  # the others are exhausted
            break
        while level > 0 and cpus[level - 1] * (n + 1) > cpu:
            level -= 1
        usable += one[level, ordered[n]]
        if n < len(many):
            usable += many[n, level, free]
    return usable


def _least(worth: Ints, prices: Ints, cpu: int) -> int:
    """Return the value at the cpu price with the least value."""
    least: int = worth[0] + prices[0] * cpu
    for price in range(1, len(prices)):
        least = min(least, worth[price] + prices[price] * cpu)
    return least


def _least_moved(worth: Ints, old: Ints, new: Ints, prices: Ints, cpu: int) -> int:
    """Return `_least` where one GPU is worth `new` instead of `old`."""
    least: int = worth[0] - old[0] + new[0] + prices[0] * cpu
    for price in range(1, len(prices)):
        least = min(least, worth[price] - old[price] + new[price] + prices[price] * cpu)
    return least


def _level(steps: Ints, cpu: int) -> int:
    """Return how many of the ascending steps are at most `cpu`."""
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        if steps[middle] <= cpu:
            low = middle + 1
        else:
            high = middle
    return low


plain: Final = Kernels(_amounts, _devices)
"""Uncompiled: very slow."""


@functools.cache
def compiled() -> Kernels | None:
    """Return the kernels compiled by numba; None where it is not installed.

    Loading takes about a second. The first use on a machine compiles for some seconds more; numba caches the result
    beside this file or in the user's cache, and compiles each time if it can write to neither.
    """
    try:
        import numba  # noqa: PLC0415 - an extra, and slow to import
        from numba.extending import register_jitable  # noqa: PLC0415 - same reason
    except ImportError:
        return None
    for part in (_any, _take, _gained, _falling, _fed, _least, _least_moved, _level):
        register_jitable(part)
    try:
        return Kernels(numba.njit(cache=True)(_amounts), numba.njit(cache=True)(_devices))
    except RuntimeError:  # the result cannot be cached
        return Kernels(numba.njit()(_amounts), numba.njit()(_devices))
