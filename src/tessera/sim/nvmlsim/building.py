"""Builds the library from its C sources, once for each version of them, into a cache folder outside the checkout."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tessera.errors import Unavailable, Unsupported
from tessera.sim.mpscontrol import install

__all__ = ["FLAGS", "STATE_VARIABLE", "compiler", "environment", "library", "sources"]

STATE_VARIABLE = "TESSERA_NVMLSIM_STATE"
"""Names the state file to the library."""

_NAME = "libnvidia-ml.so.1"
_TIMEOUT_S = 120
FLAGS = (
    "-std=c11",
    "-O2",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    f"-Wl,-soname,{_NAME}",
)


def sources() -> Path:
    """Return the folder with the C sources: beside this module where installed, `native/nvmlsim` in a checkout."""
    here = Path(__file__).resolve()
    for folder in (here.with_name("native"), here.parents[4] / "native" / "nvmlsim"):
        if (folder / "nvml.h").is_file():
            return folder
    raise Unsupported(
        "simulated GPUs", found="the C sources of tessera.sim.nvmlsim are missing", hint="install tessera-gpu again"
    )


def compiler() -> str:
    """Return the C compiler: `CC`, else cc, gcc or clang from PATH.

    Raises:
        Unsupported: there is none.

    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise Unsupported(
        "simulated GPUs",
        found="no C compiler builds the simulated libnvidia-ml.so.1 (looked for CC, cc, gcc, clang)",
        hint="install gcc or clang; on Debian and Ubuntu: apt-get install gcc libc6-dev",
    )


def library(*, timeout_s: float = _TIMEOUT_S) -> Path:
    """Return the path of the built `libnvidia-ml.so.1`; builds it when these sources and flags are not built yet.

    One that lies beside its sources, as in Tessera's image, is taken as it is: no compiler is needed.
    The flags are `FLAGS` and those of the environment's CFLAGS. The cache is `$XDG_CACHE_HOME/tessera/nvmlsim/<hash>/`.
    Several processes may build at once: each builds aside and the result appears whole.

    Args:
        timeout_s: of the compiler.

    Raises:
        Unsupported: no compiler, or it refuses the sources.
        Unavailable: the compiler did not end in time.

    """
    folder = sources()
    if (folder / _NAME).is_file():
        return folder / _NAME
    cc = compiler()
    flags = (*FLAGS, *shlex.split(os.environ.get("CFLAGS", "")))
    target = _cache() / _key(folder, cc, flags) / _NAME
    if not target.is_file():
        _build(folder, (cc, *flags), target, timeout_s)
    return target


def environment(state: Path) -> Mapping[str, str]:
    """Return the variables that make every NVML client started with them see the machine of this state file.

    On PATH comes the stand-in for `nvidia-cuda-mps-control`, which belongs to the driver as the library does.
    """
    programs = _cache() / f"bin-{hashlib.sha256(sys.executable.encode()).hexdigest()[:16]}"
    install(programs)
    return {
        "LD_LIBRARY_PATH": _before("LD_LIBRARY_PATH", str(library().parent)),
        "PATH": _before("PATH", str(programs)),
        STATE_VARIABLE: str(state.resolve()),
    }


def _before(variable: str, folder: str) -> str:
    """Return a list of folders of this process's environment with `folder` in front, once."""
    former = [each for each in os.environ.get(variable, "").split(":") if each and each != folder]
    return ":".join((folder, *former))


def _cache() -> Path:
    top = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(top) / "tessera" / "nvmlsim"


def _key(folder: Path, cc: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\0".join((cc, platform.machine(), *flags)).encode())
    for path in sorted(folder.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _build(folder: Path, command: tuple[str, ...], target: Path, timeout_s: float) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as aside:
        built = Path(aside) / _NAME
        result = _compile([*command, "-o", str(built), *map(str, sorted(folder.glob("*.c")))], timeout_s)
        if result.returncode != 0:
            raise Unsupported(
                f"building {_NAME} with {command[0]}",
                found=" ".join(result.stderr.split())[:400] or f"exit code {result.returncode}",
                hint="set CC to a C11 compiler with Linux headers; on Debian and Ubuntu: apt-get install gcc libc6-dev",
            )
        built.replace(target)


def _compile(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603 - the compiler the user's environment names
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            command[0], found=f"it did not end within {timeout_s:g} s", hint="try again, or set CC to another compiler"
        ) from error
