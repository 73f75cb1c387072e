"""JupyterLab itself, from PyPI; built once into the cache outside the tree."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

__all__ = ["NEW", "OLDEST", "jupyterlab", "kernel"]

_EXECUTE = {"msg_id": "1", "msg_type": "execute_request", "version": "5.3"}

NEW = ("jupyterlab==4.6.6",)
OLDEST = ("jupyterlab==4.0.0", "jupyter_server==2.4.0")
"""The oldest that docs/run.md promises, with a server of its time."""


@contextmanager
def jupyterlab(
    command: tuple[str, ...], home: Path, token: str, packages: tuple[str, ...] = NEW
) -> Iterator["subprocess.Popen[bytes]"]:
    """Give a process that runs the command of a notebook in a home of its own."""
    programs = _programs(packages)
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "JUPYTER_TOKEN": token}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, env=variables, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _programs(packages: tuple[str, ...]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tessera/programs" / packages[0].replace("==", "-")
    if not (folder / "bin/jupyter-lab").exists():
        subprocess.run((sys.executable, "-m", "venv", folder), check=True)
        pip = (str(folder / "bin/pip"), "install", "--quiet", *packages)
        subprocess.run(pip, check=True)
    return folder / "bin"


@asynccontextmanager
async def kernel(owner: aiohttp.ClientSession) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Give what runs code in a new kernel and returns what it prints; `owner` knows the server and has its token."""
    made = await (await owner.post("/api/kernels", json={})).json()
    async with owner.ws_connect(f"/api/kernels/{made['id']}/channels") as channels:

        async def printed(code: str) -> str:
            request = {"channel": "shell", "msg_type": "execute_request", "header": _EXECUTE, "parent_header": {}}
            await channels.send_json({**request, "metadata": {}, "content": {"code": code, "silent": False}})
            async with asyncio.timeout(60):
                while not (text := (await channels.receive_json())["content"].get("text", "")):
                    pass
            return str(text)

        yield printed
