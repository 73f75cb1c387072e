"""Scrapes of pods as Prometheus has them: the last of each, of one way, with what it had."""

import math

import msgspec
import pytest

from tessera.api.prometheus.engines import counters_of
from tessera.api.prometheus.podsamples import pod_query, read_scrapes
from tessera.api.prometheus.samples import Sample
from tessera.core.serving.metrics.enginemetrics import ENGINE_METRICS
from tessera.errors import InvalidInput

QUEUED, COUNT = "nv_inference_queue_duration_us", "nv_inference_request_success"
SERVED = "nv_inference_compute_infer_duration_us"
A = {"namespace": "ns", "pod": "a"}


def answer(*series: tuple[dict[str, str], list[tuple[float, str]]]) -> bytes:
    result = [{"metric": metric, "values": values} for metric, values in series]
    return msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_the_query_names_every_series_and_raw_samples() -> None:
    for each in ENGINE_METRICS:
        assert all(name in pod_query() for name in each.series)
    assert pod_query().endswith('namespace!="", pod!=""}[120s]')


def test_the_last_scrape_with_its_time() -> None:
    found = read_scrapes(
        answer(
            ({"__name__": QUEUED, **A, "model": "m"}, [(10, "1000000"), (25, "3000000")]),
            ({"__name__": QUEUED, **A, "model": "n"}, [(10, "0"), (25, "1000000")]),
            ({"__name__": QUEUED, **A, "model": "unloaded"}, [(10, "9000000")]),
            ({"__name__": COUNT, **A, "model": "m"}, [(25, "4")]),
            ({"__name__": SERVED, **A, "model": "m"}, [(25, "9000000")]),
        ),
        "p",
    )
    assert found.keys() == {("ns", "a")}
    scrape = found["ns", "a"]
    counters = counters_of("pod a", scrape.samples, at_s=scrape.at_s, started_s=0)
    assert (counters.at_s, counters.queued_s, counters.dequeued) == (25.0, 4.0, 4.0)


def test_of_a_pod_that_is_scraped_twice_one_way_counts() -> None:
    ways = [
        ({"__name__": QUEUED, **A, "job": job, "prometheus_replica": replica}, [(10.0, number)])
        for number, job, replica in (("1", "b", "0"), ("2", "a", "1"), ("3", "a", "0"))
    ]
    (scrape,) = read_scrapes(answer(*ways), "p").values()
    assert scrape.samples == (Sample(QUEUED, 3.0),)


def test_of_several_ways_that_of_the_latest_scrape_counts() -> None:
    """A pod that came again under its name, or a Prometheus that died: what it had last is no news."""
    ways = [
        ({"__name__": QUEUED, **A, "instance": instance}, [(at_s, str(at_s))])
        for instance, at_s in (("10.0.0.1:8002", 900.0), ("10.0.0.9:8002", 1000.0))
    ]
    (scrape,) = read_scrapes(answer(*ways), "p").values()
    assert (scrape.at_s, scrape.samples) == (1000.0, (Sample(QUEUED, 1000.0),))


def test_of_two_engines_in_a_pod_the_same_one_counts_in_each_pass() -> None:
    """They are scraped in turn, so that now the one and now the other was scraped last."""
    for first, second, want in ((990.0, 998.0, 990.0), (1005.0, 998.0, 1005.0), (930.0, 998.0, 998.0)):
        ways = [
            ({"__name__": QUEUED, **A, "instance": instance}, [(at_s, str(at_s))])
            for instance, at_s in (("10.0.0.1:8000", first), ("10.0.0.1:8002", second))
        ]
        (scrape,) = read_scrapes(answer(*ways), "p").values()
        assert scrape.at_s == want


def test_what_names_no_pod_or_has_no_sample_is_left_out() -> None:
    nameless = ({"__name__": QUEUED, "namespace": "ns"}, [(10.0, "1")])
    empty: tuple[dict[str, str], list[tuple[float, str]]] = ({"__name__": QUEUED, **A}, [])
    endless = ({"__name__": QUEUED, **A}, [(1e999, "1")])
    assert read_scrapes(answer(nameless, empty), "p") == {}
    with pytest.raises(InvalidInput):  # JSON has no infinity
        read_scrapes(answer(endless), "p")


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-1", "many"])
def test_what_no_counter_has_is_refused_where_it_is_counted(text: str) -> None:
    (scrape,) = read_scrapes(answer(({"__name__": QUEUED, **A}, [(10.0, text)])), "p").values()
    assert math.isnan(scrape.samples[0].value) or not 0 <= scrape.samples[0].value < math.inf
    with pytest.raises(InvalidInput, match="from 0 to"):
        counters_of("pod a", scrape.samples, at_s=scrape.at_s, started_s=0)
