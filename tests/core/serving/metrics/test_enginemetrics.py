"""Which series of an engine say its load."""

from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS


def test_series_that_some_versions_lack_are_not_required() -> None:
    triton, vllm = ENGINE_METRICS
    assert triton.required == {
        "nv_inference_queue_duration_us",
        "nv_inference_request_success",
        "nv_inference_compute_infer_duration_us",
    }
    assert triton.series == {*triton.required, *triton.optional}
    assert vllm.required == vllm.series
    assert vllm.running in vllm.series
    assert all("" not in each.series for each in ENGINE_METRICS)
