"""How fast `tessera server` answers kube-scheduler over HTTP: filter and prioritize on 1,000 and 5,000 nodes of 8 GPUs.

`scripts/bench extender -- [--rounds N]`

A server with sockets and JSON, and a Kubernetes API in memory, in one process for each size. The nodes are of two GPU
models, four pods on each. Pods of eight shapes come one by one: all nodes are sent by name to filter, those that fit to
prioritize, then the pod is bound, and an earlier one is deleted: so each question follows a change, as in a cluster.
Milliseconds of wall time from the request's first byte to the answer's last, median and 99 %; the client is in the same
process. What is compared is the processor time of the process, so that others on the machine do not matter.

The reference, timed in the same run, is what the same exchange costs where nothing is decided: an application on the
same HTTP server that decodes the request and encodes the answer known already, with `json`. Floors: filter and
prioritize together at most `FLOORS` references; growth from 1,000 to 5,000 nodes at most `GROWTH`, less than the nodes'
own. Memory is that of the whole process, the API's objects included.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import re
import statistics
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from builders.kubeobjects import gpu, share
from harness.replaying import Machine, make_machines, pod
from tessera.api.tessera.pods.assignments import write_shares
from tessera.clients.kube import PODS, MemoryKube, Object
from tessera.log import configure
from tessera.server.listening import HttpServer, listening
from tessera.server.run import Server
from tessera.server.settings import ServerSettings

FEW, MANY = 1_000, 5_000
GPUS, PODS_EACH = 8, 4
FLOORS = {FEW: 3.0, MANY: 2.5}
"""The most references that filter and prioritize together may take, by nodes."""
GROWTH = 3.5
MEMORY, COMPUTE, COUNT = "tessera.dev/gpu-memory", "tessera.dev/gpu-compute", "tessera.dev/gpu-count"
SHAPES = (
    ({MEMORY: 6}, "none"),
    ({MEMORY: 20, COMPUTE: 30}, "driver"),
    ({MEMORY: 9}, "hardware"),
    ({MEMORY: 38}, "hardware"),
    ({MEMORY: 30, COUNT: 2}, "none"),
    ({"aliyun.com/gpu-mem": 5}, "none"),
    ({"nvidia.com/gpu": 1}, "none"),
    ({MEMORY: 96}, "none"),
)
"""The last fits nowhere: there every node gets a reason."""


class Answered(NamedTuple):
    """A request and its answer, with milliseconds of wall time and of the process' processor time."""

    ms: float
    processor_ms: float
    sent: bytes
    answer: bytes


class Times(NamedTuple):
    """Milliseconds of one pod, the last two of processor time."""

    filter: float
    prioritize: float
    bind: float
    both: float
    reference: float


class Measured(NamedTuple):
    """What was found on one fleet."""

    nodes: int
    times: list[Times]
    memory_mib: int


