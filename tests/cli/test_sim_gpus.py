"""`tessera sim-gpus`: a machine is made, shown, played and reset from the command line."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tessera.cli import main

CUT = """
import pynvml as n
from harness import nvmlcalls as c
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceSetMigMode(gpu, 1)
c.cut_whole(gpu, 9, 4, 4)
c.create_instance(gpu, 19, 0, 1)
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Name a state file to the commands, as `env` does to programs."""
    path = tmp_path / "state"
    monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(path))
    return path


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["sim-gpus", *arguments])


def done(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def described() -> Any:
    return json.loads(done("list", "-o", "json"))


@pytest.fixture
def partitioned(state: Path) -> str:
    """Make a machine whose A100 has two instances, one of them whole; return the MIG device's UUID."""
    done("create", "--gpus", "A100-40GB", "--gpus", "2xT4", "--seed", "x")
    tests = str(Path(__file__).parents[1])
    settings = json.loads(done("env", "-o", "json"))
    environ = {**os.environ, **settings, "PYTHONPATH": tests}
    subprocess.run([sys.executable, "-c", CUT], check=True, env=environ)
    assert settings["TESSERA_NVMLSIM_STATE"] == str(state)
    device: str = described()["gpus"][0]["instances"][0]["compute_instances"][0]["uuid"]
    return device


def test_the_settings_show_the_machine_to_any_program(state: Path) -> None:
    done("create", "--gpus", "2xA100-40GB", "--gpus", "T4")
    settings = shlex.quote(done("env"))
    program = shlex.quote("import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetCount())")
    shell = f"eval {settings}; {shlex.quote(sys.executable)} -c {program}"
    environ = {name: value for name, value in os.environ.items() if name != "TESSERA_NVMLSIM_STATE"}
    result = subprocess.run(["sh", "-c", shell], check=True, env=environ, capture_output=True, text=True)
    assert result.stdout == "3\n"
    assert state.exists()


def test_creation_says_what_to_do_next(state: Path) -> None:
    result = call("create", "--gpus", "T4")
    assert result.stdout == f"1 GPU in {state}\n"
    assert 'eval "$(tessera sim-gpus env)"' in result.stderr
    again = call("create", "--gpus", "T4")
    assert (again.exit_code, "--replace" in again.stderr) == (2, True)
    assert done("create", "--gpus", "2xT4", "--replace").startswith("2 GPUs")


def test_the_list_has_gpus_instances_processes_limits_and_faults(partitioned: str) -> None:
    done("process", "add", partitioned, "--pid", "7", "--name", "train.py")
    done("fault", "call", "nvmlDeviceGetName", "--latency-ms", "1.5", "--for-ever", "--gpu", "1")
    done("fault", "lose", "2", "--xid", "0")
    done("fault", "needs-reset", "0")
    text = done("list")
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "2", "3g.20gb", "at", "4", partitioned, "7"] in rows
    assert ["0", "7", "1g.5gb", "at", "0", "no", "compute", "instance"] in rows
    assert ["7", "0", "2/0", "512", "0", "compute", "train.py"] in rows
    assert ["nvmlDeviceGetName", "1", "real", "result", "0", "for", "ever", "1.5"] in rows
    assert "NVIDIA A100-SXM4-40GB" in text
    assert "MIG mode needs a reset" in text
    assert "lost" in text


def test_a_memory_limit_is_listed(state: Path) -> None:
    done("create", "--gpus", "T4")
    program = """
import pynvml as n
n.nvmlInit()
n.nvmlDeviceSetMemoryLimits_v1(n.nvmlDeviceGetHandleByIndex(0), n.c_nvmlSetMemoryLimits_v1_t(b"/pod", 0, 2 << 30))
"""
    environ = {**os.environ, **json.loads(done("env", "-o", "json"))}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ)
    assert ["0", "/pod", "0", "2048"] in [line.split() for line in done("list").splitlines()]
    assert state.exists()


def test_devices_go_by_index_and_uuid(partitioned: str) -> None:
    uuid = described()["gpus"][1]["uuid"]
    assert done("process", "add", "1", "--memory", "100") == "10001\n"
    assert done("process", "add", uuid) == "10002\n"
    assert done("process", "add", partitioned, "--sm", "50") == "10003\n"
    assert [(each["gpu"], each["gpu_instance"]) for each in described()["processes"]] == [(1, None), (1, None), (0, 2)]
    done("process", "remove", "10002")
    assert [each["pid"] for each in described()["processes"]] == [10001, 10003]
    done("xid", partitioned, "94")
    done("xid", "0", "48")


