"""The last hour of model servers by Prometheus' answers, however broken they are."""

import pytest

from builders.prometheusanswers import BROKEN, answer, over_time
from tessera.api.prometheus.modelserverhistory import model_server_queries, read_model_servers
from tessera.core.explain.fleetview import ModelServerHistory, ScalePoint
from tessera.errors import InvalidInput

LOAD, OWN = {"namespace": "ml", "serving_tessera_dev_server": "llm"}, {"namespace": "ml", "deployment": "llm"}


def model_servers(**given: bytes) -> tuple[ModelServerHistory, ...]:
    usual = {
        "in_flight": answer(over_time(LOAD, "3", "4.5", "9")),
        "desired": answer(over_time(OWN, "1", "2", "2")),
        "ready": answer(over_time(OWN, "1", "1", "2")),
    }
    return read_model_servers(usual | given, "Prometheus")


def test_the_last_hour_is_queried_by_the_minute() -> None:
    queries = model_server_queries(7290.5)
    assert queries.keys() == {"in_flight", "desired", "ready"}
    for requested in queries.values():
        assert (requested["start"], requested["end"], requested["step"]) == ("3660", "7260", "60")


def test_a_model_server_is_a_load_with_replicas() -> None:
    points = (ScalePoint(0, 1, 1, 3), ScalePoint(60, 2, 1, 4.5), ScalePoint(120, 2, 2, 9))
    assert model_servers() == (ModelServerHistory(namespace="ml", name="llm", points=points),)


def test_a_moment_counts_where_all_is_known_of_it() -> None:
    (found,) = model_servers(ready=answer(over_time(OWN, "1", "NaN", "2", "2")))
    assert [each.at_s for each in found.points] == [0, 120]


@pytest.mark.parametrize("name", ["in_flight", "desired", "ready"])
def test_what_is_of_no_server_or_without_replicas_is_left_out(name: str) -> None:
    nobody = answer(over_time({"namespace": "ml"}, "1"), over_time({"deployment": "llm"}, "1"))
    assert model_servers(**{name: nobody}) == ()


@pytest.mark.parametrize("case", BROKEN)
def test_an_answer_that_is_none_is_refused(case: str) -> None:
    with pytest.raises(InvalidInput, match="an answer of Prometheus' HTTP API"):
        model_servers(ready=BROKEN[case])
