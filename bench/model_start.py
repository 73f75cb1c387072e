"""How long 60 pods on MIG slices take until each works on its model: as published recipes do it, and with Tessera.

`scripts/bench model_start -- [--ways WAY,...] [--mib N] [--rate MIB]`

One testbed of two nodes with eight H100s each in 56 slices, which pods request as `nvidia.com/gpu: 1`, as on GKE. A web
server on the first has a model of two files, and sends `--rate` MiB a second in all, as a bucket or a link would. What
keeps the model and the Job of 60 are created at once, as when a pool gets a new node. A pod that works compares the two
files again and again; when 30 have begun to, the server has another version of both.

recipe    a device plugin without preferences, the cluster's scheduler, and a DaemonSet that copies the files into a
          folder and looks for others every ten seconds; pods sleep 60 s, then read it by hostPath
tessera   agent, scheduler and controller; a ModelCache that looks as often, and pods that request it
uncached  the same without a ModelCache: each pod fetches the files itself

`recipe` and `tessera` run on one node, where 56 pods run and 4 follow, then on two, where all run; `uncached` on one.
Floors: with Tessera no pod sees files of two versions, or none; it needs no more GPUs, the 30th pod works earlier, and
the model leaves the server once a node; pods that fetch the model themselves work later.
"""

import argparse
import asyncio
import http.server
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from harness.plugins import ScriptedPlugin, connect
from kube.observing import used_node
from kube.pods import busybox, until_allocatable
from tessera.clients.kubelet import OptionalCalls
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from testbed.cluster import Cluster, Desired, default_folder
from testbed.deploy import objects
from testbed.installed import LABEL
from testbed.node import Node
from testbed.processes import until
from testbed.programs import programs

MIB = 2**20
PORT = 9001
PODS, SLICES = 60, 56
LOOKS, LOOK_S = 8, 2
SLEEP_S, INTERVAL_S = 60, 10
STEP_S = 15
WAIT_S = 600.0
PIECE = MIB // 4
RESOURCE = "nvidia.com/gpu"
FOLDER = "/var/lib/models"
WAYS = ("recipe", "tessera", "uncached")
KIND = {"apiVersion": "tessera.dev/v1alpha1"}

WORK = """\
tell() { wget -q -O /dev/null "$SERVER/tell/$HOSTNAME/$1"; }
[ "$(stat -c %s "$MODEL/weights" 2>/dev/null)" = "$BYTES" ] || { tell absent; exit 1; }
tell "works/${TESSERA_GPU_UUIDS:-$NVIDIA_VISIBLE_DEVICES}"
whole=0 torn=0
for look in $(seq "$LOOKS"); do
  first=$(cat "$MODEL/config")
  sleep "$LOOK_S"
  if [ "$first" = "$(head -c 1 "$MODEL/weights")" ]; then whole=$((whole + 1)); else torn=$((torn + 1)); fi
done
tell "looked/$whole/$torn"
"""
"""What a pod does with the model in $MODEL."""
FETCH = 'mkdir -p "$MODEL"; for file in config weights; do wget -q -O "$MODEL/$file" "$SERVER/llama/$file"; done\n'
COPY = """\
mkdir -p "$MODEL"
while true; do
  version=$(wget -q -O - "$SERVER/version")
  [ "$version" = "$copied" ] || for file in config weights; do
    wget -q -O "$MODEL/.$file" "$SERVER/llama/$file" && mv "$MODEL/.$file" "$MODEL/$file"
  done
  copied=$version
  sleep "$INTERVAL_S"
done
"""
"""What a DaemonSet does for a folder: it copies what changed, and each file is replaced as a whole."""


