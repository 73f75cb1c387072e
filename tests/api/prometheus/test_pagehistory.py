"""What Prometheus answers for the dashboard page, however it is broken."""

import json
from typing import Any

import pytest

from tessera.api.prometheus import pagehistory
from tessera.api.prometheus.pagehistory import (
    page_queries,
    read_activity,
    read_contention,
    read_loads,
    read_model_servers,
)
from tessera.core.explain.fleetview import ModelServerHistory, ScalePoint
from tessera.core.usage.neighbors import ContainerLoad, Contention, DeviceLoad, GpuLoad
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput

INSTANT = ("allocations", "utilization", "sm_active", "throttled")
GPU = {"Hostname": "n", "UUID": "a", "modelName": "NVIDIA H100 80GB HBM3"}
POD = {**GPU, "namespace": "ml", "pod": "p", "container": "c", "pod_uid": "u1"}
OTHER = {**GPU, "namespace": "ml", "pod": "q", "container": "c", "pod_uid": "u2"}
LOAD, OWN = {"namespace": "ml", "serving_tessera_dev_server": "llm"}, {"namespace": "ml", "deployment": "llm"}


def answer(*series: dict[str, Any]) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": "any", "result": series}}).encode()


def now(value: str, labels: dict[str, str] = POD) -> dict[str, Any]:
    return {"metric": labels, "value": [1.5, value]}


def over_time(labels: dict[str, str], *values: str) -> dict[str, Any]:
    return {"metric": labels, "values": [[60 * number, value] for number, value in enumerate(values)]}


def model_servers(**given: bytes) -> tuple[ModelServerHistory, ...]:
    usual = {
        "in_flight": answer(over_time(LOAD, "3", "4.5", "9")),
        "desired": answer(over_time(OWN, "1", "2", "2")),
        "ready": answer(over_time(OWN, "1", "1", "2")),
    }
    return read_model_servers(usual | given, "Prometheus")


def test_the_last_hour_is_asked_for_by_the_minute() -> None:
    queries = page_queries(7290.5)
    assert queries.keys() == {*INSTANT, "in_flight", "desired", "ready"}
    assert {queries.pop(name)[0] for name in INSTANT} == {"/api/v1/query"}
    for path, requested in queries.values():
        assert path == "/api/v1/query_range"
        assert (requested["start"], requested["end"], requested["step"]) == ("3660", "7260", "60")


def loads(**given: bytes) -> dict[tuple[str, str], GpuLoad]:
    return read_loads(dict.fromkeys(INSTANT, answer()) | given, "Prometheus")


def devices(**given: bytes) -> dict[str, tuple[DeviceLoad, ...]]:
    return {uuid: each.devices for (_, uuid), each in loads(**given).items()}


def activity(*series: dict[str, Any]) -> dict[PodKey, float]:
    return {pod: each for (_, pod), each in read_activity(loads(utilization=answer(*series))).items()}


def part(number: int, profile: str, labels: dict[str, str]) -> dict[str, str]:
    return {**labels, "GPU_I_ID": str(number), "GPU_I_PROFILE": profile}


def test_a_pod_is_as_busy_as_it_can_be_on_its_busiest_device() -> None:
    assert activity(now("12.5", POD), now("100.9", OTHER)) == {"ml/p": 12.5, "ml/q": 100}
    assert activity(now("12.5", POD), now("30", {**POD, "UUID": "b"})) == {"ml/p": 30}


def test_a_shared_gpu_has_loads_of_its_own_and_of_its_containers() -> None:
    allocations = answer(now("1", POD), now("1", OTHER))
    found = devices(
        allocations=allocations, utilization=answer(now("99", GPU), now("9", OTHER)), sm_active=answer(now("60", GPU))
    )
    containers = (ContainerLoad(name="ml/p/c", percent=None), ContainerLoad(name="ml/q/c", percent=9))
    assert found == {"a": (DeviceLoad(percent=99, containers=containers),)}
    assert read_activity({("n", "a"): GpuLoad(devices=found["a"])}) == {("n", "ml/q"): 9}


def test_labels_that_prometheus_gives_the_agent_make_it_no_user_of_the_gpu() -> None:
    agent = {**GPU, "namespace": "tessera-system", "pod": "tessera-agent-x7k2p", "container": "agent"}
    found = devices(
        allocations=answer(now("1", POD), now("1", OTHER)), utilization=answer(now("99", agent), now("98", GPU))
    )
    names = ("ml/p/c", "ml/q/c")
    assert found == {"a": (DeviceLoad(percent=99, containers=tuple(ContainerLoad(name=each) for each in names)),)}


def test_an_exclusive_device_is_as_busy_as_its_container() -> None:
    found = devices(allocations=answer(now("1")), utilization=answer(now("99")), sm_active=answer(now("60")))
    assert found == {"a": (DeviceLoad(percent=60, containers=(ContainerLoad(name="ml/p/c", percent=60),)),)}


