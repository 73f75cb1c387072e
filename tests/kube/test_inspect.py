"""`tessera inspect` and `tessera explain pod` on a real API server, as people and kubectl call them."""

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.kubeobjects import Object, pod, share
from judges import gpusharecli
from kube.fakenodes import MADE, FakeNode, connected, delete_nodes, delete_pods, make_nodes
from tessera.clients.kube import NODES, PODS, Kube
from testbed.cluster import Cluster

pytestmark = pytest.mark.anyio
MEMORY = "aliyun.com/gpu-mem"
FOLDER = Path(sys.executable).parent


def on(node: str | None, name: str, limits: dict[str, int], **annotations: str) -> Object:
    """Return a pod of the test, bound already where it has a node."""
    made = pod(name, limits, node=node, annotations=annotations)
    made["metadata"] |= {"namespace": "default", "labels": {MADE[0]: MADE[1]}}
    made["spec"] |= {"terminationGracePeriodSeconds": 0}
    made["spec"]["containers"][0]["image"] = "example.com/none:1"
    made.pop("status")
    made["metadata"].pop("uid")
    return made


@asynccontextmanager
async def cluster_with(control_plane: Cluster, *pods: Object) -> AsyncIterator[Kube]:
    nodes = [FakeNode(name=f"gpu-{n}", gpus=2, more={"aliyun.com/gpu-count": 2}) for n in range(2)]
    async with connected(control_plane) as kube:
        try:
            await make_nodes(kube, nodes)
            for each in pods:
                await kube.create(PODS, each)
            yield kube
        finally:
            await delete_pods(kube)
            await delete_nodes(kube)


def environment(control_plane: Cluster) -> dict[str, str]:
    path = os.pathsep.join((str(FOLDER), str(control_plane.bin), os.environ["PATH"]))
    return {**os.environ, "KUBECONFIG": str(control_plane.kubeconfig), "PATH": path, "COLUMNS": "120"}


