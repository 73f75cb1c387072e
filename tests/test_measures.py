"""What a process counts of itself."""

from tessera.core.usage.families import Metric
from tessera.measures import Measures

REQUESTS = Metric("requests_total", "counter", "Requests.", ("code",))
READY = Metric("ready", "gauge", "Ready.")
TIME = Metric("time_seconds", "histogram", "Time.", ("verb",))


def test_counters_gauges_and_ages_are_shown() -> None:
    now_s = 100.0
    measures = Measures(lambda: now_s)
    assert measures.render() == b""
    measures.turned("reconcile")
    measures.count(REQUESTS, code="200")
    measures.count(REQUESTS, 2, code="200")
    measures.count(REQUESTS, code="503")
    measures.set(READY, {(): 0})
    measures.set(READY, {(): 1})
    measures.started("reconcile")
    measures.started("never")
    measures.turned("gone")
    measures.stopped("gone")
    measures.stopped("gone")
    now_s = 107.5
    lines = measures.render().decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        'tessera_loop_age_seconds{loop="never"} 7.5',
        'tessera_loop_age_seconds{loop="reconcile"} 7.5',
        'requests_total{code="200"} 3',
        'requests_total{code="503"} 1',
        "ready 1",
    ]


def test_a_histogram_counts_each_time_in_all_buckets_that_it_is_below() -> None:
    measures = Measures()
    for seconds in (0.001, 0.03, 99.0):
        measures.observe(TIME, seconds, verb="filter")
    samples = dict(line.rsplit(" ", 1) for line in measures.render().decode().splitlines() if line[0] != "#")
    want = {"0.001": "1", "0.025": "1", "0.05": "2", "10": "2", "+Inf": "3"}
    assert {le: samples[f'time_seconds_bucket{{verb="filter",le="{le}"}}'] for le in want} == want
    assert float(samples['time_seconds_sum{verb="filter"}']) == 0.001 + 0.03 + 99.0
    assert samples['time_seconds_count{verb="filter"}'] == "3"
