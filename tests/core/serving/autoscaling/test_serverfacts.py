"""Which of several objects counts for a model server, and what they say of it."""

from itertools import permutations
from typing import Any

import msgspec
import pytest

from tessera.core.serving.autoscaling.serverfacts import (
    HpaBounds,
    ModelDeployment,
    ModelPod,
    ServerFacts,
    bounds_of,
    deployment_of,
    server_facts,
    start_times,
)

POD = ModelPod(
    url="http://10.0.0.1:8002/metrics",
    problem="",
    running=True,
    ready=True,
    unschedulable=False,
    started_s=1000.0,
    cold_start_s=90.0,
)
UNREADY = msgspec.structs.replace(POD, ready=False, cold_start_s=None)
DEPLOYMENT = ModelDeployment(name="llm", replicas=5, slots=8, revision="2", cold_start_s=None, problem="")
BOUNDS = HpaBounds(name="llm", deployment="llm", min_replicas=2, max_replicas=5)


def deployment(name: str, owner: str = "") -> ModelDeployment:
    return msgspec.structs.replace(DEPLOYMENT, name=name, owner=owner)


@pytest.mark.parametrize(
    ("labeled", "want"),
    [
        ([deployment("b")], "b"),
        ([deployment("a"), deployment("b"), deployment("c")], "a"),
        ([deployment("a"), deployment("b", "chat"), deployment("c")], "b"),
        ([deployment("a", "other"), deployment("b", "chat"), deployment("c", "chat")], "b"),
        ([deployment("b", "other"), deployment("a", "another")], "a"),
    ],
)
def test_its_model_servers_own_deployment_counts_else_the_first_by_name(
    labeled: list[ModelDeployment], want: str
) -> None:
    assert {deployment_of("chat", each).name for each in permutations(labeled)} == {want}


def test_of_several_autoscalers_one_that_uses_the_decision_counts_else_the_first_by_name() -> None:
    several = [msgspec.structs.replace(BOUNDS, name=name, uses_tessera_replicas=False) for name in ("b", "a", "c")]
    assert {bounds_of(each).name for each in permutations(several)} == {"a"}
    several[2] = msgspec.structs.replace(several[2], uses_tessera_replicas=True)
    assert {bounds_of(each).name for each in permutations(several)} == {"c"}


def test_a_start_takes_until_the_first_readiness() -> None:
    """A pod that was unready for a moment is ready again hours after it was scheduled."""
    known = start_times({}, {"a": POD, "b": UNREADY})
    assert known == {"a": 90.0}
    again = msgspec.structs.replace(POD, cold_start_s=7200.0)
    assert start_times(known, {"a": again, "b": POD}) == {"a": 90.0, "b": 90.0}
    assert start_times(known, {"a": UNREADY}) == {"a": 90.0}
    assert start_times(known, {"c": POD}) == {"c": 90.0}, "deleted pods are forgotten"


def test_a_start_in_no_time_is_of_clocks_that_differ() -> None:
    assert start_times({}, {"a": msgspec.structs.replace(POD, cold_start_s=-2.0)}) == {}
    assert start_times({}, {"a": msgspec.structs.replace(POD, cold_start_s=0.0)}) == {}


def test_without_a_deployment_its_pods_are_its_replicas() -> None:
    pods = POD, POD, msgspec.structs.replace(UNREADY, unschedulable=True)
    found = server_facts(None, None, pods, started_s=[], pending_requests=4.0)
    assert (found.replicas, found.ready, found.unschedulable, found.pending_requests) == (3, 2, 1, 4.0)
    assert (found.min_replicas, found.uses_decision) == (1, False)
    assert server_facts(DEPLOYMENT, None, pods, started_s=[90.0], pending_requests=None).replicas == 5


DECIDES: dict[str, tuple[dict[str, Any], dict[str, Any] | None, tuple[int, bool]]] = {
    "no autoscaler": ({}, None, (1, False)),
    "one that scales by something else": ({}, {}, (2, False)),
    "one that asks Tessera": ({}, {"uses_tessera_replicas": True}, (2, True)),
    "one that scales to zero": ({}, {"uses_tessera_replicas": True, "min_replicas": 0}, (0, True)),
    "Tessera scales to zero": ({"idle_s": 600.0}, {}, (0, True)),
    "an idle time without an autoscaler": ({"idle_s": 600.0}, None, (0, False)),
}


@pytest.mark.parametrize("case", DECIDES)
def test_the_bounds_and_whether_the_decision_is_used(case: str) -> None:
    written, bounds, want = DECIDES[case]
    of = msgspec.structs.replace(DEPLOYMENT, **written)
    found = ServerFacts(deployment=of, bounds=None if bounds is None else msgspec.structs.replace(BOUNDS, **bounds))
    assert (found.min_replicas, found.uses_decision) == want
