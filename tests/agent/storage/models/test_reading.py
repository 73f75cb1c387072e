"""Ranges read from a store: faults outlasted, within the bandwidth limit."""

from pathlib import Path

import pytest

from harness.flakys3 import FlakyS3
from harness.modelsyncs import CONTENTS, LARGE, MANY, QUICK, content, run, s3
from tessera.agent.storage.models.reading import TransferLimits
from tessera.clients.store import MemoryStore, open_store
from tessera.errors import TesseraError, Unavailable


@pytest.mark.parametrize("fault", ["503", "cut", "stall"])
def test_faults_that_pass_are_outlasted(fault: str, tmp_path: Path, server: FlakyS3) -> None:
    server.fault = lambda number: fault if number <= 3 else ""
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == CONTENTS


@pytest.mark.parametrize(
    ("fault", "want"),
    [("503", "status 503"), ("flip", "checksum"), ("length", "bytes where"), ("stall", "no data|too early")],
)
def test_faults_that_stay_leave_the_former_revision(fault: str, want: str, tmp_path: Path, server: FlakyS3) -> None:
    run(s3(server), tmp_path)
    server.contents = {"config.json": b"new", "more": LARGE[:-1]}
    server.fault = lambda _number: fault
    with pytest.raises(TesseraError, match=want) as caught:
        run(s3(server), tmp_path)
    assert "config.json" in caught.value.subject or "more" in caught.value.subject
    assert content(tmp_path / "current") == CONTENTS
    server.fault = lambda _number: ""
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == server.contents


@pytest.mark.parametrize("fault", ["503", "cut", "stall", "length", "reset", "drip"])
def test_faults_are_outlasted_where_many_small_objects_are_requested_at_once(
    fault: str, tmp_path: Path, server: FlakyS3
) -> None:
    server.contents = {**MANY, "empty": b""}
    server.fault = lambda number: fault if number in {1, 3, 77} else ""
    run(s3(server), tmp_path)
    assert content(tmp_path / "current") == server.contents


def test_a_dead_endpoint_is_named(tmp_path: Path) -> None:
    store = open_store("s3://models/m", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    with pytest.raises(Unavailable, match=r"s3://models/m: 127\.0\.0\.1:1"):
        run(store, tmp_path)


def test_a_bandwidth_limit_holds_in_each_second(tmp_path: Path) -> None:
    rate = 400 * 1024
    limits = TransferLimits(QUICK.limits.patience, bytes_per_second=rate)
    done = run(MemoryStore({"a": LARGE[: rate * 3 // 2]}), tmp_path, limits=limits)
    assert done.seconds > 1
    assert rate / 2 < done.peak_bytes_per_second <= rate * 1.4  # a quarter of a second's may come ahead
