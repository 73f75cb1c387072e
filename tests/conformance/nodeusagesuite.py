"""What every implementation of `UsageSource` does; each is run through it by a subclass."""

from collections.abc import Callable

import pytest

from builders.usagereports import REPORT
from tessera.clients.nodeusage import NodeReports, UsageSource
from tessera.errors import Unavailable


@pytest.mark.anyio
class NodeUsageSuite:
    """Subclasses give `usages`, of node n1's agent, and `silence`, after which it does not respond."""

    async def test_reports_are_as_the_agent_gives_them(self, usages: UsageSource) -> None:
        assert await usages.read() == NodeReports((REPORT,))
        assert (await usages.read()).some() == (REPORT,)

    async def test_an_agent_that_does_not_answer_is_named(
        self, usages: UsageSource, silence: Callable[[], object]
    ) -> None:
        silence()
        found = await usages.read()
        assert found.reports == ()
        assert [each.subject.partition(" ")[0] for each in found.silent] == ["agent"]
        with pytest.raises(Unavailable, match="agent"):
            found.some()
