"""Pods a second through a real kube-scheduler with and without Tessera's extender; fails below the floor.

`scripts/bench scheduling -- [--nodes N] [--pods N] [--rounds N] [--requests-per-s N] [--all-nodes]`

A control plane without kubelets (needs what `scripts/testbed` needs), nodes of 8 A100s that are objects alone, and pods
that ask `tessera.dev/gpu-memory: 6`. Without the extender the cluster's own scheduler counts units of memory; with it
`tessera-scheduler` asks `tessera server` for nodes, scores and the binding, of which the assignment is a part. Each
scheduler is paused while its pods are created; the time counts from when it goes on until the last pod is bound. The
two take turns, and of the rounds the best of each counts. Both schedulers may send as many requests a second as
upstream lets them by default, 50; `--requests-per-s 2000` shows what is left when nothing holds them back, and
`--all-nodes` lets the scheduler without the extender look at all nodes as well, not at a sample. Floor: with the
extender at least 0.8 of the pods a second, at upstream's default.

Under each round stand milliseconds of processor time for each pod, by process, and writes of GPUNodes for each pod.
Others on the machine change these less than pods a second.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple

from kube.fakenodes import FakeNode, connected, delete_pods, make_nodes
from tessera.clients.kube import PODS, Kube, Object, Store
from testbed import controlplane, parts
from testbed.cluster import Cluster, Desired, default_folder
from testbed.namespaces import Namespaces, environment
from testbed.programs import programs

FLOOR = 0.8
SCHEDULERS = {"default-scheduler": "scheduler", "tessera-scheduler": "tessera-scheduler"}
"""By the name that pods have for them, the process of the testbed."""
UPSTREAM_PER_S = 50
"""Source: kubernetes `pkg/scheduler/apis/config/v1/defaults.go`, `clientConnection.qps`; its burst is twice that."""
LONGEST_S = 600
SETTLE_S = 2
"""After the pods were made: their events arrive everywhere, and are not counted."""
MEASURED = ("apiserver", "etcd", "scheduler", "tessera-scheduler", "server", "controller", "controller-manager")


def pod(name: str, scheduler: str) -> Object:
    """Return a pod that asks for 6 GiB and nothing that a node could lack."""
    limits = {"tessera.dev/gpu-memory": "6"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": {"cpu": "100m"}}}
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": {"made-by": "test"},
        "annotations": {"tessera.dev/isolation": "none"},
    }
    return {"metadata": metadata, "spec": {"schedulerName": scheduler, "containers": [container]}}


class Round(NamedTuple):
    """What was found in one round."""

    pods_per_s: float
    processor_ms: dict[str, float]
    """Of each process, for each pod; `bench` is this one, which watches."""
    writes: float
    """Of GPUNodes, for each pod."""


def spent_ms(cluster: Cluster) -> dict[str, float]:
    """Return the processor time that each process has had. Source: proc(5), /proc/pid/stat, utime and stime."""
    found = {"bench": 1000 * time.process_time()}
    for name in MEASURED:
        process = cluster.processes.get(name)
        if process is not None:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = 1000 * sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return found


def writes(cluster: Cluster) -> int:
    """Return how many writes of GPUNodes the API server has answered."""
    lines = cluster.kubectl("get", "--raw", "/metrics").splitlines()
    desired = re.compile(r"apiserver_request_total\{(?=.*resource=\"gpunodes\")(?=.*verb=\"PATCH\").*\} (\S+)")
    return round(sum(float(found[1]) for found in map(desired.match, lines) if found))


async def one_round(cluster: Cluster, kube: Kube, scheduler: str, count: int) -> Round:
    """Return what binding so many pods takes."""
    store = Store(kube, PODS)
    following = asyncio.create_task(store.run())
    await store.synced()
    cluster.processes.pause(SCHEDULERS[scheduler])
    try:
        for first in range(0, count, 50):
            numbers = range(first, min(first + 50, count))
            await asyncio.gather(*(kube.create(PODS, pod(f"p-{number}", scheduler)) for number in numbers))
        await asyncio.sleep(SETTLE_S)
        written, before = writes(cluster), spent_ms(cluster)
    finally:
        began = time.perf_counter()
        cluster.processes.resume(SCHEDULERS[scheduler])
    async with asyncio.timeout(LONGEST_S):
        while sum(bool(each["spec"].get("nodeName")) for each in store.objects.values()) < count:  # noqa: ASYNC110 - often enough
            await asyncio.sleep(0.05)
    took_s, after = time.perf_counter() - began, spent_ms(cluster)
    following.cancel()
    found = Round(
        count / took_s,
        {name: (after[name] - before[name]) / count for name in before},
        (writes(cluster) - written) / count,
    )
    await delete_pods(kube)
    return found


def limit(cluster: Cluster, requests_per_s: int, *, all_nodes: bool = False) -> None:
    """Start both schedulers anew with so many requests a second, and bursts of twice that.

    `all_nodes` makes both look at all nodes; with the extender that is so anyway.
    """
    settings = cluster.settings
    kubeconfig = cluster.account_kubeconfig("scheduler")
    commands = {
        "scheduler": controlplane.scheduler(settings),
        "tessera-scheduler": parts.command("tessera-scheduler", settings, kubeconfig),
    }
    holder = cluster.processes.get("namespaces")
    assert holder is not None
    for name, command in commands.items():
        path = Path(next(each.partition("=")[2] for each in command if each.startswith("--config=")))
        configuration = json.loads(path.read_text())
        configuration["clientConnection"] |= {"qps": requests_per_s, "burst": 2 * requests_per_s}
        configuration |= {"percentageOfNodesToScore": 100} if all_nodes else {}
        path.write_text(json.dumps(configuration))
        cluster.processes.stop(name)
        cluster.processes.start(name, command, inside=Namespaces(holder).enter(), environment=environment())


async def measure(cluster: Cluster, nodes: int, pods: int, rounds: int) -> dict[str, float]:
    """Return the best of all rounds by scheduler."""
    best = dict.fromkeys(SCHEDULERS, 0.0)
    async with connected(cluster) as kube:
        await make_nodes(kube, [FakeNode(name=f"fake-{number}") for number in range(nodes)])
        for number in range(rounds):
            for scheduler in SCHEDULERS:
                found = await one_round(cluster, kube, scheduler, pods)
                print(f"round {number + 1}  {scheduler:18} {found.pods_per_s:8.1f} pods/s", flush=True)
                parts = "  ".join(f"{name} {ms:.2f}" for name, ms in found.processor_ms.items())
                print(f"         {sum(found.processor_ms.values()):.2f} ms: {parts}", flush=True)
                print(f"         {found.writes:.2f} writes of GPUNodes", flush=True)
                best[scheduler] = max(best[scheduler], found.pods_per_s)
    return best


def main() -> int:
    """Print a table; return 1 below the floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests-per-s", type=int, default=UPSTREAM_PER_S)
    parser.add_argument("--all-nodes", action="store_true")
    given = parser.parse_args()
    cluster = Cluster(default_folder("bench"), programs(lambda *_: None))
    cluster.down()
    try:
        # With the admission policies every one of these pods would go to tessera-scheduler.
        cluster.up(Desired(nodes=0, scheduler=True, admission=False))
        limit(cluster, given.requests_per_s, all_nodes=given.all_nodes)
        best = asyncio.run(measure(cluster, given.nodes, given.pods, given.rounds))
        memory = {each.name: each.memory_mib for each in cluster.components()}
    finally:
        cluster.down()
    ratio = best["tessera-scheduler"] / best["default-scheduler"]
    print(
        f"\n{given.nodes} nodes, {given.pods} pods, {given.requests_per_s} requests/s: ratio {ratio:.2f}, floor {FLOOR}"
    )
    print(f"memory: server {memory['server']} MiB, tessera-scheduler {memory['tessera-scheduler']} MiB")
    return 0 if ratio >= FLOOR or given.requests_per_s != UPSTREAM_PER_S else 1


if __name__ == "__main__":
    sys.exit(main())
