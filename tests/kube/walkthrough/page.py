"""A page of docs, walked on a testbed: its commands run as they are typed, and running pods are watched."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml

from kube.conftest import fresh
from kube.modelstore import BUCKET
from kube.walkthrough.undo import state_of_cluster, until_undone
from testbed import installed
from testbed.cluster import Cluster, Desired
from testbed.deploy import NAMESPACE
from testbed.images import BUSYBOX
from testbed.node import Node
from testbed.processes import until
from testbed.tesseraimage import K6, PROMETHEUS, REPOSITORY, TRITON, VLLM

__all__ = ["REGISTRY_PORT", "Walk", "chart_values", "delete", "without_tessera"]

ROOT = Path(__file__).parents[3]
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
        folder: becomes the reader's working folder, with the page's YAML files, the checkout's deploy/ and examples/.
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
        text = _here((ROOT / "docs" / f"{page}.md").read_text())
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
        (folder / "deploy").symlink_to(ROOT / "deploy")
        shutil.copytree(ROOT / "examples", folder / "examples")
        for path in (folder / "examples").rglob("*.yaml"):
            path.write_text(_here(path.read_text()))
        for found, end in zip(starts, ends, strict=True):
            blocks = _BLOCK.findall(text, found.end(), end)
            self._commands |= {found[1]: "".join(block for kind, block in blocks if kind == "sh")}
            for block in (block for kind, block in blocks if kind == "yaml"):
                self._write(block, values, serving or {})
        self._commands = {title: commands for title, commands in self._commands.items() if commands}
        self._before = state_of_cluster(cluster, folder)

    def step(self, begins: str, *, within_s: float = 600) -> str:
        """Run the commands of the next section, whose title begins so, and return what they print.

        All pods that are watched must be as they were; after the section Undo everything must be as before the page.
        """
        title = next(iter(self._commands))
        assert title.startswith(begins), f"the next section with commands is {title}"
        commands = self._commands.pop(title)
        said = self.run(title, commands, within_s=within_s)
        if title == UNDO:
            until_undone(self._before, self._cluster, self._folder)
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
                template["spec"]["terminationGracePeriodSeconds"] = 1  # `sleep` as a first process heeds no SIGTERM
        (self._folder / name[1]).write_text(yaml.safe_dump(content))


def _here(text: str) -> str:
    """Return a text of the page with the names that it has on this testbed."""
    for name, mine in _NAMES.items():
        text = text.replace(name, mine)
    return text


def _merged(page: Any, mine: Any) -> Any:
    """Return values in which lists of both are joined, and ours count where both have one."""
    if isinstance(page, dict) and isinstance(mine, dict):
        both = {key: _merged(page[key], mine[key]) for key in page.keys() & mine.keys()}
        return {**page, **mine, **both}
    return [*page, *mine] if isinstance(page, list) and isinstance(mine, list) else mine
