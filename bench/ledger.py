"""How fast the ledger of a live cluster answers: filter and scores on 1,000 and 5,000 nodes of 8 GPUs, and its changes.

`python bench/ledger.py [--rounds N]`

The nodes are of two GPU models, two thirds full of pods of nine shapes. Each repetition of `filter`, `scores` and
`choose` follows a pod that came or left, as in a cluster, so that kept scores are renewed for the node that changed.
Processor time of one thread, the median of the rounds.

The reference, timed in the same run, is a plain dictionary built from as many names and one text; `refs` says how many
of it a call takes. Growth is the time on 5,000 nodes over that on 1,000.
"""

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from tessera.core.cluster.snapshot import Gpu, Node, NodeName
from tessera.core.gpu.gpumodels import model
from tessera.core.packing.ledger import Ledger, LedgerEntry
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need, PodKey

FEW, MANY = 1_000, 5_000
GPUS = 8
MODELS = tuple(model(name) for name in ("A100-80GB", "H100-80GB"))


def need(memory_mib: int, isolation: Isolation = Isolation.NONE, count: int = 1, **more: int) -> Need:
    """Return a need for memory of so many GPUs."""
    request = DeviceRequest(
        resource="tessera.dev/gpu-memory",
        form=Form.NEED,
        memory_mib=memory_mib,
        isolation=isolation,
        count=count,
        compute_percent=more.get("compute_percent", 0),
    )
    return Need(cpu_milli=more.get("cpu_milli", 2_000), memory_mib=4_096, requests=(request,))


SHAPES = {
    "6 GiB": need(6 * 1024),
    "20 GiB, 30 %": need(20 * 1024, compute_percent=30),
    "10 GiB hardware": need(10 * 1024, Isolation.HARDWARE),
    "40 GiB hardware": need(40 * 1024, Isolation.HARDWARE),
    "whole GPU": Need(cpu_milli=8_000, memory_mib=4_096, requests=(DeviceRequest(resource="nvidia.com/gpu"),)),
    "4 whole GPUs": Need(
        cpu_milli=32_000, memory_mib=4_096, requests=(DeviceRequest(resource="nvidia.com/gpu", count=4),)
    ),
    "2 x 30 GiB": need(30 * 1024, count=2),
    "share of 5 GiB": Need(
        requests=(DeviceRequest(resource="aliyun.com/gpu-mem", form=Form.SHARE, memory_mib=5 * 1024),)
    ),
    "96 GiB (fits nowhere)": need(96 * 1024),
}


FLOORS = {
    "filter a new": 120.0,
    "filter": 16.0,
    "scores": 8.0,
    "put_pod": 1.0,
    "drop_pod": 1.0,
    "choose": 3.0,
    "put_node": 4.0,
    "drop_node": 1.0,
}
"""The most references that a call may take on the larger fleet."""
GROWTH = 4.5
"""The most that filter and scores of all shapes may take longer on five times the nodes."""


class Timed(NamedTuple):
    """Microseconds of the calls on one fleet."""

    calls: dict[str, float]
    reference_us: float


def nodes_of(count: int) -> list[Node]:
    """Return the nodes, each with GPU objects of its own, as they are read from an API server."""
    return [
        Node(
            name=NodeName(f"node-{i:05}"),
            cpu_milli=192_000,
            memory_mib=1 << 20,
            gpus=tuple(
                Gpu(index=g, model=MODELS[i % 3 == 0], memory_mib=MODELS[i % 3 == 0].memory_mib, uuid=f"GPU-{i}-{g}")
                for g in range(GPUS)
            ),
        )
        for i in range(count)
    ]


def filled(nodes: Sequence[Node]) -> tuple[Ledger, list[LedgerEntry]]:
    """Return the ledger of nodes two thirds full, and its pods."""
    ledger, rng = Ledger(), np.random.default_rng(1)
    for each in nodes:
        ledger.put_node(each)
    pods: list[LedgerEntry] = []
    shapes = [shape for name, shape in SHAPES.items() if "nowhere" not in name]
    places = [node.name for node in nodes]
    for number in range(8 * len(nodes)):
        shape, node = shapes[rng.integers(len(shapes))], places[rng.integers(len(places))]
        uid = f"uid-{number}"
        ledger.arrive(uid, shape)
        shares = ledger.choose(shape, node)
        if not isinstance(shares, str):
            pods.append(LedgerEntry(uid, PodKey(f"default/pod-{number}"), node, shape, shares))
            ledger.put_pod(pods[-1])
    return ledger, pods


def median_us(call: Callable[[], object], rounds: int, between: Callable[[], object] = lambda: None) -> float:
    """Return the microseconds of a call, the median, each after something happened that is not timed."""
    found = []
    for _ in range(rounds):
        between()
        begin = time.process_time_ns()
        call()
        found.append(time.process_time_ns() - begin)
    return statistics.median(found) / 1e3


