"""The simulator's queue time against a real Triton's: 60 to 100 clients, 1 to 4 replicas; fails above 10 % apart.

`scripts/bench queuetime -- [-o FILE]`

Each replica is Triton without a GPU, with the model of examples/9-model-servers/sleeper that sleeps 100 ms in place of
20, so that two cores are enough for four of them: the processor has little to do with how long requests wait. NVIDIA's
perf_client keeps a number of requests in flight at each, of which all replicas together have as many as there are
clients; a client has one request at a time and sends the next at once. Queue time is read twice of Triton's own
counters, 8 s apart, as `tessera metrics` does it.

The simulated replicas are those of `tessera simulate serving`, before them the same clients. How long a request is
served is not part of what is compared: it is what Triton counted in the same seconds. Needs root on Debian 12.
"""

import argparse
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from heapq import heapify, heapreplace
from pathlib import Path
from statistics import fmean

from tessera.api.prometheus.engines import read_counters
from tessera.core.serving.metrics.counters import Counters
from tessera.core.serving.metrics.queuetime import Window, between
from tessera.sim.serving.replicamodel import ReplicaModel, Replicas
from testbed.tesseraimage import triton_image

ROOT = Path(__file__).parents[1]
REPLICAS, CLIENTS = (1, 2, 3, 4), (60, 80, 100)
SLOTS = 4
"""The largest batch of the model, which has one instance."""
MOST_APART = 0.10
SLEEP_S, WARM_S, WINDOW_S = 0.1, 6.0, 8.0
FIRST_PORT = 18_000

# Namespaces of its own keep /dev/shm of one Triton from the next; all share the network.
START = """\
root=$1 models=$2; shift 2
mount -t tmpfs tmpfs "$root/dev"
mkdir "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
for each in null zero random urandom; do touch "$root/dev/$each"; mount --bind "/dev/$each" "$root/dev/$each"; done
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir "$root/tmp/models"
mount --bind "$models" "$root/tmp/models"
exec chroot "$root" "$@"
"""


@contextlib.contextmanager
def triton_root() -> Iterator[tuple[Path, Path]]:
    """Give a root with Triton and perf_client, and a folder with the model."""
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as name:
        folder = Path(name)
        root, models = folder / "root", folder / "models"
        root.mkdir()
        subprocess.run(["tar", "-x", "-C", folder, "-f", triton_image(print)], check=True)
        for layer in json.loads((folder / "manifest.json").read_text())[0]["Layers"]:
            subprocess.run(["tar", "-x", "-C", root, "-f", folder / layer], check=True)
        subprocess.run([ROOT / "testbed/perfclient.sh", root], check=True)
        shutil.copytree(ROOT / "examples/9-model-servers/sleeper", models)
        model = models / "sleeper/1/model.py"
        text = model.read_text()
        assert text.count("time.sleep(0.04)") == 1
        model.write_text(text.replace("time.sleep(0.04)", f"time.sleep({SLEEP_S})"))
        for each in ("dev", "proc", "tmp"):
            (root / each).mkdir(exist_ok=True)
        yield root, models