def test_instances_have_the_part_of_their_profile_where_it_is_known() -> None:
    large, unknown = part(1, "3g.40gb", POD), part(2, "9g.1gb", OTHER)
    foreign = {**part(3, "1g.10gb", OTHER), "modelName": "something"}
    found = devices(sm_active=answer(*(now("50", each) for each in (large, unknown, foreign))))
    assert [each.part for each in found["a"]] == [3 / 7, None, None]


def slow(*throttled: tuple[str, str], allocations: bytes, utilization: bytes) -> dict[str, tuple[Contention, ...]]:
    series = (now("1", {"Hostname": "n", "UUID": uuid, "cause": cause}) for uuid, cause in throttled)
    found = read_contention(loads(throttled=answer(*series), allocations=allocations, utilization=utilization))
    return {uuid: each for (_, uuid), each in found.items()}


def test_the_pods_that_slow_down_a_gpu_are_named_as_agents_name_them() -> None:
    causes = (("a", "power-cap"), ("b", "none"))
    busy = answer(now("99", GPU), now("90", POD), now("9", OTHER))
    names: dict[str, Any] = {"drivers": ("ml/p/c",), "affected": ("ml/q/c",)}
    want = (Contention(cause="power-cap", **names), Contention(cause="saturated", **names))
    assert slow(*causes, allocations=answer(now("1", OTHER)), utilization=busy) == {"a": want}
    apart = answer(now("9", POD), now("90", {**OTHER, "UUID": "b"}), now("95", {**OTHER, "UUID": "c", "Hostname": "m"}))
    found = slow(("a", "power-cap"), ("a", "thermal"), allocations=answer(), utilization=apart)
    of_node = Contention(cause="thermal", drivers=("ml/q/c",), affected=("ml/p/c",), scope="node")
    assert found == {"a": (Contention(cause="power-cap", drivers=("ml/p/c",)), of_node)}, "GPUs of its own node"
    (unknown, _) = slow(*causes, allocations=answer(now("1")), utilization=answer(now("99", GPU), now("9", OTHER)))["a"]
    assert unknown.drivers == ()


UNBELIEVED = {
    "no number": now("much"),
    "NaN": now("NaN"),
    "infinite": now("+Inf"),
    "negative": now("-1"),
    "more than all": now("250"),
    "of no pod": now("1", {**POD, "pod": ""}),
    "of no namespace": now("1", {**POD, "namespace": ""}),
    "of no GPU": now("1", {**POD, "UUID": ""}),
    "no value": {"metric": POD},
}


@pytest.mark.parametrize("case", UNBELIEVED)
def test_what_cannot_be_is_left_out(case: str) -> None:
    assert activity(UNBELIEVED[case]) == {}
    assert loads(allocations=answer(UNBELIEVED[case])) == {}


def test_a_service_is_a_load_with_replicas() -> None:
    points = (ScalePoint(0, 1, 1, 3), ScalePoint(60, 2, 1, 4.5), ScalePoint(120, 2, 2, 9))
    assert model_servers() == (ModelServerHistory(namespace="ml", name="llm", points=points),)


def test_a_moment_counts_where_all_is_known_of_it() -> None:
    (found,) = model_servers(ready=answer(over_time(OWN, "1", "NaN", "2", "2")))
    assert [each.at_s for each in found.points] == [0, 120]


@pytest.mark.parametrize("name", ["in_flight", "desired", "ready"])
def test_what_is_of_no_server_or_without_replicas_is_left_out(name: str) -> None:
    nobody = answer(over_time({"namespace": "ml"}, "1"), over_time({"deployment": "llm"}, "1"))
    assert model_servers(**{name: nobody}) == ()


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
        loads(utilization=BROKEN[case])
    with pytest.raises(InvalidInput, match="an answer of Prometheus' HTTP API"):
        model_servers(ready=BROKEN[case])


def test_too_many_series_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagehistory, "_MOST_LOADS", 1)
    with pytest.raises(InvalidInput, match="2 series are more than 1"):
        loads(allocations=answer(now("1"), now("2")))


def test_too_many_services_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagehistory, "_MOST_SERVERS", 0)
    assert model_servers() == ()


def test_a_gpu_is_throttled_for_causes_that_there_are() -> None:
    labels: tuple[dict[str, str], ...] = (
        {"UUID": "a", "cause": "thermal"},
        {"UUID": "a", "cause": "power-cap"},
        {"UUID": "b", "cause": "none"},
        {},
    )
    found = read_contention(loads(throttled=answer(*(now("1", each) for each in labels))))
    assert {uuid: [each.cause for each in contention] for (_, uuid), contention in found.items()} == {
        "a": ["power-cap", "thermal"]
    }