def measure(count: int, rounds: int) -> Timed:
    """Return how long calls take on so many nodes."""
    nodes = nodes_of(count)
    ledger, pods = filled(nodes)
    names = [str(node.name) for node in nodes]
    turn = iter(pods * 100)

    def change() -> None:
        pod = next(turn)
        ledger.drop_pod(pod.id)
        ledger.put_pod(pod)

    calls: dict[str, float] = {}
    for name, shape in SHAPES.items():
        ledger.filter(shape, names)
        calls[f"filter {name}"] = median_us(partial(ledger.filter, shape, names), rounds, change)
        fitting = ledger.filter(shape, names).fitting
        calls[f"scores {name}"] = median_us(partial(ledger.scores, shape, fitting), rounds, change)
    news = iter(range(1, rounds + 1))
    calls["filter a new shape"] = median_us(lambda: ledger.filter(need(6 * 1024, cpu_milli=next(news)), names), rounds)
    pod = pods[0]
    calls["drop_pod"] = median_us(lambda: ledger.drop_pod(pod.id), rounds, lambda: ledger.put_pod(pod))
    calls["put_pod"] = median_us(lambda: ledger.put_pod(pod), rounds, lambda: ledger.drop_pod(pod.id))
    calls["choose"] = median_us(lambda: ledger.choose(SHAPES["6 GiB"], names[1]), rounds, change)
    other = Node(name=nodes[7].name, cpu_milli=192_000, memory_mib=1 << 20, gpus=nodes[7].gpus[:7])
    calls["put_node, one GPU less"] = median_us(
        lambda: ledger.put_node(other), rounds, lambda: ledger.put_node(nodes[7])
    )
    larger = Node(name=nodes[8].name, cpu_milli=64_000, memory_mib=1 << 20, gpus=nodes_of(9)[8].gpus)
    calls["put_node, other cpu"] = median_us(lambda: ledger.put_node(larger), rounds, lambda: ledger.put_node(nodes[8]))
    calls["put_node, the same"] = median_us(lambda: ledger.put_node(nodes[9]), rounds)
    calls["drop_node"] = median_us(lambda: ledger.drop_node(names[5]), rounds, lambda: ledger.put_node(nodes[5]))
    return Timed(calls, median_us(lambda: dict.fromkeys(names, "reason"), rounds))


def memory_mib(count: int) -> float:
    """Return the memory of a ledger, with its nodes, a pod on each, and what is kept once each shape was asked for."""
    tracemalloc.start()
    nodes = nodes_of(count)
    names = [str(node.name) for node in nodes]
    ledger, shapes = Ledger(), list(SHAPES.values())
    for number, node in enumerate(nodes):
        ledger.put_node(node)
        shares = ledger.choose(shapes[0], node.name)
        assert not isinstance(shares, str)
        ledger.put_pod(LedgerEntry(f"{number}", PodKey(f"default/{number}"), node.name, shapes[0], shares))
    for shape in shapes:
        ledger.filter(shape, names)
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / (1 << 20)


def growth(few: Timed, many: Timed, verb: str) -> float:
    """Return the time of all shapes on many nodes over that on few."""
    sums = [sum(timed.calls[f"{verb} {shape}"] for shape in SHAPES) for timed in (few, many)]
    return sums[1] / sums[0]


def main() -> int:
    """Run the benchmark; 0 when no floor is broken, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101)
    options = parser.parse_args()
    few, many = measure(FEW, options.rounds), measure(MANY, options.rounds)
    print(f"reference {few.reference_us:.0f} us for {FEW} names, {many.reference_us:.0f} us for {MANY}")
    print(f"{'call':34} {f'us, {FEW} nodes':>16} {f'us, {MANY} nodes':>16} {'growth':>7} {'refs':>6} {'floor':>6}")
    below = []
    for name, us in many.calls.items():
        most = next((most for start, most in FLOORS.items() if name.startswith(start)), 0.0)
        refs = us / many.reference_us
        print(f"{name:34} {few.calls[name]:16.0f} {us:16.0f} {us / few.calls[name]:7.1f} {refs:6.2f} {most:6.1f}")
        if refs > most:
            below.append(name)
    for verb in ("filter", "scores"):
        times = growth(few, many, verb)
        print(f"{verb} of all shapes: {times:.1f} times as long on {MANY // FEW} times the nodes (limit {GROWTH})")
        if times > GROWTH:
            below.append(f"growth of {verb}")
    print(f"memory of {MANY} nodes: {memory_mib(MANY):.0f} MiB")
    for name in below:
        print(f"FAIL {name} exceeds its limit")
    return int(bool(below))


if __name__ == "__main__":
    sys.exit(main())
