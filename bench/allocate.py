"""How fast a device plugin answers `Allocate` when it offers 2,560 devices; fails above the floors.

`python bench/allocate.py [--calls N] [--rounds N]`

Plugins, kubelet and the calls between them are real, over unix sockets; only the kubelet is the one in this process, so
that a call's time has both ends in it. One call waits for the other, as the kubelet's admission does.

replica   one of 320 replicas of each of 8 GPUs
unit      5 units of the 2,560 that 16 GPUs have: a pod of the node's 110 is found by its assignment, and the kubelet's
          record is read; handed over by environment
unit-cdi  the same handed over by CDI: `Allocate` answers a name
ready-cdi `Allocate` and `PreStartContainer`, which writes the specification of that name, together

For each call a new pod comes, and the oldest of 110 leaves. The reference is a call of the same plugin that does
nothing, `GetDevicePluginOptions`, made in turn with the others. Of the rounds the best counts. Floors: the 99th
percentile is not above as many 99th percentiles of the reference as FLOORS says, and that of `Allocate` alone is below
5 ms; the latter is asked only of a machine on which the reference stays below 1 ms: one with a processor to spare.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from builders.deviceplugins import Unchanged, device_plugins
from tessera.agent.deviceplugin import PluginPaths
from tessera.agent.deviceplugin.containers.changerequests import ChangeRequest, Enforce
from tessera.agent.pods.podsview import PodsView
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.signatures import Keys, key_id
from tessera.clients.kube import Listing
from tessera.clients.kubelet import Container, DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.core.cluster.snapshot import Gpu, Share
from tessera.core.deviceplugin.offers.advertise import OfferOptions, offer
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.inventory import GpuFacts, Inventory
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.log import configure
from tessera.signing import Signer, verify

DEVICES = 2_560
MOST_MS = 5.0
FLOORS = {"replica": 8.0, "unit": 25.0, "unit-cdi": 25.0, "ready-cdi": 40.0}
"""At most so many references each."""
QUIET_MS = 1.0
"""A machine on which a call that does nothing takes longer has not the time to be measured in milliseconds."""
PODS = 110
PASS = 50
"""Calls between two passes of the agent, which release the allocations of pods that ended."""
UNITS = 5
SIGNER = Signer()
NEED = "tessera.dev/gpu-memory"


class Case(NamedTuple):
    """What a node offers, and how it hands it over."""

    resource: str
    gpus: int
    sharing: Sharing
    strategy: ListStrategy
    per_container: int
    until_ready: bool = False
    """Whether the call before the container is created counts too."""


CASES = {
    "replica": Case(
        "nvidia.com/gpu", 8, Sharing(modes=(Mode.TIME_SLICING,), replicas=(("", DEVICES // 8),)), "envvar", 1
    ),
    "unit": Case(NEED, 16, Sharing(modes=(Mode.MEMORY_SHARE,)), "envvar", UNITS),
    "unit-cdi": Case(NEED, 16, Sharing(modes=(Mode.MEMORY_SHARE,)), "cdi-cri", UNITS),
    "ready-cdi": Case(NEED, 16, Sharing(modes=(Mode.MEMORY_SHARE,)), "cdi-cri", UNITS, until_ready=True),
}


def inventory(gpus: int) -> Inventory:
    """Return a node of so many GPUs with 160 GiB each."""
    kind, memory_mib = model("B200"), DEVICES // 16 * 1024
    return Inventory(
        gpus=tuple(
            GpuFacts(
                index=index,
                uuid=f"GPU-{index:08d}-0000-0000-0000-000000000000",
                minor=index,
                product="NVIDIA B200",
                model=kind,
                memory_total_mib=memory_mib,
                memory_mib=memory_mib,
            )
            for index in range(gpus)
        )
    )


class Trusted:
    """What an agent knows of keys: that of a server."""

    keys = Keys(public={key_id(SIGNER.public): SIGNER.public}, verify=verify)
    knows_servers = True
    unpublished = frozenset[str]()

    def revoked(self, _: str) -> bool:
        """Know of no key that was."""
        return False

    def sealed(self, _: dict[str, Any], annotations: Mapping[str, str]) -> dict[str, str]:
        """Sign nothing: no pod is mistaken here."""
        return dict(annotations)

    async def refresh(self) -> None:
        """Know all there is already."""


def pod(name: str, gpu: int, version: int) -> dict[str, Any]:
    """Return a pod that was assigned 5 GiB of a GPU, written at a version."""
    share = Share(
        gpu=gpu,
        mode=Mode.MEMORY_SHARE,
        memory_mib=UNITS * 1024,
        compute_percent=0,
        isolation=Mode.MEMORY_SHARE.isolation,
        resource=NEED,
        container="main",
    )
    annotations = {"tessera.dev/assignment": write_shares((share,))}
    sealed = SIGNER.sealed(annotations, uid=f"uid-{name}", node="n")
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "annotations": sealed,
        },
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"limits": {NEED: str(UNITS)}}}]},
    }


class Enforced(Unchanged):
    """GPUs of which no pod here needs more than that its shares are enforced."""

    async def change(self, request: ChangeRequest) -> Inventory:
        """Enforce nothing: no pod is mistaken here, and no instance created."""
        assert isinstance(request, Enforce)
        return Inventory(gpus=())


class Times(NamedTuple):
    """Milliseconds of calls, sorted."""

    ms: tuple[float, ...]

    def percentile(self, percent: int) -> float:
        """Return the time that so many percent of the calls stay below."""
        return self.ms[min(len(self.ms) - 1, len(self.ms) * percent // 100)]


class Bench:
    """A node that offers what a case says, its kubelet, and pods that come and go."""

    def __init__(self, case: Case, kubelet: MemoryKubelet, record: PodResources, root: Path) -> None:
        self.case = case
        self.kubelet = kubelet
        self.present: dict[str, dict[str, Any]] = {}
        self.version = 0
        view = PodsView(self, DeviceCheckpoint(kubelet.plugins), record, proc=root / "proc")
        self.plugins = device_plugins(paths(kubelet, root), view, self, Trusted(), gpus=Enforced())
        self.inventory = inventory(case.gpus)
        gpus = (
            Gpu(index=each.index, model=each.model, memory_mib=each.memory_mib, sharing=case.sharing, uuid=each.uuid)
            for each in self.inventory.gpus
        )
        self.offered = offer(gpus, self.inventory, OfferOptions())
        (resource,) = (each for each in self.offered.resources if each.name == case.resource)
        self.ids = tuple(device.id for device in resource.devices)

    def pods(self) -> tuple[dict[str, Any], ...]:
        """Return the pods as the watch shows them."""
        return tuple(self.present.values())

    def node(self) -> dict[str, Any]:
        """Return no Node object."""
        return {}

    async def annotate(self, *_: object) -> Any:
        """Write on no pod: none is mistaken here."""
        raise AssertionError

    async def relist(self) -> Listing:
        """Return the pods as an API server has them."""
        return Listing(objects=tuple(self.present.values()), resource_version=str(self.version))

    async def start(self) -> None:
        """Advertise the devices."""
        options = PluginOptions(list_strategies=(self.case.strategy,))
        await self.plugins.offer(self.offered, self.inventory, options)
        await self.kubelet.until_allocatable(self.case.resource, DEVICES)

    async def serve(self, number: int) -> float:
        """Return the milliseconds to serve a container of a new pod; the oldest of 110 leaves."""
        name, last = f"p{number:06d}", f"p{number - PODS:06d}"
        self.version += 1
        self.present[name] = pod(name, number % 16, self.version)
        self.present.pop(last, None)
        self.kubelet.remove("default", last)
        first = number * self.case.per_container % DEVICES
        ids = self.ids[first : first + self.case.per_container]
        container = Container(name="main", limits=((self.case.resource, len(ids)),))
        begin = time.perf_counter()
        await self.kubelet.allocate("default", name, container, ids)
        allocated = time.perf_counter()
        await self.kubelet.create("default", name, "main")
        end = time.perf_counter() if self.case.until_ready else allocated
        return 1e3 * (end - begin)

    async def ping(self) -> float:
        """Return the milliseconds of a call that does nothing."""
        begin = time.perf_counter()
        await self.kubelet.ping(self.case.resource)
        return 1e3 * (time.perf_counter() - begin)


def paths(kubelet: MemoryKubelet, root: Path) -> PluginPaths:
    """Return the files of a node in a folder of ours."""
    return PluginPaths(
        plugins=kubelet.plugins,
        cdi=root / "cdi",
        driver_specs=(),
        minors=root / "none",
        answers_file=root / "memory",
        allocations=root / "allocations",
    )


async def measure(case: Case, calls: int, root: Path) -> tuple[Times, Times]:
    """Return the times of one case's calls and of the reference."""
    async with MemoryKubelet(root) as kubelet, PodResources(kubelet.pod_resources) as record:
        bench = Bench(case, kubelet, record, root)
        await bench.start()
        for number in range(PODS):
            await bench.serve(number)
        found, reference = [], []
        for number in range(calls):
            if number % PASS == 0:
                bench.plugins.gate.record.release(all_listed=True)
            found.append(await bench.serve(PODS + number))
            reference.append(await bench.ping())
        await bench.plugins.close()
    return Times(tuple(sorted(found))), Times(tuple(sorted(reference)))


