"""What the page knows by the nodes' agents: asked while somebody looks, kept for a while, and trouble said once."""

import msgspec
import pytest
from structlog.testing import capture_logs

from builders.usagereports import REPORT
from harness.refreshes import refreshed
from tessera.api.tessera.usage.usagereports import write_usage
from tessera.clients.kube import PODS, MemoryKube
from tessera.clients.nodeusage import MemoryUsage, ProxiedUsage
from tessera.core.usage.usagereport import UsageReport
from tessera.errors import Unavailable
from tessera.log import logger
from tessera.server.page import AgentMetrics

pytestmark = pytest.mark.anyio


class Scene:
    """Agents in memory, a clock, and what the page knows by them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.usages = MemoryUsage(REPORT)
        self.memory = AgentMetrics(self.usages, [], logger(), lambda: self.now_s)

    async def refresh(self, seconds: float) -> dict[str, float]:
        """Let time go by and look."""
        self.now_s += seconds
        await refreshed(self.memory)
        return {str(pod): percent for pod, percent in self.memory.activity().items()}


async def test_activity_throttling_and_sizes_are_the_agents() -> None:
    one = Scene()
    assert await one.refresh(0) == {"team/train": 90, "web/serve": 12}
    assert one.memory.contention() == {gpu.uuid: gpu.contention for gpu in REPORT.gpus if gpu.contention}, (
        "as the agents name them"
    )
    assert one.memory.services() == ()
    advice = {each.pod: each.verdict.value for each in one.memory.recommendations()}
    assert advice["train"] == "too-little"
    assert advice["serve"] == "too-much"


async def test_it_asks_once_in_a_minute_and_forgets_what_is_old() -> None:
    one = Scene()
    await one.refresh(0)
    one.usages.reports = (UsageReport(node="n1"),)
    assert len(await one.refresh(59)) == 2
    assert await one.refresh(1) == {}
    one.usages.reports = (REPORT,)
    assert len(await one.refresh(60)) == 2
    one.usages.silent = "n1"
    with capture_logs() as logs:
        assert len(await one.refresh(60)) == 2
        assert len(await one.refresh(60)) == 2
        assert await one.refresh(60) == {}
    assert one.memory.recommendations() == ()
    assert [each["event"] for each in logs] == ["agents_not_read"]


async def test_each_agent_that_does_not_answer_is_left_out_and_logged_once_until_it_does() -> None:
    kube, silent = MemoryKube(), list[Unavailable]()
    labels = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}
    for name in "abc":
        metadata = {"name": name, "namespace": "tessera-system", "labels": labels}
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await kube.create(PODS, {"metadata": metadata, "status": ready})
    answer = {(9400, "usage"): msgspec.json.decode(write_usage(REPORT))}
    kube.answers["tessera-system", "a"] = answer
    now_s = 0.0
    memory = AgentMetrics(ProxiedUsage(kube, silent.append), silent, logger(), lambda: now_s)

    async def complaints() -> list[str]:
        """Read again, and return whom the log names."""
        nonlocal now_s
        now_s += 60
        with capture_logs() as logs:
            await refreshed(memory)
        assert {each["event"] for each in logs} <= {"agent_not_read"}
        return sorted(each["reason"].partition(":")[0].rpartition("/")[2] for each in logs)

    assert await complaints() == ["b", "c"]
    assert memory.activity() == {"team/train": 90, "web/serve": 12}
    assert await complaints() == [], "nothing has changed"
    kube.answers["tessera-system", "b"] = answer
    assert await complaints() == []
    del kube.answers["tessera-system", "b"]
    assert await complaints() == ["b"], "it had answered"
