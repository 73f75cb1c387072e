"""The page in headless Chromium while its server is gone and comes back: it goes on, and is live only with the data."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from harness.browser import browser, find_browser
from server.page.test_page_browser import DRAWN, fleet
from tessera.clients.kube import PODS, MemoryKube
from tessera.server.page import app
from tessera.server.run import Server
from tessera.server.settings import Page, PageLimits, ServerSettings

pytestmark = pytest.mark.anyio
STATE = "document.getElementById('connection').dataset.state"
LOADED = "document.readyState === 'complete'"
WATCH = """
window.found = [];
new MutationObserver(() => {
  const used = document.querySelector('#totals dd').textContent;
  window.found.push([document.getElementById('connection').textContent, used]);
}).observe(document.getElementById('connection'), { childList: true });
"""


@asynccontextmanager
async def serving(kube: MemoryKube, port: int = 0, limits: PageLimits | None = None) -> AsyncIterator[int]:
    page = Page(port=port, sign_in=False, limits=limits or PageLimits())
    server = Server(ServerSettings(port=0, page=page), kube)
    running = asyncio.create_task(server.run())
    async with asyncio.timeout(30):
        await server.listening.wait()
    try:
        yield server.page_port
    finally:
        server.stop()
        await running


async def test_after_a_restart_of_the_server_it_is_live_with_what_has_changed() -> None:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium-headless-shell")
    kube = await fleet(16)
    async with browser(program) as tab:
        async with serving(kube) as port:
            await tab.open(f"http://127.0.0.1:{port}/?gpu=n001/4")
            await tab.until(f"{DRAWN} && {STATE} === 'live'")
            await tab.run(WATCH)
        await tab.until(f"{STATE} === 'broken'")
        assert await tab.run("document.querySelectorAll('.gpu').length") == 16, "what was known stays"
        await kube.delete(PODS, "w0", namespace="research")
        async with serving(kube, port):
            await tab.until(f"{STATE} === 'live'")
        assert await tab.run("found.filter(([words]) => words === 'live')") == [["live", "9 of 16"]]
        assert await tab.run("document.querySelector('.gpu[aria-current]').dataset.gpu") == "n001/4"
        assert [each for each in tab.console if "ERR_CONNECTION_REFUSED" not in each] == []


def earlier(folder: Path, *replaced: tuple[str, str, str]) -> Path:
    """Return a folder with the page's files as an earlier version had them."""
    shutil.copytree(app._FILES, folder)
    for name, old, new in replaced:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
    return folder


async def test_a_page_of_an_earlier_version_is_loaded_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium-headless-shell")
    present, kube = app._FILES, await fleet(16)
    async with browser(program) as tab:
        monkeypatch.setattr(app, "_FILES", earlier(tmp_path / "files", ("index.html", "<title>", "<title>Earlier ")))
        async with serving(kube) as port:
            await tab.open(f"http://127.0.0.1:{port}/?gpu=n001/4")
            await tab.until(f"{DRAWN} && {STATE} === 'live' && document.title.startsWith('Earlier')")
        monkeypatch.setattr(app, "_FILES", present)
        async with serving(kube, port):
            await tab.until(f"{LOADED} && document.title === 'GPUs · Tessera' && {DRAWN} && {STATE} === 'live'")
            assert await tab.run("document.querySelector('.gpu[aria-current]').dataset.gpu") == "n001/4"
            await tab.run("window.known = true")
        await tab.until(f"{STATE} === 'broken'")
        async with serving(kube, port):
            await tab.until(f"{STATE} === 'live'")
            assert await tab.run("window.known"), "the version is the same"


async def test_a_page_that_stays_of_another_version_shows_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where one replica of the server sends the files and another one the events, while they are upgraded."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium-headless-shell")
    other = earlier(tmp_path / "files", ("main.js", ".at(-2)", ".at(-1)"))
    monkeypatch.setattr(app, "_FILES", other)
    async with browser(program) as tab, serving(await fleet(16)) as port:
        await tab.open(f"http://127.0.0.1:{port}/")
        await tab.until(f"{LOADED} && performance.getEntriesByType('navigation')[0].type === 'reload'")
        await tab.until("document.getElementById('connection').textContent.includes('another version')")
        assert await tab.run("document.getElementById('page').hidden")


