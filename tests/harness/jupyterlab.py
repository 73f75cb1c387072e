"""JupyterLab itself, from PyPI; built once into the cache outside the tree."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["jupyterlab"]

_VERSION = "4.6.6"


@contextmanager
def jupyterlab(command: tuple[str, ...], home: Path, token: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Give a process that runs the command of a notebook in a home of its own."""
    programs = _programs()
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "JUPYTER_TOKEN": token}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, env=variables, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _programs() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tessera/programs" / f"jupyterlab-{_VERSION}"
    if not (folder / "bin/jupyter-lab").exists():
        subprocess.run((sys.executable, "-m", "venv", folder), check=True)
        pip = (folder / "bin/pip", "install", "--quiet", f"jupyterlab=={_VERSION}")
        subprocess.run(pip, check=True)
    return folder / "bin"
