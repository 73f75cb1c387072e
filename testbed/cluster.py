"""A testbed as a whole: brought up, looked at, taken down."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from tessera.errors import Conflict, InvalidInput, Unavailable
from tessera.sim.nvmlsim import gpus_of
from testbed import admission, controlplane, installed, node, parts
from testbed.addresses import API_PORT, CONTROL_PLANE, MOST_NODES, prepare_bridge
from testbed.cgroups import remove_cgroup
from testbed.controlplane import Settings
from testbed.deploy import NAMESPACE, objects
from testbed.lookups import Lookups
from testbed.namespaces import Namespaces, build_waiter, environment, make
from testbed.node import Node, Shape
from testbed.pki import Pki
from testbed.processes import Processes, until

__all__ = ["Cluster", "Component", "Desired", "Source", "default_folder"]

_READY_S = 120
_STOP_S = 60
_LONGEST_FOLDER = 48
"""Characters of a run folder's path: sockets lie in it, and the system takes no more than 107 for a socket's."""
_HIDDEN = ("/run", "/var/lib", "/var/log", "/proc", "/sys")
"""Folders that a node sees as its own, so that neither run folder, checkout nor programs may lie there."""


Source = Literal["source", "image"]


class Desired(msgspec.Struct, frozen=True):
    """What a testbed should be."""

    nodes: int = 1
    """Nodes with a kubelet; with 0 there is a control plane alone, and nodes are objects that the caller makes."""
    gpus: tuple[str, ...] = ()
    """Simulated GPUs of each node: `2xA100-40GB`."""
    agents: bool = False
    """Whether `up` starts Tessera's agent on each node."""
    scheduler: bool = False
    """Whether `up` starts Tessera's server, the scheduler `tessera-scheduler` that asks it, and the controller."""
    admission: bool = True
    """Whether `up` puts the admission policies into force where there is such a scheduler."""
    bare: bool = False
    """Whether nothing of Tessera is there, not even its kinds."""
    services: bool = False
    """Whether the API server reaches Services at their pods; who brings it up starts kube-proxy on the nodes."""
    source: Source = "source"
    """What agents, server and controller run: this checkout's own processes, or pods of its image."""

    def __str__(self) -> str:
        """Return it in words."""
        scheduler = "tessera-scheduler" if self.admission else "tessera-scheduler, no admission policies"
        more = [word for word, there in (("agents", self.agents), (scheduler, self.scheduler)) if there]
        more += ["from the image"] if self.source == "image" else []
        return ", ".join((f"{self.nodes} nodes with {' '.join(self.gpus) or 'no GPUs'}", *more))


class Component(msgspec.Struct, frozen=True):
    """A process of a testbed, or a pod of Tessera's, as `status` shows it."""

    name: str
    pid: int
    """0 when it does not run, and for a pod."""
    healthy: bool
    memory_mib: int


class _Record(msgspec.Struct, frozen=True):
    desired: Desired
    port: int


