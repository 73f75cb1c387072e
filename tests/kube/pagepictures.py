"""Pictures of the dashboard page for docs, taken of a testbed in headless Chromium."""

import asyncio
import os
import time
from pathlib import Path

from harness.browser import browser, find_browser
from tessera.clients.kube import HttpKube
from tessera.clients.nodeusage import ProxiedUsage
from tessera.log import logger
from tessera.server.binder import ServerClocks
from tessera.server.page import AgentMetrics
from tessera.server.run import Server
from tessera.server.settings import Page, ServerSettings
from testbed.cluster import Cluster

__all__ = ["take_page"]

_SYNCED_S = 60
_SETTLED_S = 5
"""By then the page has what the agents say of use and throttling."""


def take_page(cluster: Cluster, name: str, *, height: int = 800) -> None:
    """Take a picture of what the page shows of a cluster now, if the folder TESSERA_PICTURES is to have pictures."""
    folder, program = os.environ.get("TESSERA_PICTURES"), find_browser()
    if folder and program:
        (Path(folder) / name).write_bytes(asyncio.run(_take(cluster, program, height)))


async def _take(cluster: Cluster, program: str, height: int) -> bytes:
    async with HttpKube.connect(cluster.kubeconfig) as kube:
        page = Page(port=0, sign_in=False)
        clocks, activity = ServerClocks(time.monotonic, time.time_ns), AgentMetrics(ProxiedUsage(kube), logger())
        server = Server(ServerSettings(port=0, page=page), kube, clocks, metrics=activity)
        running = asyncio.create_task(server.run())
        try:
            async with asyncio.timeout(_SYNCED_S):
                await server.listening.wait()
                await server.synced()
            async with browser(program) as tab:
                await tab.open(f"http://127.0.0.1:{server.page_port}/", width=1280, height=height)
                await tab.until("!document.getElementById('page').hidden && document.querySelector('.gpu')")
                await asyncio.sleep(_SETTLED_S)
                return await tab.picture()
        finally:
            server.stop()
            await running
