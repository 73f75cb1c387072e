"""What is read of a model server's objects, and what of others' words is not believed."""

from typing import Any

import msgspec
import pytest

from builders.measuredservers import autoscaler, deployment, model_pod
from tessera.api.kubernetes.modelpods import more_pods, read_bounds, read_deployment, read_pod, read_progress
from tessera.core.serving.autoscaling.serverfacts import HpaBounds, ModelDeployment, ModelPod
from tessera.core.serving.serverstatus import DeploymentProgress
from tessera.errors import InvalidInput

WANT = ModelPod(
    url="http://10.0.0.1:8002/metrics",
    problem="",
    running=True,
    ready=True,
    unschedulable=False,
    started_s=1005.0,
    cold_start_s=90.0,
)


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the pod with another value at a path; None removes it."""
    pod = model_pod()
    *steps, last = path.split(".")
    part: Any = pod
    for step in steps:
        part = part[int(step)] if step.isdecimal() else part.setdefault(step, {})
    if value is None:
        part.pop(last, None)
    else:
        part[last] = value
    return pod


PORT = "serving.tessera.dev/metrics-port"
NO_PORT = f"no container port named metrics and no annotation {PORT}"
PENDING = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
PODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a ready pod": (model_pod(), {}),
    "IPv6": (changed("status.podIP", "fd00::1"), {"url": "http://[fd00::1]:8002/metrics"}),
    "no address": (changed("status.podIP", None), {"url": "", "problem": "it has no address yet"}),
    "an address that is none": (
        changed("status.podIP", "a.example/x"),
        {"url": "", "problem": "it has no address yet"},
    ),
    "an annotated port": (
        changed("metadata.annotations", {PORT: "9000"}),
        {"url": "http://10.0.0.1:9000/metrics", "started_s": 1005.0},
    ),
    "an annotated port that is its container's": (
        changed("metadata.annotations", {PORT: "8002"}),
        {"url": "http://10.0.0.1:8002/metrics"},
    ),
    "an annotated port that is none": (
        changed("metadata.annotations", {PORT: "70000"}),
        {"url": "", "problem": f"annotation {PORT}: '70000' is not a whole number from 1 to 65535"},
    ),
    "an engine's usual port": (
        changed("spec.containers.0.ports", [{"containerPort": 8000, "name": "http"}]),
        {"url": "http://10.0.0.1:8000/metrics"},
    ),
    "Triton's before vLLM's, which is Triton's HTTP": (
        changed("spec.containers.0.ports", [{"containerPort": 8000}, {"containerPort": 8002}]),
        {},
    ),
    "another port": (changed("spec.containers.0.ports", [{"containerPort": 80}]), {"url": "", "problem": NO_PORT}),
    "no containers": (
        changed("spec.containers", []),
        {"url": "", "problem": NO_PORT, "started_s": 1000.0},
    ),
    "being deleted": (changed("metadata.deletionTimestamp", "1970-01-01T00:18:10Z"), {"ready": False}),
    "a container that restarted": (
        changed("status.containerStatuses.0.restartCount", 1),
        {"cold_start_s": None},
    ),
    "scheduled long after it was created": (
        changed("status.conditions.0.lastTransitionTime", "1970-01-01T00:17:40Z"),
        {"cold_start_s": 30.0},
    ),
    "no moment of creation": (
        changed("metadata.creationTimestamp", None),
        {"cold_start_s": None},
    ),
    "no status yet": (
        changed("status", {}),
        {
            "url": "",
            "problem": "it has no address yet",
            "running": False,
            "ready": False,
            "started_s": 1000.0,
            "cold_start_s": None,
        },
    ),
    "nothing at all": (
        {"metadata": {}, "spec": {"containers": []}},
        {"url": "", "problem": NO_PORT, "running": False, "ready": False, "started_s": 0.0, "cold_start_s": None},
    ),
    "no room for it": (
        changed("status", PENDING),
        {
            "url": "",
            "problem": "it has no address yet",
            "running": False,
            "ready": False,
            "unschedulable": True,
            "started_s": 1000.0,
            "cold_start_s": None,
        },
    ),
}


@pytest.mark.parametrize("case", PODS)
def test_a_pod(case: str) -> None:
    pod, other = PODS[case]
    assert read_pod(pod) == msgspec.structs.replace(WANT, **other)


@pytest.mark.parametrize("each", [{}, {"metadata": None}, {"metadata": {"name": "p"}, "spec": {"containers": 3}}])
def test_no_pod(each: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="a Pod"):
        read_pod(each)


def vllm(*words: str, command: bool = False) -> dict[str, Any]:
    each = deployment()
    each["spec"]["template"]["spec"]["containers"] = [
        {"name": "proxy"},
        {"name": "engine", "command" if command else "args": list(words)},
    ]
    return each


DEPLOYMENTS = {
    "nothing said": (deployment(), ModelDeployment(name="llm", replicas=1, slots=None, cold_start_s=None, problem="")),
    "a ModelServer's": (
        {
            **deployment(),
            "metadata": {
                "name": "llm",
                "ownerReferences": [
                    {"apiVersion": "tessera.dev/v1alpha1", "kind": "ModelServer", "name": "other", "uid": "1"},
                    {
                        "apiVersion": "tessera.dev/v1alpha1",
                        "kind": "ModelServer",
                        "name": "llm",
                        "uid": "2",
                        "controller": True,
                    },
                ],
            },
        },
        ModelDeployment(name="llm", replicas=1, slots=None, cold_start_s=None, problem="", owner="llm", owner_uid="2"),
    ),
    "all said": (
        deployment(replicas=3, slots=" 8 ", cold_start_seconds="90"),
        ModelDeployment(name="llm", replicas=3, slots=8, cold_start_s=90.0, problem=""),
    ),
    "no replicas written": (
        {**deployment(), "spec": {"template": {"spec": {"containers": []}}}},
        ModelDeployment(name="llm", replicas=1, slots=None, cold_start_s=None, problem=""),
    ),
    "vLLM's sequences": (
        vllm("serve", "--max-num-seqs=16"),
        ModelDeployment(name="llm", replicas=1, slots=16, cold_start_s=None, problem=""),
    ),
    "vLLM's sequences in two words of the command": (
        vllm("vllm", "--max-num-seqs", "16", command=True),
        ModelDeployment(name="llm", replicas=1, slots=16, cold_start_s=None, problem=""),
    ),
    "vLLM's sequences with underscores": (
        vllm("serve", "--max_num_seqs=16"),
        ModelDeployment(name="llm", replicas=1, slots=16, cold_start_s=None, problem=""),
    ),
    "vLLM's sequences twice: the last counts": (
        vllm("serve", "--max-num-seqs=16", "--max-num-seqs=32"),
        ModelDeployment(name="llm", replicas=1, slots=32, cold_start_s=None, problem=""),
    ),
    "vLLM's sequences left out": (
        vllm("serve", "--max-num-seqs"),
        ModelDeployment(name="llm", replicas=1, slots=None, cold_start_s=None, problem=""),
    ),
    "another option": (
        vllm("serve", "--max-num-seqs-x=3"),
        ModelDeployment(name="llm", replicas=1, slots=None, cold_start_s=None, problem=""),
    ),
}


@pytest.mark.parametrize("case", DEPLOYMENTS)
def test_a_deployment(case: str) -> None:
    each, want = DEPLOYMENTS[case]
    assert read_deployment(each) == want


def test_the_revision_of_the_pods_template() -> None:
    each = deployment()
    each["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "3"
    assert (read_deployment(each).revision, read_deployment(deployment()).revision) == ("3", "")


ROLLOUTS: dict[str, tuple[dict[str, int] | None, bool]] = {
    "no status yet": (None, False),
    "the controller has not seen the template": ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}, True),
    "old pods are there": ({"observedGeneration": 3, "replicas": 3, "updatedReplicas": 1}, True),
    "no new pod yet": ({"observedGeneration": 3, "replicas": 2}, True),
    "all are new": ({"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2}, False),
    "no replicas": ({"observedGeneration": 3}, False),
}


@pytest.mark.parametrize("case", ROLLOUTS)
def test_whether_a_rollout_replaces_pods(case: str) -> None:
    status, want = ROLLOUTS[case]
    each = deployment()
    each["metadata"]["generation"] = 3
    assert read_deployment(each if status is None else {**each, "status": status}).rolling is want


def test_how_far_a_deployment_is() -> None:
    conditions = [
        {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity"},
        {"type": "Progressing", "status": "False", "message": "timed out"},
        {"type": "Available", "status": "False", "message": "too few"},
    ]
    counts = {"replicas": 3, "readyReplicas": 2, "updatedReplicas": 1, "observedGeneration": 4}
    each = deployment(replicas=3)
    each["metadata"]["generation"] = 5
    assert read_progress({**each, "status": {**counts, "conditions": conditions}}) == DeploymentProgress(
        desired=3,
        replicas=3,
        ready=2,
        updated=1,
        generation=5,
        observed_generation=4,
        failures=("violates PodSecurity", "timed out"),
    )
    assert read_progress(deployment()) == DeploymentProgress(desired=1)
    with pytest.raises(InvalidInput, match="a Deployment"):
        read_progress({"metadata": {"name": "llm"}})


def test_a_deployment_that_may_be_scaled_to_zero() -> None:
    found = read_deployment(deployment(idle_seconds="600", wake="2026-11-26T09:00:00+01:00"))
    assert (found.idle_s, found.woken_s, found.problem) == (600.0, 1_795_680_000.0, "")


def test_a_deployment_whose_replicas_start_one_by_one() -> None:
    annotated = (read_deployment(deployment(start_one_by_one=text)) for text in ("true", "false", "yes"))
    assert [(each.one_by_one, each.problem) for each in (read_deployment(deployment()), *annotated)] == [
        (False, ""),
        (True, ""),
        (False, ""),
        (False, "annotation serving.tessera.dev/start-one-by-one: 'yes' is not true or false"),
    ]


TIMES = ["", "now", "12", "2026-11-26", "2026-11-26T08:00:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00"]


@pytest.mark.parametrize("text", TIMES)
def test_an_annotation_that_is_no_time(text: str) -> None:
    found = read_deployment(deployment(wake=text))
    assert found.woken_s is None
    assert found.problem == f"annotation serving.tessera.dev/wake: {text!r} is not a time, as 2026-11-26T08:00:00Z"


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3", "100001", "9" * 5000, "٣", "nan", "8;x"])
def test_an_annotation_that_is_no_number(text: str) -> None:
    found = read_deployment(deployment(slots=text))
    assert found.slots is None
    assert found.problem.startswith("annotation serving.tessera.dev/slots: ")
    assert found.problem.endswith(" is not a whole number from 1 to 100000")


def test_more_pods_are_those_of_the_template() -> None:
    each = deployment()
    each["spec"]["template"]["metadata"] = {"labels": {"a": "b"}, "annotations": {"c": "d"}, "name": "other"}
    first, second = more_pods(each, 2)
    assert first == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "labels": {"a": "b"},
            "annotations": {"c": "d"},
            "name": "llm-more-0",
            "namespace": "ns",
            "uid": "llm-more-0",
        },
        "spec": each["spec"]["template"]["spec"],
    }
    assert second["metadata"]["name"] == "llm-more-1"
    (bare,) = more_pods(deployment(), 1)
    assert bare["metadata"] == {"name": "llm-more-0", "namespace": "ns", "uid": "llm-more-0"}


def test_no_deployment() -> None:
    with pytest.raises(InvalidInput, match=r"Deployment ns/llm: it is not a Deployment"):
        read_deployment({"metadata": {"name": "llm", "namespace": "ns"}})


def test_bounds() -> None:
    assert read_bounds(autoscaler(min_replicas=2)) == HpaBounds(
        name="llm", deployment="llm", min_replicas=2, max_replicas=5, uses_tessera_replicas=True
    )
    assert read_bounds(autoscaler(min_replicas=None)) == HpaBounds(
        name="llm", deployment="llm", min_replicas=1, max_replicas=5, uses_tessera_replicas=True
    )
    assert read_bounds(autoscaler(metric="other")) == HpaBounds(
        name="llm", deployment="llm", min_replicas=1, max_replicas=5
    )
    other = autoscaler()
    other["spec"]["scaleTargetRef"]["kind"] = "StatefulSet"
    assert read_bounds(other) is None
