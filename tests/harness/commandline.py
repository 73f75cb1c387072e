"""The command itself, as a process, against an API server."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["called", "running"]


@asynccontextmanager
async def running(config: Path, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Give `tessera` with these words, ended afterwards."""
    program, pipe = str(Path(sys.executable).with_name("tessera")), asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *words, "--kubeconfig", str(config), stdout=pipe, stderr=pipe
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def called(config: Path, *words: str) -> str:
    """Return what `tessera` with these words prints, which must succeed."""
    async with running(config, *words) as process:
        out, error = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, error.decode()
    return out.decode().strip()
