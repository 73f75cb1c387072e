"""Events: one for each report, counted where it comes again."""

import datetime as dt

import pytest

from tessera.api.tessera.node.nodereports import Report
from tessera.clients.kube import EVENTS, MemoryKube
from tessera.clients.kube.events import record_event

pytestmark = pytest.mark.anyio


async def test_the_same_report_is_counted_and_another_is_another_event() -> None:
    kube, noon = MemoryKube(), dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
    applied, failed = (Report(reason=reason, message="m", warning=False) for reason in ("Applied", "Failed"))
    for minutes, report in ((0, applied), (5, applied), (6, failed)):
        await record_event(kube, "n1", report, noon + dt.timedelta(minutes=minutes))
    events = {each["reason"]: each for each in (await kube.list(EVENTS)).objects}
    assert {reason: each["count"] for reason, each in events.items()} == {"Applied": 2, "Failed": 1}
    assert events["Applied"]["firstTimestamp"].startswith("2026-11-21T12:00:00")
    assert events["Applied"]["lastTimestamp"].startswith("2026-11-21T12:05:00")
