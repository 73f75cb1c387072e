"""`tessera top` and `tessera recommend`, against agents in this process."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from builders.usagereports import REPORT
from harness.agents import serving_reports
from tessera.cli import main
from tessera.cli.usage.tables import contention_words, top_notes, top_table
from tessera.core.usage.contention import Contention
from tessera.core.usage.usagereport import ContainerReport, DeviceReport, GpuReport, UsageReport

HOSTILE = UsageReport(node="[red]n2\x1b[31m", gpus=(GpuReport(index=0, model="[bold]", lost=True),))
EMPTY = UsageReport(node="n3")
TERMINAL_S = 120.0
"""Until a terminal shows what a test waits for, and until the program in it has ended."""


@pytest.fixture
def ports() -> Iterator[list[str]]:
    """Give the addresses of three agents, in a thread of their own."""
    with serving_reports(REPORT, HOSTILE, EMPTY) as addresses:
        yield addresses


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})


def lines(*arguments: str) -> list[str]:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_top_shows_devices_containers_and_who_drives_a_throttled_gpu(ports: list[str]) -> None:
    found = lines("top", "--once", "--agent", ports[0])
    assert "n1 0 T4 whole ██████░░░░░░ 7.9 / 14.6 GiB 97 2 containers 91 C, 70 W, throttled: thermal" in found
    assert any("7.9 / 8 GiB 90 team/train/main" in line for line in found)
    assert any("░░░░░░░░░░░░ 0 / 8 GiB - team/notebook/main" in line for line in found)
    assert "n1 1 A100-40GB whole █░░░░░░░░░░░ 1.9 / 40 GiB 12 web/serve/llm" in found
    assert "n1 2 A100-40GB 1g.5gb@1 - / 4.7 GiB - no container" in found
    assert "n1 3 A100-40GB lost" in found
    assert "GPU 0: thermal, caused by team/train/main; slowed down: team/notebook/main (node n1)" in found
    assert "GPU 2: saturated, cause unknown: not all load can be attributed to pods (node n1)" in found
    assert found[0].startswith("GPU 0: thermal"), "what slows GPUs comes first: a terminal cuts what is below"
    assert [line.split()[1] for line in found if line.startswith("n1 ")] == ["0", "2", "2", "3", "1"]


def test_what_an_agent_says_is_no_markup_and_no_escape_sequence(ports: list[str]) -> None:
    text = call("top", "--once", *(word for port in ports for word in ("--agent", port))).stdout
    assert "[red]n2" in text
    assert "[bold]" in text
    assert "\x1b" not in text
    assert "the driver does not answer" in text


@pytest.mark.parametrize("command", [["top", "--once"], ["recommend", "--all"]])
def test_an_agent_that_does_not_answer_is_left_out_and_named(ports: list[str], command: list[str]) -> None:
    result = call(*command, "--agent", ports[0], "--agent", "127.0.0.1:1")
    assert result.exit_code == 0, result.output
    assert "team/train/main" in result.stdout
    assert result.stderr.startswith("note: left out: agent 127.0.0.1:1: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_top_has_documents(ports: list[str], output: str) -> None:
    text = call("top", "--once", "-o", output, "--agent", ports[0]).stdout
    if output == "json":
        assert json.loads(text)[0]["gpus"][0]["devices"][0]["containers"][1]["usedMib"] == 8100
    else:
        assert "usedMib: 8100" in text


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
def test_top_goes_on_until_it_is_interrupted_whatever_becomes_of_the_agents(ports: list[str], output: str) -> None:
    program = "from tessera.cli import main; main()"
    some = ["--agent", ports[0], "--agent", "127.0.0.1:1"]
    command = [sys.executable, "-c", program, "top", "--interval-s", "0.1", "-o", output, *some]
    environment, pipe = {**os.environ, "COLUMNS": "200"}, subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as running:
        assert running.stdout is not None
        seen, text = 0, ""
        for line in running.stdout:
            text += line
            seen += "train" in line
            if seen > 3:
                break
        running.send_signal(signal.SIGINT)
        _, notes = running.communicate()
    assert running.returncode == 0
    if output == "table":
        assert ("left out: agent 127.0.0.1:1" in text, notes) == (True, "")
    else:
        assert notes.startswith("note: left out: agent 127.0.0.1:1: ")
        assert notes.count("\n") == 1, "once, not in every document"


REFUSED: dict[str, tuple[list[str], int, str]] = {
    "no cluster and no agent": (["top", "--kubeconfig", "nowhere"], 2, "nowhere"),
    "a cluster beside agents": (["top", "--context", "c", "--agent", "a"], 2, "no effect with --agent"),
    "a cluster beside Prometheus": (
        ["recommend", "--context", "c", "--prometheus", "http://a"],
        2,
        "no effect with --prometheus",
    ),
    "nobody answers": (["top", "--once", "--agent", "127.0.0.1:1"], 4, "check the address, or run kubectl"),
    "no address": (["recommend", "--agent", "ftp://a:1"], 2, "address of a server"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_asked_is_reported(case: str) -> None:
    arguments, code, words = REFUSED[case]
    result = call(*arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.output


def test_recommendations_have_the_most_urgent_first_and_what_is_saved(ports: list[str]) -> None:
    found = lines("recommend", "--agent", ports[0])
    rows = [line for line in found if "/" in line]
    assert rows == [
        "team/train/main n1 0 whole 8 GiB 7.9 GiB 70 2 h 5 min too-little 10 GiB",
        "team/notebook/main n1 0 whole 8 GiB 0 GiB - 30 min unused 8 GiB",
        "web/serve/llm n1 1 whole 40 GiB 2.9 GiB 10 1 h 1 min too-much 1g.5gb 35.2 GiB",
    ]
    assert found[-1] == "4 containers, 3 shown; 43.2 GiB could be allocated to others"
    everything: list[dict[str, Any]] = json.loads(call("recommend", "--all", "-o", "json", "--agent", ports[0]).stdout)
    assert [each["verdict"] for each in everything] == ["too-little", "unused", "too-much", "fits"]


def test_a_device_that_is_shared_evenly_accuses_nobody() -> None:
    contention = Contention(cause="saturated", evenly=("a/b/c", "d/e/f", "g/h/i"), affected=("a/b/c", "d/e/f", "g/h/i"))
    assert contention_words(contention) == "saturated: a/b/c, d/e/f and g/h/i use it about equally"


def test_causes_on_other_gpus_of_the_node_are_said_to_be_there() -> None:
    contention = Contention(cause="thermal", caused_by=("a/b/c",), affected=("d/e/f",), scope="node")
    assert contention_words(contention) == "thermal, caused by a/b/c on this node; slowed down: d/e/f"
    unknown = contention_words(Contention(cause="saturated", affected=("a/b/c",), ended=True))
    assert unknown == (
        "saturated, cause unknown: not all load can be attributed to pods; slowed down: a/b/c; "
        "part of the load came from processes that exited and cannot be attributed"
    )
    nobody = Contention(cause="thermal", affected=("a/b/c",), scope="node", nobody=True)
    assert contention_words(nobody) == (
        "thermal: no busy pod on this node: check cooling and power supply; slowed down: a/b/c"
    )
    here = Contention(cause="power-brake", nobody=True)
    assert contention_words(here) == "power-brake: no busy pod on this GPU: check cooling and power supply"


def test_top_shows_one_node(ports: list[str]) -> None:
    both = ["--agent", ports[0], "--agent", ports[2]]
    found = lines("top", "--once", "--node", "n3", *both)
    assert [line.split()[0] for line in found] == ["NODE", "n3"]
    refused = call("top", "--once", "--node", "n9", *both)
    assert (refused.exit_code, "no agent reports it" in refused.stderr) == (2, True)


@pytest.mark.parametrize("others", [0, 2])
def test_top_of_one_node_says_which_agent_does_not_answer(ports: list[str], others: int) -> None:
    away = [word for number in range(others + 1) for word in ("--agent", f"127.0.0.1:{number + 1}")]
    refused = call("top", "--once", "--node", "n9", "--agent", ports[0], *away)
    assert refused.exit_code == 4
    assert "node n9: no agent that answers reports it, and one does not" in refused.stderr
    assert ("and 2 more agents" in refused.stderr) == bool(others)
    assert "agent 127.0.0.1:1: no connection: Connection refused: check the address" in refused.stderr


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:9", "http://127.0.0.1:9/", "localhost:9"])
def test_the_address_of_an_agent_that_is_not_there_is_said_once(address: str) -> None:
    refused = call("top", "--once", "--agent", address)
    assert f"agent {address}: no connection: Connection refused: " in refused.stderr


def test_drivers_that_do_not_answer_come_before_slow_gpus() -> None:
    slow = (Contention(cause="thermal", caused_by=("ml/train/main",)),)
    gpus = (GpuReport(index=0, devices=(device_of("ml/train/main"),), contention=slow),)
    notes = top_notes([UsageReport(node="n1", age_s=1.0, gpus=gpus), UsageReport(node="n2", age_s=90.0)])
    assert [str(each).partition(":")[0] for each in notes] == ["node n2", "GPU 0"]


@pytest.mark.parametrize(
    ("age_s", "answered_s", "want"),
    [
        (59.0, 59.0, ""),
        (70.0, 9.0, "node n1: the driver has not answered for 70 s"),
        (70.0, 10.0, ""),
        (70.0, 62.0, "node n1: its agent last answered 62 s ago"),
        (130.0, 62.0, "node n1: the driver has not answered for 130 s"),
        (None, 0.0, ""),
    ],
)
def test_an_agent_that_answers_late_is_told_from_a_driver_that_does_not(
    age_s: float | None, answered_s: float, want: str
) -> None:
    report = UsageReport(node="n1", age_s=age_s, answered_s=answered_s)
    assert "".join(map(str, top_notes([report]))) == want
    table = Console(width=200, color_system=None)
    with table.capture() as capture:
        table.print(top_table([report], 200))
    assert ("the driver does not answer" in capture.get()) == ("driver" in want or age_s is None)


@pytest.mark.parametrize(("columns", "has_node_column"), [(119, False), (120, True)])
def test_each_gpu_has_a_line_of_its_own_in_less_than_120_columns(columns: int, *, has_node_column: bool) -> None:
    console = Console(width=columns, color_system=None)
    with console.capture() as capture:
        console.print(top_table([REPORT], columns))
    assert ("NODE" in capture.get()) == has_node_column


@pytest.mark.parametrize(
    ("age_s", "gpus", "want"),
    [
        (15.0, (), "no GPU"),
        (None, (), "the driver does not answer"),
        (90.0, (), "node n9: the driver has not answered for 90 s"),
    ],
)
def test_a_node_without_gpus_is_not_one_whose_driver_hangs(
    age_s: float | None, gpus: tuple[GpuReport, ...], want: str
) -> None:
    with serving_reports(UsageReport(node="n9", age_s=age_s, gpus=gpus)) as (address,):
        text = call("top", "--once", "--agent", address).stdout
    assert want in text
    assert ("has not answered" in text) == ("has not answered" in want)


def test_a_terminal_of_24_lines_shows_why_gpus_of_a_large_fleet_are_slow_and_who_is_left_out() -> None:
    """Lines beyond the last one are cut, so what is looked for comes first."""
    slow = (Contention(cause="thermal", caused_by=("ml/train/main",), affected=("ml/serve/main",)),)
    devices = (device_of("ml/train/main", "ml/serve/main"),)
    gpus = (*(GpuReport(index=number) for number in range(40)), GpuReport(index=40, devices=devices, contention=slow))
    with serving_reports(UsageReport(node="n1", age_s=1.0, gpus=gpus)) as (address,):
        text = in_terminal(24, 160, ["--agent", address, "--agent", "127.0.0.1:1"], until="GPU 40")
    assert "left out: agent 127.0.0.1:1" in text
    assert "GPU 40: thermal, caused by ml/train/main" in text
    assert "n1    40" in text


@pytest.mark.parametrize("slow", [1, 2, 40])
def test_notes_never_fill_the_terminal(slow: int) -> None:
    """Forty slow GPUs, and each note longer than the line."""
    names = tuple(f"ml-research/finetune-llama-7d4b9c6f58-vq{number}/trainer" for number in range(6))
    contention = (Contention(cause="thermal", caused_by=names, affected=names),)
    devices = (device_of(*names),)
    gpus = tuple(GpuReport(index=number, devices=devices, contention=contention) for number in range(slow))
    with serving_reports(UsageReport(node="n1", age_s=1.0, gpus=gpus)) as (address,):
        text = in_terminal(24, 80, ["--agent", address], until="DEVICE")
    frame = text.split("DEVICE")[1]
    notes = frame[frame.rindex("GPU 0: thermal") :] if "GPU 0: thermal" in frame else ""
    assert notes.count("ml-research") <= 2 * 6, "a fourth of 24 lines at the most"
    assert ("more; --once prints all" in frame) == (slow > 6)
    assert "n1 GPU 0" in frame


def device_of(*names: str) -> DeviceReport:
    parts = [each.split("/") for each in names]
    return DeviceReport(containers=tuple(ContainerReport(namespace=a, pod=b, container=c) for a, b, c in parts))


def in_terminal(rows: int, columns: int, arguments: list[str], until: str) -> str:
    """Return what `tessera top` shows in a terminal of that size, until it shows some words."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    command = [sys.executable, "-c", "from tessera.cli import main; main()", "top", "--interval-s", "0.1", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    environment["TERM"] = "xterm"
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=environment) as running:
        os.close(follower)
        text, end_s = "", monotonic() + TERMINAL_S
        while text.count(until) < 3 and select.select([leader], [], [], max(end_s - monotonic(), 0.0))[0]:
            text += os.read(leader, 1 << 16).decode(errors="replace")
        running.send_signal(signal.SIGINT)
        while running.poll() is None:
            if monotonic() > end_s + TERMINAL_S:
                running.kill()
            if select.select([leader], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    os.read(leader, 1 << 16)
    os.close(leader)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
