"""Reports in memory behave as agents do."""

from collections.abc import Callable

import pytest

from builders.usagereports import REPORT
from conformance.nodeusagesuite import NodeUsageSuite
from tessera.clients.nodeusage import MemoryUsage


class TestMemoryUsage(NodeUsageSuite):
    @pytest.fixture
    async def usages(self) -> MemoryUsage:
        return MemoryUsage(REPORT)

    @pytest.fixture
    def silence(self, usages: MemoryUsage) -> Callable[[], object]:
        return lambda: setattr(usages, "silent", "agent n1")


@pytest.mark.anyio
async def test_reports_are_sorted_by_node() -> None:
    other = type(REPORT)(node="a")
    usages = MemoryUsage(REPORT, other)
    assert [each.node for each in (await usages.read()).reports] == ["a", "n1"]
    await usages.close()
