"""What the page knows by the nodes' agents: asked while somebody looks, kept for a while, and trouble said once."""

import pytest
from structlog.testing import capture_logs

from builders.usagereports import REPORT
from harness.refreshes import refreshed
from tessera.api.tessera.usage.usagejson import write_usage
from tessera.clients.kube import PODS, MemoryKube, Object
from tessera.clients.nodeusage import MemoryUsage, ProxiedUsage
from tessera.core.usage.usagereport import UsageReport
from tessera.log import logger
from tessera.server.page import AgentMetrics

pytestmark = pytest.mark.anyio


class Scene:
    """Agents in memory, a clock, and what the page knows by them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.usages = MemoryUsage(REPORT)
        self.memory = AgentMetrics(self.usages, logger(), lambda: self.now_s)

    async def refresh(self, seconds: float) -> dict[str, float]:
        """Let time go by and look."""
        self.now_s += seconds
        await refreshed(self.memory)
        return {str(pod): percent for (_, pod), percent in self.memory.measured.activity.items()}


async def test_activity_throttling_and_sizes_are_the_agents() -> None:
    one = Scene()
    assert await one.refresh(0) == {"team/train": 90, "web/serve": 12}
    assert one.memory.measured.contention == {
        ("n1", gpu.uuid): gpu.contention for gpu in REPORT.gpus if gpu.contention
    }, "as the agents name them"
    assert one.memory.measured.memory_mib == {
        ("n1", "GPU-0"): {"team/notebook": 0, "team/train": 8100},
        ("n1", "GPU-1"): {"web/serve": 2000},
        ("n1", "GPU-2"): {"web/fine": 3000},
    }
    assert one.memory.measured.throttled == {("n1", REPORT.gpus[0].uuid): ("thermal",)}
    assert one.memory.measured.model_servers == ()
    advice = {each.pod: each.verdict.value for each in one.memory.measured.recommendations}
    assert advice["train"] == "too-little"
    assert advice["serve"] == "too-much"


async def test_it_asks_once_in_a_minute_and_forgets_who_is_silent() -> None:
    one = Scene()
    await one.refresh(0)
    one.usages.reports = (UsageReport(node="n1"),)
    assert len(await one.refresh(59)) == 2
    assert await one.refresh(1) == {}
    one.usages.reports = (REPORT,)
    assert len(await one.refresh(60)) == 2
    one.usages.silent = "agent n1"
    with capture_logs() as logs:
        assert await one.refresh(60) == {}
    assert one.memory.measured.recommendations == ()
    assert [each["event"] for each in logs] == ["agent_not_read"]


def agent_pod(name: str, node: str) -> Object:
    labels = {"app.kubernetes.io/name": "tessera", "app.kubernetes.io/component": "agent"}
    return {
        "metadata": {"name": name, "namespace": "tessera-system", "labels": labels},
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


async def test_while_no_agent_can_be_asked_the_last_answer_is_kept_for_three_minutes() -> None:
    kube, now_s = MemoryKube(), 0.0
    await kube.create(PODS, agent_pod("a", "n1"))
    kube.answers["tessera-system", "a"] = {(9400, "usage"): write_usage(REPORT)}
    memory = AgentMetrics(ProxiedUsage(kube), logger(), lambda: now_s)
    found = []
    with capture_logs() as logs:
        for _ in range(4):
            now_s += 60
            await refreshed(memory)
            found.append(len(memory.measured.activity))
            kube.withhold("tessera-system", PODS)
    assert found == [2, 2, 2, 0]
    assert [each["event"] for each in logs] == ["agents_not_read"]


async def test_each_agent_that_does_not_answer_is_left_out_and_logged_once_until_it_does() -> None:
    kube = MemoryKube()
    for name, node in (("a", "n1"), ("b", "n2"), ("c", "n3")):
        await kube.create(PODS, agent_pod(name, node))
    answer = {(9400, "usage"): write_usage(REPORT)}
    kube.answers["tessera-system", "a"] = answer
    now_s = 0.0
    memory = AgentMetrics(ProxiedUsage(kube), logger(), lambda: now_s)

    async def complaints() -> list[str]:
        """Read again, and return whom the log names."""
        nonlocal now_s
        now_s += 60
        with capture_logs() as logs:
            await refreshed(memory)
        assert {each["event"] for each in logs} <= {"agent_not_read"}
        return sorted(each["reason"].partition(":")[0].rpartition("/")[2] for each in logs)

    assert await complaints() == ["b", "c"]
    assert memory.measured.activity == {("n1", "team/train"): 90, ("n1", "web/serve"): 12}
    assert await complaints() == [], "nothing has changed"
    other = write_usage(UsageReport(node="n2"))
    kube.answers["tessera-system", "b"] = {(9400, "usage"): other}
    assert await complaints() == []
    del kube.answers["tessera-system", "b"]
    assert await complaints() == ["b"], "it had answered"
