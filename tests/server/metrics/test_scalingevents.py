"""Events about decisions where the API server does not answer."""

import asyncio

import pytest
from structlog.testing import capture_logs

from builders.measuredservers import deployment
from builders.serverfacts import server_facts
from harness import virtualtime
from tessera.api.kubernetes.modelpods import read_deployment
from tessera.clients.kube import EVENTS, Kind, MemoryKube, Object
from tessera.core.serving.autoscaling.decisions import ScalingDecision
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.observed import ServerObservation
from tessera.log import logger
from tessera.server.metrics.published import MeasuredServer
from tessera.server.metrics.scalingevents import ScalingEvents

MEASURED = MeasuredServer(
    at_s=0.0,
    facts=server_facts(),
    observation=ServerObservation(pods={}, load=Unmeasured("not of interest")),
    decision=ScalingDecision(replicas=2, reason="why"),
    decided_s=0.0,
)
NAMES = [f"llm-{number:02}" for number in range(20)]


class WithoutEvents(MemoryKube):
    """A cluster whose events cannot be written: no request about them is answered."""

    answering = False

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        if kind is EVENTS and not self.answering:
            await asyncio.Event().wait()
        return await super().get(kind, name, namespace)


async def report_without_answers() -> tuple[float, list[str], list[str], list[str]]:
    """Return how long a pass took, its errors, and the events after one more pass and after another."""
    kube, errors = WithoutEvents(), list[BaseException]()
    events = ScalingEvents(kube, logger(), lambda: 1000.0, errors.append)
    objects = {("ns", name): deployment(name) for name in NAMES}
    deployments = {key: ({**each, "kind": "Deployment"}, read_deployment(each)) for key, each in objects.items()}
    for key, (each, _) in deployments.items():
        each["metadata"]["uid"] = key[1]
    measured = dict.fromkeys(deployments, MEASURED)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await events.report(measured, deployments)
    took_s, kube.answering = loop.time() - begun_s, True
    written = list[list[str]]()
    for _ in range(2):
        await events.report(measured, deployments)
        written.append([each["message"] for each in (await kube.list(EVENTS)).objects])
    return took_s, [str(each) for each in errors], written[0], written[1]


def test_events_that_are_not_answered_delay_a_pass_by_seconds_and_are_written_by_the_next_one() -> None:
    with capture_logs() as logs:
        took_s, errors, after, later = virtualtime.run(report_without_answers())
    assert took_s == pytest.approx(5.0)
    assert errors == ["events about model servers: not all of 20 were written in 5 s: the next pass writes the rest"]
    assert after == later == ["2 replicas: why"] * 20
    assert len([each for each in logs if each["event"] == "replicas_decided"]) == 20, "a decision is logged once"
