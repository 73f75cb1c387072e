"""Reports of several agents, some of which do not answer."""

import pytest

from builders.usagereports import REPORT
from tessera.clients.nodeusage import NodeReports
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable

pytestmark = pytest.mark.anyio
AWAY = Unavailable("agent b", found="no answer", hint="try again")


async def answered(answer: UsageReport | Exception) -> UsageReport:
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_reports_are_sorted_by_node_and_the_silent_are_named() -> None:
    first = UsageReport(node="a")
    found = await NodeReports.gathered([answered(REPORT), answered(AWAY), answered(first)])
    assert found == NodeReports((first, REPORT), (AWAY,))
    assert found.some() == (first, REPORT)


async def test_no_report_at_all_is_an_error_only_where_somebody_was_asked() -> None:
    assert NodeReports().some() == ()
    with pytest.raises(Unavailable, match="agent b: no answer"):
        (await NodeReports.gathered([answered(AWAY)])).some()


async def test_a_defect_is_no_silence() -> None:
    with pytest.raises(ZeroDivisionError):
        await NodeReports.gathered([answered(AWAY), answered(ZeroDivisionError())])
