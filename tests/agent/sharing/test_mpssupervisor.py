"""MPS control daemons under supervision, against the stand-in for NVIDIA's program."""

import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest

from harness.mpsnodes import Bench
from tessera.agent.sharing.detachedprocesses import gone, identity, ran
from tessera.agent.sharing.mpsprocesses import MpsDaemons, MpsSettings
from tessera.core.gpu.inventory import ComputeMode
from tessera.core.node.mpslifecycle import DaemonState
from tessera.errors import Unavailable


@pytest.mark.anyio
async def test_a_daemon_is_started_limited_and_ended_and_the_compute_mode_restored(bench: Bench) -> None:
    target = await bench.target()
    assert await bench.phases(target) == ["running"]
    assert await bench.modes() == [ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT]
    assert bench.tell(target.key, "get_default_device_pinned_mem_limit 0") == "4G\n"
    assert bench.tell(target.key, "get_default_active_thread_percentage") == "25.0\n"
    assert await bench.apply(target) == [DaemonState(key=target.key, phase="running", clients=0)]
    record = bench.record(target.key)
    assert os.getsid(record.pid) != os.getsid(0)
    assert await bench.apply() == []
    assert identity(record.pid) != record.started
    assert await bench.modes() == [ComputeMode.DEFAULT, ComputeMode.DEFAULT]
    assert list((bench.root / "mps").iterdir()) == []


@pytest.mark.anyio
async def test_two_gpus_have_a_daemon_each_and_other_limits_take_effect_without_a_restart(bench: Bench) -> None:
    first, second = await bench.target(0), await bench.target(1, memory_limit_mib=0, thread_percent=100)
    assert await bench.phases(first, second) == ["running", "running"]
    pid = bench.record(first.key).pid
    more = await bench.target(0, memory_limit_mib=8192, thread_percent=50)
    bench.tell(first.key, "sim_client 11")
    assert await bench.phases(more, second) == ["running", "running"]
    assert bench.record(first.key).pid == pid
    assert bench.tell(first.key, "get_default_device_pinned_mem_limit 0") == "8G\n"
    server = bench.tell(first.key, "get_server_list").strip()
    assert bench.tell(first.key, f"get_active_thread_percentage {server}") == "50.0\n", "which runs already"
    assert bench.tell(first.key, f"get_device_pinned_mem_limit {server} 0") == "8G\n"
    assert bench.tell(second.key, "get_default_device_pinned_mem_limit 0") == ""


@pytest.mark.anyio
async def test_another_agent_adopts_what_runs(bench: Bench) -> None:
    target = await bench.target()
    await bench.apply(target)
    bench.tell(target.key, "sim_client 11")
    record = bench.record(target.key)
    bench.agent = bench.new_agent()
    assert await bench.apply(target) == [DaemonState(key=target.key, phase="running", clients=1)]
    assert bench.record(target.key) == record


@pytest.mark.anyio
async def test_a_daemon_whose_agent_died_before_it_noted_the_process_is_found(bench: Bench) -> None:
    target = await bench.target()
    await bench.apply(target)
    record = bench.record(target.key)
    path = bench.root / "mps" / target.key / "daemon.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, pid=0, started="")))
    bench.agent = bench.new_agent()
    assert await bench.apply(target) == [DaemonState(key=target.key, phase="running", clients=0)]
    number = path.parent / "pipe" / "nvidia-cuda-mps-control.pid"
    for text in (str(os.getpid()), "-1", "many"):
        number.write_text(text)
        (daemon,) = await MpsDaemons(MpsSettings(program=str(bench.program), root=bench.root / "mps")).inspect()
        assert daemon.problem == "its process has ended"
    number.write_text(str(record.pid))
    assert await bench.apply() == []
    assert identity(record.pid) != record.started