def started(root: Path, models: Path, libraries: str, *command: str) -> subprocess.Popen[bytes]:
    """Start a program in a root of its own."""
    whole = ["unshare", "--mount", "--kill-child", "--fork", "--pid", "bash", "-ec", START, "-", str(root), str(models)]
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
    return subprocess.Popen([*whole, *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def stop(running: list[subprocess.Popen[bytes]]) -> None:
    """End what runs, with all that it started."""
    for each in running:
        each.kill()
    for each in running:
        each.wait()


def asked(port: int, path: str) -> bytes:
    """Return an answer of Triton's; empty where it does not serve."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read() or b"yes" if answer.status == http.HTTPStatus.OK else b""
    except OSError:
        return b""
    finally:
        connection.close()


def counters(port: int) -> Counters:
    """Return what a Triton counted."""
    return read_counters("Triton", asked(port, "/metrics"), at_s=time.time(), started_s=0.0)


def until_idle(ports: list[int]) -> None:
    """Wait until nothing is served any more: requests of clients that are gone count, too."""
    while True:
        former = [counters(port + 2) for port in ports]
        time.sleep(1.0)
        now = [counters(port + 2) for port in ports]
        if all(a.completed == b.completed for a, b in zip(former, now, strict=True)):
            return


def measured(root: Path, models: Path, ports: list[int], clients: int) -> tuple[float, float]:
    """Return how long requests wait and are served at replicas that share so many clients, as Triton counts it."""
    each = [clients // len(ports) + (place < clients % len(ports)) for place in range(len(ports))]
    libraries = "/opt/perf/lib:/opt/tritonserver/lib"
    load = [
        started(
            root,
            models,
            libraries,
            *("/opt/perf/perf_client", "-m", "sleeper", "-u", f"127.0.0.1:{port}", "-i", "http"),
            *("--concurrency-range", f"{count}:{count}", "--shape", "X:1", "-p", "60000"),
        )
        for port, count in zip(ports, each, strict=True)
    ]
    try:
        time.sleep(WARM_S)
        former = [counters(port + 2) for port in ports]
        time.sleep(WINDOW_S)
        now = [counters(port + 2) for port in ports]
    finally:
        stop(load)
    windows = [between(*pair) for pair in zip(former, now, strict=True)]
    found = [window for window in windows if isinstance(window, Window)]
    completed = sum(window.completed for window in found)
    assert len(found) == len(ports)
    assert completed > 0
    return sum(each.queued_s for each in found) / completed, sum(each.served_s for each in found) / completed


def simulated(replicas: int, clients: int, service_s: float) -> float:
    """Return how long requests of so many clients wait at simulated replicas, once they go round."""
    fleet = Replicas(ReplicaModel(slots=SLOTS), replicas)
    coming = [0.0] * clients
    heapify(coming)
    waits = []
    while (now_s := coming[0]) < WARM_S + WINDOW_S:
        wait_s = fleet.put(now_s, service_s)
        assert wait_s is not None
        heapreplace(coming, now_s + wait_s + service_s)
        if now_s + wait_s + service_s >= WARM_S:
            waits.append(wait_s)
    return fmean(waits)


def main() -> int:
    """Print the table; return 1 where the two are too far apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    failed, written = 0, []
    print(f"{'replicas':>8}{'clients':>9}{'served ms':>11}{'Triton ms':>11}{'simulated':>11}{'apart':>8}")
    with triton_root() as (root, models):
        for replicas in REPLICAS:
            ports = [FIRST_PORT + 10 * place for place in range(replicas)]
            flags = ("--http-port={}", "--grpc-port={}", "--metrics-port={}")
            running = [
                started(
                    root,
                    models,
                    "/opt/tritonserver/lib",
                    *("tritonserver", "--model-repository=/tmp/models"),
                    *(flag.format(port + more) for more, flag in enumerate(flags)),
                )
                for port in ports
            ]
            try:
                until = time.monotonic() + 120
                while not all(asked(port, "/v2/health/ready") for port in ports):
                    assert time.monotonic() < until, "Triton does not start"
                    time.sleep(0.2)
                for clients in CLIENTS:
                    wait_s, service_s = measured(root, models, ports, clients)
                    expected_s = simulated(replicas, clients, service_s)
                    apart = expected_s / wait_s - 1
                    far = abs(apart) > MOST_APART
                    failed += far
                    cells = f"{service_s * 1000:11.1f}{wait_s * 1000:11.1f}{expected_s * 1000:11.1f}{apart:8.1%}"
                    print(f"{replicas:8}{clients:9}{cells}{'  FAIL: at most 10 %' if far else ''}", flush=True)
                    written.append([replicas, clients, service_s, wait_s, expected_s])
                    until_idle(ports)
            finally:
                stop(running)
    if given.output:
        given.output.write_text(json.dumps(written, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
