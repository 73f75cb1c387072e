"""A page of docs, walked on a testbed: its commands run as they are typed, and running pods are watched."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import yaml

from harness.plugins import ScriptedPlugin, connect
from kube.conftest import fresh
from kube.modelstore import BUCKET
from tessera.clients.kubelet import OptionalCalls, PluginServer
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from testbed import installed
from testbed.cluster import Cluster, Desired
from testbed.deploy import NAMESPACE
from testbed.images import BUSYBOX
from testbed.node import Node
from testbed.processes import until
from testbed.tesseraimage import K6, PROMETHEUS, REPOSITORY, TRITON, VLLM

__all__ = ["REGISTRY_PORT", "OtherPlugins", "Walk", "chart_values", "delete", "without_tessera"]

ROOT = Path(__file__).parents[2]
UNDO = "Undo"
REGISTRY_PORT = 5000
"""Of the loopback of the node, where the registry of a page is."""
_SECTION = re.compile(r"^##+ (.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMES = {
    "gpu-node-": "node",
    "registry.example/tessera": REPOSITORY,
    "registry.example/tools": f"127.0.0.1:{REGISTRY_PORT}/tools",
    "example.com/embed:1": BUSYBOX,
    "busybox:1.37": BUSYBOX,
    "nvcr.io/nvidia/tritonserver:26.07-py3": TRITON,
    "vllm/vllm-openai:v0.33.0": VLLM,
    "grafana/k6:1.8.1": K6,
    "prom/prometheus:v3.5.0": PROMETHEUS,
    "https://rgw.example.com": BUCKET,
    "/mnt/disks/tessera": "/var/lib/tessera/disk",
    "oci://registry.k8s.io/kueue/charts/kueue": "./kueue",
}
_DELETE_S = 180
_LOOK_S = 0.5
_PASSING = frozenset({"Event", "Lease", "CertificateSigningRequest", "EndpointSlice", "Endpoints", "PodMetrics"})
"""Kinds of objects that come and go by themselves."""
_NAMED = '{range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{"\\n"}{end}'
_CONDITIONS = '{range .items[*]}{.metadata.name} {.spec.schedulerName} {.status.conditions[*].message}{"\\n"}{end}'
_SLEEPS = {"command": ["sleep", "3600"]}


@contextmanager
def without_tessera(name: str, program_folder: Path, desired: Desired) -> Iterator[Cluster]:
    """Give a testbed whose nodes know Tessera's image, and nothing of Tessera installed; Helm may install it."""
    cluster = fresh(name, program_folder)
    try:
        cluster.up(msgspec.structs.replace(desired, bare=True))
        for archive in installed.images(cluster.folder / "images", cluster.bin, lambda _: None):
            for node in cluster.nodes:
                node.import_image(archive)
        yield cluster
    finally:
        cluster.down()


