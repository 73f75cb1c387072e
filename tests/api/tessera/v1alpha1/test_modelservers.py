"""ModelServer: what is read, what is refused and by which field, and its status."""

import datetime as dt
from typing import Any

import pytest

from builders.modelservers import model_server
from tessera.api.tessera.v1alpha1.modelservers import (
    ModelServerStatus,
    read_model_server,
    refused_status,
    server_status,
    without_bad_wake,
)
from tessera.core.serving.serverstatus import DeploymentProgress, ServerProgress
from tessera.core.workload.need import Isolation
from tessera.errors import InvalidInput

NOW = dt.datetime(2026, 11, 23, 12, tzinfo=dt.UTC)


def test_a_server_is_read_with_its_defaults() -> None:
    found = read_model_server(model_server({"gpu": {"memoryGiB": 8, "isolation": "driver"}}, namespace="n", uid="u"))
    assert (found.name, found.namespace, found.uid, found.model) == ("ranker", "n", "u", "ranker")
    assert (found.min_replicas, found.max_replicas, found.scaled) == (1, 1, False)
    assert found.spec.gpu.isolation is Isolation.DRIVER
    assert found.spec.startup_seconds == 1800
    names = [
        read_model_server(model_server({"model": each})).model for each in ({"cache": "a"}, {"claim": "b", "name": "c"})
    ]
    assert names == ["a", "c"]


REPLICAS = {
    "none": ({}, 1, 1),
    "some": ({"min": 3}, 3, 3),
    "from zero": ({"min": 0, "max": 2}, 0, 2),
    "zero": ({"min": 0}, 0, 1),
}


