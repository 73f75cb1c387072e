"""NVIDIA's own MPS control daemon on a real GPU, started by the agent's code, and clients within granted limits.

The GPU's compute mode stays as it is: `exclusive` is off, all else is as on a node.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from builders.shares import share
from harness.realgpu import OUT_OF_MEMORY, PROGRAM, CudaProgram, ReadOnlyDriver, RealGpu, note, program
from tessera.agent.sharing.detachedprocesses import ran
from tessera.agent.sharing.mpsprocesses import MpsDaemons, MpsSettings
from tessera.agent.sharing.mpssupervisor import MpsSupervisor
from tessera.core.cluster.mpstargets import MpsTarget
from tessera.core.deviceplugin.containers.edits import CONTAINER_PIPE, HostPlaces, edits
from tessera.core.gpu.inventory import GpuFacts
from tessera.core.gpu.sharing import Mode
from tessera.core.node.mpslifecycle import DaemonState
from tessera.core.node.nodesharing import mps_client_limit
from tessera.errors import TesseraError
from tessera.log import logger

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]


class MpsOnGpu:
    """A GPU with the daemon that one agent supervises."""

    def __init__(self, driver: ReadOnlyDriver, facts: GpuFacts, settings: MpsSettings, multiprocessors: int) -> None:
        self.driver = driver
        self.facts = facts
        self.settings = settings
        self.multiprocessors = multiprocessors
        """Those of the GPU."""
        self.agent = MpsSupervisor(driver, settings, logger())
        self.target = MpsTarget(key=facts.uuid, gpu=facts.uuid, visible=facts.uuid, exclusive=False)

    async def apply(self, **limits: int) -> DaemonState:
        """Bring the daemon to these limits, and return its state."""
        self.target = msgspec.structs.replace(self.target, **limits)
        (state,) = await self.agent.apply([self.target], await self.driver.inventory())
        log = self.settings.root / self.facts.uuid / "log"
        text = "".join(f"\n{each.name}: {each.read_text(errors='replace')[-1500:]}" for each in log.glob("*.log"))
        assert state.phase == "running", f"{state}{text}"
        return state

    @property
    def pipe(self) -> dict[str, str]:
        """What makes a program a client."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.settings.root / self.facts.uuid / "pipe")}

    def granted(self, memory_mib: int, percent: int) -> dict[str, str]:
        """Return the environment of a container with a share; its pipes are mounted at another path than here."""
        made = edits([share(0, memory_mib, Mode.MPS, percent=percent)], {0: self.facts}, HostPlaces())
        env = {**dict(made.env), **self.pipe}
        assert dict(made.env)["CUDA_MPS_PIPE_DIRECTORY"] == CONTAINER_PIPE
        return env


@contextlib.contextmanager
def client(env: Mapping[str, str]) -> Iterator[CudaProgram]:
    """Run a CUDA program with a context."""
    with CudaProgram(env) as one:
        one.must("open")
        yield one


def fits(one: CudaProgram, most: int = 10_240) -> int:
    """Return how much memory a program can allocate before it has too little, in pieces of 64 MiB."""
    got = 0
    while (answer := one.ask("alloc", mib=64))["result"] == 0 and got < most:
        got += 64
    assert answer["result"] == OUT_OF_MEMORY, (got, answer)
    return got


