"""The pictures of the dashboard page: `scripts/picture`, on the embedded cluster in headless Chromium."""

import asyncio
import contextlib
import sys
from pathlib import Path

from harness.browser import browser, find_browser
from tessera.server.settings import Page
from tessera.sim.embedded import Embedded

__all__ = ["take"]

_MATURE_S = 65
"""By then model servers have followed a rising load for a while, and few pods are pending."""
_SHOWN = (
    "document.querySelector('#pending li') && document.querySelectorAll('#pending li').length < 4"
    " && document.getElementById('pending').innerText.includes('being created')"
    " && document.querySelector('.part.planned')"
)
"""A pod or a few are pending, one of them for an instance that is being created."""
_END = "Math.ceil(document.getElementById('columns').getBoundingClientRect().bottom + scrollY)"
_MOST_BYTES = 200_000


async def take() -> tuple[bytes, bytes]:
    """Return the picture as PNG, in light and in dark colors."""
    program = find_browser()
    if program is None:
        sys.exit("no Chromium: on Debian, apt-get install chromium-headless-shell")
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    cluster = asyncio.create_task(Embedded(Page(port=0, sign_in=False)).run(port.set_result))
    try:
        url = f"http://127.0.0.1:{await port}/"
        async with browser(program) as tab:
            await tab.ask("Emulation.setScrollbarsHidden", hidden=True)
            await tab.open(url, width=1280, height=1000)
            await asyncio.sleep(_MATURE_S)
            await tab.until(_SHOWN)
            await tab.size(1280, await tab.run(_END) + 16)
            light = await tab.picture()
            await tab.color(dark=True)
            return light, await tab.picture()
    finally:
        cluster.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await cluster


if __name__ == "__main__":
    for path, picture in zip(sys.argv[1:], asyncio.run(take()), strict=True):
        if len(picture) > _MOST_BYTES:
            sys.exit(f"{path} has {len(picture)} bytes, expected at most {_MOST_BYTES}")
        Path(path).write_bytes(picture)