class Server(http.server.ThreadingHTTPServer):
    """Sends so many bytes a second to all clients; its folder has the served version and the log of requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: str, folder: Path, size: int, rate: float) -> None:
        super().__init__((address, PORT), Answers)
        self.folder = folder
        self.size = size
        self._rate = rate
        self._next = time.monotonic()
        self._lock = threading.Lock()
        self._weights = dict[str, bytes]()  # clients share one copy of each version

    @property
    def version(self) -> str:
        """One digit."""
        return (self.folder / "version").read_text()

    def weights(self, version: str) -> bytes:
        """Return the large file."""
        with self._lock:
            if version not in self._weights:
                self._weights[version] = version.encode() * self.size
            return self._weights[version]

    def wait_for(self, count: int) -> None:
        """Wait for the turn of so many bytes."""
        with self._lock:
            turn = self._next = max(self._next, time.monotonic()) + count / self._rate
        time.sleep(max(0.0, turn - time.monotonic()))

    def note(self, who: str, *words: str) -> None:
        """Keep a line of when who told what."""
        with self._lock, (self.folder / "told").open("a") as file:
            print(json.dumps([time.monotonic(), who, *words]), file=file)


class Answers(http.server.BaseHTTPRequestHandler):
    """Gives the model or ranges of it, and hears pods."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name there
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Give a file's size."""
        self._begin(self._content())

    def do_GET(self) -> None:
        """Give a file."""
        sent = self._begin(self._content())
        for start in range(0, len(sent), PIECE):
            self.server.wait_for(len(sent[start : start + PIECE]))
            self.wfile.write(sent[start : start + PIECE])
        if self.path.endswith("/weights"):
            self.server.note("server", "sent", str(len(sent)))

    def _content(self) -> bytes:
        version = self.server.version
        if self.path.startswith("/tell/"):
            self.server.note(*self.path.split("/")[2:])
            return b""
        if self.path.endswith("/weights"):
            return self.server.weights(version)
        return (
            b'<a href="config">config</a> <a href="weights">weights</a>'
            if self.path.endswith("/")
            else version.encode()
        )

    def _begin(self, content: bytes) -> memoryview:
        first, last = 0, len(content) - 1
        if requested := self.headers["Range"]:
            begin, _, end = requested.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        else:
            self.send_response(200)
        tag, kind = f'"{content[:1].decode()}-{len(content)}"', "text/html" if self.path.endswith("/") else "text/plain"
        lines = (
            ("ETag", tag),
            ("Accept-Ranges", "bytes"),
            ("Content-Length", str(last + 1 - first)),
            ("Content-Type", kind),
        )
        for name, value in lines:
            self.send_header(name, value)
        self.end_headers()
        return memoryview(content)[first : last + 1]


class AnyPlugin(ScriptedPlugin):
    """A device plugin that leaves the choice to the kubelet, as those of the recipes do."""

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        """Answer by the environment."""
        return ContainerResponse(env=(("NVIDIA_VISIBLE_DEVICES", ",".join(ids)),))


