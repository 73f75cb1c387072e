"""`tessera notebook`: a pod's JupyterLab at an address of this machine, in a cluster of this process."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from harness.browser import browser, find_browser
from harness.jupyterlab import NEW, OLDEST, jupyterlab, kernel
from harness.submittedjob import RUNS, SubmittedJob, said
from tessera.api.kubernetes.notebooks import notebook_command
from tessera.cli import main
from tessera.cli.work.follow.forwarding import follow_notebook
from tessera.cli.work.notebook import jupyterlab_program


def test_a_notebook_is_a_job_with_a_secret_of_its_own() -> None:
    call = ("notebook", "--dry-run", "--kubeconfig", "nowhere", "--image", "a", "--gpu-memory", "10", "--idle-s", "90")
    found = CliRunner().invoke(main, call)
    assert found.exit_code == 0, found.output
    secret, job = yaml.safe_load_all(found.stdout)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][2] == jupyterlab_program()
    assert re.search(r"^ +from jupyterlab.labapp import main$", found.stdout, re.MULTILINE), "it can be read"
    assert "--ServerApp.shutdown_no_activity_timeout=90" in container["command"]
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": secret["metadata"]["name"], "key": "token"}
    assert not any("token" in each.lower() for each in container["command"])
    for wrong in ("1", "1e308"):
        assert CliRunner().invoke(main, ("notebook", "--image", "a", "--idle-s", wrong)).exit_code == 2


LACKING = {
    "JupyterLab": ("", "no JupyterLab 4 for its python3: No module named 'jupyter_server'"),
    "its rule of activity": (
        "class APIHandler: ...\nContentsHandler = ServerWebApplication = TerminalManager = APIHandler\nmain = print",
        "this JupyterLab has no APIHandler.update_api_activity",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
def test_an_image_whose_jupyterlab_cannot_be_watched_is_refused_with_what_it_lacks(
    tmp_path: Path, lacking: str
) -> None:
    names, words = LACKING[lacking]
    modules = (
        *("jupyter_server/base/handlers", "jupyter_server/serverapp", "jupyter_server/services/contents/handlers"),
        *("jupyter_server_terminals/terminalmanager", "jupyterlab/labapp"),
    )
    for module in modules if names else ():
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{module}.py").write_text(names)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{jupyterlab_program()}"
    ended = subprocess.run((sys.executable, "-S", "-c", program), check=False, capture_output=True, text=True)
    assert (ended.returncode, words in ended.stderr) == (1, True), ended.stderr


PAGE = ("/api/kernels", "/api/sessions", "/api/contents", "/api/terminals")
"""What JupyterLab's page reads every 10 s while it is visible; it also saves its layout."""


