"""The state file: who sees it, what happens when it is missing or broken, and when its user is killed."""

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from harness.nvmlcalls import cut_whole, mig_devices
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement, is_legal
from tessera.errors import InvalidInput
from tessera.sim.nvmlsim import Machine, Process, create_state, environment

TESTS = Path(__file__).parents[2]


def program(text: str, state: Path, **settings: Any) -> subprocess.Popen[str]:
    """Start a Python program that sees the machine as any program would: by its environment alone."""
    environ = {**os.environ, **environment(state), "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(
        [sys.executable, "-c", f"import pynvml as n\nimport harness.nvmlcalls as c\n{text}"],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        **settings,
    )


def run(text: str, state: Path) -> str:
    with program(text, state) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.strip()


def test_another_program_sees_the_same_machine(machine: Machine, a100: Any) -> None:
    cut_whole(a100, 9, 4, 4)
    (device,) = mig_devices(a100)
    machine.add_process(1, Process(pid=7, memory_mib=100))
    text = """
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
for device in c.mig_devices(gpu):
    print(n.nvmlDeviceGetUUID(device))
print(n.nvmlDeviceGetComputeRunningProcesses(n.nvmlDeviceGetHandleByIndex(1))[0].pid)
c.cut_whole(gpu, 9, 0, 4)
"""
    assert run(text, machine.path).split() == [pynvml.nvmlDeviceGetUUID(device), "7"]
    assert len(mig_devices(a100)) == 2


