"""The counters of Triton, recorded, and of vLLM, as prometheus_client writes its metrics; and values no counter has."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tessera.api.prometheus.engines import read_counters
from tessera.core.serving.metrics.counters import Counters
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS
from tessera.core.serving.metrics.queuetime import Window, between
from tessera.errors import InvalidInput

RECORDED = Path(__file__).parents[2] / "data" / "servermetrics"


def recorded(name: str, at_s: float) -> Counters:
    return read_counters("pod ns/p", (RECORDED / f"{name}.txt").read_bytes(), at_s=at_s, started_s=0.0)


def test_triton() -> None:
    found = recorded("triton-busy-1", 17.269)
    assert found == Counters(
        at_s=17.269,
        started_s=0.0,
        queued_s=10.477036,
        dequeued=105.0,
        served_s=3.710998,
        completed=105.0,
        waiting=12.0,
        running=None,
    )


def test_a_busy_triton_waits_as_its_clients_do() -> None:
    """16 clients, 4 at once, 27 ms each with the overhead: 12 wait for 3 batches before theirs."""
    found = between(recorded("triton-busy-1", 17.269), recorded("triton-busy-2", 18.273))
    assert isinstance(found, Window)
    assert found.queue_time_s == pytest.approx(0.0822, abs=0.0001)
    assert found.running == pytest.approx(4, abs=0.2), "by Little's law; Triton does not say"
    assert found.waiting == 12
    assert found.completed == 152


@pytest.mark.parametrize("former", ["triton-fresh", "triton-idle"])
def test_an_idle_triton_waits_for_nothing(former: str) -> None:
    found = between(recorded(former, 1.0), recorded(former, 16.0))
    assert isinstance(found, Window)
    assert (found.queue_time_s, found.in_flight) == (0.0, 0.0)


def test_a_busy_vllm_waits_as_its_clients_do() -> None:
    """12 clients, 4 at once: 8 wait; who is answered after 1.33 s waited for two thirds of it."""
    found = between(recorded("vllm-busy-1", 904.635), recorded("vllm-busy-2", 914.848))
    assert isinstance(found, Window)
    assert (found.waiting, found.running, found.completed) == (8.0, 4.0, 128.0)
    assert found.queue_time_s + found.served_s / found.completed == pytest.approx(1.33, rel=0.03)
    assert found.queue_time_s == pytest.approx(1.33 * 2 / 3, rel=0.05)


@pytest.mark.parametrize("former", ["vllm-fresh", "vllm-idle"])
def test_an_idle_vllm_waits_for_nothing(former: str) -> None:
    found = between(recorded(former, 1.0), recorded(former, 16.0))
    assert isinstance(found, Window)
    assert (found.queue_time_s, found.in_flight) == (0.0, 0.0)


def vllm(*, running: int, waiting: int, waits_s: tuple[float, ...]) -> bytes:
    """Return what a vLLM exposes, which makes it by the same library: names, labels and types of vLLM 0.33.0."""
    registry, labels = CollectorRegistry(), ("model_name", "engine")
    values = ("meta-llama/Llama-3.1-8B", "0")
    for name, number in (("running", running), ("waiting", waiting)):
        Gauge(f"vllm:num_requests_{name}", "-", labels, registry=registry).labels(*values).set(number)
    success = Counter("vllm:request_success", "-", (*labels, "finished_reason"), registry=registry)
    queue = Histogram("vllm:request_queue_time_seconds", "-", labels, buckets=(0.3, 0.5, 60), registry=registry)
    served = Histogram("vllm:request_inference_time_seconds", "-", labels, buckets=(0.3, 0.5, 60), registry=registry)
    for reason in ("stop", "length", "abort", "error", "repetition"):
        success.labels(*values, reason)
    for number, wait_s in enumerate(waits_s):
        success.labels(*values, "length" if number % 2 else "stop").inc()
        queue.labels(*values).observe(wait_s)
        served.labels(*values).observe(2.0)
    return bytes(generate_latest(registry))


def test_vllm() -> None:
    content = vllm(running=8, waiting=3, waits_s=(0.25, 1.0, 0.5))
    assert b"vllm:request_success_created" in content, "what it also writes, and nobody asks for"
    found = read_counters("pod ns/p", content, at_s=1.0, started_s=0.0)
    assert found == Counters(
        at_s=1.0, started_s=0.0, queued_s=1.75, dequeued=3.0, served_s=6.0, completed=3.0, waiting=3.0, running=8.0
    )


def test_models_of_a_server_are_added_up() -> None:
    lines = (
        b'nv_inference_%s{model="%s",version="1"} 1e6\n' % (series, name)
        for series in (b"queue_duration_us", b"compute_infer_duration_us", b"request_success")
        for name in (b"a", b"b")
    )
    found = read_counters("pod ns/p", b"".join(lines), at_s=1.0, started_s=0.0)
    assert (found.queued_s, found.waiting, found.running) == (2.0, None, None)


@pytest.mark.parametrize("text", ["nan", "NaN", "+Inf", "-Inf", "-1", "1e15", "1e400"])
def test_values_that_no_counter_has(text: str) -> None:
    content = f'nv_inference_queue_duration_us{{model="a",version="1"}} {text}\n'.encode()
    with pytest.raises(InvalidInput, match=r"pod ns/p: nv_inference_queue_duration_us is .*, not from 0 to 1e\+15"):
        read_counters("pod ns/p", content, at_s=1.0, started_s=0.0)


def busy(*running: int, waiting: int, served_s: int = 0, ended: int = 0) -> bytes:
    models = "".join(f'vllm:num_requests_running{{m="{number}"}} {each}\n' for number, each in enumerate(running))
    queue = f"vllm:request_queue_time_seconds_sum 1\nvllm:request_queue_time_seconds_count {ended}\n"
    served = f"vllm:request_inference_time_seconds_sum {served_s}\nvllm:request_success_total {ended}\n"
    return f"{queue}{served}vllm:num_requests_waiting {waiting}\n{models}".encode()


SERIES = sorted((engine.name, each) for engine in ENGINE_METRICS for each in engine.series - {engine.queued})


@pytest.mark.parametrize(("engine", "series"), SERIES)
def test_a_pod_with_a_part_of_its_series_is_not_idle(engine: str, series: str) -> None:
    """As behind a Prometheus whose relabeling keeps a few."""
    whole = (RECORDED / f"{engine}-busy-1.txt").read_text()
    part = "".join(f"{line}\n" for line in whole.splitlines() if not re.match(rf"{re.escape(series)}\b", line))
    assert len(part) < len(whole)
    optional = next(each.optional for each in ENGINE_METRICS if each.name == engine)
    if series in optional:
        assert read_counters("pod ns/p", part.encode(), at_s=905.0, started_s=0.0).dequeued > 0
        return
    with pytest.raises(InvalidInput, match=rf"pod ns/p: it has \S+, and not {series}: a part would look like an idle"):
        read_counters("pod ns/p", part.encode(), at_s=905.0, started_s=0.0)


@pytest.mark.parametrize(
    "content", [busy(99_999, 1, waiting=0), busy(50_000, waiting=50_000), busy(*[99] * 2000, waiting=0)]
)
def test_more_requests_in_flight_than_a_pod_has(content: bytes) -> None:
    with pytest.raises(InvalidInput, match=r"pod ns/p: \d+ requests are in flight, not fewer than 100000$"):
        read_counters("pod ns/p", content, at_s=1.0, started_s=0.0)


def test_as_many_requests_in_flight_as_a_pod_may_have() -> None:
    found = read_counters("pod ns/p", busy(50_000, 9_999, waiting=40_000), at_s=1.0, started_s=0.0)
    assert (found.running, found.waiting) == (59_999.0, 40_000.0)


def test_requests_that_were_served_for_longer_than_their_pod_runs() -> None:
    """By more than clocks differ."""

    def served(seconds: int) -> Counters:
        return read_counters("pod ns/p", busy(0, waiting=0, served_s=seconds, ended=2), at_s=140.0, started_s=100.0)

    assert served(200).served_s == 200
    with pytest.raises(InvalidInput, match=r"2 requests were served for 201 s, on average .*at most 100 s each"):
        served(201)


@pytest.mark.parametrize("content", [b"", b"up 1\n", b"<html>not found</html>", b"nv_inference_count 1\n"])
def test_another_program(content: bytes) -> None:
    with pytest.raises(
        InvalidInput, match=r"ns/p: it has no series of queue time, nv_inference_queue_duration_us \(triton\) or"
    ):
        read_counters("pod ns/p", content, at_s=1.0, started_s=0.0)


def test_no_two_engines_have_a_series_in_common() -> None:
    assert not ENGINE_METRICS[0].series & ENGINE_METRICS[1].series
