"""The record of allocations on the disk: what is broken in it costs nothing else of it."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tessera.agent.deviceplugin.allocations.allocationsfile import read_allocations, write_allocations
from tessera.api.tessera.node import agentfiles
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.gpu.deviceids import DeviceId
from tessera.errors import Unavailable
from tessera.log import logger

RECORD = tuple(
    AgentAllocation(
        resource="r", ids=(name,), uses=(AllocatedDevice(device=DeviceId("g")),), uid=name, pod=f"ns/{name}"
    )
    for name in "ab"
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "allocations.json"
    assert read_allocations(path, logger()) == ((), frozenset(), True)
    write_allocations(path, RECORD)
    assert read_allocations(path, logger()) == (RECORD, frozenset(), False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["allocations.json"]


ODD = b'{"resource": "r", "ids": ["x"], "uses": [{"gpu": "g", "placement": "of tomorrow"}]}'
GOOD = agentfiles.write_allocations(RECORD)

# Keyed by a sentence: content, entries that count.
BROKEN: dict[str, tuple[bytes, tuple[AgentAllocation, ...]]] = {
    "an entry of another version": (GOOD[:-1] + b"," + ODD + b"]", RECORD),
    "an entry of a version to come": (GOOD.replace(b'"version":1', b'"version":2', 1), RECORD[1:]),
    "an entry that is none": (b"[7," + GOOD[1:], RECORD),
    "bytes that are not UTF-8 in an entry": (GOOD.replace(b'"a"', b'"\xff"', 1), RECORD[1:]),
    "nested without end": (b"[" * 100_000, ()),
    "torn": (GOOD[:-5], ()),
    "empty": (b"", ()),
    "something else": (b'{"a": 1}', ()),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_can_be_read_counts_and_the_file_is_kept(tmp_path: Path, case: str) -> None:
    content, left = BROKEN[case]
    path = tmp_path / "allocations.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        assert read_allocations(path, logger()).entries == left
    assert [(each["event"], each["left"]) for each in logs] == [("allocations_unreadable", len(left))]
    write_allocations(path, left)
    path.write_bytes(content[:-1] + b"?")
    read_allocations(path, logger())
    kept = {each.read_bytes() for each in tmp_path.glob("allocations.json.*.bad")}
    assert kept == {content, content[:-1] + b"?"}, "the second that is spoiled as well"


def test_ten_spoiled_files_are_kept_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "allocations.json"
    for number in range(12):
        path.write_text(f"spoiled {number}")
        read_allocations(path, logger())
        for each in tmp_path.glob("*.bad"):  # those of before are older, however coarse the file system's clock is
            os.utime(each, ns=(0, each.stat().st_mtime_ns - 10**9))
    kept = {each.read_text() for each in tmp_path.glob("allocations.json.*.bad")}
    assert kept == {f"spoiled {number}" for number in range(2, 12)}


def test_without_what_is_on_the_disk_nothing_is_read_nor_written(tmp_path: Path) -> None:
    path = tmp_path / "allocations.json"
    path.mkdir()
    with pytest.raises(Unavailable, match="no device is offered"):
        read_allocations(path, logger())
    with pytest.raises(Unavailable, match="no device is allocated"):
        write_allocations(path, RECORD)
