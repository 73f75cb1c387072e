"""A node whose model cache runs beside a kubelet in this process, small disks, and disks that fail."""

import asyncio
import contextlib
import errno
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from builders.nodepods import ListedPods
from harness.serving import running
from tessera.agent.pods.podsview import PodsView
from tessera.agent.storage.modelcache import ModelDisk, ModelKeeper, ModelSources, Places
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.reading import TransferLimits
from tessera.api.tessera.v1alpha1.modelcaches import API_VERSION, node_spec, read_node_models
from tessera.clients.kube import NODE_MODELS, PODS, MemoryKube, Object, Selection, follow
from tessera.clients.kubelet import Container, DeviceCheckpoint, MemoryKubelet, PodResources
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.core.deviceplugin.offers.modeloffers import CLIENTS
from tessera.core.storage.models.nodemodels import DesiredModel, NodeModels, ObservedModel
from tessera.measures import Measures

NEWER: tuple[dict[str, Any], ...] = ({"pack": "Zstd"}, {}, {})
"""What a newer controller writes of models beside what this version knows."""
LLAMA = "models.tessera.dev/llama"
MIB = 2**20
PATIENCE_S = 120.0
"""A sync waits until its disk has all that was written to it, by others too, which takes long on a busy machine."""


class Node:
    """A node whose model cache runs inside `running`; sources are folders below `bucket`."""

    def __init__(self, kubelet: MemoryKubelet, root: Path) -> None:
        self.kube = MemoryKube()
        self.measures = Measures()
        self.kubelet = kubelet
        self.bucket = root / "bucket"
        self.folder = root / "disk" / "models"
        self.folder.parent.mkdir()
        (self.folder.parent / "not-empty").touch()
        self.now_s = 1000.0
        self.record = PodResources(kubelet.pod_resources)

    async def _list(self) -> Any:
        return await self.kube.list(PODS)

    @asynccontextmanager
    async def running(
        self,
        disk: ModelDisk | None = None,
        sources: ModelSources | None = None,
        limits: TransferLimits = TransferLimits(),  # noqa: B008 - it is immutable
    ) -> AsyncIterator[None]:
        disk = disk or ModelDisk(self.folder, most_percent=99)
        keeper = ModelKeeper(
            "n1",
            self.kube,
            Places(disk, sources or ModelSources((self.bucket,)), self.kubelet.plugins, limits),
            interval_s=0.05,
            now_s=lambda: self.now_s,
        )
        view = PodsView(ListedPods(tuple, self._list), DeviceCheckpoint(self.kubelet.plugins), self.record)
        async with running(keeper.run(view, self.measures)):
            yield

    def put(self, name: str, **files: bytes) -> str:
        """Make what a source has; return its address."""
        folder = self.bucket / name
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return f"file://{folder}"

    async def tell(self, *desired: DesiredModel) -> None:
        body = {"apiVersion": API_VERSION, "kind": "NodeModels", "metadata": {"name": "n1"}}
        spec = {**body, "spec": node_spec(desired)}
        await self.kube.apply(NODE_MODELS, spec, manager="tessera-controller", force=True)

    async def tell_of_another_version(self, model: DesiredModel, *others: DesiredModel) -> None:
        """Desire models, the first with a value that this version does not know."""
        models = [{**each, **more} for each, more in zip(node_spec((model, *others))["models"], NEWER, strict=False)]
        body = {"apiVersion": API_VERSION, "kind": "NodeModels", "metadata": {"name": "n1"}, "spec": {"models": models}}
        await self.kube.apply(NODE_MODELS, body, manager="tessera-controller", force=True)

    async def reports(self, ready: Callable[[NodeModels], bool]) -> NodeModels:
        """Return what the agent reports when it is as desired."""
        return read_node_models(await self.writes(lambda each: ready(read_node_models(each))))

    async def writes(self, ready: Callable[[Object], bool]) -> Object:
        """Return the same as the object of the API."""
        last = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for change in follow(self.kube, NODE_MODELS, Selection(), on_error=lambda _: None):
                    if change.object is not None and change.object.get("status"):
                        last = change.object
                        if ready(last):
                            return last
        except TimeoutError:
            raise AssertionError(last) from None
        raise AssertionError

    async def model(self, ready: Callable[[ObservedModel], bool], name: str = "llama") -> ObservedModel:
        """Return what it reports of one model."""
        found = await self.reports(lambda node: any(each.name == name and ready(each) for each in node.observed))
        return next(each for each in found.observed if each.name == name)

    async def passes(self, count: int) -> None:
        """Return after so many passes of the agent."""
        for _ in range(count):
            last = self.measures._turned_s["models"]
            async with asyncio.timeout(PATIENCE_S):
                while self.measures._turned_s["models"] == last:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    async def start(self, pod: str, resource: str = LLAMA, revision: str = "") -> ContainerResponse:
        """Let a pod start, once the kubelet has the devices of a revision; return what its container gets."""
        await self.kubelet.until_allocatable(resource, CLIENTS, begin=revision[:48])
        made = await self.kube.create(PODS, {"metadata": {"name": pod, "namespace": "x"}})
        container = Container(name="main", limits=((resource, 1),))
        await self.kubelet.admit("x", pod, container, uid=made["metadata"]["uid"])
        return await self.kubelet.create("x", pod, "main")

    async def end(self, pod: str) -> None:
        await self.kube.delete(PODS, pod, namespace="x", grace_s=0)
        self.kubelet.remove("x", pod)


