"""The log of passes gives the same decisions again."""

import random
import re
import subprocess
import sys
from pathlib import Path

import msgspec

from builders.serverfacts import server_facts
from tessera.core.serving.autoscaling.decisions import ScalingDecision, ScalingState, decide_replicas
from tessera.core.serving.autoscaling.recordedpass import RecordedPass, replay
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.load import Load

PAGE = Path(__file__).parents[4] / "docs" / "autoscaling.md"


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


def test_the_program_of_the_page_reproduces_the_decisions_of_one_server(tmp_path: Path) -> None:
    """Servers of one name in two namespaces are two servers."""
    decided = dict[str, list[str]]()
    log = list[bytes]()
    states = {"ml": ScalingState(), "other": ScalingState()}
    for number in range(40):
        for namespace, in_flight in (("ml", 6), ("other", 70)):
            at_s = 1e9 + 15.0 * number
            facts = server_facts(replicas=2, max_replicas=9, started_s=(61.7,))
            load = Load(
                at_s=at_s, arrived=60 * number, completed=60 * number, served_s=180.0 * number, in_flight=in_flight,
                replicas=2, ready=2,
            )  # fmt: skip
            states[namespace], decision = decide_replicas(states[namespace], facts, load, at_s)
            decided.setdefault(namespace, []).append(f"{15 * number} s: {decision.replicas}, {decision.reason}")
            recorded = RecordedPass.of(at_s, facts, load)
            entry = {"event": "model_server_measured", "namespace": namespace, "server": "llm", "recorded": recorded}
            log.append(msgspec.json.encode(entry))
    assert decided["ml"] != decided["other"]
    (tmp_path / "log").write_bytes(b"\n".join(log))
    (program,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "replay" in each)
    for namespace, lines in decided.items():
        command = [sys.executable, "-c", program, str(tmp_path / "log"), namespace, "llm"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() == lines
