"""A log that is read in several streams, each of which may end anywhere."""

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.submittedjob import RUNS, SubmittedJob
from tessera.cli.work.follow.joblog import JobLog, NewParts
from tessera.cli.work.jobreading import state_of


@given(st.lists(st.binary(max_size=12).map(lambda each: each + b"\n"), max_size=12), st.data())
def test_every_byte_is_read_once_wherever_streams_end_and_pieces_begin(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(lines)
    ends = [*sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4))), len(text)]
    cuts = [sorted({0, end, *data.draw(st.lists(st.integers(0, end), max_size=4))}) for end in ends]

    async def read() -> None:
        one = SubmittedJob()
        await one.submit()
        await one.pod(RUNS, "n")
        log, found = JobLog(one.kube, await state_of(one.kube, "j", "ns")), b""
        await one.ends(0)
        for places in cuts:
            one.kube.written["ns", "j-1"] = [text[start:end] for start, end in itertools.pairwise(places)]
            found += b"".join([piece async for piece in log.read()])
            assert found == text[: places[-1]]

    asyncio.run(read())


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_the_kubelet_itself_says_has_no_time_and_is_read(size: int) -> None:
    stream = b"2026-01-01T00:00:00.5Z epoch 1\nunable to retrieve container logs\n2026-01-01T00:00:01Z  2\n"
    parts = NewParts(b"", 0, 0)
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert b"".join(map(parts.of, pieces)) == b"epoch 1\nunable to retrieve container logs\n 2\n"