@contextmanager
def plugins(nodes: tuple[Node, ...]) -> Iterator[None]:
    """Offer the slices of each node."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def started() -> list[Any]:
        slices = (tuple(f"{each.name}:gpu{n // 7}:{n % 7}" for n in range(SLICES)) for each in nodes)
        made = (AnyPlugin(*ids, options=OptionalCalls()) for ids in slices)
        return [await connect(one, node.device_plugins, RESOURCE) for one, node in zip(made, nodes, strict=True)]

    async def stopped(servers: list[Any]) -> None:
        for each in servers:
            await each.stop()

    servers = asyncio.run_coroutine_threadsafe(started(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(stopped(servers), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


class Pod(NamedTuple):
    """A pod that worked, in seconds after all was created."""

    running: float
    works: float
    ended: float
    gpu: str
    torn: int
    """How many of its looks found files of two versions."""


class Found(NamedTuple):
    """What a way did."""

    way: str
    nodes: int
    load: float
    pods: tuple[Pod, ...]
    absent: int
    """Pods that found no model, or half of one, and failed."""
    copies: float
    """Of the model, that left the server."""

    def worked(self, count: int) -> float:
        """Return when so many worked or had worked."""
        return sorted(each.works for each in self.pods)[count - 1]

    @property
    def row(self) -> str:
        """Return the line of the table."""
        running = sorted(each.running for each in self.pods)
        idle = sum(each.works - each.running for each in self.pods)
        times = (running[29], running[59], self.worked(1), self.worked(30), self.worked(60), self.ended)
        gpus, torn = len({each.gpu for each in self.pods}), sum(each.torn > 0 for each in self.pods)
        numbers = " ".join(f"{each:>6.0f}" for each in times)
        name = f"{self.way}, {self.nodes * SLICES} slices"
        counts = f"{gpus:>4} {self.copies:>6.2f} {torn:>5} {self.absent:>6} {self.load:>4.0f}"
        return f"{name:<21} {numbers} {idle:>6.0f} {counts}"

    @property
    def ended(self) -> float:
        """When the last had done its work."""
        return max(each.ended for each in self.pods)

    @property
    def course(self) -> str:
        """Return pods that run, and those of them that work, every few seconds."""
        cells = []
        for step in range(0, int(self.ended) + STEP_S, STEP_S):
            running = sum(each.running <= step < each.ended for each in self.pods)
            cells.append(f"{running}/{sum(each.works <= step < each.ended for each in self.pods)}")
        return f"{self.way}, {self.nodes * SLICES} slices: {' '.join(cells)}"


HEAD = f"{'':<21} {'running':^13} {'works':^20} {'all':>6} {'idle':>6}"
NAMES = f"{'':<21}   30th   60th    1st   30th   60th   done      s GPUs copies  torn absent load"


class Bench:
    """A cluster whose nodes keep models in one way or the other."""

    def __init__(self, cluster: Cluster, given: argparse.Namespace) -> None:
        self._cluster = cluster
        self._size: int = given.mib * MIB
        self._folder = cluster.folder / "served"
        self._folder.mkdir()
        self._version = 1
        (self._folder / "version").write_text("1")
        (self._folder / "told").touch()
        node = cluster.nodes[0]
        self._server = f"http://{node.address}:{PORT}"
        words = (
            "--serve",
            node.address,
            "--folder",
            str(self._folder),
            "--mib",
            str(given.mib),
            "--rate",
            str(given.rate),
        )
        node.start_process("bucket", (sys.executable, str(Path(__file__).resolve()), *words))

    def measure(self, ways: tuple[str, ...]) -> list[Found]:
        """Measure the ways, the recipe's before there is an agent."""
        cluster, found = self._cluster, list[Found]()
        offered = ((RESOURCE, SLICES),)
        with ExitStack() as stack:
            if "recipe" in ways:
                stack.enter_context(plugins(cluster.nodes))
                for each in cluster.nodes:
                    until_allocatable(cluster, each.name, offered)
                found += [self._run("recipe", nodes) for nodes in (1, 2)]
        self._install()
        for each in cluster.nodes:
            until_allocatable(cluster, each.name, offered, timeout_s=WAIT_S)
        if "tessera" in ways:
            found += [self._run("tessera", nodes) for nodes in (1, 2)]
        if "uncached" in ways:
            found.append(self._run("uncached", 1))
        return found

    def _install(self) -> None:
        """Start the agents, with all GPUs in slices of one resource name."""
        cluster = self._cluster
        layout = {"sharing": {"mode": "mig", "layout": {"configuration": "all-1g.10gb"}}}
        spec = {"nodeSelector": {"matchLabels": {LABEL: "true"}}, "migStrategy": "single", "gpus": [layout]}
        cluster.kubectl("delete", "gpupolicies", "--all")
        cluster.apply({**KIND, "kind": "GPUPolicy", "metadata": {"name": "sevenths"}, "spec": spec})
        cluster.apply(*objects("rbac/agent.yaml"))
        for node in cluster.nodes:
            cluster.kubectl("label", "node", node.name, f"{LABEL}=true")
            disk = cluster.folder / f"models-{node.name}"
            disk.mkdir()
            (disk / "mounted").touch()  # an empty one would be a disk that is not mounted yet
            kept = (f"--model-dir={disk}/cache", "--model-disk-percent=99")  # the machine's disk may be rather full
            node.start_agent(cluster.agent_kubeconfig(node.name), *kept)

    def _run(self, way: str, nodes: int) -> Found:
        """Run the Job of 60, and remove it."""
        name, load = f"{way}-{nodes}", os.getloadavg()[0]
        before, begun, wall = len(self._logged()), time.monotonic(), time.time()
        self._cluster.apply(*self._keeps(way, name, nodes), self._job(way, name, nodes))
        self._follow(before)
        self._cluster.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=60s")
        found = self._found(way, nodes, self._logged()[before:], begun, wall)
        selected = ("jobs,daemonsets,modelcaches", "--selector=made-by=test")
        self._cluster.kubectl("delete", *selected, "--cascade=foreground", "--timeout=120s")
        for each in self._cluster.nodes:
            shutil.rmtree(each.path(FOLDER), ignore_errors=True)
        result = found._replace(load=max(load, os.getloadavg()[0]))
        print(result.row, flush=True)
        return result

    def _follow(self, before: int) -> None:
        """Return when all pods have worked; midway the model changes."""
        changed = False

        def done() -> bool:
            nonlocal changed
            events = [str(words[0]) for _, _, *words in self._logged()[before:]]
            if not changed and events.count("works") >= PODS // 2:
                self._version, changed = self._version + 1, True
                (self._folder / "version.new").write_text(str(self._version))
                (self._folder / "version.new").replace(self._folder / "version")
            return events.count("looked") >= PODS

        until("pods that have worked", done, timeout_s=WAIT_S, found=lambda: str(self._logged()[before:][-5:]))

    def _logged(self) -> list[list[Any]]:
        return [json.loads(line) for line in (self._folder / "told").read_text().splitlines()]

    def _keeps(self, way: str, name: str, nodes: int) -> list[dict[str, Any]]:
        """Return what brings the model to the nodes."""
        labels = {"made-by": "test"}
        if way == "tessera":
            spec = {
                "source": f"{self._server}/llama/",
                "intervalSeconds": INTERVAL_S,
                "nodeSelector": self._labels(nodes),
            }
            return [{**KIND, "kind": "ModelCache", "metadata": {"name": name, "labels": labels}, "spec": spec}]
        if way == "uncached":
            return []
        spec = {"selector": {"matchLabels": {"app": name}}, "template": self._template(COPY, FOLDER, nodes, app=name)}
        return [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": name, "labels": labels}, "spec": spec}
        ]

    def _job(self, way: str, name: str, nodes: int) -> dict[str, Any]:
        limits = {RESOURCE: 1}
        if way == "recipe":
            template = self._template(f"sleep {SLEEP_S}\n{WORK}", FOLDER, nodes, limits=limits)
        else:
            more = {f"models.tessera.dev/{name}": 1} if way == "tessera" else {}
            model, before = (f"/models/{name}", "") if more else ("/tmp/model", FETCH)  # noqa: S108 - of the container
            template = self._template(before + WORK, model, nodes, limits=limits | more)
            template["spec"]["schedulerName"] = "tessera-scheduler"
        template["spec"]["restartPolicy"] = "Never"
        spec = {"completions": PODS, "parallelism": PODS, "backoffLimit": 10 * PODS, "template": template}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": {"made-by": "test"}},
            "spec": spec,
        }

    def _template(
        self, command: str, model: str, nodes: int, *, limits: dict[str, int] | None = None, **labels: str
    ) -> dict[str, Any]:
        one = busybox("", command=command, limits=limits)["spec"]
        (container,) = one["containers"]
        variables = {
            "MODEL": model,
            "SERVER": self._server,
            "BYTES": self._size,
            "LOOKS": LOOKS,
            "LOOK_S": LOOK_S,
            "INTERVAL_S": INTERVAL_S,
        }
        container["env"] = [{"name": key, "value": str(value)} for key, value in variables.items()]
        if model == FOLDER:
            container["volumeMounts"] = [{"name": "models", "mountPath": FOLDER}]
            one["volumes"] = [{"name": "models", "hostPath": {"path": FOLDER, "type": "DirectoryOrCreate"}}]
        one["nodeSelector"] = self._labels(nodes)["matchLabels"]
        return {"metadata": {"labels": labels}, "spec": one}

    def _labels(self, nodes: int) -> dict[str, dict[str, str]]:
        one = {"kubernetes.io/hostname": self._cluster.nodes[0].name}
        return {"matchLabels": one if nodes == 1 else {"kubernetes.io/os": "linux"}}

    def _found(self, way: str, nodes: int, events: list[list[Any]], begun: float, wall: float) -> Found:
        items = self._cluster.get("pods", f"--selector=job-name={way}-{nodes}")["items"]
        gpus = {
            one.uuid: one.gpu for each in self._cluster.nodes if way != "recipe" for one in used_node(each).instances
        }
        heard = {(who, words[0]): (at - begun, words[1:]) for at, who, *words in events}
        pods = []
        for each in items:
            name, ended = each["metadata"]["name"], each["status"]["containerStatuses"][0]["state"]["terminated"]
            if (name, "looked") in heard:
                works, (device,) = heard[name, "works"]
                end, (_, torn) = heard[name, "looked"]
                running = datetime.fromisoformat(ended["startedAt"]).timestamp() - wall
                gpu = gpus[device] if gpus else device.rpartition(":")[0]
                pods.append(Pod(running, works, end, gpu, int(torn)))
        sent = sum(int(words[1]) for _, _, *words in events if words[0] == "sent")
        absent = sum(words[0] == "absent" for _, _, *words in events)
        return Found(way, nodes, 0, tuple(pods), absent, sent / self._size)


