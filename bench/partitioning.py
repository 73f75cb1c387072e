"""How long the controller plans slices for pods that wait, on 1,000 GPUs; and that it decides the same again.

`python bench/partitioning.py [--rounds N]`

The pods ask seven kinds of device by name, one to eight each. `fits` is a batch that finds room, `full` one of which a
part waits, `again` the look after `full`, when nothing has changed but what was written, and `later` the one when what
was written may move. Processor time, the median.

The reference, timed in the same run, is one plan of the same pods on the same empty fleet by `core.packing.plan`, which
is what `tessera plan` does; `refs` says how many of it a decision takes. Where some pods are served by what is there, a
decision may be two plans.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from tessera.core.cluster.gpunodestate import GpuNodeState
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Snapshot
from tessera.core.gpu.gpumodels import model
from tessera.core.packing.partitioning import PartitioningLimits, PartitioningMemory, PartitioningState, advance
from tessera.core.packing.plan import plan
from tessera.core.workload.need import DeviceRequest, Need, Pod, PodKey

NODES, GPUS = 125, 8
MODELS = tuple(model(name) for name in ("A100-40GB", "H100-80GB"))
KINDS = ("gpu", "mig-1g.5gb", "mig-2g.10gb", "mig-3g.20gb", "mig-1g.10gb", "mig-3g.40gb", "mig-7g.80gb")
LIMITS = PartitioningLimits(idle_s=0, longest_s=0)
CASES = {"fits": (500, 2.5), "full": (2_500, 2.5)}
"""Pods of a batch, and the most references that its decision may take."""
PASSES = {"again": (1.0, 2.5), "later": (LIMITS.protect_s + 1.0, 3.5)}
"""When one looks at the second batch again, and the most references that this may take."""


def fleet() -> tuple[Node, ...]:
    """Return the nodes, half of each model."""
    return tuple(
        Node(
            name=NodeName(f"node-{i:03}"),
            cpu_milli=96_000,
            memory_mib=1 << 20,
            gpus=tuple(
                Gpu(index=g, model=MODELS[i % 2], memory_mib=MODELS[i % 2].memory_mib, uuid=f"GPU-{i}-{g}")
                for g in range(GPUS)
            ),
        )
        for i in range(NODES)
    )


def batch(count: int) -> tuple[Pod, ...]:
    """Return the waiting pods."""
    rng = np.random.default_rng(1)
    pods = []
    for number in range(count):
        kind = str(rng.choice(KINDS))
        request = DeviceRequest(
            resource=f"nvidia.com/{kind}", count=int(rng.choice((1, 1, 2, 4, 8) if kind == "gpu" else (1, 1, 1, 2)))
        )
        need = Need(cpu_milli=int(rng.choice((500, 1_000, 2_000))), memory_mib=1_024, requests=(request,))
        pods.append(Pod(key=PodKey(f"default/pod-{number}"), need=need))
    return tuple(pods)


def state_of(pods: tuple[Pod, ...]) -> PartitioningState:
    """Return the cluster with these pods waiting and nothing cut."""
    nodes = fleet()
    states = tuple(GpuNodeState(name=node.name, gpus=node.gpus, reported=True) for node in nodes)
    return PartitioningState(nodes=nodes, states=states, pending=pods)


def after(observed: PartitioningState) -> tuple[PartitioningMemory, PartitioningState]:
    """Return the memory and the cluster after a decision was written."""
    memory, decision = advance(PartitioningMemory(), observed, 0.0, LIMITS)
    desired = dict(decision.desired)
    states = tuple(msgspec.structs.replace(each, desired=desired.get(each.name, ())) for each in observed.states)
    return memory, msgspec.structs.replace(observed, states=states)


def median_s(call: Callable[[], object], rounds: int) -> float:
    """Return the processor seconds of a call, the median."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def main() -> int:
    """Run the benchmark; 0 when no floor is broken, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"{NODES * GPUS} GPUs; processor seconds")
    print(f"{'case':8} {'pods':>6} {'waiting':>8} {'s':>8} {'plan, s':>8} {'refs':>6} {'floor':>6}")
    broken = []
    for case, (count, most) in CASES.items():
        observed = state_of(batch(count))
        decisions = [advance(PartitioningMemory(), observed, 0.0, LIMITS)[1] for _ in range(2)]
        if decisions[0] != decisions[1]:
            broken.append(f"{case}: two decisions about the same differ")
        snapshot = Snapshot(nodes=observed.nodes, pending=observed.pending)
        reference_s = median_s(partial(plan, snapshot), rounds)
        memory, later = after(observed)
        calls = {case: (partial(advance, PartitioningMemory(), observed, 0.0, LIMITS), most)}
        if case == "full":
            for name, (now_s, floor) in PASSES.items():
                calls[name] = (partial(advance, memory, later, now_s, LIMITS), floor)
                if advance(memory, later, now_s, LIMITS)[1].desired:
                    broken.append(f"{name}: another look decides something else")
        for name, (call, floor) in calls.items():
            taken_s = median_s(call, rounds)
            refs = taken_s / reference_s
            waiting = len(decisions[0].pending or ())
            print(f"{name:8} {count:6} {waiting:8} {taken_s:8.2f} {reference_s:8.2f} {refs:6.2f} {floor:6.1f}")
            if refs > floor:
                broken.append(f"{name}: {refs:.2f} references, at most {floor}")
    for each in broken:
        print(f"below the floor: {each}", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
