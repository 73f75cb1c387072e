"""Images assembled without an engine: Tessera's, by the script that the Dockerfile runs, and other programs'."""

import contextlib
import fcntl
import hashlib
import os
import platform
import re
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

__all__ = [
    "CONFIG",
    "JUPYTERLAB",
    "K6",
    "PROMETHEUS",
    "REPOSITORY",
    "SCHEDULER",
    "SCRIPT",
    "TRITON",
    "VLLM",
    "jupyterlab_image",
    "k6_image",
    "prometheus_image",
    "scheduler_image",
    "tessera_image",
    "triton_image",
    "vllm_image",
]

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
VLLM = "testbed.local/vllm:0.32.0"
MODEL = "examples/9-model-servers/tiny-llama"
"""A language model without weights, about which the image of vLLM has recorded answers."""
VLLM_FILES = (
    "testbed/vllmserver.sh",
    "testbed/vllmserver.txt",
    "testbed/cudanames.py",
    "testbed/recordedvllm.py",
    MODEL,
)
JUPYTERLAB = "testbed.local/jupyterlab:4.6.6"
JUPYTERLAB_SCRIPT = "testbed/jupyterlab.sh"
PROMETHEUS = "testbed.local/prometheus:1"
K6 = "testbed.local/k6:1"
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
_VLLM_CONFIG = {
    "Entrypoint": ["vllm", "serve"],
    "User": _USER,
    "WorkingDir": "/",
    "Env": [
        f"PATH={_PATH}",
        "HOME=/tmp",
        "VLLM_CACHE_ROOT=/opt/vllm/cache",
        "VLLM_NO_USAGE_STATS=1",
        "HF_HUB_OFFLINE=1",
        "VLLM_CPU_OMP_THREADS_BIND=nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING=0",
        "OMP_NUM_THREADS=1",
    ],
}
_PROGRAM: Content = {"User": _USER, "WorkingDir": "/tmp", "Env": [f"PATH={_PATH}"]}  # noqa: S108  # in the image
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
    with _locked(folder / "lock"):
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
    return _program_image(folder, Image(SCHEDULER, _PROGRAM), bin_folder / "kube-scheduler")


def k6_image(folder: Path, program: Path) -> Path:
    """Return the archive of an image of k6, written where it is not there.

    Args:
        folder: where it lies.
        program: k6 itself.

    """
    return _program_image(folder, Image(K6, _PROGRAM), program)


def prometheus_image(folder: Path, program: Path, promtool: Path) -> Path:
    """Return the archive of an image of Prometheus and its tool; arguments as in `k6_image`."""
    return _program_image(folder, Image(PROMETHEUS, _PROGRAM), program, promtool)


def _program_image(folder: Path, image: Image, program: Path, *more: Path) -> Path:
    """Return the archive of an image that runs a program, with more of them, and the libraries that they name."""
    archive = folder / f"{program.name}.tar"
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _scratch(folder) as scratch:
            place = scratch / "root" / "usr" / "local" / "bin"
            place.mkdir(parents=True)
            for each in (program, *more):
                shutil.copy(each, place)
                for library in _libraries(each):
                    copy = scratch / "root" / library.relative_to("/")
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(library, copy)
            write_layer(scratch / "layer.tar", scratch / "root")
            own: Content = {"Entrypoint": [program.name], **image.config}
            write_archive(scratch / "image.tar", Image(image.name, own), (scratch / "layer.tar",), platform.machine())
            (scratch / "image.tar").rename(archive)
    return archive


def _libraries(program: Path) -> list[Path]:
    """Return the libraries of a program; none of one that is linked statically."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, env=environment())
    return [Path(each) for each in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)]


def triton_image(report: Callable[[str], None], *, cache: Path | None = None) -> Path:
    """Return the archive of a Triton that runs without a GPU; made where it is not there.

    Raises:
        Unavailable: a step failed; tells the end of what it said.

    """
    return _server_image(Image(TRITON, _TRITON_CONFIG), (TRITON_SCRIPT,), report, cache=cache)


def jupyterlab_image(report: Callable[[str], None], *, cache: Path | None = None) -> Path:
    """Return the archive of an image for notebooks; made where it is not there, in half a minute.

    Raises:
        Unavailable: a step failed; tells the end of what it said.

    """
    image = Image(JUPYTERLAB, {"User": _USER, "WorkingDir": "/tmp", "Env": [f"PATH={_PATH}", "HOME=/tmp"]})  # noqa: S108  # in the image
    return _server_image(image, (JUPYTERLAB_SCRIPT,), report, cache=cache)


def vllm_image(report: Callable[[str], None], *, cache: Path | None = None) -> Path:
    """Return the archive of a vLLM that runs without a GPU, 3 GB; made where it is not there, in minutes.

    Raises:
        Unavailable: a step failed; tells the end of what it said.

    """
    return _server_image(Image(VLLM, _VLLM_CONFIG), VLLM_FILES, report, str(_CHECKOUT / MODEL), cache=cache)


def _server_image(
    image: Image, files: tuple[str, ...], report: Callable[[str], None], *arguments: str, cache: Path | None
) -> Path:
    """Return the archive of a model server, which a script adds to a root that has Debian's Python.

    Args:
        image: its name and how it runs.
        files: of the checkout, on which it depends; the first is the script.
        report: told each step as it begins.
        arguments: of the script, after the root.
        cache: where images are kept.

    """
    folder = (cache or _cache()) / "image"
    folder.mkdir(parents=True, exist_ok=True)
    name = Path(files[0]).stem
    archive = folder / f"{name}-{_digest((*_BASE, *files))}.tar"
    base = folder / f"base-{_digest(_BASE)}"
    with _locked(folder / "lock"), _scratch(folder) as scratch:
        _base(base, scratch, report)
    with _locked(folder / f"{name}.lock"):  # of its own: others' images need not wait for it
        if not archive.exists():
            for former in folder.glob(f"{name}-*.tar"):
                former.unlink()
            with _scratch(folder) as scratch:
                report(f"image: {name}")
                # Its models have a numpy of their own, and nothing of ours.
                bare = shutil.ignore_patterns("dist-packages")
                shutil.copytree(base / "root", scratch / "root", symlinks=True, ignore=bare)
                _run(files[0], str(scratch / "root"), *arguments)
                write_layer(scratch / "layer.tar", scratch / "root")
                shutil.rmtree(scratch / "root")
                write_archive(scratch / "image.tar", image, (scratch / "layer.tar",), platform.machine())
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
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