def main() -> int:
    """Run the benchmark; 0 when no floor is broken, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    configure("warning")
    # The files a node's agent writes here lie on a file system in memory.
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    print(f"{DEVICES} devices, {PODS} pods with assignments, {options.calls} calls; milliseconds")
    print(f"{'case':10} {'median':>8} {'99 %':>8} {'reference':>10} {'refs':>7} {'at most':>8}")
    below = []
    for name, case in CASES.items():
        found: list[tuple[Times, Times]] = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="tessera-", dir=folder) as root:
                found.append(asyncio.run(measure(case, options.calls, Path(root))))
        best, reference = min(found, key=lambda pair: pair[0].percentile(99))
        p99, refs = best.percentile(99), best.percentile(99) / reference.percentile(99)
        numbers = f"{best.percentile(50):8.2f} {p99:8.2f} {reference.percentile(99):10.2f} {refs:7.1f}"
        print(f"{name:10} {numbers} {FLOORS[name]:8.0f}")
        quiet = reference.percentile(99) < QUIET_MS
        if refs > FLOORS[name] or (quiet and not case.until_ready and p99 >= MOST_MS):
            below.append(name)
    for name in below:
        print(f"FAIL {name} exceeds its limit")
    return int(bool(below))


if __name__ == "__main__":
    sys.exit(main())
