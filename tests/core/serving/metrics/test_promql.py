"""Expressions of model servers for a Prometheus. Their values: tests/test_monitoring.py."""

from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS
from tessera.core.serving.metrics.promql import in_flight, queue_time_query, waiting


def test_the_queue_time_is_in_seconds_and_zero_without_requests() -> None:
    triton, vllm = queue_time_query("triton", "a", ""), queue_time_query("vllm", "a", "n")
    assert "nv_inference_queue_duration_us" in triton
    assert "* 1e-06 /" in triton
    assert "namespace" not in triton
    assert vllm.endswith(
        " or 0 * sum(increase(vllm:request_queue_time_seconds_count"
        '{serving_tessera_dev_server="a",namespace="n"}[120s]))'
    )


def test_requests_in_flight_are_the_gauges_and_by_littles_law_where_there_are_none() -> None:
    triton, vllm = ENGINE_METRICS
    waited = "sum(increase(vllm:request_queue_time_seconds_sum{}[120s]))"
    assert waiting(vllm, "sum({})".format) == f"sum(vllm:num_requests_waiting{{}}) or {waited} * 0.00833333333333"
    assert in_flight(vllm, "sum({})".format).endswith(" + (sum(vllm:num_requests_running{}))")
    assert in_flight(triton, "sum({})".format).endswith(
        " + sum(increase(nv_inference_compute_output_duration_us{}[120s]))) * 8.33333333333e-09)"
    )
