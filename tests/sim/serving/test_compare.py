"""A comparison of policies: the published rule swings, Tessera's holds, the plan is below all of them."""

import json
from pathlib import Path

import numpy as np

from tessera.sim.serving.compare import Comparison, compare, log_lines, rows
from tessera.sim.serving.policies import POLICIES
from tessera.sim.serving.replicamodel import ReplicaModel
from tessera.sim.serving.traces import Requests, read_requests

MODEL = ReplicaModel()


def test_each_policy_has_a_row_and_costs_more_than_the_plan(found: Comparison) -> None:
    table = {each.policy: each for each in rows(found)}
    assert list(table) == ["published", "waiting", "in-flight", "tessera"]
    assert found.plan.within_slo >= 0.99
    assert all(each.replica_hours > each.clairvoyant_replica_hours for each in table.values())
    assert table["tessera"].within_slo >= 0.99 > table["published"].within_slo
    assert table["tessera"].replica_hours < table["published"].replica_hours
    assert [each.lost for each in table.values()] == [0, 0, 0, 0]


def test_replica_hours_follow_from_the_log_but_for_what_drains(found: Comparison) -> None:
    lines = [json.loads(line) for line in log_lines(found)]
    for each in rows(found):
        own = [line for line in lines if line["policy"] == each.policy]
        assert own[0]["time_s"] == 0.0
        assert own[0]["desired"] == own[0]["ready"] == found.plan.warm
        assert len(own) == each.changes + 1
        ends = [*(line["time_s"] for line in own[1:]), found.requests.span_s]
        hours = sum(line["desired"] * (end - line["time_s"]) for line, end in zip(own, ends, strict=True)) / 3600
        assert hours - 0.001 <= each.replica_hours <= hours * 1.1


def test_a_trace_of_one_request_has_a_plan_and_rows() -> None:
    one = np.zeros(1)
    found = rows(compare(Requests(one, one, one), MODEL, tuple(POLICIES), 16))
    assert {(each.within_slo, each.changes, each.replica_hours) for each in found} == {(1.0, 0, 0.0)}


TRACE = Path(__file__).parents[2] / "data" / "traces" / "servegen_deepseek_r1.csv"


def test_a_published_day_costs_at_most_a_fifth_more_than_the_clairvoyant_plan_at_99_percent() -> None:
    """ServeGen's deepseek-r1, 24 hours at 3.5 requests a second on average, as in docs/benchmarks-serving.md."""
    rng = np.random.default_rng(42)
    requests = read_requests(
        TRACE.read_text().splitlines(), TRACE.name, column="deepseek_r1_rps", mean_rate=3.5, rng=rng
    )
    (row,) = rows(compare(requests.first(86_400.0), ReplicaModel(), ["tessera"], 16))
    assert row.replica_hours <= 1.2 * row.clairvoyant_replica_hours
    assert row.within_slo >= 0.99
    assert row.changes <= 100
    assert row.lost == 0