def test_an_event_wakes_another_program(machine: Machine) -> None:
    text = """
n.nvmlInit()
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(1), n.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
print(n.nvmlEventSetWait_v2(events, 50_000).eventData)
"""
    with program(text, machine.path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        machine.inject_xid(1, 63)
        out, _ = process.communicate(timeout=60)
    assert out == "63\n"


# ---- files that are missing or broken ----


def text_file(path: Path) -> None:
    path.write_text("no state file\n" * 200_000)


def truncated(path: Path) -> None:
    create_state(path, ["T4"])
    os.truncate(path, 4096)


def shorter_than_a_head(path: Path) -> None:
    path.write_bytes(b"NV")


def other_version(path: Path) -> None:
    create_state(path, ["T4"])
    with path.open("r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))


def half_made(path: Path) -> None:
    create_state(path, ["T4"])
    with path.open("r+b") as file:
        file.seek(16)
        file.write(bytes(4))


def absent(path: Path) -> None:
    del path


def folder(path: Path) -> None:
    path.mkdir()


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "absent": (absent, "DriverNotLoaded", "no such file"),
    "text": (text_file, "CorruptedInforom", "not a state file"),
    "truncated": (truncated, "CorruptedInforom", "not a state file"),
    "shorter than a head": (shorter_than_a_head, "CorruptedInforom", "not a state file"),
    "of another version": (other_version, "LibRmVersionMismatch", "another version"),
    "half made": (half_made, "CorruptedInforom", "not a state file"),
    "a folder": (folder, "OperatingSystem", "NVML code 17"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused(loaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    del loaded
    make, error, found = BROKEN[case]
    path = tmp_path / "state"
    make(path)
    monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(path))
    with pytest.raises(getattr(pynvml, f"NVMLError_{error}")):
        pynvml.nvmlInit()
    with pytest.raises(InvalidInput, match=found):
        Machine(path)


def test_without_a_file_named_no_driver_is_loaded(loaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    del loaded
    for value in (None, ""):
        monkeypatch.delenv("TESSERA_NVMLSIM_STATE", raising=False)
        if value is not None:
            monkeypatch.setenv("TESSERA_NVMLSIM_STATE", value)
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlInit()


def test_a_random_byte_anywhere_breaks_nothing(start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file is accepted or refused; no call ends the process, and the file is still locked and let go."""
    machine = start("A100-40GB", "T4")
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetMigMode(gpu, 1)
    cut_whole(gpu, 9, 0, 4)
    machine.add_process(1, Process(pid=7))
    whole = machine.path.read_bytes()
    pynvml.nvmlShutdown()
    rng = random.Random(1)
    used = [at for at, byte in enumerate(whole) if byte]
    results = set()
    for number in range(300):
        data = bytearray(whole)
        data[rng.choice(used) if number % 2 else rng.randrange(16, len(data))] = rng.randrange(256)
        path = tmp_path / "damaged"
        path.write_bytes(data)
        monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(path))
        results.add(use_all())
        with contextlib.suppress(InvalidInput), Machine(path) as damaged:
            damaged.describe()
    assert results == {True, False}
    monkeypatch.setenv("TESSERA_NVMLSIM_STATE", str(machine.path))
    pynvml.nvmlInit()


_REFUSED = (pynvml.NVMLError, UnicodeDecodeError)  # pynvml takes every name for UTF-8


def use_all() -> bool:
    """Return whether the machine could be used; whatever its calls return is right."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    with contextlib.suppress(*_REFUSED):
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            for call in (pynvml.nvmlDeviceGetName, pynvml.nvmlDeviceGetMemoryInfo, mig_devices):
                with contextlib.suppress(*_REFUSED):
                    call(gpu)
            for profile in range(18):
                with contextlib.suppress(*_REFUSED):
                    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, profile)
                    pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, info.id)
                    pynvml.nvmlDeviceCreateGpuInstance(gpu, info.id)
    pynvml.nvmlShutdown()
    return True


def test_a_file_cut_short_under_a_running_program(start: Any) -> None:
    machine = start()
    os.truncate(machine.path, 4096)
    with pytest.raises(pynvml.NVMLError_CorruptedInforom):
        pynvml.nvmlDeviceGetCount()


def test_a_machine_that_is_replaced_is_gone_for_those_who_use_it(start: Any) -> None:
    machine = start()
    create_state(machine.path, ["T4"], replace=True)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) == "Tesla T4"


# ---- making ----


def test_a_machine_is_not_made_over_another(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state"
    create_state(path, ["T4"])
    with pytest.raises(InvalidInput, match="--replace"):
        create_state(path, ["T4"])
    create_state(path, ["A30"], replace=True)
    with Machine(path) as machine:
        assert [gpu["model"] for gpu in machine.describe()["gpus"]] == ["A30-24GB"]
    assert [each.name for each in path.parent.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("gpus", "want"),
    [
        (["2xA100"], "A100-40GB or A100-80GB"),
        (["0xT4"], "a count from 1 to 32"),
        (["33xT4"], "a count from 1 to 32"),
        (["20xT4", "20xT4"], "1 to 32"),
        ([], "1 to 32"),
        ([""], "a count from 1 to 32"),
        (["x T4"], "a GPU model that Tessera knows"),
    ],
)
def test_gpus_that_cannot_be_simulated(tmp_path: Path, gpus: list[str], want: str) -> None:
    with pytest.raises(InvalidInput, match=want):
        create_state(tmp_path / "state", gpus)
    assert list(tmp_path.iterdir()) == []


def test_versions_and_places_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="driver version"):
        create_state(tmp_path / "state", ["T4"], driver="latest")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="a path where a file can be created"):
        create_state(tmp_path / "file" / "state", ["T4"])


def test_uuids_follow_from_the_seed(tmp_path: Path) -> None:
    def uuids(name: str, seed: str) -> list[str]:
        create_state(tmp_path / name, ["8xH100-80GB"], seed=seed)
        with Machine(tmp_path / name) as machine:
            return [gpu["uuid"] for gpu in machine.describe()["gpus"]]

    a, b, c = uuids("a", "x"), uuids("b", "x"), uuids("c", "y")
    assert a == b
    assert len({*a, *c}) == 16


# ---- processes that die, fork, or start several times ----


def test_initialisations_are_counted(start: Any) -> None:
    start()
    pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetCount() == 1
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlInitWithFlags(1 << 20)
    pynvml.nvmlInit()


def test_a_killed_program_leaves_a_whole_machine(machine: Machine, a100: Any) -> None:
    """Kill -9 at random moments, most of them inside calls: nobody waits for ever, and the layout stays legal."""
    text = """
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True)
while True:
    made = []
    for profile in (19, 14, 9, 15):
        try:
            made.append(n.nvmlDeviceCreateGpuInstance(gpu, profile))
            made.append(n.nvmlGpuInstanceCreateComputeInstance(made[-1], 0))
        except n.NVMLError:
            pass
    for each in reversed(made):
        try:
            n.nvmlGpuInstanceDestroy(each)
        except n.NVMLError:
            n.nvmlComputeInstanceDestroy(each)
"""
    rng = random.Random(2)
    for _ in range(6):
        with program(text, machine.path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for _ in range(rng.randrange(200)):
                pynvml.nvmlDeviceGetMigMode(a100)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
        placed = tuple(
            Placement(each["start"], each["size"], each["profile"])
            for each in machine.describe()["gpus"][0]["instances"]
        )
        assert is_legal(model("A100-40GB"), tuple(sorted(placed)))
        machine.renew()
        pynvml.nvmlDeviceSetMigMode(a100, 1)


def test_a_killed_holder_of_the_lock_lets_go_of_it(machine: Machine, a100: Any) -> None:
    """The program stops inside the lock, which nobody can then take; when it is killed, everybody can."""
    text = """
import fcntl, os, sys, time
file = open(os.environ["TESSERA_NVMLSIM_STATE"], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(600)
"""
    with program(text, machine.path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with program("n.nvmlInit(); print(n.nvmlDeviceGetCount())", machine.path) as other:
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(timeout=1)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            assert other.communicate(timeout=60)[0] == "2\n"
    assert pynvml.nvmlDeviceGetName(a100)


def test_programs_that_work_at_once_get_in_no_ones_way(machine: Machine, a100: Any) -> None:
    text = """
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
won = 0
for _ in range(300):
    try:
        n.nvmlDeviceCreateGpuInstance(gpu, 19)
        won += 1
    except n.NVMLError_InsufficientResources:
        pass
print(won)
"""
    running = [program(text, machine.path) for _ in range(3)]
    won = [int(each.communicate(timeout=60)[0]) for each in running]
    for each in running:
        each.wait(timeout=60)
    assert sum(won) == 7
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(a100, 19) == 0


def test_a_fork_has_a_lock_of_its_own(machine: Machine) -> None:
    text = """
import os
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        for _ in range(300):
            n.nvmlGpuInstanceDestroy(n.nvmlDeviceCreateGpuInstance(gpu, 14))
        os._exit(0)
    children.append(pid)
for _ in range(300):
    n.nvmlGpuInstanceDestroy(n.nvmlDeviceCreateGpuInstance(gpu, 14))
print([os.waitpid(pid, 0)[1] for pid in children])
"""
    assert run(text, machine.path) == "[0, 0]"
    assert machine.describe()["gpus"][0]["instances"] == []


def test_threads_share_a_machine(machine: Machine) -> None:
    text = """
import threading
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByIndex(0)
def work():
    for _ in range(300):
        n.nvmlGpuInstanceDestroy(n.nvmlDeviceCreateGpuInstance(gpu, 14))
threads = [threading.Thread(target=work) for _ in range(3)]
for each in threads: each.start()
for each in threads: each.join()
print("done")
"""
    assert run(text, machine.path) == "done"
    assert machine.describe()["gpus"][0]["instances"] == []
