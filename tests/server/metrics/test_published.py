"""What Prometheus gets of model servers."""

import pytest

from builders.measuredservers import triton
from harness.metricsscenes import DOWN, WHOLE, Scene, scene
from tessera.core.serving.autoscaling.decisions import ScalingDecision
from tessera.core.serving.autoscaling.serverfacts import ServerFacts
from tessera.core.serving.metrics.counters import Unmeasured
from tessera.core.serving.metrics.observed import ServerObservation
from tessera.log import logger
from tessera.measures import Measures
from tessera.server.metrics.autoscaling import ModelServerAutoscaler
from tessera.server.metrics.published import MeasuredServer, publish

pytestmark = pytest.mark.anyio


async def test_what_prometheus_gets() -> None:
    one, measures = Scene(), Measures()
    one.servers = ModelServerAutoscaler(one.kube, one.scraped(), logger(), measures=measures, now_s=lambda: one.now_s)

    def published() -> dict[str, float]:
        """Return the gauges of the server, and of its samples."""
        lines = [line.rpartition(" ") for line in measures.render().decode().splitlines() if not line.startswith("#")]
        own = {name: float(value) for name, _, value in lines if "loop=" not in name and "_reconcile_" not in name}
        return {name.replace('{namespace="ns",server="llm"}', ""): value for name, value in own.items()}

    async with scene(*WHOLE, one=one):
        assert {f'loop="{each}"' in measures.render().decode() for each in LOOPS} == {True}
        assert published()["tessera_model_server_input_invalid"] == 1, "nothing was scraped yet in the first pass"
        await one.reconcile(triton(ended=100), triton(ended=100))
        await one.reconcile(triton(ended=110, queued_s=5, waiting=3), triton(ended=110))
        assert published() == {
            'tessera_metrics_samples_total{result="failed"}': 2,
            'tessera_metrics_samples_total{result="early"}': 2,
            'tessera_metrics_samples_total{result="counted"}': 2,
            "tessera_model_server_queue_time_seconds": 0.25,
            "tessera_model_server_requests_in_flight": 3,
            "tessera_model_server_replicas": 1,
            "tessera_model_server_ready_replicas": 2,
            "tessera_model_server_proposed_replicas": 1,
            "tessera_model_server_decision_age_seconds": 0,
            "tessera_model_server_input_invalid": 0,
            "tessera_model_servers_left_out": 0,
        }
        await one.reconcile(DOWN, DOWN)
        held = published()
        assert held["tessera_model_server_decision_age_seconds"] == 15
        assert (held["tessera_model_server_proposed_replicas"], held["tessera_model_server_input_invalid"]) == (1, 1)
        assert "tessera_model_server_queue_time_seconds" not in held
        await one.reconcile(DOWN, DOWN, seconds=300)
        gone = published()
        assert "tessera_model_server_decision_age_seconds" not in gone
        assert "tessera_model_server_proposed_replicas" not in gone
        assert gone["tessera_model_server_input_invalid"] == 1


def test_a_namespace_of_very_many_servers_does_not_fill_prometheus_and_keeps_nobody_out() -> None:
    one = MeasuredServer(
        at_s=0.0,
        facts=ServerFacts(pods=1),
        observation=ServerObservation(pods={}, load=Unmeasured("scraped once")),
        decision=ScalingDecision(replicas=None, reason="scraped once"),
        decided_s=None,
    )
    measures = Measures()
    names = [("many", f"s{number:03d}") for number in range(300)]
    publish(measures, dict.fromkeys([*names, ("other", "llm")], one))
    text = measures.render().decode()
    assert "tessera_model_servers_left_out 44\n" in text
    replicas = [line for line in text.splitlines() if line.startswith("tessera_model_server_replicas{")]
    assert len(replicas) == 257
    assert replicas[-1] == 'tessera_model_server_replicas{namespace="other",server="llm"} 1'


LOOPS = ("reconcile", "watch-pods", "watch-deployments", "watch-horizontalpodautoscalers")
