"""How long a scrape of a full node takes, and what observing it costs; fails above the floors.

`python bench/scrape.py [--scrapes N] [--observations N]`

8 simulated H100 of 7 MIG instances each, of which each is shared by 4 containers with a process: NVML's calls go to
nvmlsim, /proc is a folder with a control group for each process, HTTP is over the loopback.

A scrape answers what was observed last, so it waits for no driver. FLOORS: the 99th percentile of a scrape; the
processor time of one observation and one scrape, in percent of a core where both are done every 15 s; the series, at
the most `series_bound`. What docs/metrics.md has of series and bytes must be what is measured.
"""

import argparse
import asyncio
import ctypes
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tessera.agent.exporter import Exporter, NodeContainers
from tessera.clients.gpu import GpuDriver, NvmlDriver
from tessera.clients.kube import Object
from tessera.core.cluster.gpunodestate import UnhealthyDevice
from tessera.core.cluster.snapshot import Gpu
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.health import Health
from tessera.core.usage.nodemetrics import series_bound
from tessera.log import configure, logger
from tessera.processports import MetricsPort, serving_metrics
from tessera.sim.nvmlsim import Machine, Process, create_state, library

GPUS, CLIENTS = 8, 4
PROFILE = "1g.10gb"
STARTS = range(7)
EVERY_S = 15.0
_SAME = 0.005
FLOORS = {"scrape p99 ms": 50.0, "core at 15 s, percent": 1.0}


class Pods:
    """The pods of the node."""

    blind = False

    def __init__(self, count: int) -> None:
        self._pods = [_pod(number) for number in range(count)]

    def pods(self) -> list[Object]:
        """Return them."""
        return self._pods


def _uid(number: int) -> str:
    return f"0f0f0f0f-1111-2222-3333-{number:012x}"


def _pod(number: int) -> Object:
    status = {"containerStatuses": [{"name": "main", "containerID": f"containerd://{number:064x}"}]}
    return {"metadata": {"namespace": "team", "name": f"pod-{number}", "uid": _uid(number)}, "status": status}


class Node(NamedTuple):
    """What else the exporter asks of an agent."""

    entries: list[AgentAllocation]
    gpus: tuple[Gpu, ...]
    health: Health = Health()
    devices_of_orphans: tuple[UnhealthyDevice, ...] = ()


async def fill(driver: GpuDriver, machine: Machine, proc: Path) -> tuple[Inventory, list[AgentAllocation]]:
    """Partition all GPUs, put a process of a container on each replica, and return what is allocated."""
    for facts in (await driver.inventory()).gpus:
        await driver.set_mig(facts.uuid, enabled=True)
        for start in STARTS:
            await driver.create_instance(facts.uuid, Placement(start, 1, PROFILE))
    inventory = await driver.inventory()
    entries: list[AgentAllocation] = []
    (proc / "self/ns").mkdir(parents=True)
    for facts in inventory.gpus:
        for instance in facts.instances:
            for replica in range(CLIENTS):
                number = len(entries)
                use = AllocatedDevice(device=DeviceId(facts.uuid, instance.placement), exclusivity=Exclusivity.REPLICA)
                entries.append(
                    AgentAllocation(
                        resource=f"nvidia.com/mig-{PROFILE}.shared",
                        ids=(f"{instance.uuid}::{replica}",),
                        uses=(use,),
                        uid=_uid(number),
                        pod=f"team/pod-{number}",
                        container="main",
                    )
                )
                on, part = instance.gpu_instance, instance.compute_instance
                pid = 10_000 + number
                process = Process(pid=pid, memory_mib=512, sm_percent=20, gpu_instance=on, compute_instance=part)
                machine.add_process(facts.index, process)
                (proc / str(pid)).mkdir()
                name = f"0::/kubepods/besteffort/pod{_uid(number)}/{number:064x}\n"
                (proc / str(pid) / "cgroup").write_text(name)
    return inventory, entries


async def scraped(port: int) -> bytes:
    """Return the metrics that are answered at a port."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


async def measure(folder: Path, scrapes: int, observations: int) -> dict[str, float]:
    """Return what was measured."""
    create_state(folder / "state", [f"{GPUS}xH100-80GB"])
    os.environ["TESSERA_NVMLSIM_STATE"] = str(folder / "state")
    with Machine(folder / "state") as machine:
        async with await NvmlDriver.open() as driver:
            inventory, entries = await fill(driver, machine, folder / "proc")
            gpus = tuple(
                Gpu(
                    index=facts.index,
                    uuid=facts.uuid,
                    model=facts.model,
                    memory_mib=facts.memory_mib,
                    sharing=Sharing(modes=(Mode.MIG_MPS,), layout=facts.layout, replicas=((PROFILE, CLIENTS),)),
                )
                for facts in inventory.gpus
            )
            node = Node(entries, gpus)
            containers = NodeContainers(node, Pods(len(entries)), folder / "proc", node)
            exporter = Exporter("n1", driver, containers, node, node, logger())
            await exporter.observe()
            began_s = time.process_time()
            for _ in range(observations):
                await exporter.observe()
            observing_s = (time.process_time() - began_s) / observations
            async with serving_metrics(MetricsPort(port=0), exporter.render) as port:
                times_s, text = [], b""
                began_s = time.process_time()
                for _ in range(scrapes):
                    asked_s = time.perf_counter()
                    text = await scraped(port)
                    times_s.append(time.perf_counter() - asked_s)
                scraping_s = (time.process_time() - began_s) / scrapes
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    bound = series_bound(GPUS, GPUS * len(STARTS), len(entries)) + 3
    assert 0 < series <= bound, (series, bound)
    return {
        "series": series,
        "bound": bound,
        "bytes": len(text),
        "observation ms": observing_s * 1000,
        "scrape ms": scraping_s * 1000,
        "scrape p99 ms": sorted(times_s)[int(scrapes * 0.99)] * 1000,
        "core at 15 s, percent": 100 * (observing_s + scraping_s) / EVERY_S,
    }


def main() -> int:
    """Print the figures; return 1 if one is above its floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scrapes", type=int, default=300)
    parser.add_argument("--observations", type=int, default=20)
    given = parser.parse_args()
    configure("error", "text")
    ctypes.CDLL(str(library()))  # before pynvml looks for one of its name
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), given.scrapes, given.observations))
    for name, value in found.items():
        floor = f"  at most {FLOORS[name]:g}" if name in FLOORS else ""
        print(f"{name:24}{value:12.2f}{floor}")
    stated = documented()
    if stale := [name for name, value in stated.items() if abs(found[name] / value - 1) > _SAME]:
        print(f"docs/metrics.md has {stated}: correct {', '.join(stale)}")
    return int(bool(stale) or any(found[name] > most for name, most in FLOORS.items()))


def documented() -> dict[str, float]:
    """Return what docs/metrics.md has of such a node; docs/operations.md has the same, as a test of pages compares."""
    text = (Path(__file__).parents[1] / "docs/metrics.md").read_text()
    found = re.search(r"have ([\d,]+)\s+series in (\d+) kB", text)
    assert found, "docs/metrics.md has no series of such a node"
    return {"series": float(found[1].replace(",", "")), "bytes": 1000 * float(found[2])}


if __name__ == "__main__":
    sys.exit(main())