class Client:
    """A connection that is kept, as kube-scheduler's."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def post(self, path: str, body: Any) -> Answered:
        """Send a request and return its answer."""
        return self.send(path, json.dumps(body, separators=(",", ":")).encode())

    def send(self, path: str, sent: bytes) -> Answered:
        """Send a request as it is and return its answer."""
        began, processor = time.perf_counter(), time.process_time()
        self._connection.request("POST", path, sent)
        answer = self._connection.getresponse().read()
        return Answered(1000 * (time.perf_counter() - began), 1000 * (time.process_time() - processor), sent, answer)


class Undecided:
    """An application that decodes a request with `json`, and encodes an answer that is known already."""

    def __init__(self) -> None:
        self.answer: Any = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        assert scope["type"] == "http"
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        json.loads(body)
        answer = json.dumps(self.answer, separators=(",", ":")).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


class Reference(NamedTuple):
    """The application where nothing is decided, and a connection to it."""

    app: Undecided
    client: Client

    def ms(self, answered: Answered) -> float:
        """Return the processor time of the same exchange, in milliseconds."""
        self.app.answer = json.loads(answered.answer)
        again = self.client.send("/", answered.sent)
        assert len(again.answer) == len(answered.answer), (len(again.answer), len(answered.answer))
        return again.processor_ms


def decide(client: Client, reference: Reference, made: Object, names: Sequence[str]) -> Times:
    """Place one pod as kube-scheduler does."""
    filtered = client.post("/filter", {"Pod": made, "Nodes": None, "NodeNames": names})
    fitting = json.loads(filtered.answer)["NodeNames"]
    if not fitting:
        return Times(filtered.ms, 0, 0, filtered.processor_ms, reference.ms(filtered))
    scored = client.post("/prioritize", {"Pod": made, "Nodes": None, "NodeNames": fitting})
    both, alone = filtered.processor_ms + scored.processor_ms, reference.ms(filtered) + reference.ms(scored)
    best = max(json.loads(scored.answer), key=lambda each: int(each["Score"]))["Host"]
    metadata = made["metadata"]
    target = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
    bound = client.post("/bind", target | {"Node": best})
    assert json.loads(bound.answer) == {"Error": ""}, bound.answer
    return Times(filtered.ms, scored.ms, bound.ms, both, alone)


@contextlib.asynccontextmanager
async def undecided() -> AsyncIterator[Reference]:
    """Give the reference, listening."""
    app = Undecided()
    with listening("127.0.0.1", 0, 4) as listener:
        server = HttpServer(app, None, stop_s=1)
        running = asyncio.create_task(server.serve([listener]))
        yield Reference(app, Client(listener.getsockname()[1]))
        server.should_exit = True
        await running


@contextlib.asynccontextmanager
async def serving(kube: MemoryKube) -> AsyncIterator[int]:
    """Give the port of a server that has read the cluster."""
    server = Server(ServerSettings(port=0, freeze=True), kube)
    running = asyncio.create_task(server.run())
    await server.synced()
    while not server.port:  # noqa: ASYNC110 - the server tells no event of it
        await asyncio.sleep(0.01)
    yield server.port
    server.stop()
    await running


async def filled(count: int) -> tuple[MemoryKube, list[str]]:
    """Return a cluster, and the names of its nodes."""
    kube = MemoryKube()
    models = ("A100-80GB", "H100-80GB", "H100-80GB")
    machines = [
        Machine(name=f"node-{number:05}", gpus=tuple(gpu(index, models[number % 3]) for index in range(GPUS)))
        for number in range(count)
    ]
    await make_machines(kube, machines)
    for number, machine in enumerate(machines):
        for index in range(PODS_EACH):
            mib = 1024 * (10 + (7 * number + 11 * index) % 60)
            body = pod(f"old-{number}-{index}", {MEMORY: mib // 1024}, isolation="none")
            body["metadata"]["annotations"]["tessera.dev/assignment"] = write_shares((share(index, mib),))
            body["spec"]["nodeName"] = machine.name
            await kube.create(PODS, body)
    return kube, [machine.name for machine in machines]


async def run(count: int, rounds: int) -> Measured:
    """Return what a server takes on so many nodes."""
    kube, names = await filled(count)
    times, living = list[Times](), deque[str]()
    async with serving(kube) as port, undecided() as reference:
        client = Client(port)
        for number in range((rounds + 1) * len(SHAPES)):
            limits, grade = SHAPES[number % len(SHAPES)]
            made = await kube.create(PODS, pod(f"new-{number}", limits, isolation=grade))
            living.append(made["metadata"]["name"])
            if len(living) > 2 * len(SHAPES):
                await kube.delete(PODS, living.popleft(), namespace="default")
            await asyncio.sleep(0.01)
            times.append(await asyncio.to_thread(decide, client, reference, made, names))
        return Measured(count, times[len(SHAPES) :], resident_mib())


def resident_mib() -> int:
    """Return the memory of this process."""
    found = re.search(r"VmRSS:\s*(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def measure(count: int, rounds: int) -> Measured:
    """Return it from a process of its own."""
    configure("error", "json")
    return asyncio.run(run(count, rounds))


def row(measured: Measured) -> tuple[float, float]:
    """Print a fleet's line; return the processor time of filter and prioritize together, and in references."""
    columns = zip(Times._fields, zip(*measured.times, strict=True), strict=True)
    cuts = {name: statistics.quantiles(times, n=100) for name, times in columns}
    cells = " ".join(f"{cuts[name][49]:9.2f} {cuts[name][98]:8.2f}" for name in ("filter", "prioritize", "bind"))
    both, reference = cuts["both"][49], cuts["reference"][49]
    print(
        f"{measured.nodes:6} {cells} {both:9.2f} {reference:9.2f} {both / reference:6.2f} {measured.memory_mib:8}",
        flush=True,
    )
    return both, both / reference


def main() -> int:
    """Run the benchmark; 0 when no floor is broken, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="each has a pod of every shape")
    options = parser.parse_args()
    print(
        f"{'nodes':6} {'filter, 99 %':>18} {'prioritize, 99 %':>18} {'bind, 99 %':>18} {'both':>9} {'reference':>9}",
        end="",
    )
    print(f" {'refs':>6} {'RSS MiB':>8}")
    found = []
    for count in (FEW, MANY):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found.append(row(pool.apply(measure, (count, options.rounds))))
    growth = found[1][0] / found[0][0]
    floors = {
        **{
            f"filter and prioritize on {count} nodes at most {floor} references": refs <= floor
            for (count, floor), (_, refs) in zip(FLOORS.items(), found, strict=True)
        },
        f"growth {growth:.1f} on {MANY // FEW} times the nodes, at most {GROWTH}": growth <= GROWTH,
    }
    for floor, holds in floors.items():
        print(f"{'ok  ' if holds else 'FAIL'} {floor}")
    return int(not all(floors.values()))


if __name__ == "__main__":
    sys.exit(main())