@pytest.mark.anyio
@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2}'])
async def test_a_daemon_whose_record_cannot_be_read_is_found_and_keeps_its_clients(
    bench: Bench, content: bytes
) -> None:
    """A second one in its place would take the pipes of pods that run away from them."""
    targets = await bench.target(), await bench.target(1, key="GPU-1-0-2", visible="MIG-1", exclusive=False)
    await bench.apply(*targets)
    for target in targets:
        bench.tell(target.key, "sim_client 11")
    before = bench.records()
    for target in targets:
        (bench.root / "mps" / target.key / "daemon.json").write_bytes(content)
    bench.agent = bench.new_agent()
    assert [each.clients for each in await bench.apply(*targets)] == [1, 1]
    assert {each.pid for each in bench.records()} == {each.pid for each in before}
    for target in targets:
        assert bench.tell(target.key, "get_default_device_pinned_mem_limit 0") == "4G\n"
        bench.tell(target.key, "sim_leave 11")
    assert await bench.apply() == []
    assert await bench.modes() == [ComputeMode.DEFAULT, ComputeMode.DEFAULT]


@pytest.mark.anyio
async def test_a_daemon_in_use_stays_when_its_configuration_goes(bench: Bench) -> None:
    target = await bench.target()
    await bench.apply(target)
    bench.tell(target.key, "sim_client 11")
    assert await bench.phases() == ["draining"]
    bench.tell(target.key, "sim_leave 11")
    assert await bench.phases(used=(target.key,)) == ["draining"]
    assert await bench.phases() == []


@pytest.mark.anyio
async def test_a_daemon_that_ended_is_started_again_with_back_off_and_keeps_the_mode_to_restore(bench: Bench) -> None:
    target = await bench.target()
    await bench.apply(target)
    for _ in range(2):
        record = bench.record(target.key)
        os.kill(record.pid, signal.SIGKILL)
        assert await gone(record.pid, record.started, 30)
        if bench.now == 0:
            assert await bench.phases(target) == ["failed"]  # one start since it last answered a round
            bench.now = 10
        else:
            bench.now = 1000
        assert await bench.phases(target) == ["running"]
    assert await bench.apply() == []
    assert await bench.modes() == [ComputeMode.DEFAULT, ComputeMode.DEFAULT]


@pytest.mark.anyio
async def test_a_compute_mode_that_was_changed_is_set_again(bench: Bench) -> None:
    target = await bench.target()
    await bench.apply(target)
    await bench.driver.set_compute_mode(target.gpu, ComputeMode.DEFAULT)
    await bench.apply(target)
    assert (await bench.modes())[0] is ComputeMode.EXCLUSIVE_PROCESS


@pytest.mark.anyio
async def test_a_daemon_of_an_instance_leaves_the_compute_mode_and_follows_a_new_instance(bench: Bench) -> None:
    target = await bench.target(visible="MIG-1", exclusive=False)
    await bench.apply(target)
    assert (await bench.modes())[0] is ComputeMode.DEFAULT
    pid = bench.record(target.key).pid
    remade = await bench.target(visible="MIG-2", exclusive=False)
    assert await bench.phases(remade) == ["draining"]
    assert await bench.phases(remade) == ["running"]
    assert bench.record(target.key).pid != pid


@pytest.mark.anyio
async def test_a_daemon_that_does_not_answer_is_killed_when_nobody_uses_it(bench: Bench) -> None:
    target = await bench.target()
    await bench.apply(target)
    record = bench.record(target.key)
    os.kill(record.pid, signal.SIGSTOP)
    bench.agent = bench.new_agent(answer_s=0.5)
    for _ in range(4):
        (state,) = await bench.apply(target, used=(target.key,))
        assert state.phase == "failed"
        assert "no answer within 0.5 s" in state.reason
    assert identity(record.pid) == record.started
    await bench.apply(target)
    assert identity(record.pid) != record.started
    bench.agent = bench.new_agent()
    assert await bench.phases(target) == ["running"]


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.anyio
async def test_a_daemon_whose_limits_could_not_be_set_gets_them_before_it_counts_as_running(bench: Bench) -> None:
    """By the same agent or by another: the first one may have been killed before it came to that."""
    tries = bench.root / "tries"
    refuses_twice = f"""case "$*" in -f) exec {bench.program} -f;; esac
command=$(cat)
case "$command" in set_default_*) echo >>{tries}; [ $(wc -l <{tries}) -gt 2 ] || exit 1;; esac
echo "$command" | {bench.program}"""
    target = await bench.target()
    bench.agent = bench.new_agent(script(bench.root / "nvidia-cuda-mps-control", refuses_twice))
    assert await bench.phases(target) == ["failed"]
    pid = bench.record(target.key).pid
    bench.agent = bench.new_agent(bench.root / "nvidia-cuda-mps-control")
    assert await bench.phases(target) == ["failed"]
    assert await bench.phases(target) == ["running"]
    assert bench.tell(target.key, "get_default_device_pinned_mem_limit 0") == "4G\n"
    assert bench.tell(target.key, "get_default_active_thread_percentage") == "25.0\n"
    assert bench.record(target.key) == msgspec.structs.replace(bench.record(target.key), pid=pid, target=target)


