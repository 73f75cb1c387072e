"""A node: a kubelet, containerd and runc in namespaces of their own."""

import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tessera.sim import nvmlsim
from testbed.addresses import connect_node, node_address, pod_network
from testbed.cgroups import make_cgroup, processes_in, remove_cgroup
from testbed.controlplane import Settings, inside_url
from testbed.gpus import MIG_MINORS
from testbed.images import PAUSE, write_images
from testbed.namespaces import Namespaces, environment, make_node
from testbed.processes import Process, Processes, find_process, sharing_mounts, until

__all__ = ["COMPONENTS", "SIMULATED_GPUS", "Node", "Shape"]

COMPONENTS = ("containerd", "kubelet")
"""In order of start; a node's process is called after it: `node1-kubelet`."""
SIMULATED_GPUS = Path("/var/lib/simulated-gpus")
"""A node's folder with its GPUs, `state`, and the driver's list of capabilities, `mig-minors`; pods can mount it."""
_READY_S = 60

_CONTAINERD = """\
version = 4
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[plugins.'io.containerd.server.v1.grpc']
  address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.server.v1.ttrpc']
  address = "/run/containerd/containerd.sock.ttrpc"
[plugins.'io.containerd.internal.v1.opt']
  path = "{folder}/opt"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{snapshotter}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{pause}"
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  # A root without CAP_SYS_RESOURCE may not lower a score; with this containerd keeps it where it is.
  restrict_oom_score_adj = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{bin}"]
  conf_dir = "{folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
"""Sockets lie in /run, which is the node's own, so that their paths are the usual and short ones."""


class Shape(msgspec.Struct, frozen=True):
    """What a node is: its number, from 1, and its GPUs."""

    number: int
    gpus: tuple[str, ...] = ()
    """Simulated GPUs, as `tessera sim-gpus create --gpus` takes them: `2xA100-40GB`."""


