"""The openb trace through the server over HTTP: each pod must go where the simulator puts it; fails at the first other.

`scripts/bench replay -- [FOLDER] [--trace NAME] [--seed N] [--ratio R] [--pods N] [--filter-verb choose]`

FOLDER holds the trace's CSV files; else `TESSERA_OPENB` names it, else `../shared/data/openb`. Nodes and pods are
objects of a Kubernetes API in memory. Each pod is filtered, scored where several nodes are left (`choose` leaves one),
and bound, over HTTP in this process; see `tests/harness/replaying.py`. The trace tells parts of GPUs and no memory, so
each GPU has 100 GiB here: a part of n percent asks `aliyun.com/gpu-mem: n`, whole GPUs ask
`tessera.dev/gpu-memory: 100` with isolation hardware.
"""

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness.replaying import Machine, Took, differences, make_machines, pod, simulated
from harness.servers import servers
from tessera.clients.kube import MemoryKube, Object
from tessera.core.cluster.snapshot import Gpu, Node
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.workload.need import Need
from tessera.log import configure
from tessera.sim.workloads import Trace, filling, openb

MODELS = {"V100M16": "V100-16GB", "V100M32": "V100-32GB", "G2": "L4", "G3": "L40S"}
"""Catalog names for the trace's; G2 and G3 are undisclosed there, and stand for any two models that differ."""
SHARED = Sharing(modes=(Mode.WHOLE, Mode.MEMORY_SHARE))
GIB = 100
"""Memory of every GPU."""


def machine(number: int, node: Node) -> Machine:
    """Return a node of the trace; its number in the order of ties is its name."""
    gpus = tuple(
        Gpu(index=each.index, model=model(catalog(each.model.name)), memory_mib=GIB * 1024, sharing=SHARED)
        for each in node.gpus
    )
    return Machine(name=f"n{number:05}", gpus=gpus, cpu_milli=node.cpu_milli, memory_mib=node.memory_mib)


def catalog(name: str) -> str:
    """Return the catalog's name for a model of the trace."""
    return MODELS.get(name, name)


def request(number: int, need: Need) -> Object:
    """Return a pod of the trace."""
    limits, grade = dict[str, int](), "none"
    for request in need.requests:
        if request.compute_percent:
            limits = {"aliyun.com/gpu-mem": request.compute_percent}
        else:
            limits, grade = {"tessera.dev/gpu-memory": GIB, "tessera.dev/gpu-count": request.count}, "hardware"
    models = {"gpu_model": ",".join(map(catalog, need.models))} if need.models else {}
    return pod(
        f"p{number:06}",
        limits,
        cpu_milli=need.cpu_milli,
        memory_mib=need.memory_mib,
        isolation=grade,
        **models,
    )


def scene(trace: Trace, seed: int, ratio: float) -> tuple[list[Machine], list[Object]]:
    """Return the nodes, named in the order of ties, and the pods in the order they arrive."""
    workload = filling(trace, seed, ratio)
    machines = [machine(workload.rank[index], node) for index, node in enumerate(trace.nodes)]
    return machines, [request(index, workload.kinds[each.kind]) for index, each in enumerate(workload.arrivals)]


def table(times: Sequence[Took], wall_s: float) -> None:
    """Print how long decisions took."""
    print(f"{len(times) / wall_s:.0f} pods a second, the API in memory included\n")
    print(f"{'milliseconds':14} {'median':>8} {'95 %':>8} {'99 %':>8} {'most':>8}")
    for name, found in (
        ("filter", [took.filter_s for took in times]),
        ("prioritize", [took.prioritize_s for took in times if took.prioritize_s > 1e-5]),
        ("bind", [took.bind_s for took in times]),
        ("together", [took.total_s for took in times]),
    ):
        cuts = statistics.quantiles(found, n=100)
        quantiles = (statistics.median(found), cuts[94], cuts[98], max(found))
        print(f"{name:14} {' '.join(f'{1000 * each:8.2f}' for each in quantiles)}")


async def compare(machines: Sequence[Machine], pods: Sequence[Object], filter_verb: str) -> int:
    """Place all pods both ways and print what was found; 1 where they differ."""
    log = simulated(machines, pods, [float("inf")] * len(pods))
    placed = sum(spot is not None for spot in log.spots)
    print(f"{len(machines)} nodes, {len(pods)} pods, {placed} placed by the simulator", flush=True)
    kube = MemoryKube()
    await make_machines(kube, machines)
    async with servers(kube) as (server,):
        began = time.perf_counter()
        times, different = await differences(kube, server, machines, pods, log, filter_verb=filter_verb)
        table(times, time.perf_counter() - began)
    print(f"FAIL {different}" if different else "ok   every pod is where the simulator has it, share for share")
    return int(bool(different))


def main() -> int:
    """Run the benchmark; 0 when all pods are alike, 1 otherwise, 2 without the traces."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder of the openb CSV files")
    parser.add_argument("--trace", default="default")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--ratio", type=float, default=1.3, help="demand of the pods over the capacity")
    parser.add_argument("--pods", type=int, help="only the first so many")
    parser.add_argument("--filter-verb", choices=["filter", "choose"], default="filter", help="what names nodes")
    options = parser.parse_args()
    beside = Path(__file__).resolve().parents[1].parent / "shared/data/openb"
    folder = Path(options.folder or os.environ.get("TESSERA_OPENB") or beside)
    if not folder.is_dir():
        sys.stderr.write(
            f"error: {folder} is not there; name the folder of the openb CSV files, or set TESSERA_OPENB\n"
        )
        return 2
    configure("error", "json")
    machines, pods = scene(openb.read(folder, options.trace), options.seed, options.ratio)
    return asyncio.run(compare(machines, pods[: options.pods], options.filter_verb))


if __name__ == "__main__":
    sys.exit(main())
