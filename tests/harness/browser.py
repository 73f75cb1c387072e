"""Headless Chromium, driven by its DevTools protocol: what it shows, says on the console, and how long it takes."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import aiohttp

__all__ = ["Tab", "browser", "find_browser"]

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_DEADLINE_S = 60
_AXE = files("axe_playwright_python") / "axe.min.js"


def find_browser() -> str | None:
    """Return a Chromium on this machine; None where there is none."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Navigated(Exception):
    """The page changed while the browser evaluated something on it."""


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._loaded = asyncio.Event()
        self.console: list[str] = []
        """What the page said on the console, errors of scripts and files that could not be had."""

    async def read(self) -> None:
        """Take what the browser says, until canceled."""
        async for message in self._socket:
            self._take(json.loads(message.data))

    def _take(self, message: dict[str, Any]) -> None:
        given = message.get("params", {})
        if "id" in message:
            self._answers.pop(message["id"]).set_result(message)
        elif message["method"] == "Page.loadEventFired":
            self._loaded.set()
        elif message["method"] == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(each.get("value", each)) for each in given["args"]))
        elif message["method"] == "Runtime.exceptionThrown":
            self.console.append(str(given["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded":
            self.console.append(given["entry"]["text"])

    async def ask(self, method: str, **given: Any) -> Any:
        """Return what the browser answers to a command."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": given})
        async with asyncio.timeout(_DEADLINE_S):
            found = await answer
        if "navigated" in str(found.get("error")):
            raise Navigated
        assert "error" not in found, f"{method}: {found['error']}"
        return found["result"]

    async def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> None:
        """Load a page and return when its document is there."""
        await self.size(width, height)
        await self.color(dark=dark)
        self._loaded.clear()
        await self.ask("Page.navigate", url=url)
        async with asyncio.timeout(_DEADLINE_S):
            await self._loaded.wait()

    async def size(self, width: int, height: int) -> None:
        """Give the window a size, in pixels."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def color(self, *, dark: bool) -> None:
        """Show pages as those see them who prefer dark colors, or light ones."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def run(self, script: str) -> Any:
        """Return the value of an expression of JavaScript, waited for if it is a promise."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str, deadline_s: float = 120.0) -> None:
        """Return when an expression is true, on this page or on the one that is loading."""
        async with asyncio.timeout(deadline_s):
            while True:
                with contextlib.suppress(Navigated):
                    if await self.run(f"Boolean({script})"):
                        return
                    await self.run("new Promise(done => setTimeout(done, 20))")

    async def press(self, key: str) -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
            await self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def violations(self) -> list[str]:
        """Return what axe, the accessibility checker, finds wrong with what the window shows: rule and place."""
        await self.run(f"{_AXE.read_text()}; undefined")
        found = await self.run(
            "axe.run().then(all => all.violations.flatMap(rule => rule.nodes.map(each => [rule.id, each.html])))"
        )
        return [f"{rule}: {html[:200]}" for rule, html in found]

    async def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        found = await self.ask("Page.captureScreenshot", format="png")
        return base64.b64decode(found["data"])


@asynccontextmanager
async def browser(program: str) -> AsyncIterator[Tab]:
    """Run a browser and give its only tab."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
        process = await asyncio.create_subprocess_exec(
            program, *options, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
            stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, env=os.environ | {"HOME": folder},
            start_new_session=True,
        )  # fmt: skip
        try:
            async with _tab(process) as tab:
                yield tab
        finally:
            # The program may be a script that starts another: all of them are one group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()


@asynccontextmanager
async def _tab(process: asyncio.subprocess.Process) -> AsyncIterator[Tab]:
    assert process.stderr is not None
    async with asyncio.timeout(_DEADLINE_S):
        while not (found := re.search(r"ws://([^/]+)/", (await process.stderr.readline()).decode())):
            pass
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{found[1]}/json/list") as answer:
            address = next(each["webSocketDebuggerUrl"] for each in await answer.json() if each["type"] == "page")
        async with session.ws_connect(address, max_msg_size=0) as socket:
            tab = Tab(socket)
            reading = asyncio.ensure_future(tab.read())
            try:
                for domain in ("Page", "Runtime", "Log"):
                    await tab.ask(f"{domain}.enable")
                yield tab
            finally:
                reading.cancel()
