"""Container images without a registry: archives that containerd imports, written here."""

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from tessera.errors import Unavailable

__all__ = ["BUSYBOX", "PAUSE", "PYTHON", "write_images"]

PAUSE = "testbed.local/pause:1"
BUSYBOX = "testbed.local/busybox:1"
"""A shell and the usual small programs: `image: testbed.local/busybox:1`."""
PYTHON = "testbed.local/python:1"
"""A shell and links into /usr; pods mount the machine's /usr and Python into it by hostPath."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_APPLETS = ("sh", "cat", "echo", "env", "false", "grep", "ls", "nc", "printenv", "sleep", "test", "true", "wget")
_USR_LINKS = ("lib", "lib32", "lib64", "libx32", "sbin")


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
        raise Unavailable("busybox", found="none", expected="a static one", hint="apt-get install busybox-static")
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
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/usr/bin:/bin:/sbin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]

    def whole(archive: tarfile.TarFile) -> None:
        _file(archive, "layer.tar", layer)
        _file(archive, "config.json", json.dumps(config).encode())
        _file(archive, "manifest.json", json.dumps(manifest).encode())

    return _tar(whole)


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