@asynccontextmanager
async def balanced(choose: Callable[[str], int]) -> AsyncIterator[str]:
    """Give the address of a balancer that chooses a server's port by the path of each request."""

    async def relay(request: web.Request) -> web.StreamResponse:
        async with session.get(f"http://127.0.0.1:{choose(request.path)}{request.path}") as answer:
            kept = {name: answer.headers[name] for name in ("Content-Type", "Content-Security-Policy")}
            relayed = web.StreamResponse(status=answer.status, headers=kept)
            await relayed.prepare(request)
            async for piece in answer.content.iter_any():
                await relayed.write(piece)
            return relayed

    application = web.Application()
    application.router.add_get("/{path:.*}", relay)
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    try:
        async with ClientSession() as session:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("mixed", ["/main.js", "/fleet.js", "/page.css"])
async def test_a_page_whose_files_are_of_two_versions_waits_until_they_are_of_one(
    mixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the replicas of a server are upgraded: the first page is of the new one, a file asked of the old one."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium-headless-shell")
    kube, old = await fleet(16), earlier(tmp_path / "old", ("index.html", "<title>", "<title>Earlier "))
    new = earlier(tmp_path / "new", ("index.html", "20000", "500"))
    monkeypatch.setattr(app, "_FILES", old)
    async with serving(kube) as old_port:
        monkeypatch.setattr(app, "_FILES", new)
        async with serving(kube) as new_port, browser(program) as tab:
            asked: list[str] = []
            there = asyncio.Event()

            def choose(path: str) -> int:
                if not path.endswith(mixed):
                    return new_port
                asked.append(path)
                if len(asked) == 3:
                    there.set()
                return new_port if there.is_set() else old_port

            async with balanced(choose) as url:
                await tab.open(url)
                async with asyncio.timeout(60):
                    await there.wait()
                await tab.until(f"{LOADED} && {DRAWN} && {STATE} === 'live' && document.title === 'GPUs · Tessera'")
                assert len(asked) == 3, "it is loaded again until the file is there, and no longer"
                assert {"404" in each for each in tab.console} == {True}
                await tab.open("about:blank")  # its streams end


async def test_a_page_without_its_icon_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a proxy that refuses it."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium-headless-shell")
    folder = earlier(tmp_path / "files", ("index.html", "20000", "200"))
    (folder / "icon.svg").unlink()
    monkeypatch.setattr(app, "_FILES", folder)
    async with browser(program) as tab, serving(await fleet(16)) as port:
        await tab.open(f"http://127.0.0.1:{port}/")
        await tab.until(f"{DRAWN} && {STATE} === 'live'")
        await tab.run("window.known = true")
        await asyncio.sleep(1)
        assert await tab.run("window.known")
        assert any("404" in each for each in tab.console)


async def test_streams_that_end_go_on_where_they_were() -> None:
    """A stream of a second ends often; each goes on by the id of its last event, and the whole fleet comes once."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium: on Debian, apt-get install chromium-headless-shell")
    kube = await fleet(16)
    async with browser(program) as tab, serving(kube, limits=PageLimits(stream_s=1, heartbeat_s=0.2)) as port:
        await tab.open(f"http://127.0.0.1:{port}/")
        await tab.until(f"{DRAWN} && {STATE} === 'live'")
        await tab.run("document.querySelectorAll('.node').forEach(each => { each.known = true; })")
        for number in range(2):
            await kube.delete(PODS, f"w{number}", namespace="research")
            await tab.until(f"document.getElementById('totals').innerText.includes('{9 - number} of 16')")
            streams = "performance.getEntriesByType('resource').filter(each => each.name.includes('api/events')).length"
            ended = await tab.run(streams)
            await tab.until(f"{streams} > {ended}")
        assert await tab.run("[...document.querySelectorAll('.node')].every(each => each.known)")
        assert await tab.run(STATE) == "live"
        assert tab.console == []
