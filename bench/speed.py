"""How fast the packer decides, on the openb trace `default`; fails below the floors.

`python bench/speed.py [FOLDER] [--rounds N]`

FOLDER holds the trace's CSV files; else `TESSERA_OPENB` names it, else `../shared/data/openb`. A decision is: node and
GPUs chosen and allocated, scores of changed nodes renewed. One thread, processor time, the best of the rounds.

kept      scores of unchanged nodes are kept, the mix is known beforehand; the whole trace up to 130 % of the capacity
learned   the same, with the mix learned from arrivals: now and then all scores are computed anew
rescored  every node is scored for every pod; the first 1,500 pods, when most nodes still fit

`arrays` is Tessera's policy without the compiled kernels that the extra `fast` gives it.

The references, timed in the same run, are numpy gathering what is left of the GPUs of 64 nodes, about as many as
changed since a kind of pod was last decided on, and of all nodes; `refs` says how many of the one (kept, learned) or
the other (rescored) a decision takes. Growth is the time of a decision on ten times the nodes, with the same pods, over
that on the trace's own.

Floors, for FGD and Tessera's policy: kept at least 20,000 decisions a second, or at most 75 references, which is the
same on the machine of docs/benchmarks-speed.md; rescored at least 1,000 a second, or at most 80. The references make
the floors hold on slower and on busy machines.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from tessera.core.cluster.snapshot import NodeName, Snapshot
from tessera.core.packing.fit import Fleet
from tessera.core.packing.pack import Packer
from tessera.core.packing.pack.tessera import Tessera
from tessera.sim.workloads import Workload, filling, openb

POLICIES = ("first-fit", "best-fit", "fgd", "tessera", "arrays")
RESCORED = 1500
FLOORS = {
    ("fgd", "kept"): (20_000, 75),
    ("tessera", "kept"): (20_000, 75),
    ("fgd", "rescored"): (1_000, 80),
    ("tessera", "rescored"): (1_000, 80),
}
"""At least so many decisions a second, or at most so many references each."""
CHANGED = 64


class Timed(NamedTuple):
    """How long decisions took."""

    decisions: int
    seconds: float

    @property
    def each_us(self) -> float:
        """Microseconds a decision."""
        return 1e6 * self.seconds / self.decisions

    @property
    def per_s(self) -> float:
        """Decisions a second."""
        return self.decisions / self.seconds


def decide(workload: Workload, policy: str, how: str) -> Timed:
    """Return how long one policy took for a workload's arrivals."""
    mix = None if how == "learned" else workload.mix
    fleet = Fleet.of(workload.snapshot)
    chosen = Tessera(fleet) if policy == "arrays" else policy
    packer = Packer(fleet, chosen, rank=workload.rank, mix=mix, keep_scores=how != "rescored")
    kinds = [packer.intern(need) for need in workload.kinds]
    arrivals = [kinds[arrival.kind] for arrival in workload.arrivals][: RESCORED if how == "rescored" else None]
    begin = time.process_time()
    for kind in arrivals:
        packer.place(kind)
    return Timed(len(arrivals), time.process_time() - begin)


def best(workload: Workload, policy: str, how: str, rounds: int) -> Timed:
    """Return the fastest of some rounds."""
    return min((decide(workload, policy, how) for _ in range(rounds)), key=lambda timed: timed.seconds)


def reference_us(nodes: int, taken: int) -> float:
    """Return the microseconds of one gather of `taken` columns of `(8, nodes)` integers, the best of five rounds."""
    left = np.random.default_rng(0).integers(0, 101, (8, nodes))
    chosen = np.arange(taken) * (nodes // taken)
    found = []
    for _ in range(5):
        begin = time.process_time()
        for _ in range(5_000):
            left.take(chosen, 1)
        found.append(time.process_time() - begin)
    return min(found) / 5_000 * 1e6


def grown(workload: Workload, times: int) -> Workload:
    """Return the workload on so many copies of every node."""
    nodes = workload.snapshot.nodes
    copies = (
        msgspec.structs.replace(node, name=NodeName(f"{node.name}-{copy}")) for copy in range(times) for node in nodes
    )
    rank = tuple(place + copy * len(nodes) for copy in range(times) for place in workload.rank)
    return msgspec.structs.replace(workload, snapshot=Snapshot(nodes=tuple(copies)), rank=rank)


def main() -> int:
    """Run the benchmark; 0 when no floor is broken, 1 otherwise, 2 without the trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder of the openb CSV files")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    beside = Path(__file__).resolve().parents[1].parent / "shared/data/openb"
    folder = Path(options.folder or os.environ.get("TESSERA_OPENB") or beside)
    if not folder.is_dir():
        sys.stderr.write(
            f"error: {folder} is not there; name the folder of the openb CSV files, or set TESSERA_OPENB\n"
        )
        return 2
    workload = filling(openb.read(folder, "default"), 42)
    wide = grown(workload, 10)
    nodes = len(workload.snapshot.nodes)
    few, all_nodes = reference_us(nodes, CHANGED), reference_us(nodes, nodes)
    print(f"{nodes} nodes, {len(workload.arrivals)} pods; references {few:.2f} us and {all_nodes:.2f} us")
    print(f"{'policy':10} {'scores':9} {'decisions/s':>12} {'us':>8} {'refs':>7} {f'growth to {10 * nodes}':>16}")
    below = []
    for policy in POLICIES:
        for how in ("kept", "learned", "rescored"):
            timed = best(workload, policy, how, options.rounds)
            growth = best(wide, policy, how, 1).each_us / timed.each_us
            refs = timed.each_us / (all_nodes if how == "rescored" else few)
            print(f"{policy:10} {how:9} {timed.per_s:12,.0f} {timed.each_us:8.1f} {refs:7.1f} {growth:15.1f}x")
            per_s, most = FLOORS.get((policy, how), (0.0, 0.0))
            if timed.per_s < per_s and refs > most:
                below.append(f"{policy} {how}")
    for name in below:
        print(f"FAIL {name} is below its floor")
    return int(bool(below))


if __name__ == "__main__":
    sys.exit(main())
