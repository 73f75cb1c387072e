"""ModelServer: what is read, what is refused and by which field, what its status says."""

import datetime as dt
from typing import Any

import pytest

from builders.modelservers import model_server
from tessera.api import documents
from tessera.api.kubernetes import workloads
from tessera.api.tessera.v1alpha1.modelservers import (
    ModelServerStatus,
    ObservedServer,
    missing_rights,
    observed,
    read_model_server,
    refused_status,
    server_status,
    started_replicas,
    with_pods,
    without_bad_wake,
)
from tessera.core.serving.render import StartedReplicas, render
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


ROLE = "--clusterrole=tessera-model-servers"
ACCOUNTS = {
    'User "system:serviceaccount:gpu:control" cannot list deployments': "gpu:control",
    "may not": "tessera-system:tessera-controller",
}


@pytest.mark.parametrize("refusal", ACCOUNTS)
def test_missing_rights_are_reported_with_the_command_that_grants_them(refusal: str) -> None:
    message = missing_rights("ml", refusal)
    want = f"`kubectl create rolebinding tessera-model-servers -n ml {ROLE} --serviceaccount={ACCOUNTS[refusal]}`"
    assert want in message
    assert message.endswith(refusal)


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
        "it is 0, and metric queue-time is measured in pods, so that nothing would begin the first: set at least 1",
    ),
    "zero with KEDA, whose question is about pods": (
        {"autoscaling": {"metric": "queue-time", "autoscaler": "KEDA"}, "replicas": {"min": 0}},
        "spec.replicas.min",
        "it is 0, and metric queue-time is measured in pods, so that nothing would begin the first: set at least 1",
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
    "a line end after a name": ({"model": {"cache": "m\n"}}, "spec.model.cache", "it ends with a line end"),
    "a line end in a list": ({"imagePullSecrets": ["a", "b\n"]}, "spec.imagePullSecrets[1]", "it ends with a line end"),
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


def test_a_server_at_zero_says_how_it_is_woken() -> None:
    def ready_message(found: ObservedServer) -> str:
        return next(
            each.message
            for each in server_status(ModelServerStatus(), 1, found, NOW).conditions
            if each.type == "Ready"
        )

    assert ready_message(ObservedServer(scales_to_zero=True)) == (
        "idle, so no replica serves and requests are refused; `tessera wake` starts one"
    )
    assert ready_message(ObservedServer(scales_to_zero=True, desired=1)).startswith("0 of 1 replicas serve")
    assert ready_message(ObservedServer()) == (
        "its Deployment was scaled to zero by hand, and its autoscaler does not change that: "
        "`kubectl scale deployment --replicas=1` of its name starts one"
    )


STATES = {
    "all serve": (ObservedServer(replicas=2, ready=2, desired=2), "True", "True", "Serving"),
    "one starts": (ObservedServer(replicas=2, ready=1, desired=2), "True", "False", "Starting"),
    "a rollout": (
        ObservedServer(replicas=3, ready=2, desired=2, updated=1, rolling=True),
        "True",
        "False",
        "RollingOut",
    ),
    "the next of the first starts later": (
        ObservedServer(replicas=1, ready=1, desired=1, min_replicas=3),
        "True",
        "False",
        "Starting",
    ),
    "idle": (ObservedServer(scales_to_zero=True), "True", "True", "ScaledToZero"),
    "somebody scaled it to zero": (ObservedServer(), "True", "False", "ScaledToZeroByHand"),
    "an object is another's": (
        ObservedServer(ready=1, desired=1, problems=("Service a is another's",)),
        "False",
        "True",
        "Serving",
    ),
    "its Deployment is another's": (
        ObservedServer(scales_to_zero=True, problems=("it is another's",), unserved="it is another's"),
        "False",
        "False",
        "DeploymentNotApplied",
    ),
    "replicas of a former spec": (
        ObservedServer(ready=1, desired=1, problems=("Deployment: timed out",), unserved="Deployment: timed out"),
        "False",
        "False",
        "DeploymentNotApplied",
    ),
}


@pytest.mark.parametrize("case", STATES)
def test_a_status_says_what_was_found(case: str) -> None:
    found, applied, ready, reason = STATES[case]
    status = server_status(ModelServerStatus(), 4, found, NOW)
    conditions = {each.type: each for each in status.conditions}
    assert [conditions[each].status for each in ("Accepted", "Applied", "Ready")] == ["True", applied, ready]
    assert conditions["Ready"].reason == reason
    assert (status.observed_generation, status.ready_replicas) == (4, found.ready)
    assert status.desired_replicas == max(found.desired, found.min_replicas)
    assert "; ".join(found.problems) in conditions["Applied"].message
    assert server_status(status, 4, found, NOW + dt.timedelta(hours=1)) == status, "the same changes nothing"


@pytest.mark.parametrize(
    ("status", "want"),
    [
        ({}, (2, 0)),
        ({"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "observedGeneration": 4}, (2, 2)),
        ({"replicas": 3, "readyReplicas": 2, "updatedReplicas": 1, "observedGeneration": 4}, (2, 0)),
        ({"replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "observedGeneration": 3}, (2, 0)),
    ],
    ids=["new", "all are ready", "a rollout", "a change that the Deployment controller has not seen"],
)
def test_how_far_the_replicas_are(status: dict[str, int], want: tuple[int, int]) -> None:
    found = started_replicas({"metadata": {"generation": 4}, "spec": {"replicas": 2}, "status": status})
    assert found == StartedReplicas(*want)
    assert started_replicas({}) == StartedReplicas(0, 0)


def test_notes_are_the_message_where_nothing_is_wrong() -> None:
    status = server_status(ModelServerStatus(), 1, ObservedServer(notes=("no PodMonitor",)), NOW)
    assert status.conditions[1].message == "no PodMonitor"


def test_a_refused_server_keeps_what_it_was() -> None:
    former = server_status(ModelServerStatus(), 1, ObservedServer(replicas=1, ready=1, desired=1), NOW)
    status = refused_status(former, 2, "Invalid", "x" * 5000, NOW)
    assert (status.ready_replicas, status.observed_generation) == (1, 2)
    (accepted, *_) = status.conditions
    assert (accepted.status, accepted.reason, len(accepted.message)) == ("False", "Invalid", 2048)


def test_what_a_deployment_says_is_what_was_found() -> None:
    conditions = [
        {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"},
        {"type": "Progressing", "status": "False", "message": "timed out"},
        {"type": "Available", "status": "False", "message": "too few"},
    ]
    status = {"replicas": 2, "readyReplicas": 1, "updatedReplicas": 2, "conditions": conditions}
    found = observed({"spec": {"replicas": 3}, "status": status}, ("first",), ("note",))
    assert found == ObservedServer(
        replicas=2,
        ready=1,
        desired=3,
        updated=2,
        problems=("first", "Deployment: violates PodSecurity", "Deployment: timed out"),
        unserved="Deployment: violates PodSecurity; Deployment: timed out",
        notes=("note",),
    )
    assert observed({"spec": {}}, ("x",), (), "x").unserved == "x"
    assert observed({}, (), ()) == ObservedServer(unserved="it has no Deployment yet")
    assert observed({}, ("x",), (), "x").unserved == "x"


ROLLOUTS = {
    "done": ({}, 2, "2 of 2 replicas serve"),
    "not seen by the Deployment controller": ({}, 3, "0 of 2 replicas are of the present spec, 2 serve"),
    "of images that cannot be pulled": (
        {"replicas": 3, "updatedReplicas": 1},
        2,
        "1 of 2 replicas are of the present spec, 2 serve",
    ),
    "whose former pod ends": ({"replicas": 3}, 2, "2 of 2 replicas are of the present spec, 2 serve"),
    "whose last pod starts": ({"readyReplicas": 1}, 2, "1 of 2 replicas serve"),
}


@pytest.mark.parametrize("case", ROLLOUTS)
@pytest.mark.parametrize("behind", [False, True])
def test_replicas_of_a_former_spec_are_not_ready_ones(case: str, behind: bool) -> None:
    """Also where only the answer to the write knows of the later generation."""
    changed, generation, message = ROLLOUTS[case]
    status = {"observedGeneration": 2, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, **changed}
    deployment = {
        "metadata": {"generation": 2 if behind else generation},
        "spec": {"replicas": 2},
        "status": status,
    }
    found = server_status(ModelServerStatus(), 2, observed(deployment, (), (), generation=generation), NOW)
    ready = next(each for each in found.conditions if each.type == "Ready")
    assert (ready.status == "True", ready.message.partition(";")[0]) == (case == "done", message)
    assert (ready.reason == "RollingOut") == ("of the present spec" in message)


def test_at_zero_nothing_rolls_out() -> None:
    found = observed(
        {"metadata": {"generation": 3}, "spec": {"replicas": 0}, "status": {"observedGeneration": 2}}, (), ()
    )
    assert not found.rolling


def test_a_wake_annotation_that_is_no_time_can_be_left_out() -> None:
    bad = model_server(annotations={"serving.tessera.dev/wake": "yesterday", "a": "b"})
    usable, ignored = without_bad_wake(bad)
    assert usable == model_server(annotations={"a": "b"})
    assert ignored == "annotation serving.tessera.dev/wake: 'yesterday' is not a time, as 2026-11-26T08:00:00Z"
    assert bad["metadata"]["annotations"]["serving.tessera.dev/wake"] == "yesterday"
    for each in (model_server(), model_server(annotations={"serving.tessera.dev/wake": "2026-11-26T08:00:00Z"})):
        assert without_bad_wake(each) == (each, "")


PLANNED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "one replica": ({}, ["serving/ranker-0"]),
    "several": ({"replicas": {"min": 2}}, ["serving/ranker-0", "serving/ranker-1"]),
    "scaled": ({"replicas": {"min": 2, "max": 9}}, ["serving/ranker-0", "serving/ranker-1"]),
    "scaled from zero": ({"replicas": {"min": 0, "max": 9}}, ["serving/ranker-0"]),
    "zero or one": ({"replicas": {"min": 0}}, ["serving/ranker-0"]),
}


def planned(*objects: dict[str, Any]) -> workloads.ReadWorkloads:
    """Return what is read of objects, in a file of one list."""
    text = documents.write({"apiVersion": "v1", "kind": "List", "items": [*objects]})
    return workloads.read(with_pods(documents.read("all.yaml", text)))


@pytest.mark.parametrize("case", PLANNED)
def test_the_pods_of_a_server_are_those_that_the_controller_would_create(case: str) -> None:
    spec, want = PLANNED[case]
    found = planned(model_server({**spec, "model": {"cache": "tiny"}}, namespace="serving"))
    assert [each.key for each in found.pods] == want
    for pod in found.pods:
        assert [(ask.resource, ask.isolation) for ask in pod.need.asks] == [
            ("nvidia.com/mig-1g.10gb", Isolation.HARDWARE)
        ]
        assert (pod.need.cached_models, pod.owner) == (("tiny",), "ModelServer/serving/ranker")


def test_the_deployment_of_a_server_is_not_counted_beside_it() -> None:
    one = model_server(namespace="serving", uid="u")
    made, *_ = render(read_model_server(one), "server")
    found = planned(one, made)
    assert [each.key for each in found.pods] == ["serving/ranker-0"]
    assert [each.reason for each in found.left_out] == ["made by ModelServer ranker, which is counted"]


def test_a_server_that_the_controller_would_refuse_is_an_error_with_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"all.yaml, document 1, line .*ModelServer ranker: .*did you mean"):
        planned(model_server({"args": ["--grpc-prt=1"]}))
    with pytest.raises(InvalidInput, match=r"ModelServer ranker.*exactly one way"):
        planned(model_server({"model": {}}))


def test_other_documents_stay_as_they_are() -> None:
    read = documents.read("other.yaml", "a: 1\n---\n- 1\n---\nitems: [{kind: Pod}]\n")
    assert with_pods(read) == tuple(read)


def test_what_has_no_kind_is_named_by_its_place() -> None:
    with pytest.raises(InvalidInput, match=r"^config\.json: it has no kind: leave it out, or give a ModelServer of"):
        read_model_server({"hidden_size": 8}, "config.json")