@asynccontextmanager
async def jupyterlab_at(
    tmp_path: Path, idle_s: int, packages: tuple[str, ...] = NEW
) -> AsyncIterator[tuple["subprocess.Popen[bytes]", str]]:
    """Give JupyterLab as a notebook starts it, once it answers, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]  # not the pod's 8888, which may be taken here
    command = tuple(
        each.replace("--port=8888", f"--port={port}") for each in notebook_command(jupyterlab_program(), idle_s)
    )
    with jupyterlab(command, tmp_path, "opens", packages) as process:
        async with asyncio.timeout(60), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as anybody:
            while True:
                try:
                    await anybody.get("/api")
                    break
                except aiohttp.ClientError:
                    assert process.poll() is None, (tmp_path / "log").read_text()[-2000:]
                    await asyncio.sleep(0.05)
        yield process, f"http://127.0.0.1:{port}"


@pytest.mark.anyio
@pytest.mark.parametrize("packages", [NEW, OLDEST], ids=" ".join)
async def test_what_a_visible_page_does_by_itself_is_no_activity_and_a_saved_file_is(
    tmp_path: Path, packages: tuple[str, ...]
) -> None:
    """JupyterLab ends when its last activity is as long ago as the idle time."""

    async def last_activity() -> str:
        answered = await (await owner.get("/api/status")).json()
        return str(answered["last_activity"])

    async with (
        jupyterlab_at(tmp_path, 60, packages) as (_, address),
        aiohttp.ClientSession(address, headers={"Authorization": "token opens"}) as owner,
    ):
        first = await last_activity()
        for path in PAGE:
            assert (await owner.get(path)).status == 200
        layout = {"metadata": {"id": "default"}, "data": {}}
        assert (await owner.put("/lab/api/workspaces/default", json=layout)).status == 204
        content = {"type": "file", "format": "text", "content": "a"}
        async with aiohttp.ClientSession(address) as anybody:
            assert (await anybody.put("/api/contents/a.txt", json=content)).status == 403
        assert await last_activity() == first
        saved = await owner.put("/api/contents/a.txt", json=content)
        assert saved.status == 201
        assert await last_activity() > first


SILENT = 'python3 -c \'import os, time; open("pid", "w").write(str(os.getpid())); time.sleep(3600)\''


async def in_a_terminal(owner: aiohttp.ClientSession, command: str, home: Path) -> int:
    """Run a command in a new terminal, whose page is closed then; return the process that writes its id."""
    name = (await (await owner.post("/api/terminals", json={})).json())["name"]
    async with asyncio.timeout(60), owner.ws_connect(f"/terminals/websocket/{name}") as shown:
        await shown.send_json(["stdin", f"{command}\r"])
        while True:
            if (pid := home / "pid").exists() and (text := pid.read_text()):
                return int(text)
            await asyncio.sleep(0.05)


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["{}", "exec {}", "{} &"])
async def test_a_silent_program_in_a_terminal_is_activity_and_its_idle_shell_is_not(tmp_path: Path, way: str) -> None:
    async with (
        jupyterlab_at(tmp_path, 60) as (_, address),
        aiohttp.ClientSession(address, headers={"Authorization": "token opens"}) as owner,
    ):

        async def goes_on() -> bool:
            found = [str((await (await owner.get("/api/status")).json())["last_activity"]) for _ in range(2)]
            return found[0] < found[1]

        process = await in_a_terminal(owner, way.format(SILENT), tmp_path)
        for _ in range(3):
            assert await goes_on()
        os.kill(process, signal.SIGKILL)
        async with asyncio.timeout(20):
            while True:
                if not await goes_on():
                    break
                await asyncio.sleep(0.05)
        assert not await goes_on()


@pytest.mark.long
@pytest.mark.anyio
async def test_a_notebook_goes_on_while_a_program_runs_in_its_terminal_and_ends_after_it(tmp_path: Path) -> None:
    """The idle time is 10 s here, which JupyterLab looks at once a minute."""
    async with (
        jupyterlab_at(tmp_path, 10) as (process, address),
        aiohttp.ClientSession(address, headers={"Authorization": "token opens"}) as owner,
    ):
        program = await in_a_terminal(owner, SILENT, tmp_path)
        with pytest.raises(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 130)
        os.kill(program, signal.SIGTERM)  # fails where it was ended
        await asyncio.to_thread(process.wait, 130)
    assert process.returncode == 0, (tmp_path / "log").read_text()[-2000:]


@pytest.mark.long
@pytest.mark.anyio
async def test_a_notebook_ends_when_idle_while_its_page_is_visible(tmp_path: Path) -> None:
    """The idle time is 10 s here, which JupyterLab looks at once a minute."""
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium")
    async with jupyterlab_at(tmp_path, 10) as (process, address), browser(program) as tab:
        await tab.open(f"{address}/lab?token=opens")
        await tab.until("document.querySelector('.jp-Launcher')")
        await asyncio.to_thread(process.wait, 90)
    assert process.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    assert "No kernels for" in (tmp_path / "log").read_text()


@pytest.mark.long
@pytest.mark.anyio
async def test_jupyterlab_itself_opens_with_its_token_alone_runs_code_and_ends_when_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The idle time is 10 s here; a browser's connection to the kernel stays open all the while."""
    one = SubmittedJob()
    await one.submit_notebook()
    await one.pod(RUNS, "n")
    async with jupyterlab_at(tmp_path, 10) as (process, address):
        one.kube.listening[("ns", "j-1"), 8888] = ("127.0.0.1", int(address.rpartition(":")[2]))
        task = asyncio.create_task(follow_notebook(one.kube, ("ns", "j"), "opens", None))
        found = re.search(r"(http://127\.0\.0\.1:[0-9]+)/lab\?token=opens", await said(capsys, "token="))
        assert found is not None
        async with aiohttp.ClientSession(found[1]) as anybody:
            for header in ({}, {"Authorization": "token other"}):
                assert (await anybody.get("/api/kernels", headers=header)).status == 403
            lab = await anybody.get("/lab?token=opens")
            assert "JupyterLab" in await lab.text()
        opened = aiohttp.ClientSession(found[1], headers={"Authorization": "token opens"})
        async with opened as owner, kernel(owner) as printed:
            assert await printed("print(6 * 7)") == "42\n"
            await asyncio.to_thread(process.wait, 90)
        assert process.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    await one.ends(0)
    assert await task == 0
