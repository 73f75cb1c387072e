"""Logs of pods in memory."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.kubesuite import NAMESPACE, unplaced
from tessera.clients.kube import PODS, MemoryKube
from tessera.clients.kube.podstreams import TimedLines
from tessera.errors import InvalidInput

LOG = b"one\ntwo\n\nfour\nthe fifth"


def with_times(log: bytes) -> list[bytes]:
    """Return the lines of a log, two in each tenth of a second."""
    return [
        b"2026-01-01T00:00:00.%d00000000Z %s" % (number // 2, line)
        for number, line in enumerate(log.splitlines(keepends=True))
    ]


@given(cuts=st.sets(st.integers(1, len(LOG) - 1)), first=st.integers(0, 2))
def test_each_line_has_its_time_however_the_log_is_cut(cuts: set[int], first: int) -> None:
    ends = [0, *sorted(cuts), len(LOG)]
    timed = TimedLines(f"2026-01-01T00:00:00.{first}00000000Z")
    found = b"".join(timed.of(LOG[begin:end]) for begin, end in itertools.pairwise(ends))
    assert found == b"".join(with_times(LOG)[2 * first :])


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("states", "cause"),
    [
        ([], 'container "c" in pod "one" is waiting to start: no logs yet'),
        (
            [{"waiting": {"reason": "PodInitializing"}}],
            'container "c" in pod "one" is waiting to start: PodInitializing',
        ),
        ([{}], 'container "c" in pod "one" is waiting to start: no logs yet'),
        ([{"running": {}}], ""),
        ([{"terminated": {}}], ""),
    ],
)
async def test_a_container_has_a_log_once_it_has_started(states: list[dict[str, Any]], cause: str) -> None:
    kube = MemoryKube()
    await kube.create(PODS, unplaced("one", nodeName="n"))
    kube.written[NAMESPACE, "one"] = [b"epoch 1\n"]
    status = {"containerStatuses": [{"name": "c", "state": each} for each in states]}
    await kube.patch(PODS, "one", {"status": status}, namespace=NAMESPACE, subresource="status")
    if cause:
        with pytest.raises(InvalidInput, match=f"log of Pod default/one: {cause}"):
            [each async for each in kube.logs("one", NAMESPACE)]
    else:
        assert [each async for each in kube.logs("one", NAMESPACE)] == [b"epoch 1\n"]