@pytest.mark.anyio
async def test_a_daemon_that_cannot_start_says_why_and_waits_for_the_next_try(bench: Bench) -> None:
    target = await bench.target()
    bench.agent = bench.new_agent(script(bench.root / "broken", "echo no such device; exit 3"))
    (state,) = await bench.apply(target)
    assert state.phase == "failed"
    assert state.reason.endswith("it ended: no such device: see `tessera doctor`")
    (again,) = await bench.apply(target)
    assert again.reason == state.reason
    bench.agent = bench.new_agent()
    assert await bench.apply() == []
    assert await bench.modes() == [ComputeMode.DEFAULT, ComputeMode.DEFAULT]


@pytest.mark.anyio
async def test_a_node_without_the_program(bench: Bench) -> None:
    agent = bench.new_agent(bench.root / "none")
    (state,) = await agent.apply([await bench.target()], await bench.driver.inventory())
    assert state.phase == "failed"
    assert f"{bench.root}/none is not installed or not on PATH" in state.reason


@pytest.mark.anyio
async def test_a_gpu_that_is_gone_and_a_driver_that_refuses(bench: Bench) -> None:
    (state,) = await bench.apply(await bench.target(gpu="GPU-9"))
    assert "no such GPU" in state.reason
    refused = Unavailable("GPU 0", found="a timeout", expected="an answer")
    bench.driver.fail("set_compute_mode", refused)
    bench.now = 100
    (state,) = await bench.apply(await bench.target())
    assert state.reason == str(refused)


@pytest.mark.anyio
async def test_a_folder_that_cannot_be_written(bench: Bench) -> None:
    (bench.root / "mps").write_text("a file")
    (state,) = await bench.apply(await bench.target())
    assert state.phase == "failed"
    assert "a folder that the agent may write to" in state.reason


@pytest.mark.anyio
async def test_a_broken_record_is_forgotten_and_other_folders_are_left_alone(bench: Bench) -> None:
    other = bench.root / "mps" / "other"
    other.mkdir(parents=True)
    broken = bench.root / "mps" / "GPU-x"
    broken.mkdir()
    for content in (b"{", b'{"gpu": "\xff"}', b'{"x":' + b"[" * 100_000):
        broken.mkdir(exist_ok=True)
        (broken / "daemon.json").write_bytes(content)
        assert await bench.apply() == []
        assert not broken.exists()
    assert await bench.apply() == []
    assert list((bench.root / "mps").iterdir()) == [other]


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
import msgspec
from tessera.agent.sharing.mpssupervisor import MpsSupervisor
from tessera.agent.sharing.mpsprocesses import MpsSettings
from tessera.clients.gpu import MemoryDriver
from tessera.core.cluster.mpstargets import MpsTarget
from tessera.log import logger

async def main():
    driver = MemoryDriver.of("T4", "T4")
    settings = MpsSettings(program=sys.argv[1], root=Path(sys.argv[2]), answer_s=20.0, start_s=30.0)
    target = msgspec.json.decode(sys.argv[3], type=MpsTarget)
    await MpsSupervisor(driver, settings, logger()).apply([target], await driver.inventory())
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.anyio
async def test_a_daemon_outlives_an_agent_that_is_killed(bench: Bench) -> None:
    target = await bench.target()
    text = msgspec.json.encode(target).decode()
    command = (sys.executable, "-c", KILLED, str(bench.program), str(bench.root / "mps"), text)
    with pytest.raises(Unavailable, match="exit status -9"):
        await ran(command, "", os.environ, 60, session=True)
    record = bench.record(target.key)
    assert identity(record.pid) == record.started
    bench.tell(target.key, "sim_client 11")
    assert await bench.apply(target) == [DaemonState(key=target.key, phase="running", clients=1)]
    assert bench.record(target.key) == record