@pytest.mark.parametrize("case", REPLICAS)
def test_the_bounds_of_replicas(case: str) -> None:
    replicas, min_replicas, max_replicas = REPLICAS[case]
    found = read_model_server(model_server({"replicas": replicas}))
    assert (found.min_replicas, found.max_replicas) == (min_replicas, max_replicas)


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no engine": ({"engine": "tgi"}, "spec.engine", "'tgi' is not triton or vllm"),
    "an unknown field": ({"replica": 1}, "spec.replica", "it is an unknown field: did you mean replicas?"),
    "a misspelled engine": ({"engine": "vlm"}, "spec.engine", "'vlm' is not triton or vllm: did you mean vllm?"),
    "two models": ({"model": {"cache": "a", "claim": "b"}}, "spec.model", "exactly one way"),
    "no model": ({"model": {}}, "spec.model", "exactly one way"),
    "a cached model of another name": ({"model": {"cache": "a", "name": "b"}}, "spec.model", "remove name"),
    "a path up": ({"model": {"claim": "b", "name": ".."}}, "spec.model.name", "'..' is not a text that matches"),
    "no part of a GPU": ({"gpu": {}}, "spec.gpu", "memoryGiB or resource"),
    "both": ({"gpu": {"memoryGiB": 1, "resource": "nvidia.com/gpu"}}, "spec.gpu", "memoryGiB or resource"),
    "compute alone": ({"gpu": {"resource": "nvidia.com/gpu", "compute": 1}}, "spec.gpu", "compute requires memoryGiB"),
    "two slices": (
        {"gpu": {"resource": "nvidia.com/mig-1g.5gb", "count": 2}},
        "spec.gpu",
        "set count to 1, or resource",
    ),
    "another resource": ({"gpu": {"resource": "cpu"}}, "spec.gpu.resource", "'cpu' is not a text that matches"),
    "no such GPU": ({"gpu": {"memoryGiB": 1, "models": ["X9"]}}, "spec.gpu.models: GPU model", "'X9'"),
    "Triton scaled by what nobody says": (
        {"replicas": {"max": 3}, "autoscaling": {}},
        "spec.autoscaling.slots",
        "it is not set, and Triton does not report it: give the instances of the model times their largest batch, or",
    ),
    "more than the most": (
        {"replicas": {"min": 3, "max": 2}},
        "spec.replicas",
        ': it is {"min":3,"max":2}: min must be at most max',
    ),
    "none at all": ({"replicas": {"max": 0}}, "spec.replicas.max", "0 is not at least 1"),
    "KEDA without a queue": ({"autoscaling": {"autoscaler": "KEDA"}}, "spec.autoscaling", "metric must be queue-time"),
    "zero by pods": (
        {"autoscaling": {"metric": "queue-time"}, "replicas": {"min": 0, "max": 2}},
        "spec.replicas.min",
        "queue-time is measured in pods, so nothing would start the first one: set at least 1",
    ),
    "zero with KEDA, whose question is about pods": (
        {"autoscaling": {"metric": "queue-time", "autoscaler": "KEDA"}, "replicas": {"min": 0}},
        "spec.replicas.min",
        "queue-time is measured in pods, so nothing would start the first one: set at least 1",
    ),
    "Triton that scales to zero, and nobody says how much it serves": (
        {"replicas": {"min": 0}, "autoscaling": {}},
        "spec.autoscaling.slots",
        "it is not set, and Triton does not report it: give the instances of the model times their largest batch, or",
    ),
    "idle for no time": (
        {"autoscaling": {"idleSeconds": 59}},
        "spec.autoscaling.idleSeconds",
        "59 is not at least 60",
    ),
    "two values": (
        {"env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        "spec.env[0]",
        "value or valueFrom",
    ),
    "a line end after a name": ({"model": {"cache": "m\n"}}, "spec.model.cache", "it ends with a newline"),
    "a line end in a list": ({"imagePullSecrets": ["a", "b\n"]}, "spec.imagePullSecrets[1]", "it ends with a newline"),
    "an instance of nothing": (
        {"gpu": {"resource": "nvidia.com/mig-0g.0gb"}},
        "spec.gpu.resource",
        "'nvidia.com/mig-0g.0gb'",
    ),
    "a value from nowhere": ({"env": [{"name": "A", "valueFrom": {}}]}, "spec.env[0].valueFrom", "in exactly one way"),
    "a value from somewhere else": (
        {"env": [{"name": "A", "valueFrom": {"a": {"a": {}}}}]},
        "spec.env[0].valueFrom.a",
        "it is an unknown field",
    ),
    "a variable twice": (
        {"env": [{"name": "A"}, {"name": "B"}, {"name": "A"}]},
        "spec.env[2].name",
        "'A' is the name of env[0] too: remove one of the two",
    ),
    "a way up in a path": ({"model": {"hostPath": "/a/../etc"}}, "spec.model", "Kubernetes takes no .. in a hostPath"),
    "a relative path": ({"model": {"hostPath": "a"}}, "spec.model.hostPath", "'a' is not a text that matches"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_spec_is_refused_with_its_field(case: str) -> None:
    spec, subject, want = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        read_model_server(model_server(spec), "file.yaml")
    assert caught.value.subject.startswith("file.yaml: ModelServer ranker")
    assert caught.value.subject.endswith(subject)
    assert want in str(caught.value)


def test_when_a_server_was_woken() -> None:
    wake = {"serving.tessera.dev/wake": "2026-11-26T08:00:00Z"}
    assert read_model_server(model_server(annotations=wake)).woken_s == 1_795_680_000.0
    assert read_model_server(model_server()).woken_s is None
    with pytest.raises(InvalidInput, match="'tomorrow'") as caught:
        read_model_server(model_server(annotations={"serving.tessera.dev/wake": "tomorrow"}), "file.yaml")
    assert caught.value.subject == (
        "file.yaml: ModelServer ranker: metadata.annotations: annotation serving.tessera.dev/wake"
    )


@pytest.mark.parametrize("name", ["0a", "A", "a" * 53, "a.b", "a-"])
def test_a_name_that_no_service_may_have_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="begin with a letter") as caught:
        read_model_server(model_server(name=name))
    assert caught.value.subject.endswith("metadata.name")


@pytest.mark.parametrize("each", [{}, {"kind": "ModelServer", "apiVersion": "v1"}, {"kind": "Pod", "metadata": []}])
def test_another_object_is_refused(each: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"a ModelServer of tessera\.dev/v1alpha1"):
        read_model_server(each)


SERVING = ServerProgress(deployment=DeploymentProgress(desired=2, replicas=2, ready=2, updated=2))


def test_the_status_of_a_server_has_its_replicas_and_conditions() -> None:
    status = server_status(ModelServerStatus(), 4, SERVING, NOW)
    assert [(each.type, each.status, each.observed_generation) for each in status.conditions] == [
        ("Accepted", "True", 4),
        ("Applied", "True", 4),
        ("Ready", "True", 4),
    ]
    assert (status.replicas, status.ready_replicas, status.desired_replicas) == (2, 2, 2)
    later = NOW + dt.timedelta(hours=1)
    assert server_status(status, 4, SERVING, later) == status, "the same changes nothing"
    gone = server_status(status, 4, ServerProgress(), later)
    assert (gone.replicas, gone.ready_replicas, gone.desired_replicas) == (0, 0, 0)
    assert {each.type: each.last_transition_time for each in gone.conditions} == {
        "Accepted": "2026-11-23T12:00:00Z",
        "Applied": "2026-11-23T12:00:00Z",
        "Ready": "2026-11-23T13:00:00Z",
    }


def test_a_refused_server_keeps_what_it_was() -> None:
    former = server_status(ModelServerStatus(), 1, SERVING, NOW)
    status = refused_status(former, 2, "Invalid", "x" * 5000, NOW)
    assert (status.ready_replicas, status.observed_generation) == (2, 2)
    (accepted, *_) = status.conditions
    assert (accepted.status, accepted.reason, len(accepted.message)) == ("False", "Invalid", 2048)


def test_a_wake_annotation_that_is_no_time_can_be_left_out() -> None:
    bad = model_server(annotations={"serving.tessera.dev/wake": "yesterday", "a": "b"})
    usable, ignored = without_bad_wake(bad)
    assert usable == model_server(annotations={"a": "b"})
    assert ignored == "annotation serving.tessera.dev/wake: 'yesterday' is not a time, as 2026-11-26T08:00:00Z"
    assert bad["metadata"]["annotations"]["serving.tessera.dev/wake"] == "yesterday"
    for each in (model_server(), model_server(annotations={"serving.tessera.dev/wake": "2026-11-26T08:00:00Z"})):
        assert without_bad_wake(each) == (each, "")


def test_what_has_no_kind_is_named_by_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"^config\.json: it has no kind: leave it out, or give a ModelServer of"):
        read_model_server({"hidden_size": 8}, "config.json")