def within(got: int, limit_mib: int) -> bool:
    """Return whether a limit holds, of which the context takes a part too."""
    return limit_mib - 1024 <= got <= limit_mib


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder whose path is short enough for sockets, and that other users may enter, as they may `/run`."""
    with tempfile.TemporaryDirectory(prefix="mps") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def mps(real_gpu: RealGpu) -> AsyncIterator[MpsOnGpu]:
    settings = MpsSettings(program=program("nvidia-cuda-mps-control"))
    with real_gpu.cuda() as one:
        multiprocessors = one.must("open")["multiprocessors"]
    with short_folder() as root:
        settings = msgspec.structs.replace(settings, root=root)
        async with await real_gpu.driver() as driver:
            made = MpsOnGpu(driver, (await driver.inventory()).gpus[0], settings, multiprocessors)
            try:
                yield made
            finally:
                for _ in range(100):
                    if not await made.agent.apply([], await driver.inventory()):
                        break
                    await asyncio.sleep(0.5)
                assert not (settings.root / made.facts.uuid).exists()
                assert driver.refused == ()


async def test_replicas_are_limited_by_the_daemon(mps: MpsOnGpu) -> None:
    state = await mps.apply(memory_limit_mib=4096, thread_percent=25)
    assert state.clients in (None, 0)
    daemons = MpsDaemons(mps.settings)
    (daemon,) = await daemons.inspect()
    assert daemon.problem == ""
    memory = await daemons.command(mps.facts.uuid, "get_default_device_pinned_mem_limit 0")
    threads = await daemons.command(mps.facts.uuid, "get_default_active_thread_percentage")
    with client(mps.pipe) as one:
        seen = one.must("memory")
        answer = one.must("wave")
        count = one.must("open")["multiprocessors"]
        alone = fits(one)
        with client(mps.pipe) as two:
            both = fits(two)
            sight = await daemons.observe(mps.facts.uuid)
            listed = {each.pid for each in await mps.driver.processes(mps.facts.uuid)}
            state = await mps.apply()
            two_at_work = two.must("busy", seconds=0.5)
            one.kill()
            after_kill = two.must("busy", seconds=0.5)
            two.must("wave")
    note(
        memory_limit=memory,
        threads=threads,
        seen=seen,
        wave_ms=answer["ms"],
        multiprocessors=count,
        fits=(alone, both),
        clients=state.clients,
        daemon=sorted(sight.processes),
        nvml=sorted(listed),
        rounds=(two_at_work, after_kill),
    )
    assert state.clients == 2
    assert within(alone, 4096)
    assert within(both, 4096)
    assert listed <= sight.processes, "processes that the doctor would call strangers"
    assert count <= 0.3 * mps.multiprocessors
    assert after_kill["rounds"] > 0


async def test_amounts_are_limited_by_each_containers_environment(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=0, thread_percent=100)
    with client(mps.pipe) as unlimited:
        whole = unlimited.must("wave")["ms"]
        assert unlimited.must("open")["multiprocessors"] == mps.multiprocessors
    with client(mps.granted(2048, 10)) as small, client(mps.granted(8192, 50)) as large:
        waves = (small.must("wave")["ms"], large.must("wave")["ms"])
        counts = (small.must("open")["multiprocessors"], large.must("open")["multiprocessors"])
        seen = (small.must("memory"), large.must("memory"))
        got = (fits(small), fits(large))
        with client(mps.granted(2048, 10)) as another:
            second = fits(another)
    note(whole_ms=whole, waves_ms=waves, counts=counts, seen=seen, fits=got, second_process=second)
    assert [within(each, limit) for each, limit in zip((*got, second), (2048, 8192, 2048), strict=True)] == [True] * 3
    assert counts[0] <= 0.15 * mps.multiprocessors
    assert counts[1] <= 0.55 * mps.multiprocessors
    assert waves[0] >= 5 * whole
    assert 1.5 * whole <= waves[1] <= 3 * whole


async def test_a_client_that_is_killed_at_work_leaves_the_others(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=0, thread_percent=100)
    with client(mps.granted(2048, 50)) as one, client(mps.granted(2048, 50)) as two:
        before = two.must("busy", seconds=1)["rounds"]
        one.tell("busy", seconds=20)
        two.tell("busy", seconds=4)
        await asyncio.sleep(1.5)
        one.kill()
        after = two.answer()
        again = two.ask("busy", seconds=1)
        state = await mps.apply()
        note(before=before, while_killed=after, again=again, state=state)
        assert (after["result"], again["result"]) == (0, 0)


async def test_limits_change_for_later_clients_without_a_restart(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=4096, thread_percent=25)
    with client(mps.pipe) as former:
        await mps.apply(memory_limit_mib=2048, thread_percent=50)
        with client(mps.pipe) as later:
            counts = (former.must("open")["multiprocessors"], later.must("open")["multiprocessors"])
            got = (fits(former), fits(later))
    note(multiprocessors=counts, fits=got)
    assert counts[0] < counts[1]
    assert [within(each, limit) for each, limit in zip(got, (4096, 2048), strict=True)] == [True] * 2


async def test_an_agent_that_is_restarted_adopts_the_daemon(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=4096, thread_percent=25)
    with client(mps.pipe) as one:
        mps.agent = MpsSupervisor(mps.driver, mps.settings, logger())
        state = await mps.apply()
        assert (state.phase, state.clients) == ("running", 1)
        one.must("wave")


async def test_a_replica_cannot_widen_its_limits(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=4096, thread_percent=25)
    wide = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=16384M"}
    with client({**mps.pipe, **wide}) as one:
        count = one.must("open")["multiprocessors"]
        wave = one.must("wave")["ms"]
        got = fits(one)
    note(multiprocessors=count, wave_ms=wave, fits=got)
    assert count <= 0.3 * mps.multiprocessors
    assert within(got, 4096)


async def test_a_limit_need_not_be_whole_gigabytes(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=3000, thread_percent=100)
    shown = await MpsDaemons(mps.settings).command(mps.facts.uuid, "get_default_device_pinned_mem_limit 0")
    with client(mps.pipe) as one, client(mps.granted(1500, 50)) as two:
        seen = (one.must("memory")["free_mib"], two.must("memory")["free_mib"])
        got = (fits(one), fits(two))
        await mps.apply(memory_limit_mib=2500)
        with client(mps.pipe) as later:
            after = fits(later)
    note(shown=shown, seen=seen, fits=got, later=after)
    assert all(2400 < each <= 3000 for each in (seen[0], got[0]))
    assert all(1024 < each <= 1500 for each in (seen[1], got[1]))
    assert 1900 < after <= 2500


async def test_each_clients_use_is_measured(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=0, thread_percent=100)
    with client(mps.granted(8192, 50)) as busy, client(mps.granted(4096, 50)) as idle:
        busy.must("alloc", mib=4096)
        idle.must("alloc", mib=1024)
        busy.must("busy", seconds=0.5)
        await mps.driver.inventory()
        await mps.driver.measure(mps.facts.uuid)
        busy.tell("busy", seconds=4)
        await asyncio.sleep(3)
        reading = await mps.driver.measure(mps.facts.uuid)
        busy.answer()
        found = {each.pid: (each.memory_mib or 0, each.sm_percent) for each in reading.processes or ()}
        sight = await MpsDaemons(mps.settings).observe(mps.facts.uuid)
        note(busy=found.get(busy.pid), idle=found.get(idle.pid), all=found, activity=reading.activity)
        assert found[busy.pid][0] >= 4096
        assert 1024 <= found[idle.pid][0] < 2048
        # The driver counts the work of all clients as the server's.
        assert (found[busy.pid][1], found[idle.pid][1]) == (None, None)
        (server,) = sight.processes - {busy.pid, idle.pid}
        assert (found[server][1] or 0) > 20


async def test_a_program_without_the_pipe_is_no_client(mps: MpsOnGpu) -> None:
    """Where the compute mode does not keep it off, as with MIG on."""
    await mps.apply(memory_limit_mib=2048, thread_percent=25)
    with client(mps.pipe) as one, client({}) as stranger:
        got = stranger.must("alloc", mib=4096)
        listed = {each.pid for each in await mps.driver.processes(mps.facts.uuid)}
        sight = await MpsDaemons(mps.settings).observe(mps.facts.uuid)
        note(stranger=got, listed=sorted(listed), daemon=sorted(sight.processes), pid=stranger.pid)
        assert listed - sight.processes == {stranger.pid}
        assert one.pid in sight.processes


async def test_the_doctor_finds_the_daemon(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=4096, thread_percent=25)
    policy = mps.settings.root / "policy.yaml"
    policy.write_text("apiVersion: tessera.dev/v1alpha1\nkind: NodePolicy\ngpus:\n- sharing: {mps: 4}\n")
    with client(mps.pipe):
        text = await ran(
            (
                "/bin/sh",
                "-c",
                '"$@"; true',
                "sh",
                *(sys.executable, "-m", "tessera", "doctor", "-o", "json", "--node-policy", str(policy)),
                *("--mps-dir", str(mps.settings.root), "--mps-control", mps.settings.program),
            ),
            "",
            dict(os.environ),
            60,
        )
    found = {each["name"]: f"{each['verdict']}: {each['found']}" for each in json.loads(text) if "mps" in each["name"]}
    note(checks=found)
    assert {"mps-program", "mps-user", "mps-shm", "mps-pipes", "mps-daemon"} <= found.keys()
    assert all(each.startswith("ok") for each in found.values()), found


@pytest.mark.parametrize("count", [2, 16])
async def test_shares_of_the_whole_memory_can_all_be_used(mps: MpsOnGpu, count: int) -> None:
    """All units that a GPU offers, in so many shares, each used to its limit."""
    await mps.apply(memory_limit_mib=0, thread_percent=100)
    units, percent = mps.facts.memory_mib // 1024, 100 // count
    gib = [units * (each + 1) // count - units * each // count for each in range(count)]
    with client(mps.granted(4096, percent)) as alone:
        context = 4096 - fits(alone)
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(client(mps.granted(1024 * each, percent))) for each in gib]
        got = [fits(each, 1024 * most) for each, most in zip(programs, gib, strict=True)]
        used = (await mps.driver.use(mps.facts.uuid)).memory_used_mib
        rounds = [each.must("busy", seconds=0.2)["rounds"] for each in programs]
    missing = [1024 * most - each for most, each in zip(gib, got, strict=True)]
    note(shares=gib, context=context, missing=missing, used=used, usable=mps.facts.memory_mib, rounds=rounds)
    assert max(missing) <= context + 64


async def test_users_take_turns(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=0, thread_percent=100)
    other = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", PROGRAM.read_text())
    with client(mps.pipe) as first, CudaProgram(mps.pipe, other) as second:
        second.tell("open")
        waited = second.silent(3.0)
        first.must("busy", seconds=0.5)
        first.kill()
        began = time.monotonic()
        answer = second.answer()
        turn_s = time.monotonic() - began
        rounds = second.ask("busy", seconds=0.5)
        state = await mps.apply()
    note(waited=waited, answer=answer, turn_s=round(turn_s, 2), rounds=rounds, clients=state.clients)
    assert waited, "the other user's program did not wait"
    assert (answer["result"], rounds["result"]) == (0, 0)


async def test_what_the_daemon_answers(mps: MpsOnGpu) -> None:
    """What the stand-in of `tessera.sim.mpscontrol` answers."""
    await mps.apply(memory_limit_mib=4096, thread_percent=25)
    daemons, key, answers = MpsDaemons(mps.settings), mps.facts.uuid, {}

    async def tell(command: str) -> str:
        try:
            answers[command] = await daemons.command(key, command)
        except TesseraError as error:
            answers[command] = f"error: {error}"
        return answers[command]

    assert await tell("get_server_list") == ""
    with client(mps.pipe) as one:
        server = (await tell("get_server_list")).strip()
        assert server.isdecimal()
        assert await tell(f"get_client_list {server}") == str(one.pid)
        for command in (
            "ps",
            f"get_server_status {server}",
            f"get_active_thread_percentage {server}",
            f"get_device_pinned_mem_limit {server} 0",
            f"set_active_thread_percentage {server} 30",
            f"set_device_pinned_mem_limit {server} 0 3000M",
            f"get_device_pinned_mem_limit {server} 0",
            "set_default_active_thread_percentage 30",
            "set_default_device_pinned_mem_limit 0 3000M",
            "get_default_device_pinned_mem_limit 0",
            "set_default_device_pinned_mem_limit 0 0",
            "set_default_device_pinned_mem_limit 0 0M",
            "get_default_device_pinned_mem_limit 0",
            "set_default_active_thread_percentage 0",
            "set_default_device_pinned_mem_limit 0 much",
            "get_client_list",
            "get_client_list 1",
            "shutdown",
            "Running",
        ):
            await tell(command)
        assert answers[f"get_active_thread_percentage {server}"] == "25.0"
    await asyncio.sleep(1)
    await tell("get_server_list ")  # nobody is left
    note(answers=answers)


async def test_as_many_clients_connect_as_is_said(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=0, thread_percent=100)
    most = mps_client_limit(mps.facts, (await mps.driver.inventory()).cuda)
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(CudaProgram(mps.pipe)) for _ in range(most + 1)]
        for each in programs:
            each.tell("open")
        answers = [each.answer() for each in programs]
        state = await mps.apply()
    failed = [each for each in answers if each["result"]]
    note(said=most, connected=len(answers) - len(failed), clients=state.clients, failed=failed[:2])
    assert len(answers) - len(failed) == most


async def test_a_fatal_fault_ends_the_clients_of_the_device_and_later_ones_are_served(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=0, thread_percent=100)
    with client(mps.granted(2048, 50)) as one, client(mps.granted(2048, 50)) as two:
        two.must("busy", seconds=0.3)
        fault = one.ask("wild")
        other = two.ask("busy", seconds=0.5)
        meanwhile = await mps.apply()
    with CudaProgram(mps.granted(2048, 50)) as three:
        later = three.ask("open")
        rounds = three.ask("busy", seconds=0.3)
    state = await mps.apply()
    note(fault=fault, neighbor=other, meanwhile=meanwhile, later=later, rounds=rounds, state=state)
    assert fault["result"] != 0
    assert other["result"] != 0
    assert (later["result"], rounds["result"]) == (0, 0)


async def test_a_daemon_that_is_killed_is_replaced(mps: MpsOnGpu) -> None:
    await mps.apply(memory_limit_mib=4096, thread_percent=25)
    (record,) = (msgspec.json.decode(each.read_bytes()) for each in mps.settings.root.glob("*/daemon.json"))
    with client(mps.pipe) as one:
        one.must("busy", seconds=0.3)
        os.kill(record["pid"], signal.SIGKILL)
        await asyncio.sleep(0.5)
        survivor = one.ask("busy", seconds=0.3)
        phases = []
        for _ in range(20):
            (state,) = await mps.agent.apply([mps.target], await mps.driver.inventory())
            phases.append(state.phase if state.phase == "running" else f"{state.phase}: {state.reason}")
            if state.phase == "running":
                break
            await asyncio.sleep(1)
        with CudaProgram(mps.pipe) as two:
            later = two.ask("open")
            count = later.get("multiprocessors", mps.multiprocessors)
            got = fits(two) if later["result"] == 0 else 0
    note(survivor=survivor, phases=phases, later=later, fits=got)
    assert phases[-1] == "running"
    assert later["result"] == 0
    assert count <= 0.3 * mps.multiprocessors
    assert within(got, 4096)
