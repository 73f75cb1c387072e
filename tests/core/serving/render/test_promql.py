"""The rule of the queue time in a Prometheus."""

from tessera.core.serving.render.promql import queue_time_query


def test_the_queue_time_is_in_seconds_and_zero_without_requests() -> None:
    triton, vllm = queue_time_query("triton", "a", ""), queue_time_query("vllm", "a", "n")
    assert "nv_inference_queue_duration_us" in triton
    assert "* 1e-06 /" in triton
    assert "namespace" not in triton
    assert vllm.endswith(
        " or 0 * sum(increase(vllm:request_queue_time_seconds_count"
        '{serving_tessera_dev_server="a",namespace="n"}[120s]))'
    )
