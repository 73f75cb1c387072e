"""Images assembled without an engine: Tessera's, by the script that the Dockerfile runs, kube-scheduler's, Triton's."""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tessera import __version__
from tessera.errors import Unavailable
from testbed.deploy import KUBE_VERSION
from testbed.images import Content, Image, write_archive, write_layer
from testbed.namespaces import environment

__all__ = ["CONFIG", "REPOSITORY", "SCHEDULER", "SCRIPT", "TRITON", "scheduler_image", "tessera_image", "triton_image"]

REPOSITORY = "testbed.local/tessera"
TESSERA = f"{REPOSITORY}:{__version__}"
SCHEDULER = f"registry.k8s.io/kube-scheduler:v{KUBE_VERSION}"
"""The name under which the project Kubernetes publishes it; here it is the testbed's own program."""

_CHECKOUT = Path(__file__).parents[1]
SCRIPT = "deploy/image/rootfs.sh"
_BASE = (SCRIPT, "uv.lock")
_OWN = ("src", "native", "deploy", "pyproject.toml", "docs/package.md", "LICENSE")
_USER = "65532:65532"
_PATH = "/usr/local/bin:/usr/bin:/bin"
CONFIG = {
    "Entrypoint": ["tessera"],
    "User": _USER,
    "WorkingDir": "/",
    "Env": [f"PATH={_PATH}", "HOME=/tmp", "PYTHONUTF8=1"],
}
"""As the Dockerfile's last stage has it; a test compares them."""
TRITON = "testbed.local/tritonserver:2.51.0"
TRITON_SCRIPT = "testbed/tritonserver.sh"
_TRITON_CONFIG = {
    "Entrypoint": ["tritonserver"],
    "User": _USER,
    "WorkingDir": "/",
    "Env": [
        f"PATH={_PATH}",
        "HOME=/tmp",
        "LD_LIBRARY_PATH=/opt/tritonserver/lib",
    ],
}
_STALE_S = 2 * 3600
"""Archives that no start has asked for in so long are removed."""


def tessera_image(report: Callable[[str], None], *, cache: Path | None = None) -> Path:
    """Return the archive of this checkout's image; made where it is not there, in about 25 seconds the first time.

    Raises:
        Unavailable: a step failed; tells the end of what it said.

    """
    folder = (cache or _cache()) / "image"
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"base-{_digest(_BASE)}"
    archive = folder / f"tessera-{_digest((*_BASE, *_OWN))}.tar"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with _scratch(folder) as scratch:
                _base(base, scratch, report)
                report("image: this checkout")
                _run(SCRIPT, "tessera", str(scratch / "tessera"), str(base / "root"))
                write_layer(scratch / "layer.tar", scratch / "tessera")
                layers = (base / "layer.tar", scratch / "layer.tar")
                write_archive(scratch / "image.tar", Image(TESSERA, CONFIG), layers, platform.machine())
                (scratch / "image.tar").rename(archive)
        archive.touch()
        _forget(folder)
    return archive


def scheduler_image(folder: Path, bin_folder: Path) -> Path:
    """Return the archive of the second scheduler's image, written where it is not there.

    Args:
        folder: where it lies.
        bin_folder: the testbed's programs.

    """
    archive = folder / "kube-scheduler.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _scratch(folder) as scratch:
            place = scratch / "root" / "usr" / "local" / "bin"
            place.mkdir(parents=True)
            shutil.copy(bin_folder / "kube-scheduler", place)
            write_layer(scratch / "layer.tar", scratch / "root")
            config: Content = {"Entrypoint": ["kube-scheduler"], "User": _USER, "Env": [f"PATH={_PATH}"]}
            write_archive(scratch / "image.tar", Image(SCHEDULER, config), (scratch / "layer.tar",), platform.machine())
            (scratch / "image.tar").rename(archive)
    return archive


def triton_image(report: Callable[[str], None], *, cache: Path | None = None) -> Path:
    """Return the archive of a Triton that runs without a GPU; made where it is not there.

    Raises:
        Unavailable: a step failed; tells the end of what it said.

    """
    folder = (cache or _cache()) / "image"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"tritonserver-{_digest((*_BASE, TRITON_SCRIPT))}.tar"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            with _scratch(folder) as scratch:
                base = folder / f"base-{_digest(_BASE)}"
                _base(base, scratch, report)
                report("image: Triton")
                # Its models have a numpy of their own, of before 2.0, and nothing of ours.
                bare = shutil.ignore_patterns("dist-packages")
                shutil.copytree(base / "root", scratch / "root", symlinks=True, ignore=bare)
                _run(TRITON_SCRIPT, str(scratch / "root"))
                write_layer(scratch / "layer.tar", scratch / "root")
                layers = (scratch / "layer.tar",)
                write_archive(scratch / "image.tar", Image(TRITON, _TRITON_CONFIG), layers, platform.machine())
                (scratch / "image.tar").rename(archive)
    return archive


def _base(folder: Path, scratch: Path, report: Callable[[str], None]) -> None:
    """Make the layer below, where it is not there."""
    if not folder.exists():
        report("image: Python and libraries")
        (scratch / "base").mkdir()
        _run(SCRIPT, "base", str(scratch / "base" / "root"))
        write_layer(scratch / "base" / "layer.tar", scratch / "base" / "root")
        (scratch / "base").rename(folder)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera"


def _digest(names: tuple[str, ...]) -> str:
    """Return what tells the content of files and folders of the checkout from any other."""
    found = hashlib.sha256(platform.machine().encode())
    for name in names:
        root = _CHECKOUT / name
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(str(path.relative_to(_CHECKOUT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Give a folder beside the result, so that the result can be renamed into its place whole."""
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as name:
        yield Path(name)


def _forget(folder: Path) -> None:
    for path in folder.glob("tessera-*.tar"):
        if time.time() - path.stat().st_mtime > _STALE_S:
            path.unlink()


def _run(script: str, *arguments: str) -> None:
    command = ("bash", str(_CHECKOUT / script), *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise Unavailable(
            f"image by {script}",
            found=(done.stderr or done.stdout).strip()[-1000:],
            hint="see docs/image.md, or --from source, which needs no image",
        )
