"""Two servers behind two real schedulers on one control plane, each with its own wire to the API server, to be broken.

kube-scheduler has one address for its extender. So that two servers really decide at the same time there are two
schedulers, `tessera-scheduler` and `tessera-other`, each with a server of its own, and pods name one or the other.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from testbed import parts
from testbed.addresses import API_PORT, CONTROL_PLANE
from testbed.cluster import Cluster
from testbed.controlplane import inside_url
from testbed.namespaces import Namespaces, environment
from testbed.processes import Process, until

__all__ = ["REPLICAS", "Replica", "Replicas", "running"]

READY_S = 60.0
TESSERA = str(Path(sys.executable).with_name("tessera"))
ASK = """
import json, sys, urllib.error, urllib.request as u
for url, body in json.load(sys.stdin):
    data = body if body is None or isinstance(body, str) else json.dumps(body)
    try:
        print(u.urlopen(u.Request(url, data and data.encode()), timeout=20).read().decode())
    except urllib.error.HTTPError as error:
        print(error.read().decode())
"""
RELAY = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
os.set_inheritable(listener.fileno(), True)
os.execv(sys.executable, [sys.executable, sys.argv[2], str(listener.fileno()), *sys.argv[3:]])
"""
SKEWED = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {skew_s}
time.time_ns = lambda: _time_ns() + {skew_s} * 10**9
"""


class Replica(msgspec.Struct, frozen=True):
    """A server, the scheduler that asks it, and its wire."""

    server: str
    port: int
    scheduler: str
    scheduler_port: int
    wire: str
    wire_port: int


REPLICAS = (
    Replica("server", 39999, "tessera-scheduler", 10261, "wire-one", 16441),
    Replica("server-two", 39998, "tessera-other", 10262, "wire-two", 16442),
)


class Replicas:
    """The servers of a cluster.

    Args:
        cluster: one that runs with `scheduler`.
        folder: for files of tests.

    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self._processes = cluster.processes
        self._folder = folder

    def start(self) -> None:
        """Put both servers behind wires, and give the second its scheduler."""
        self._processes.stop("server")
        for each in REPLICAS:
            self.mend(each)
            self.start_server(each)
        self._start_scheduler(REPLICAS[1])

    def stop(self) -> None:
        """Leave the cluster as it was."""
        for each in REPLICAS:
            for name in (each.server, each.wire):
                self._processes.stop(name)
        self._processes.stop(REPLICAS[1].scheduler)
        self._cluster.start_part("server")

    # Breaking

    def kill(self, name: str) -> None:
        """End a process of the cluster as a crash does."""
        self._processes.stop(name, number=signal.SIGKILL)

    def cut(self, each: Replica) -> None:
        """Break every connection of a server to the API server, and let no new one come."""
        self.kill(each.wire)

    def mend(self, each: Replica) -> None:
        """Let connections come again."""
        script = str(Path(parts.__file__).with_name("relay.py"))
        target = (str(each.wire_port), script, CONTROL_PLANE, str(API_PORT))
        self._run(each.wire, (sys.executable, "-c", RELAY, *target))

    def start_server(self, each: Replica, skew_s: int = 0) -> None:
        """Start a server; its wall clock goes wrong by so much. What decides is its monotonic clock."""
        variables = {"PYTHONPATH": str(self._skewed(skew_s))} if skew_s else {}
        command = (TESSERA, "server", "--kubeconfig", str(self._kubeconfig(each)), "--port", str(each.port))
        self._run(each.server, (*command, "--log-format", "json"), **variables)
        until(each.server, partial(self.ready, each), timeout_s=READY_S, found=partial(self._said, each.server))

    def pause(self, name: str) -> None:
        """Let a process stand still."""
        self._process(name).signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let it go on, and nsenter, its parent, which stops when its child does."""
        process = self._process(name)
        stat = Path(f"/proc/{process.pid}/stat").read_text()
        process.signal(signal.SIGCONT)
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGCONT)

    def start_api_server(self) -> None:
        """Start the API server where it was killed; the cluster finds what else it needs running."""
        self._cluster.up(self._cluster.desired)

    # Asking

    def ready(self, each: Replica) -> bool:
        try:
            return self.ask(each, [("/readyz", None)]) == ["ok"]
        except subprocess.CalledProcessError:
            return False

    def ask(self, each: Replica, requests: list[tuple[str, Any]]) -> list[str]:
        """Return the bodies of the answers of a server, errors too; a text is sent as it is, nothing means GET."""
        asked = [(f"http://127.0.0.1:{each.port}{path}", body) for path, body in requests]
        command = [*self._inside(), sys.executable, "-c", ASK]
        done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    # Parts

    def _start_scheduler(self, each: Replica) -> None:
        """Start a copy of the cluster's second scheduler under another name that asks another server."""
        first = self._cluster.folder / f"{REPLICAS[0].scheduler}.json"
        configuration = json.loads(first.read_text())
        configuration["profiles"] = [{"schedulerName": each.scheduler}]
        configuration["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{each.port}"
        path = self._folder / f"{each.scheduler}.json"
        path.write_text(json.dumps(configuration))
        account = self._cluster.account_kubeconfig("scheduler")
        authority = (f"--authentication-kubeconfig={account}", f"--authorization-kubeconfig={account}")
        address = ("--bind-address=127.0.0.1", f"--secure-port={each.scheduler_port}")
        self._run(each.scheduler, (str(self._cluster.bin / "kube-scheduler"), f"--config={path}", *address, *authority))

    def _kubeconfig(self, each: Replica) -> Path:
        content = self._cluster.account_kubeconfig("server").read_text()
        path = self._folder / f"{each.server}.kubeconfig"
        path.write_text(content.replace(inside_url(), f"https://127.0.0.1:{each.wire_port}"))
        return path

    def _skewed(self, skew_s: int) -> Path:
        folder = self._folder / "skewed"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(SKEWED.format(skew_s=skew_s))
        return folder

    def _run(self, name: str, command: tuple[str, ...], **variables: str) -> None:
        self._processes.start(name, command, inside=self._inside(), environment={**environment(), **variables})

    def _inside(self) -> tuple[str, ...]:
        holder = self._processes.get("namespaces")
        assert holder is not None
        return tuple(Namespaces(holder).enter())

    def _process(self, name: str) -> Process:
        process = self._processes.get(name)
        assert process is not None
        return process

    def _said(self, name: str) -> str:
        return self._processes.last_words(name)


@contextmanager
def running(cluster: Cluster, folder: Path) -> Iterator[Replicas]:
    """Give the two servers of a cluster, which has one again afterwards."""
    found = Replicas(cluster, folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()