class Node:
    """A node of a testbed, called `node1`, `node2`, ..."""

    def __init__(self, shape: Shape, settings: Settings, processes: Processes, cgroup: str) -> None:
        self.number = shape.number
        self.name = f"node{shape.number}"
        self.gpus = shape.gpus
        self.address = node_address(self.number)
        self.folder = settings.folder / self.name
        self.cgroup = f"{cgroup}/{self.name}"
        self._settings = settings
        self._processes = processes

    @property
    def namespaces(self) -> Namespaces:
        """The node's namespaces; the node must have been started."""
        holder = self._processes.get(self.name)
        assert holder is not None, f"{self.name} does not run"
        return Namespaces(holder)

    @property
    def running(self) -> bool:
        """Whether its namespaces are there."""
        return self._processes.get(self.name) is not None

    @property
    def device_plugins(self) -> Path:
        """The kubelet's folder of device plugins as processes outside see it."""
        return self.folder / "var-lib" / "kubelet" / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The kubelet's socket that tells which pod has which devices, as processes outside see it."""
        return self.folder / "var-lib" / "kubelet" / "pod-resources" / "kubelet.sock"

    @property
    def gpu_state(self) -> Path:
        """The file that holds its simulated GPUs, for `tessera.sim.nvmlsim.Machine` and `tessera sim-gpus`."""
        return self.folder / "var-lib" / SIMULATED_GPUS.name / "state"

    @property
    def administrator(self) -> Path:
        """A kubeconfig that may do everything, for processes on the node."""
        return self._settings.pki.folder / "inside.kubeconfig"

    def path(self, inside: str) -> Path:
        """Return how this process reaches an absolute path of the running node, such as /run/cdi."""
        # A link would lead outside; /var/run is the one that matters.
        inside = inside.replace("/var/run", "/run", 1)
        return Path(f"/proc/{self.namespaces.holder.pid}/root{inside}")

    def command(self, *arguments: str) -> list[str]:
        """Return a command line that runs a command on the node: in its network, mounts and processes."""
        return [*self.namespaces.enter(), *arguments]

    def run(self, *arguments: str) -> str:
        """Return what a command on the node prints.

        Raises:
            Unavailable: it failed; tells what it said.

        """
        return self.namespaces.run(*arguments)

    def environment(self) -> dict[str, str]:
        """Return the environment of processes on the node: the caller's, the node's name, and its GPUs' library."""
        library = nvmlsim.environment(self.gpu_state) if self.gpus else {}
        return {**environment(), **library, "NODE_NAME": self.name, "KUBECONFIG": str(self.administrator)}

    def start_process(self, name: str, command: Sequence[str], more: dict[str, str] | None = None) -> Process:
        """Start a process on the node, or return the one that runs.

        Args:
            name: after the node's: `agent` is called `node1-agent`.
            command: the program and its arguments.
            more: environment besides the caller's own.

        """
        variables = {**self.environment(), **(more or {})}
        full = f"{self.name}-{name}"
        return self._processes.start(full, command, inside=self.namespaces.enter(), environment=variables)

    def process(self, name: str) -> Process | None:
        """Return a process of the node; None when it does not run."""
        return self._processes.get(f"{self.name}-{name}")

    def stop_process(self, name: str, *, timeout_s: float = 20) -> None:
        """Stop a process of the node and wait until it is gone."""
        self._processes.stop(f"{self.name}-{name}", timeout_s=timeout_s)

    def start(self, outer: Namespaces, waiter: Path) -> None:
        """Start what does not run of the node; returns when the kubelet was started, not when the node is ready."""
        if not self.running:
            make_cgroup(self.cgroup)
            namespaces = make_node(self._processes, outer, self.name, self.folder, waiter)
            bridge, node = connect_node(self.number, namespaces.holder.inside_pid)
            for command in bridge:
                outer.run(*command)
            for command in node:
                namespaces.run(*command)
            self._make_gpus()
        self._write_files()
        self._start_containerd(waiter)
        self.start_kubelet()

    def start_kubelet(self) -> None:
        """Start the kubelet where it does not run."""
        arguments = ("--config", str(self.folder / "kubelet.json"), f"--hostname-override={self.name}")
        kubeconfig = self._settings.pki.folder / f"{self.name}.kubeconfig"
        more = (f"--kubeconfig={kubeconfig}", f"--node-ip={self.address}")
        self.start_process("kubelet", (str(self._settings.bin / "kubelet"), *arguments, *more))

    def power_off(self) -> None:
        """End everything on the node at once, as a power cut does; `Cluster.up` boots it again.

        What lies on disk stays; the node's /run, its pods' processes and its network are gone.
        """
        holder = self.namespaces.holder
        gone = [*sharing_mounts(holder), *filter(None, map(find_process, processes_in(self.cgroup)))]
        for process in gone:
            process.signal(signal.SIGKILL)
        until(f"end of {self.name}", lambda: not any(one.alive for one in gone), timeout_s=_READY_S)
        remove_cgroup(self.cgroup)

    def start_agent(self, kubeconfig: Path, *options: str) -> Process:
        """Start this checkout's `tessera agent` on the node, or return the one that runs."""
        program = str(Path(sys.executable).with_name("tessera"))
        return self.start_process("agent", (program, "agent", *options), {"KUBECONFIG": str(kubeconfig)})

    def stop_kubelet(self) -> None:
        """Stop the kubelet; pods run on."""
        self.stop_process("kubelet")

    def restart_kubelet(self) -> None:
        """Stop the kubelet and start it again; returns when it says it is healthy, with its sockets recreated."""
        self.stop_kubelet()
        self.start_kubelet()
        until(f"kubelet of {self.name}", self.kubelet_healthy, timeout_s=_READY_S, found=self._kubelet_words)

    def kubelet_healthy(self) -> bool:
        """Return whether the kubelet runs, says it is healthy and listens to device plugins."""
        if self.process("kubelet") is None or not _listens(self.device_plugins / "kubelet.sock"):
            return False
        probe = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:10248/healthz', timeout=2)"
        command = self.command(sys.executable, "-c", probe)
        return subprocess.run(command, capture_output=True, check=False, env=environment()).returncode == 0

    def _make_gpus(self) -> None:
        """Make the node's simulated GPUs and their device files; GPUs that were there keep their state."""
        if not self.gpus:
            return
        if not self.gpu_state.exists():
            nvmlsim.create_state(self.gpu_state, self.gpus, seed=self.name)
        script = str(Path(__file__).with_name("gpus.py"))
        self.run(sys.executable, script, str(len(nvmlsim.gpus_of(self.gpus))))
        # A container has a /proc of its own; that of a real driver is in every one.
        self.run("cp", str(MIG_MINORS), str(SIMULATED_GPUS / MIG_MINORS.name))

    def _kubelet_words(self) -> str:
        return self._processes.last_words(f"{self.name}-kubelet")

    def _write_files(self) -> None:
        pki = self._settings.pki
        names = (f"DNS:{self.name}", f"IP:{self.address}")
        pki.issue(self.name, f"/O=system:nodes/CN=system:node:{self.name}", names=names)
        pki.kubeconfig(self.name, self.name, inside_url())
        pki.kubeconfig("inside", "admin", inside_url())
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "resolv.conf").touch()
        (self.folder / "cni" / "10-testbed.conflist").write_text(json.dumps(self._cni(), indent=1))
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet(), indent=1))
        text = _CONTAINERD.format(
            folder=self.folder, bin=self._settings.bin, pause=PAUSE, snapshotter=_snapshotter(self.folder)
        )
        (self.folder / "containerd.toml").write_text(text)

    def _cni(self) -> dict[str, object]:
        ranges = [[{"subnet": pod_network(self.number)}]]
        bridge = {
            "type": "bridge",
            "bridge": "pods",
            "isGateway": True,
            "ipMasq": False,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]},
        }
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "testbed", "plugins": [bridge, portmap]}

    def _kubelet(self) -> dict[str, object]:
        pki = self._settings.pki
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failSwapOn": False,
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki.certificate("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki.certificate(self.name)),
            "tlsPrivateKeyFile": str(pki.key(self.name)),
            "address": self.address,
            "healthzBindAddress": "127.0.0.1",
            "readOnlyPort": 0,
            # What a device plugin offers is in the Node object a second later, instead of ten.
            "nodeStatusUpdateFrequency": "1s",
            # And when nothing changes as seldom as by default, which setting the other would change.
            "nodeStatusReportFrequency": "5m",
            "resolvConf": str(self.folder / "resolv.conf"),
            # The machine's disk may be nearly full of other things. Images come from no registry, so one that is
            # removed to make room is gone; and a hundredth of a large disk is more than all pods of a testbed need.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "100Mi", "imagefs.available": "100Mi"},
        }

    def _start_containerd(self, waiter: Path) -> None:
        # containerd looks for its shim on PATH.
        path = f"{self._settings.bin}{os.pathsep}{environment()['PATH']}"
        command = (str(self._settings.bin / "containerd"), "--config", str(self.folder / "containerd.toml"))
        (self.folder / "tmp").mkdir(exist_ok=True)
        self.start_process("containerd", command, {"PATH": path, "TMPDIR": str(self.folder / "tmp")})
        words = f"{self.name}-containerd"
        until(words, self._containerd_answers, timeout_s=_READY_S, found=lambda: self._processes.last_words(words))
        for image in write_images(self._settings.folder / "images", waiter, platform.machine()):
            self.import_image(image)

    def import_image(self, archive: Path) -> None:
        """Give containerd an image, where it has not had it from this archive."""
        done = self.folder / "imported" / archive.name
        if not done.exists():
            self.run(*self._ctr(), "images", "import", str(archive))
            done.parent.mkdir(exist_ok=True)
            done.touch()

    def _ctr(self) -> tuple[str, ...]:
        return (str(self._settings.bin / "ctr"), "--address=/run/containerd/containerd.sock", "--namespace=k8s.io")

    def _containerd_answers(self) -> bool:
        command = self.command(*self._ctr(), "version")
        return subprocess.run(command, capture_output=True, check=False, env=environment()).returncode == 0


def _listens(path: Path) -> bool:
    """Return whether a process listens on a unix socket; a file that a dead one left refuses."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(1)
        try:
            one.connect(str(path))
        except OSError:
            return False
    return True


def _snapshotter(folder: Path) -> str:
    """Return how containerd keeps layers: by overlay, which does not work on a folder that is itself an overlay."""
    done = subprocess.run(
        ["stat", "--file-system", "--format=%T", str(folder)], capture_output=True, text=True, check=True
    )
    return "native" if done.stdout.strip() == "overlayfs" else "overlayfs"
