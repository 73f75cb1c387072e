"""Container images without a registry: archives that containerd imports, written here."""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tessera.errors import Unavailable

__all__ = ["BUSYBOX", "PAUSE", "PYTHON", "Content", "Image", "write_archive", "write_images", "write_layer"]

Content = Mapping[str, Any]
"""A part of an image's configuration. Source: OCI image specification, config.md."""

PAUSE = "testbed.local/pause:1"
BUSYBOX = "testbed.local/busybox:1"
"""A shell and the usual small programs: `image: testbed.local/busybox:1`."""
PYTHON = "testbed.local/python:1"
"""A shell and links into /usr; pods mount the machine's /usr and Python into it by hostPath."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_APPLETS = (
    *("sh", "cat", "echo", "env", "false", "grep", "gzip", "ls", "nc", "printenv", "sleep", "tar", "test", "true"),
    *("wc", "wget"),
)
_USR_LINKS = ("lib", "lib32", "lib64", "libx32", "sbin")


class Image(msgspec.Struct, frozen=True):
    """What an image is called, and how it runs."""

    name: str
    config: Content


def write_images(folder: Path, waiter: Path, machine: str) -> tuple[Path, ...]:
    """Return the archives of all images, written where they are not there.

    Args:
        folder: where they lie.
        waiter: the static program that only waits.
        machine: the machine's name of its architecture, as `uname -m` says.

    Raises:
        Unavailable: there is no static busybox to put into one.

    """
    busybox = shutil.which("busybox", path="/usr/bin:/bin")
    if busybox is None:
        raise Unavailable("busybox", found="there is none", hint="apt-get install busybox-static")
    folder.mkdir(parents=True, exist_ok=True)
    content = Path(busybox).read_bytes()

    def pause(layer: tarfile.TarFile) -> None:
        _file(layer, "pause", waiter.read_bytes())

    def shell(layer: tarfile.TarFile) -> None:
        _folders(layer, "bin", "tmp", "etc", "proc", "sys", "dev")
        _file(layer, "bin/busybox", content)
        for name in _APPLETS:
            _link(layer, f"bin/{name}", "busybox")

    def python(layer: tarfile.TarFile) -> None:
        shell(layer)
        _folders(layer, "usr")
        for name in _USR_LINKS:
            _link(layer, name, f"usr/{name}")

    images: tuple[tuple[str, list[str], Callable[[tarfile.TarFile], None]], ...] = (
        (PAUSE, ["/pause"], pause),
        (BUSYBOX, ["/bin/sh"], shell),
        (PYTHON, ["/bin/sh"], python),
    )
    paths = []
    for name, command, fill in images:
        path = folder / f"{name.rpartition('/')[2].partition(':')[0]}.tar"
        if not path.exists():
            path.write_bytes(_archive(name, command, fill, _ARCHITECTURES.get(machine, machine)))
        paths.append(path)
    return tuple(paths)


def _archive(name: str, command: list[str], fill: Callable[[tarfile.TarFile], None], architecture: str) -> bytes:
    """Return an image of one layer as `docker save` writes it."""
    layer = _tar(fill)
    config = _config(
        {"Cmd": command, "Env": ["PATH=/usr/bin:/bin:/sbin"]}, [hashlib.sha256(layer).hexdigest()], architecture
    )

    def whole(archive: tarfile.TarFile) -> None:
        _file(archive, "layer.tar", layer)
        _describe(archive, name, config, ["layer.tar"])

    return _tar(whole)


def write_layer(path: Path, root: Path) -> None:
    """Write what lies below a folder as a layer: the same bytes for the same content, by any process at any time."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(path, mode="w", format=tarfile.GNU_FORMAT) as layer:
        for each in sorted(root.rglob("*")):
            layer.add(each, str(each.relative_to(root)), recursive=False, filter=plain)


def write_archive(path: Path, image: Image, layers: Sequence[Path], machine: str) -> None:
    """Write an image of these layers as `docker save` does.

    Args:
        path: of the archive.
        image: its name and how it runs.
        layers: archives, the lowest first.
        machine: as for `write_images`.

    """
    digests = []
    for layer in layers:
        with layer.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    names = [f"{number}.tar" for number, _ in enumerate(layers)]
    with tarfile.open(path, mode="w") as archive:
        for name, layer in zip(names, layers, strict=True):
            archive.add(layer, name)
        _describe(archive, image.name, _config(image.config, digests, _ARCHITECTURES.get(machine, machine)), names)


def _config(config: Content, digests: Sequence[str], architecture: str) -> Content:
    diff_ids = [f"sha256:{each}" for each in digests]
    rootfs = {"type": "layers", "diff_ids": diff_ids}
    return {"architecture": architecture, "os": "linux", "config": config, "rootfs": rootfs}


def _describe(archive: tarfile.TarFile, name: str, config: Content, layers: list[str]) -> None:
    _file(archive, "config.json", json.dumps(config).encode())
    _file(
        archive, "manifest.json", json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": layers}]).encode()
    )


def _tar(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        fill(archive)
    return content.getvalue()


def _file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o755
    archive.addfile(info, io.BytesIO(content))


def _folders(archive: tarfile.TarFile, *names: str) -> None:
    for name in names:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        archive.addfile(info)


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    archive.addfile(info)
