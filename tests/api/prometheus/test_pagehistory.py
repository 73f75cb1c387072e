"""What Prometheus answers for the dashboard page, however it is broken."""

import json
from typing import Any

import pytest

from tessera.api.prometheus import pagehistory
from tessera.api.prometheus.pagehistory import page_queries, read_activity, read_services, read_throttled
from tessera.core.explain.fleetview import ScalePoint, Service
from tessera.errors import InvalidInput

POD = {"namespace": "ml", "pod": "p"}
LOAD, OWN = {"namespace": "ml", "serving_tessera_dev_server": "llm"}, {"namespace": "ml", "deployment": "llm"}


def answer(*series: dict[str, Any]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "any", "result": series}}).encode()


def now(value: str, labels: dict[str, str] = POD) -> dict[str, Any]:
    return {"metric": labels, "value": [1.5, value]}


def over_time(labels: dict[str, str], *values: str) -> dict[str, Any]:
    return {"metric": labels, "values": [[60 * number, value] for number, value in enumerate(values)]}


def services(**given: bytes) -> tuple[Service, ...]:
    usual = {
        "in_flight": answer(over_time(LOAD, "3", "4.5", "9")),
        "desired": answer(over_time(OWN, "1", "2", "2")),
        "ready": answer(over_time(OWN, "1", "1", "2")),
    }
    return read_services(usual | given, "Prometheus")


def test_the_last_hour_is_asked_for_by_the_minute() -> None:
    queries = page_queries(7290.5)
    assert queries.keys() == {"activity", "throttled", "in_flight", "desired", "ready"}
    assert {queries.pop(name)[0] for name in ("activity", "throttled")} == {"/api/v1/query"}
    for path, requested in queries.values():
        assert path == "/api/v1/query_range"
        assert (requested["start"], requested["end"], requested["step"]) == ("3660", "7260", "60")


def test_a_pod_is_as_busy_as_it_can_be() -> None:
    other = {"namespace": "ml", "pod": "q"}
    assert read_activity(answer(now("12.5"), now("250", other)), "Prometheus") == {"ml/p": 12.5, "ml/q": 100}


UNBELIEVED = {
    "no number": now("much"),
    "NaN": now("NaN"),
    "infinite": now("+Inf"),
    "negative": now("-1"),
    "of no pod": now("1", {"namespace": "ml"}),
    "of no namespace": now("1", {"pod": "p"}),
    "no value": {"metric": POD},
}


@pytest.mark.parametrize("case", UNBELIEVED)
def test_what_cannot_be_is_left_out(case: str) -> None:
    assert read_activity(answer(UNBELIEVED[case]), "Prometheus") == {}


def test_a_service_is_a_load_with_replicas() -> None:
    points = (ScalePoint(0, 1, 1, 3), ScalePoint(60, 2, 1, 4.5), ScalePoint(120, 2, 2, 9))
    assert services() == (Service(namespace="ml", name="llm", points=points),)


def test_a_moment_counts_where_all_is_known_of_it() -> None:
    (found,) = services(ready=answer(over_time(OWN, "1", "NaN", "2", "2")))
    assert [each.at_s for each in found.points] == [0, 120]


@pytest.mark.parametrize("name", ["in_flight", "desired", "ready"])
def test_what_is_of_no_server_or_without_replicas_is_left_out(name: str) -> None:
    nobody = answer(over_time({"namespace": "ml"}, "1"), over_time({"deployment": "llm"}, "1"))
    assert services(**{name: nobody}) == ()


BROKEN = {
    "no JSON": b"<html>",
    "an error": b'{"status":"error","error":"x"}',
    "a number": b'{"data":{"result":3}}',
    "deep": b"[" * 100_000,
    "no text": b"\xff",
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_answer_that_is_none_is_refused(case: str) -> None:
    with pytest.raises(InvalidInput, match="an answer of Prometheus' HTTP API"):
        read_activity(BROKEN[case], "Prometheus")
    with pytest.raises(InvalidInput, match="an answer of Prometheus' HTTP API"):
        services(ready=BROKEN[case])


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagehistory, "_MOST_SERIES", 1)
    with pytest.raises(InvalidInput, match="2 series are more than 1"):
        read_activity(answer(now("1"), now("2")), "Prometheus")


def test_too_many_services_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagehistory, "_MOST_SERVICES", 0)
    assert services() == ()


def test_a_gpu_is_throttled_for_causes_that_there_are() -> None:
    labels: tuple[dict[str, str], ...] = (
        {"UUID": "a", "cause": "thermal"},
        {"UUID": "a", "cause": "power-cap"},
        {"UUID": "b", "cause": "none"},
        {},
    )
    answer = json.dumps({"data": {"result": [{"metric": each, "value": [0, "1"]} for each in labels]}}).encode()
    found = read_throttled(answer, "Prometheus")
    assert {uuid: causes for uuid, causes in found.items() if causes} == {"a": ("power-cap", "thermal")}
