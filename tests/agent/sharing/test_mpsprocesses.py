"""MPS control daemons as they are on disk and in /proc."""

import os
import signal
from pathlib import Path

import pytest

from harness.mpsnodes import Bench
from tessera.agent.sharing.mpsprocesses import MpsDaemons, MpsSettings


@pytest.mark.anyio
async def test_the_daemons_can_be_looked_at_without_a_supervisor(bench: Bench) -> None:
    await bench.apply(await bench.target(0), await bench.target(1))
    for record in bench.records():
        bench.tell(record.target.key, "sim_client 11")
    records = sorted(bench.records(), key=lambda record: record.target.key)
    os.kill(records[1].pid, signal.SIGSTOP)
    # Long enough for the sound one on a busy machine; the silent one costs all of it.
    daemons = MpsDaemons(MpsSettings(program=str(bench.program), root=bench.root / "mps", answer_s=6.0))
    assert daemons.program == str(bench.program)
    sound, silent = await daemons.inspect()
    assert (sound.key, sound.exclusive, sound.problem) == (records[0].target.key, True, "")
    assert 11 in sound.processes
    assert "no answer within 6 s" in silent.problem


def test_what_a_daemon_printed_where_there_is_no_log(root: Path) -> None:
    assert MpsDaemons(MpsSettings(root=root)).printed("x") == "its log cannot be read: No such file or directory"