WRONG = {
    "no machine": (["list", "--state", "/nowhere/state"], 2, "no such file"),
    "no such device": (["xid", "9", "48"], 2, "a GPU's index or UUID"),
    "a MIG device where a GPU is meant": (["fault", "lose", "CUT"], 2, "a whole GPU"),
    "no such function": (["fault", "call", "nvmlDeviceGetNam", "--code", "1"], 2, "nvmlDeviceGetName"),
    "no such code": (["fault", "call", "nvmlInit", "--code", "IN_USED"], 2, "IN_USE"),
    "a fault that does nothing": (["fault", "call", "nvmlInit"], 2, "--code, --latency-ms, or both"),
    "no such process": (["process", "remove", "5"], 2, "no such process"),
    "a process beside the instances": (["process", "add", "0"], 2, "with MIG on it needs an instance"),
    "memory that is not there": (["process", "add", "1", "--memory", "99999"], 5, "too little free memory"),
    "two kinds of reset": (["reset", "--gpu", "0", "--reboot"], 2, "give one of them"),
    "no such model": (["create", "--gpus", "2xA100", "--replace"], 2, "A100-40GB or A100-80GB"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_reported_in_one_line(partitioned: str, case: str) -> None:
    arguments, code, want = WRONG[case]
    before = described()
    result = call(*[partitioned if each == "CUT" else each for each in arguments])
    assert (result.exit_code, result.stdout) == (code, "")
    assert want in result.stderr
    assert result.stderr.count("\n") == 1
    assert described() == before


def test_faults_are_set_and_cleared(partitioned: str) -> None:
    done("fault", "call", "nvmlDeviceCreateGpuInstance*", "--code", "insufficient_resources", "--skip", "1")
    done("fault", "lose", "1")
    (fault,) = described()["faults"]
    assert (fault["code"], fault["skip"], fault["times"], fault["gpu"]) == (23, 1, 1, None)
    assert [gpu["lost"] for gpu in described()["gpus"]] == [False, True, False]
    done("fault", "clear")
    assert described()["faults"] == []
    assert [gpu["lost"] for gpu in described()["gpus"]] == [False, False, False]
    assert partitioned


def test_three_kinds_of_reset(partitioned: str) -> None:
    done("process", "add", partitioned)
    assert call("reset", "--gpu", "0").exit_code == 5
    done("reset", "--reboot")
    (gpu, *_), processes = described()["gpus"], described()["processes"]
    assert (gpu["instances"], gpu["mig"]["current"], processes) == ([], 1, [])
    done("reset", "--gpu", "0")
    assert described()["gpus"][0]["mig"]["current"] == 1
    done("reset")
    assert described()["gpus"][0]["mig"]["current"] == 0


def test_the_tree_has_minor_numbers_nodes_and_pci_devices(state: Path, tmp_path: Path) -> None:
    done("create", "--gpus", "2xA100-40GB")
    for _ in range(2):
        done("tree", str(tmp_path / "root"))
    lines = (tmp_path / "root/proc/driver/nvidia-caps/mig-minors").read_text().splitlines()
    assert lines[:3] == ["config 1", "monitor 2", "gpu0/gi0/access 3"]
    numbers = dict(line.split() for line in lines)
    assert len({*numbers.values()}) == len(numbers) == 2 + 2 * 15 * 9
    for name in ("nvidia0", "nvidia1", "nvidiactl", f"nvidia-caps/nvidia-cap{numbers['gpu1/gi2/ci0/access']}"):
        assert (tmp_path / "root/dev" / name).exists()
    device = tmp_path / "root/sys/bus/pci/devices/0000:0f:00.0"
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    assert [(device / name).read_text() for name in names] == ["0x10de\n", "0x20b0\n", "0x10de\n", "0x145f\n"]
    (tmp_path / "file").touch()
    assert call("tree", str(tmp_path / "file" / "below")).exit_code == 2
    assert state.exists()


@pytest.mark.parametrize(
    "command",
    ["create", "list", "env", "xid", "measure", "process add", "process remove", "fault call", "reset", "tree"],
)
def test_help_has_an_example(command: str) -> None:
    assert f"  tessera sim-gpus {command} " in done(*command.split(), "--help").replace("env)", "env )")


def test_without_a_state_file_named_there_is_one_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESSERA_NVMLSIM_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    done("create", "--gpus", "T4")
    assert (tmp_path / "tessera" / "sim-gpus").is_file()