def desired(source: str, name: str = "llama", **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=source, **more)


def has(revision: str = "") -> Callable[[ObservedModel], bool]:
    return lambda found: found.state == "Ready" and bool(found.revision) and revision in ("", found.revision)


async def until_gone(path: Path) -> None:
    """Return when a path is no more, of which nothing tells."""
    async with asyncio.timeout(PATIENCE_S):
        while path.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)


def mounted(response: ContainerResponse) -> bytes:
    """Return what a container reads of file `a`."""
    return Path(response.mounts[0].host_path, "a").read_bytes()


class SmallFolder(ModelFolder):
    """On a disk of 9 MiB for all models, as they are counted on it."""

    def free_bytes(self) -> int:
        files = {}
        for folder, _, names in os.walk(self.top.parent):  # what goes meanwhile is left out
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found = Path(folder, name).lstat()
                    files[found.st_ino] = found.st_blocks * 512
        return max(0, 9 * MIB - sum(files.values()))


class SmallDisk(ModelDisk):
    reserve_bytes = 0

    def free_bytes(self) -> int:
        return self.model("any").free_bytes()

    def model(self, name: str) -> ModelFolder:
        return SmallFolder(self.folder / name)


def failed_more_often(failures: int) -> Callable[[ObservedModel], bool]:
    return lambda each: each.failures > failures


def fail_at(part: str, error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk fail wherever one looks at or opens a path with this part, as a bad sector does."""

    def failing(look: Callable[..., Any]) -> Callable[..., Any]:
        def looked(path: Any = ".", *more: Any, **others: Any) -> Any:
            if isinstance(path, str | Path) and part in str(path):
                raise OSError(error, os.strerror(error), str(path))
            return look(path, *more, **others)

        return looked

    for name in ("lstat", "stat", "open", "scandir", "listdir", "readlink", "unlink"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))


def refuse_removal(how: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk refuse to rename a folder, or to remove the files named `a` that are in it or were."""
    real = getattr(os, how)

    def refused(path: Any, *more: Any, **others: Any) -> None:
        folder = Path(f"/proc/self/fd/{others['dir_fd']}").readlink() if how == "unlink" and "dir_fd" in others else ""
        if of in str(folder) and str(path) == "a" if how == "unlink" else str(path).endswith(of):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, *more, **others)

    monkeypatch.setattr(os, how, refused)


async def three_revisions(node: Node, name: str) -> list[str]:
    """Fetch three revisions of a model, the last of which is the current one; return them."""
    found: list[str] = []
    async with node.running():
        for number in range(3):
            source = node.put(name, a=b"x" * (number + 1))
            await node.tell(desired(source, name, interval_s=60, keep=3))
            node.now_s += 61
            report = await node.model(lambda each: has()(each) and each.revision not in found, name)
            found.append(report.revision)
    return found


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[Callable[[str], None]]:
    """A file system of its own; gives what mounts it anew with an option."""

    def remount(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(path)], check=True)

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "x", str(path)], check=True)
    (path / "not-empty").touch()
    try:
        yield remount
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