def _ready(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def default_folder(name: str) -> Path:
    """Return the run folder of a testbed: /var/tmp/tessera-UID/NAME."""
    return Path(f"/var/tmp/tessera-{os.getuid()}") / name  # noqa: S108 - made with mode 700 and refused if another's


class Cluster:
    """The testbed of a run folder, whether it runs or not.

    Args:
        folder: where all of it lies; the same folder finds the same testbed again.
        bin_folder: the programs, from `testbed.programs`.

    """

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder = folder
        self.processes = Processes(folder)
        self.pki = Pki(folder / "pki")
        self.bin = bin_folder
        self.cgroup = f"tessera-{folder.name}"
        self._lookups = Lookups(self.kubeconfig)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for processes of this machine."""
        return self.pki.folder / "admin.kubeconfig"

    @property
    def running(self) -> bool:
        """Whether its namespaces are there."""
        return self.processes.get("namespaces") is not None

    @property
    def desired(self) -> Desired:
        """What it was last brought up as."""
        record = self._record()
        return record.desired if record else Desired(nodes=0)

    @property
    def settings(self) -> Settings:
        """How its control plane is started."""
        return self._settings(self.desired)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes that have a kubelet."""
        settings = self.settings
        shapes = (Shape(number, self.desired.gpus) for number in range(1, self.desired.nodes + 1))
        return tuple(Node(shape, settings, self.processes, self.cgroup) for shape in shapes)

    def up(self, desired: Desired, report: Callable[[str], None] = lambda _: None) -> None:
        """Start what does not run, and return when pods can be created and all nodes are ready.

        Args:
            desired: what it should be.
            report: told each step as it begins.

        Raises:
            Conflict: it runs with other nodes or GPUs.
            Unavailable: something did not start; tells the end of its log.

        """
        self._check(desired)
        with self._locked():
            record = self._record()
            if self.running and record and record.desired != desired:
                raise Conflict(
                    f"testbed {self.folder.name}",
                    found=f"it runs with {record.desired}, not {desired}",
                    hint="run scripts/testbed down, then up",
                )
            if not self.running:
                self._clean()
            self._start(desired, report)

    def down(self) -> None:
        """Stop everything and remove what is left; nothing happens when there is nothing.

        Raises:
            Unavailable: something would not go; tells what.

        """
        if self.folder.parent.exists():
            with self._locked():
                self._clean()

    def kubectl(self, *arguments: str, input_text: str | None = None) -> str:
        """Return what kubectl prints, as the administrator.

        Raises:
            Unavailable: it failed; tells what it said.

        """
        command = [str(self.bin / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, input=input_text)
        if done.returncode:
            raise Unavailable(f"kubectl {' '.join(arguments)}", found=done.stderr.strip(), hint="see what kubectl says")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """Return objects as `kubectl get ... -o json` gives them: one, or `items`. See `Lookups.get`."""
        return self._lookups.get(*arguments)

    def apply(self, *documents: dict[str, Any]) -> None:
        """Create or change objects."""
        content = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        self.kubectl("apply", "-f", "-", input_text=json.dumps(content))

    def components(self) -> tuple[Component, ...]:
        """Return every process that should run, in order of start."""
        record = self._record()
        if record is None:
            return ()
        own = parts.names() if record.desired.scheduler and record.desired.source == "source" else ()
        names = ["namespaces", *controlplane.COMPONENTS, "relay", *own]
        for number in range(1, record.desired.nodes + 1):
            names += [f"node{number}", *(f"node{number}-{part}" for part in node.COMPONENTS)]
        names += [name for name in self.processes.names() if name not in names]
        pods = self._pods() if record.desired.source == "image" else ()
        return (*(self._component(name) for name in names), *pods)

    def _pods(self) -> tuple[Component, ...]:
        """Return Tessera's pods, healthy where they are ready."""
        try:
            items = self.get("pods", f"--namespace={NAMESPACE}")["items"]
        except Unavailable:
            return ()
        return tuple(Component(f"pod {each['metadata']['name']}", 0, _ready(each), 0) for each in items)

    def _check(self, desired: Desired) -> None:
        if not 0 <= desired.nodes <= MOST_NODES:
            raise InvalidInput("nodes", found=str(desired.nodes), expected=f"0 to {MOST_NODES}")
        if desired.gpus:
            gpus_of(desired.gpus)
        if desired.source == "image" and not desired.nodes:
            raise InvalidInput("--from", found="an image needs a node to run it", hint="give --nodes, or --from source")
        if len(str(self.folder)) > _LONGEST_FOLDER:
            what = f"at most {_LONGEST_FOLDER} characters, because sockets lie in it"
            raise InvalidInput("run folder", found=f"{self.folder} is not {what}", hint="give another --name")
        for path in (self.folder, self.bin, Path(sys.prefix)):
            if any(path.resolve().is_relative_to(hidden) for hidden in _HIDDEN):
                raise InvalidInput("folder", found=str(path), expected=f"outside of {', '.join(_HIDDEN)}")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one command at a time change the testbed."""
        parent = self.folder.parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if parent.stat().st_uid != os.getuid():
            raise Conflict(str(parent), found="it is a folder of another user", hint="name another folder")
        with (parent / f"{self.folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _record(self) -> _Record | None:
        try:
            return msgspec.json.decode((self.folder / "testbed.json").read_bytes(), type=_Record)
        except (OSError, msgspec.MsgspecError):
            return None

    def _settings(self, desired: Desired) -> Settings:
        return Settings(self.folder, self.bin, self.pki, real_nodes=desired.nodes > 0, services=desired.services)

    def _start(self, desired: Desired, report: Callable[[str], None]) -> None:
        settings = self._settings(desired)
        report("keys and namespaces")
        self.folder.mkdir(mode=0o700, exist_ok=True)
        waiter = build_waiter(self.folder / "bin" / "pause")
        controlplane.prepare(settings)
        fresh = not self.running
        outer = make(self.processes, waiter)
        for command in prepare_bridge() if fresh else ():
            outer.run(*command)
        self._start_control_plane(settings, outer, desired, report)
        for one in self.nodes:
            report(one.name)
            one.start(outer, waiter)
        report("waiting until pods can be created")
        until(
            "service account default/default",
            lambda: self._lookups.answers("/api/v1/namespaces/default/serviceaccounts/default"),
            timeout_s=_READY_S,
            found=lambda: self.processes.last_words("controller-manager"),
        )
        if desired.bare:
            self._await_nodes()
            return
        ready = self._start_pods if desired.source == "image" else self._start_parts
        ready(desired, report)

    def _start_parts(self, desired: Desired, report: Callable[[str], None]) -> None:
        """Start server, second scheduler, controller and agents as processes of this checkout."""
        report("Tessera's kinds and rights")
        self.install()
        self._policies(desired, report)
        for name in parts.names() if desired.scheduler else ():
            report(name)
            self.start_part(name)
        self._await_nodes()
        for one in self.nodes if desired.agents else ():
            report(f"agent of {one.name}")
            one.start_agent(self.agent_kubeconfig(one.name))

    def _start_pods(self, desired: Desired, report: Callable[[str], None]) -> None:
        """Start them as pods of the image, by the objects of the chart."""
        archives = installed.images(self.folder / "images", self.bin, report)
        self._await_nodes()
        for one in self.nodes:
            report(f"image on {one.name}")
            for archive in archives:
                one.import_image(archive)
        values = installed.values(scheduler=desired.scheduler, admission=desired.admission)
        installed.install(self, self.nodes if desired.agents else (), values, report)
        self._policies(desired, report)

    def _policies(self, desired: Desired, report: Callable[[str], None]) -> None:
        """Make the GPUPolicy where there is none, and put the admission policies into force."""
        if desired.scheduler and not self.get("gpupolicies")["items"]:
            self.apply(parts.policy())
        if desired.scheduler and desired.admission:
            report("admission policies")
            admission.install(self)

    def _await_nodes(self) -> None:
        for one in self.nodes:
            words = partial(self.processes.last_words, f"{one.name}-kubelet")
            until(f"node {one.name}", partial(self._node_ready, one.name), timeout_s=_READY_S, found=words)

    def agent_kubeconfig(self, node: str) -> Path:
        """Return a kubeconfig for the agent of a node, made once; its token says which, as that of a pod does."""
        return self._token_kubeconfig("agent", f"-{node}", "--bound-object-kind=Node", f"--bound-object-name={node}")

    def account_kubeconfig(self, part: str) -> Path:
        """Return a kubeconfig for a part of Tessera, made once: with the rights of its file in templates/rbac alone.

        Args:
            part: `server`, `controller` or `scheduler`.

        """
        return self._token_kubeconfig(part)

    def _token_kubeconfig(self, part: str, suffix: str = "", *bound: str) -> Path:
        path = self.pki.folder / f"tessera-{part}{suffix}.kubeconfig"
        if path.exists():
            return path
        token = self.kubectl("create", "token", f"tessera-{part}", f"--namespace={NAMESPACE}", "--duration=24h", *bound)
        return self.pki.token_kubeconfig(path.stem, token.strip(), controlplane.inside_url())

    def start_part(self, name: str, *options: str) -> None:
        """Start the server, the second scheduler or the controller where it does not run, and wait until it is well.

        Args:
            name: one of `parts.names()`.
            options: of its command, besides those that the testbed gives it.

        """
        kubeconfig = self.account_kubeconfig(parts.account(name))
        command = parts.command(name, self.settings, kubeconfig)
        holder = self.processes.get("namespaces")
        assert holder is not None, "the testbed does not run"
        variables = {**environment(), "KUBECONFIG": str(kubeconfig)}
        inside = Namespaces(holder).enter()
        self.processes.start(name, (*command, *options), inside=inside, environment=variables)
        words = partial(self.processes.last_words, name)
        until(name, lambda: self._healthy(name), timeout_s=_READY_S, found=words)

    def install(self) -> None:
        """Install Tessera's kinds and the rights of its parts, or bring them to what this checkout has."""
        self.apply(*objects("namespace.yaml", "crds", "rbac"))
        self.await_kinds("gpupolicies.tessera.dev", "gpunodes.tessera.dev")

    def await_kinds(self, *names: str) -> None:
        """Wait until the API server serves these kinds.

        `kubectl wait` fails on a definition that has no conditions yet: it has none right after it was created.

        Args:
            names: of their CustomResourceDefinitions.

        """
        for name in names:
            until(name, partial(self._kind_served, name), timeout_s=_READY_S, found=lambda: "it is not Established")

    def _start_control_plane(
        self, settings: Settings, outer: Namespaces, desired: Desired, report: Callable[[str], None]
    ) -> None:
        report("control plane")
        inside = outer.enter()
        self.processes.start("etcd", controlplane.etcd(settings), inside=inside, environment=environment())
        self.processes.start("apiserver", controlplane.api_server(settings), inside=inside, environment=environment())
        port = self._start_relay(inside)
        self.pki.kubeconfig("admin", "admin", f"https://127.0.0.1:{port}")
        (self.folder / "testbed.json").write_bytes(msgspec.json.encode(_Record(desired, port)))
        (self.folder / "bin" / "kubectl").unlink(missing_ok=True)
        (self.folder / "bin" / "kubectl").symlink_to(self.bin / "kubectl")
        until(
            "API server",
            lambda: self._lookups.answers("/readyz"),
            timeout_s=_READY_S,
            found=lambda: self.processes.last_words("apiserver"),
        )
        for name, command in (
            ("controller-manager", controlplane.controller_manager(settings)),
            ("scheduler", controlplane.scheduler(settings)),
        ):
            self.processes.start(name, command, inside=inside, environment=environment())

    def _start_relay(self, inside: tuple[str, ...]) -> int:
        """Return the port of the machine's loopback that leads to the API server: the former one where it is free."""
        record = self._record()
        if record and self.processes.get("relay"):
            return record.port
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", record.port if record else 0))
            except OSError:
                listener.bind(("127.0.0.1", 0))
            listener.listen(128)
            # The module by its file: inside there is no checkout to import from unless the caller stands in it.
            script = str(Path(__file__).with_name("relay.py"))
            command = (sys.executable, script, str(listener.fileno()), CONTROL_PLANE, str(API_PORT))
            fds = (listener.fileno(),)
            self.processes.start("relay", command, inside=inside, environment=environment(), pass_fds=fds)
            port = listener.getsockname()[1]
            assert isinstance(port, int)
            return port

    def _node_ready(self, name: str) -> bool:
        with contextlib.suppress(Unavailable):  # it is not there yet
            conditions = self.get("node", name)["status"].get("conditions", ())
            return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return False

    def _kind_served(self, name: str) -> bool:
        conditions = self.get("crd", name).get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def _component(self, name: str) -> Component:
        process = self.processes.get(name)
        if process is None:
            return Component(name, pid=0, healthy=False, memory_mib=0)
        return Component(name, pid=process.pid, healthy=self._healthy(name), memory_mib=process.memory_mib)

    def _healthy(self, name: str) -> bool:
        """Return whether a process that runs also answers; those with nothing to ask are healthy while they run."""
        part = name.partition("-")[2] if name.startswith("node") else name
        if part == "apiserver":
            return self._lookups.answers("/readyz", timeout_s=5)
        urls = {
            "etcd": "http://127.0.0.1:2379/health",
            "controller-manager": "https://127.0.0.1:10257/healthz",
            "scheduler": "https://127.0.0.1:10259/healthz",
            "kubelet": "http://127.0.0.1:10248/healthz",
            **{name: url for name in parts.names() if (url := parts.health(name))},
        }
        return part not in urls or self._answers(name, urls[part])

    def _answers(self, name: str, url: str) -> bool:
        """Return whether a URL answers inside the namespaces of a process, whose own certificate is not checked."""
        process = self.processes.get(name)
        if process is None:
            return False
        probe = (
            "import ssl, sys, urllib.request as u; "
            "u.urlopen(sys.argv[1], timeout=5, context=ssl._create_unverified_context())"
        )
        command = [*Namespaces(process).enter(), sys.executable, "-c", probe, url]
        return subprocess.run(command, capture_output=True, check=False, env=environment()).returncode == 0

    def _clean(self) -> None:
        """Kill what runs, and remove folders and control groups."""
        holder = self.processes.get("namespaces")
        if holder:
            holder.signal(signal.SIGKILL)
            self.processes.resume_parents()
            # Process 1 ends when all other processes of its namespace are gone.
            until("end of the namespaces", lambda: not holder.alive, timeout_s=_STOP_S)
        left: tuple[Path, ...] = ()
        deadline = time.monotonic() + _STOP_S
        # A group is busy until the kernel has buried its last process.
        while (left := remove_cgroup(self.cgroup)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            raise Unavailable(
                "control groups", found=f"still there: {', '.join(map(str, left))}", hint="run down again"
            )
        self._remove_folder()

    def _remove_folder(self) -> None:
        below = f"{self.folder.resolve()}/"
        mounts = [
            line.split()[4] for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
        ]
        if busy := [mount for mount in mounts if mount.startswith(below)]:
            raise Conflict(
                f"run folder {self.folder}",
                found=f"something is mounted on {busy[0]}",
                hint=f"umount {busy[0]}, then run down again",
            )
        if self.folder.exists():
            shutil.rmtree(self.folder)