def delete(cluster: Cluster, *there: dict[str, Any]) -> None:
    """Delete objects, and return when they are gone."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": there})
    cluster.kubectl("delete", "--ignore-not-found", f"--timeout={_DELETE_S}s", "-f", "-", input_text=text)


def chart_values() -> dict[str, Any]:
    """Return the chart's values for a testbed on which the page's reader has made the namespace."""
    values = installed.values(scheduler=True, admission=True)
    del values["createNamespace"]
    return values


class Walk:
    """One page; `step` runs the commands of a section.

    Args:
        page: its name in docs, such as `migrate/gpushare`.
        cluster: where it is walked; the page's gpu-node-1 is its node1.
        folder: becomes the reader's working folder, with the page's YAML files and the checkout's deploy/.
        programs: folders with helm and whatever else the page's reader has.
        values: of the chart for this testbed, which are added to those of the page.
        serving: fields of a ModelServer's spec for this testbed, which are added likewise.

    """

    def __init__(
        self,
        page: str,
        cluster: Cluster,
        folder: Path,
        programs: tuple[Path, ...],
        values: dict[str, Any],
        serving: dict[str, Any] | None = None,
    ) -> None:
        text = (ROOT / "docs" / f"{page}.md").read_text()
        for name, mine in _NAMES.items():
            text = text.replace(name, mine)
        starts = [*_SECTION.finditer(text)]
        ends = [*(each.start() for each in starts[1:]), len(text)]
        self._cluster = cluster
        self._folder = folder
        self._commands = dict[str, str]()
        self.errors = ""
        """What the last commands printed to standard error."""
        self._watched = dict[str, tuple[str, str, int]]()
        folders = (*map(str, programs), str(Path(sys.executable).parent), str(cluster.bin))
        homes = {f"HELM_{name}_HOME": str(folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        self._variables = {
            **os.environ,
            **homes,
            "KUBECONFIG": str(cluster.kubeconfig),
            "PATH": f"{':'.join(folders)}:{os.environ['PATH']}",
        }
        for name in ("deploy", "examples"):
            (folder / name).symlink_to(ROOT / name)
        for found, end in zip(starts, ends, strict=True):
            blocks = _BLOCK.findall(text, found.end(), end)
            self._commands |= {found[1]: "".join(block for kind, block in blocks if kind == "sh")}
            for block in (block for kind, block in blocks if kind == "yaml"):
                self._write(block, values, serving or {})
        self._commands = {title: commands for title, commands in self._commands.items() if commands}
        self._before = self._there()

    def step(self, begins: str, *, within_s: float = 600) -> str:
        """Run the commands of the next section, whose title begins so, and return what they print.

        All pods that are watched must be as they were; after the section Undo everything must be as before the page.
        """
        title = next(iter(self._commands))
        assert title.startswith(begins), f"the next section with commands is {title}"
        commands = self._commands.pop(title)
        said = self.run(title, commands, within_s=within_s)
        if title == UNDO:
            self._until_undone()
        return said

    def run(self, title: str, commands: str, *, within_s: float = 600) -> str:
        """Run commands as the page's reader; otherwise as `step`."""
        sys.stdout.write(f"\n== {title}\n{commands}--\n")
        sys.stdout.flush()
        script = f"set -euo pipefail\n{commands}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._folder,
            env=self._variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=within_s,
        )
        sys.stdout.write(f"{done.stdout}{done.stderr}")
        self.errors = done.stderr
        if done.returncode:
            sys.stdout.write(self._state())
        assert done.returncode == 0, f"{title}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        self.unharmed(title)
        return done.stdout

    def _state(self) -> str:
        """Return what explains a command that failed."""
        selected = ("--selector=app.kubernetes.io/name=tessera", "--all-containers", "--prefix", "--tail=30")
        asked = (
            ("get", "nodes,pods", "-A", "-o", "wide"),
            ("get", "pods", "-A", f"--output=jsonpath={_CONDITIONS}"),
            ("get", "events", "-A", "--sort-by=.metadata.creationTimestamp"),
            ("get", "gpunodes,gpupolicies", "-o", "json"),
            ("logs", f"--namespace={NAMESPACE}", *selected),
        )
        return "\n".join(self._cluster.kubectl(*each)[-20000:] for each in asked)

    def on_node(self, node: Node, *arguments: str) -> str:
        """Run `tessera` on a node, with files of the page, and return what it prints."""
        program = str(Path(sys.executable).with_name("tessera"))
        files = (str(self._folder / each) if each.endswith(".yaml") else each for each in arguments)
        command = node.command(program, *files)
        done = subprocess.run(command, env=node.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def ended(self) -> None:
        """Fail where the page has commands that were not run."""
        assert list(self._commands) == []

    def _until_undone(self) -> None:
        """Wait until all objects, and the labels, annotations and taints of nodes, are those of before the page."""

        def changed() -> list[str]:
            return sorted(self._before ^ self._there())

        until("all as it was before the page", lambda: not changed(), timeout_s=_DELETE_S, found=lambda: str(changed()))

    def _there(self) -> set[str]:
        """Return the names of all objects, the labels, annotations and taints of nodes, and the reader's files."""
        kinds = self._cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
        named = self._cluster.kubectl("get", ",".join(kinds), "-A", f"--output=jsonpath={_NAMED}")
        found = {line for line in named.splitlines() if line.split()[0] not in _PASSING}
        for node in self._cluster.get("nodes")["items"]:
            name = node["metadata"]["name"]
            for field in ("labels", "annotations"):
                found |= {f"{name} {field} {key}" for key in node["metadata"].get(field, {})}
            found |= {f"{name} taint {taint}" for taint in node["spec"].get("taints", ())}
        return found | {f"file {each.name}" for each in self._folder.iterdir() if not each.is_dir()}

    def apply(self, name: str) -> None:
        """Apply a file of the page."""
        self._cluster.kubectl("apply", "-f", str(self._folder / name))

    def watch(self, *names: str) -> None:
        """Wait until pods run; from now on each step must leave them as they are."""
        for name in names:
            until(
                f"pod {name}",
                lambda name=name: self._seen(name)[0] == "Running",  # type: ignore[misc]
                timeout_s=180,
                found=lambda name=name: str(self._cluster.get("pod", name)["status"]),  # type: ignore[misc]
            )
            self._watched[name] = self._seen(name)

    def unwatch(self, name: str) -> None:
        """Let a pod end or change."""
        del self._watched[name]

    def unharmed(self, after: str) -> None:
        """Check that all pods that are watched have their phase, container and number of restarts."""
        assert {name: self._seen(name) for name in self._watched} == self._watched, after

    def _seen(self, name: str) -> tuple[str, str, int]:
        status = self._cluster.get("pod", name)["status"]
        (one,) = status.get("containerStatuses") or ({"restartCount": 0},)
        return status["phase"], str(one.get("containerID", "")), int(one["restartCount"])

    def _write(self, block: str, values: dict[str, Any], serving: dict[str, Any]) -> None:
        """Write a YAML block under the name in its first line; containers without a command sleep, the chart's
        values fit the testbed.
        """
        name = re.match(r"# ([a-z-]+\.yaml)\n", block)
        assert name, f"a name in the first line of {block}"
        content = yaml.safe_load(block)
        if name[1] == "values.yaml":
            content = _merged(content, values)
        if content.get("kind") == "ModelServer":
            content["spec"] = _merged(content["spec"], serving)
        if content.get("kind") == "ImageWarmup":  # the disk of the machine may be fuller than that of a node
            content["spec"]["maxDiskPercent"] = 100
        template = content.get("spec", {}).get("template", content)
        for container in template.get("spec", {}).get("containers", ()):
            if "command" not in container:
                container.update(_SLEEPS)
            template["spec"]["terminationGracePeriodSeconds"] = 1
        (self._folder / name[1]).write_text(yaml.safe_dump(content))


def _merged(page: Any, mine: Any) -> Any:
    """Return values in which lists of both are joined, and ours count where both have one."""
    if isinstance(page, dict) and isinstance(mine, dict):
        both = {key: _merged(page[key], mine[key]) for key in page.keys() & mine.keys()}
        return {**page, **mine, **both}
    return [*page, *mine] if isinstance(page, list) and isinstance(mine, list) else mine


class _Another(ScriptedPlugin):
    """Answers as other systems' device plugins do: by the environment."""

    async def allocate(self, ids: tuple[str, ...]) -> ContainerResponse:
        return ContainerResponse(env=(("NVIDIA_VISIBLE_DEVICES", ",".join(ids)),))


class OtherPlugins:
    """Device plugins of another system, which run on a node as long as it has a label, as pods of a DaemonSet do.

    Args:
        cluster: it is in.
        node: they serve.
        label: of the nodes on which they run, `gpushare=true`.
        devices: ids by resource name.

    """

    def __init__(self, cluster: Cluster, node: Node, label: str, devices: dict[str, tuple[str, ...]]) -> None:
        self._selected = ("node", "--selector", f"kubernetes.io/hostname={node.name},{label}")
        self._cluster = cluster
        self._node = node
        self._devices = devices
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _follow(self) -> None:
        servers: list[PluginServer] = []
        while not self._ended.is_set():
            desired = bool((await asyncio.to_thread(self._cluster.get, *self._selected))["items"])
            if desired and not servers:
                servers = [await self._serve(name, ids) for name, ids in self._devices.items()]
            if servers and not desired:
                servers = await self._stop(servers)
            await asyncio.to_thread(self._ended.wait, _LOOK_S)
        await self._stop(servers)

    async def _serve(self, resource: str, ids: tuple[str, ...]) -> PluginServer:
        return await connect(_Another(*ids, options=OptionalCalls()), self._node.device_plugins, resource)

    async def _stop(self, servers: list[PluginServer]) -> list[PluginServer]:
        for each in servers:
            await each.stop()
        return []
