"""`tessera simulate cluster` as one runs it: its address, the browser that it opens, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAM = (sys.executable, "-m", "tessera")
PRINTED_S = 60
DESKTOPS = ("DISPLAY", "WAYLAND_DISPLAY")


@contextmanager
def running(folder: Path, *options: str, desktop: bool) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Give the command, and where its browser writes what it was to open."""
    opened, program = folder / "opened", folder / "browse"
    program.write_text(f'#!/bin/sh\necho "$1" >> "{opened}"\n')
    program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name not in DESKTOPS}
    environment |= {"BROWSER": str(program), **({"DISPLAY": ":0"} if desktop else {})}
    command = [*PROGRAM, "simulate", "cluster", "--port", "0", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, opened
        finally:
            process.kill()


def lines(process: subprocess.Popen[str]) -> list[str]:
    """Return what it prints before it runs; it is ended where that takes longer than a minute."""
    assert process.stdout is not None
    late = threading.Timer(PRINTED_S, process.kill)
    late.start()
    try:
        return [process.stdout.readline().rstrip("\n") for _ in range(3)]
    finally:
        late.cancel()


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has a desktop without these variables")
@pytest.mark.parametrize(
    ("options", "desktop", "opens"),
    [((), True, True), ((), False, False), (("--no-open",), True, False), (("--open",), False, True)],
)
def test_it_prints_its_address_and_ends_by_ctrl_c(
    tmp_path: Path, options: tuple[str, ...], desktop: bool, opens: bool
) -> None:
    with running(tmp_path, *options, desktop=desktop) as (process, opened):
        url, elsewhere, end = lines(process)
        (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/$", url)
        assert elsewhere == f"from another machine: ssh -L {port}:127.0.0.1:{port} HOST, then the same address there"
        assert end == "Ctrl-C ends it"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert b"<title>GPUs" in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert opened.exists() == opens
        if opens:
            assert opened.read_text() == f"{url}\n"


def test_a_port_that_is_taken_is_said_with_the_option_that_gives_another(tmp_path: Path) -> None:
    with running(tmp_path, desktop=False) as (process, _):
        (port,) = re.findall(r":(\d+)/$", lines(process)[0])
        command = [*PROGRAM, "simulate", "cluster", "--port", port]
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode != 0
        assert f"port {port}: " in second.stderr
        assert "give another --port" in second.stderr