async def printed(control_plane: Cluster, *command: str) -> str:
    """Return what a program prints that must not fail."""
    process = await asyncio.create_subprocess_exec(
        *command, env=environment(control_plane), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


PODS_THERE = (
    on("gpu-0", "one", {MEMORY: 5}, ALIYUN_COM_GPU_MEM_IDX="1"),
    on("gpu-0", "two", {MEMORY: 7}, **{"scheduler.framework.gpushare.allocation": '{"0":{"0":3,"1":4}}'}),
    on("gpu-1", "lost", {MEMORY: 2}),
)


async def test_the_table_of_a_live_cluster_is_what_the_rules_of_gpushares_client_give(control_plane: Cluster) -> None:
    async with cluster_with(control_plane, *PODS_THERE) as kube:
        objects: list[Any] = [*(await kube.list(NODES)).objects, *(await kube.list(PODS)).objects]
        for each in objects:
            each["status"].setdefault("addresses", [])
        want = gpusharecli.shown(objects)
        table = (await printed(control_plane, "kubectl", "tessera", "inspect", "-o", "gpushare")).splitlines()
        rows = [row for row in (line.split() for line in table[1:]) if row[0].startswith("gpu-")]
        assert [[row[0], *row[2:]] for row in rows] == [
            [
                row.name,
                *(f"{allocated}/{total}" for allocated, total in row.gpus),
                *([str(row.pending)] if row.pending else []),
                f"{row.allocated}/{row.total}",
            ]
            for row in want.rows
        ]
        assert table[-1] == f"{want.allocated}/{want.total} ({want.percent}%)"


async def test_a_saved_cluster_shows_the_same(control_plane: Cluster, tmp_path: Path) -> None:
    async with cluster_with(control_plane, *PODS_THERE):
        saved = tmp_path / "cluster.json"
        saved.write_text(await printed(control_plane, "kubectl", "get", "nodes,pods,gpunodes", "-A", "-o", "json"))
        for output in ("table", "wide", "json"):
            live = await printed(control_plane, "tessera", "inspect", "-o", output)
            assert await printed(control_plane, "tessera", "inspect", "-o", output, "--cluster", str(saved)) == live


async def test_a_watch_shows_changes_and_ends_by_an_interrupt(control_plane: Cluster) -> None:
    async with cluster_with(control_plane) as kube:
        process = await asyncio.create_subprocess_exec(
            "tessera", "inspect", "--watch",
            env=environment(control_plane), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(60):
                await until(process.stdout, b"0 of 4 GPUs in use")
                await kube.create(PODS, on("gpu-0", "new", {MEMORY: 5}, ALIYUN_COM_GPU_MEM_IDX="1"))
                await until(process.stdout, b"default/new")
                process.send_signal(signal.SIGINT)
                await process.stdout.read()
                assert await process.wait() == 0
                assert await process.stderr.read() == b""
        finally:
            await end(process)


async def test_a_watch_in_a_terminal_gives_the_terminal_back(control_plane: Cluster) -> None:
    """Ctrl-c as a terminal sends it; the cursor is shown again, and nothing is complained of."""
    async with cluster_with(control_plane):
        near, far = os.openpty()
        process = await asyncio.create_subprocess_exec(
            "tessera", "inspect", "--watch",
            env={**environment(control_plane), "TERM": "xterm"}, stdin=far, stdout=far, stderr=far,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(far, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(far)
        try:
            async with asyncio.timeout(60):
                seen = b""
                while b"GPUs in use" not in seen:
                    seen += await asyncio.to_thread(os.read, near, 1 << 16)
                os.write(near, b"\x03")
                assert await process.wait() == 0
                seen += await asyncio.to_thread(os.read, near, 1 << 16)
            assert seen.rfind(SHOW_CURSOR) > seen.rfind(HIDE_CURSOR) >= 0
            assert b"Traceback" not in seen
            assert b"error" not in seen
        finally:
            await end(process)
            os.close(near)


SHOW_CURSOR, HIDE_CURSOR = b"\x1b[?25h", b"\x1b[?25l"


async def end(process: asyncio.subprocess.Process) -> None:
    """Leave nothing behind."""
    if process.returncode is None:
        process.kill()
        await process.wait()


async def until(stream: asyncio.StreamReader, words: bytes) -> None:
    """Read a stream until these words came."""
    seen = b""
    while words not in seen:
        piece = await stream.read(1 << 16)
        assert piece, seen.decode()
        seen += piece


async def test_a_pod_that_waits_is_explained(control_plane: Cluster) -> None:
    async with cluster_with(
        control_plane,
        on("gpu-0", "one", {"tessera.dev/gpu-memory": 36}, **annotated(share(0, 36864))),
        on(None, "large", {"tessera.dev/gpu-memory": 90}),
    ):
        text = await printed(control_plane, "kubectl", "tessera", "explain", "pod", "large")
        assert "pending" in text
        assert "no GPU of the node can provide" in " ".join(text.split())
        got = json.loads(await printed(control_plane, "tessera", "explain", "pod", "one", "-o", "json"))
        assert got["explanation"]["node"] == "gpu-0"
        assert [each["share"]["gpu"] for each in got["explanation"]["devices"]] == [0]
        ended = json.dumps({"status": {"phase": "Failed", "reason": "Evicted"}})
        control_plane.kubectl("patch", "pod", "one", "--subresource=status", "--type=merge", "-p", ended)
        text = " ".join((await printed(control_plane, "tessera", "explain", "pod", "one")).split())
        assert "finished on gpu-0 Why - it has failed: Evicted - its assignment was 36 GiB of GPU 0" in text


def annotated(*shares: Any) -> dict[str, str]:
    return dict(pod("x", None, *shares)["metadata"]["annotations"])


def test_the_plugin_is_found_by_kubectl(control_plane: Cluster) -> None:
    listed = subprocess.run(
        [control_plane.bin / "kubectl", "plugin", "list"],
        env=environment(control_plane),
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"/kubectl-tessera$", listed.stdout, re.MULTILINE), listed.stdout + listed.stderr