def floors(results: list[Found]) -> list[tuple[str, float, float]]:
    """Return what is compared: its name, the value, and the most that it may be."""
    by = {(each.way, each.nodes): each for each in results}
    rows = list[tuple[str, float, float]]()
    for nodes in (1, 2):
        if mine := by.get(("tessera", nodes)):
            slices = f"{nodes * SLICES} slices"
            failed = mine.absent + sum(each.torn for each in mine.pods)
            rows.append((f"torn or absent with tessera, {slices}", failed, 0))
            rows.append((f"copies of two versions a node with tessera, {slices}", mine.copies / nodes / 2, 1))
            for other in ("recipe", "uncached"):
                if theirs := by.get((other, nodes)):
                    rows.append((f"30th works, tessera / {other}, {slices}", mine.worked(30) / theirs.worked(30), 1))
                    gpus = [len({each.gpu for each in one.pods}) for one in (mine, theirs)]
                    rows.append((f"GPUs, tessera / {other}, {slices}", gpus[0] / gpus[1], 1))
    return rows


def main() -> int:
    """Measure, print, and return 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ways", default=",".join(WAYS), help=f"which to run, of {', '.join(WAYS)}")
    parser.add_argument("--mib", type=int, default=64, help="of the model")
    parser.add_argument("--rate", type=float, default=50.0, help="MiB a second that leave the server")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        Server(given.serve, given.folder, given.mib * MIB, given.rate * MIB).serve_forever()
    cluster = Cluster(default_folder("bench-start"), programs(lambda *_: None))
    cluster.down()
    try:
        cluster.up(Desired(nodes=2, gpus=("8xH100-80GB",), scheduler=True))
        print(
            f"{PODS} pods of one slice, a model of {given.mib} MiB, {given.rate:g} MiB/s; seconds after all was created"
        )
        print(f"{HEAD}\n{NAMES}", flush=True)
        found = Bench(cluster, given).measure(tuple(given.ways.split(",")))
    finally:
        cluster.down()
    print(f"\npods that run/work, every {STEP_S} s")
    for each in found:
        print(each.course)
    rows = floors(found)
    for name, value, most in rows:
        print(f"{'ok  ' if value <= most else 'FAIL'}  {name}: {value:.2f}, at most {most:g}")
    return int(any(value > most for _, value, most in rows))


if __name__ == "__main__":
    sys.exit(main())
