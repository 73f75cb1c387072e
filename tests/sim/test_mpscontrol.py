"""The stand-in for `nvidia-cuda-mps-control`: what its daemon answers, and the program as others run it."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera.sim.mpscontrol import Control, install

ANSWERS = {
    "nobody is connected": (["get_server_list"], ""),
    "no command": ([""], ""),
    "limits are echoed or silent": (
        ["set_default_active_thread_percentage 25", "set_default_device_pinned_mem_limit 0 4096M"],
        "25.0\n",
    ),
    "limits are set": (
        [
            "get_default_device_pinned_mem_limit 0",
            "set_default_device_pinned_mem_limit 0 2G",
            "get_default_device_pinned_mem_limit 0",
            "get_default_active_thread_percentage",
        ],
        "2G\n100.0\n",
    ),
    "a limit is shown in whole gigabytes from one on, and 0 is none": (
        [
            "set_default_device_pinned_mem_limit 0 3000M",
            "get_default_device_pinned_mem_limit 0",
            "set_default_device_pinned_mem_limit 0 900M",
            "get_default_device_pinned_mem_limit 0",
            "set_default_device_pinned_mem_limit 0 0",
            "get_default_device_pinned_mem_limit 0",
        ],
        "2G\n900M\n",
    ),
    "an unknown command": (["Running", "shutdown"], 'Unknown command "Running"\nUnknown command "shutdown"\n'),
    "wrong arguments": (
        [
            "set_default_active_thread_percentage 0",
            "get_client_list",
            "get_client_list 1",
            "set_default_device_pinned_mem_limit 0 much",
            "get_default_device_pinned_mem_limit 0",
            "get_default_active_thread_percentage 1",
        ],
        "100.0\nServer 0 not found\nServer 1 not found\nInvalid arguments: get_default_active_thread_percentage 1\n",
    ),
}


@pytest.mark.parametrize(("commands", "want"), ANSWERS.values(), ids=ANSWERS)
def test_what_the_daemon_answers(commands: list[str], want: str) -> None:
    control = Control("GPU-0")
    assert "".join(control.answer(command.split()) for command in commands) == want


def test_clients_have_servers_by_user() -> None:
    control = Control("GPU-0")
    for command in ("sim_client 11", "sim_client 12 7", "sim_client 13"):
        control.answer(command.split())
    first, second = control.answer(["get_server_list"]).split()
    assert control.answer(["get_client_list", first]).split() == ["11", "13"]
    assert control.answer(["get_client_list", second]).split() == ["12"]
    assert [line.split()[0] for line in control.answer(["ps"]).splitlines()] == ["PID", "11", "12", "13"]
    control.answer(["sim_leave", "12"])
    assert control.answer(["get_server_list"]).split() == [first]
    for pid in range(100, 146):
        assert control.answer(["sim_client", str(pid)]) == ""
    assert control.answer(["sim_client", "999"]) == "too many clients\n"


def test_a_default_is_for_later_servers_and_a_limit_of_a_server_for_its_later_clients() -> None:
    control = Control("GPU-0")

    def told(*commands: str) -> list[str]:
        return [control.answer(command.split()).strip() for command in commands]

    told("set_default_active_thread_percentage 25", "set_default_device_pinned_mem_limit 0 4096M", "sim_client 11")
    (server,) = told("get_server_list")
    told("set_default_active_thread_percentage 50", "set_default_device_pinned_mem_limit 0 2048M")
    limits = (f"get_active_thread_percentage {server}", f"get_device_pinned_mem_limit {server} 0")
    assert told(*limits) == ["25.0", "4G"]
    told(f"set_active_thread_percentage {server} 50", f"set_device_pinned_mem_limit {server} 0 2048M")
    assert told(*limits) == ["50.0", "2G"]
    told("set_default_active_thread_percentage 75", "sim_client 12", "sim_leave 11")
    assert told(*limits) == ["50.0", "2G"]
    assert told("set_active_thread_percentage 1 50") == ["Invalid arguments: set_active_thread_percentage 1 50"]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mps") as name:
        yield Path(name)


def test_the_program(folder: Path) -> None:
    program = str(install(folder / "bin"))
    env = os.environ | {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        "CUDA_VISIBLE_DEVICES": "GPU-0",
    }

    def console(commands: str) -> tuple[int, str]:
        done = subprocess.run(
            [program], check=False, input=commands, env=env, capture_output=True, text=True, timeout=30
        )
        return done.returncode, done.stdout

    assert console("get_server_list\n") == (1, "Cannot find MPS control daemon process\n")
    assert subprocess.run([program, "-x"], check=False, env=env, capture_output=True, timeout=30).returncode == 1
    with subprocess.Popen([program, "-f"], env=env) as daemon:
        control = folder / "pipe" / "control"
        until = time.monotonic() + 30
        while not control.exists() or console("get_server_list\n")[0]:
            assert time.monotonic() < until
        assert (folder / "pipe" / "nvidia-cuda-mps-control.pid").read_text() == str(daemon.pid)
        assert console("set_default_active_thread_percentage 40\n")[0] == 0
        assert console("sim_client 5\nps\n")[1].endswith("GPU-0 4026531836 sim\n")
        again = subprocess.run([program, "-f"], check=False, env=env, capture_output=True, text=True, timeout=30)
        assert (again.returncode, again.stderr) == (1, "An instance of this daemon is already running\n")
        assert console("quit\n") == (0, "")
        assert daemon.wait(30) == 0
    assert not control.exists()
    told = (folder / "log" / "control.log").read_text().splitlines()
    assert told == ["Starting control daemon", "set_default_active_thread_percentage 40"]
