"""The log of passes gives the same decisions again."""

import random

import msgspec

from builders.serverfacts import server_facts
from tessera.core.serving.autoscaling.decisions import ScalingDecision, ScalingState, decide_replicas
from tessera.core.serving.autoscaling.recordedpass import RecordedPass, replay
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.load import Load


def test_what_is_decided_from_the_log_is_what_was_decided() -> None:
    """Two hours of irregular load, with passes in which nothing was measured, or in which there was little room."""
    draw, state, arrived = random.Random(7), ScalingState(), 0
    decided, lines = list[ScalingDecision](), list[bytes]()
    replicas = 2
    for number in range(480):
        at_s = 1e9 + 15.0 * number + draw.random()
        arrived += draw.randrange(60)
        facts = server_facts(replicas=replicas, max_replicas=9, started_s=(61.7, 80.1), room=draw.choice((None, 0, 3)))
        load: Load | Unmeasured = Load(
            at_s=at_s,
            arrived=arrived,
            completed=max(arrived - 12, 0),
            served_s=arrived * 3.1,
            in_flight=draw.randrange(40),
            replicas=replicas,
            ready=replicas,
        )
        if draw.random() < 0.05:
            load = Unmeasured("1 of 1 pods (a): no answer", too_early=draw.random() < 0.5)
        lines.append(msgspec.json.encode(RecordedPass.of(at_s, facts, load)))
        state, decision = decide_replicas(state, facts, load, at_s)
        decided.append(decision)
        replicas = decision.replicas or replicas
    assert [*replay(msgspec.json.decode(line, type=RecordedPass) for line in lines)] == decided
    assert len({each.replicas for each in decided}) > 3


def test_a_pass_without_its_input_decides_nothing() -> None:
    (decision,) = replay([RecordedPass(at_s=0.0, facts=server_facts())])
    assert (decision.replicas, decision.reason) == (None, "not recorded; the replicas do not change")
