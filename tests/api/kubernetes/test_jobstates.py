"""How far each Job is, and why."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import pod
from tessera.api.kubernetes.jobs import JobRequest, job_object, job_selection
from tessera.api.kubernetes.jobstates import JobStage, JobState, read_job

LABEL = dict(job_selection("j"))
ASKED = JobRequest(
    name="j", namespace="ns", image="a", limits={"tessera.dev/gpu-memory": "10", "cpu": "2"}, queue="team"
)


def job_pod(status: dict[str, Any], node: str = "", *, name: str = "j-1", created: str = "1") -> dict[str, Any]:
    metadata = {"labels": LABEL, "creationTimestamp": created, "ownerReferences": [{"kind": "Job", "uid": "7"}]}
    return pod(name, node=node or None, metadata=metadata, status={"phase": ""} | status)


def submitted(asked: JobRequest) -> dict[str, Any]:
    """The Job as the API server has it."""
    job = job_object(asked)
    return {**job, "metadata": {**job["metadata"], "uid": "7"}}


def deleted(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod while it is being deleted."""
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2"}}


def main(state: dict[str, Any]) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "main", "state": state}]}


def beside(state: dict[str, Any], sidecar: dict[str, Any]) -> dict[str, Any]:
    """The status of a pod to which the cluster added a container; the kubelet sorts them by name."""
    return {"containerStatuses": [{"name": "istio-proxy", "state": sidecar}, {"name": "main", "state": state}]}


NOWHERE = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes:\nno GPU"}]}
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}
ENDED: dict[str, Any] = {"terminated": {"exitCode": 3, "reason": "Error"}}
KILLED: dict[str, Any] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
WELL: dict[str, Any] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
DRAINED = {
    "conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drained"}
    ]
}
FAILED = {"conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]}
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
FREE = {"suspend": False}

TORN = {"terminated": {"exitCode": 1, "message": "tar: broken", "reason": "Error"}}
NOT_UNPACKED = "its code was not unpacked, which needs tar and gzip in the image: "

NO_PROGRAM = 'exec: "pyhton": executable file not found in $PATH'
RUNC = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
    f"unable to start container process: error during container init: {NO_PROGRAM}: unknown"
)
"""As the kubelet of Kubernetes 1.34 has it, by containerd 2.1 and runc 1.3."""


def no_start(message: str, reason: str = "StartError") -> dict[str, Any]:
    """The state of a container whose command could not be started."""
    return {"terminated": {"exitCode": 128, "reason": reason, "message": message}}


def unpack(state: dict[str, Any]) -> dict[str, Any]:
    """The status of a pod whose code is being unpacked, or was."""
    waits = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    return {"initContainerStatuses": [{"name": "unpack-code", "state": state}], "containerStatuses": [waits]}


STATES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, tuple[JobStage, str, int | None]]] = {
    "in a queue": ({}, {}, None, (JobStage.QUEUED, "pending in queue team", None)),
    "new": (FREE, {}, None, (JobStage.PENDING, "", None)),
    "without a place": (FREE, {}, job_pod(NOWHERE), (JobStage.PENDING, "0/1 nodes: no GPU", None)),
    "bound": (FREE, {}, job_pod({}, "n"), (JobStage.STARTING, "", None)),
    "pulling": (FREE, {}, job_pod(main(PULL), "n"), (JobStage.STARTING, "ImagePullBackOff: no such image", None)),
    "running": (FREE, {}, job_pod(main({"running": {"startedAt": "x"}}), "n"), (JobStage.RUNNING, "", None)),
    "ended well": (FREE, {}, job_pod(main({"terminated": {"exitCode": 0}}), "n"), (JobStage.SUCCEEDED, "", 0)),
    "complete": (FREE, COMPLETE, None, (JobStage.SUCCEEDED, "", 0)),
    "ended, not seen by the controller": (FREE, {}, job_pod(main(ENDED), "n"), (JobStage.RUNNING, "", 3)),
    "failed": (FREE, FAILED, job_pod(main(ENDED), "n"), (JobStage.FAILED, "its command ended with 3", 3)),
    "killed": (
        FREE,
        FAILED,
        job_pod(main(KILLED), "n"),
        (JobStage.FAILED, "its command ended with 137 (OOMKilled)", 137),
    ),
    **{
        f"not started, {words}": (
            FREE,
            conditions,
            job_pod(status, "n"),
            (JobStage.FAILED, f"its command did not start{cause}", None),
        )
        for words, conditions, status, cause in (
            ("in containerd", FAILED, main(no_start(RUNC)), f": {NO_PROGRAM}"),
            ("not seen by the controller", {}, main(no_start(RUNC)) | {"phase": "Failed"}, f": {NO_PROGRAM}"),
            ("beside another container", {}, beside(no_start(RUNC), {"running": {}}), f": {NO_PROGRAM}"),
            ("in Docker", FAILED, main(no_start(NO_PROGRAM, "ContainerCannotRun")), f": {NO_PROGRAM}"),
            ("for no reason", FAILED, main(no_start("")), ""),
        )
    },
    "evicted": (FREE, {}, job_pod(EVICTED, "n"), (JobStage.FAILED, "Evicted: low on memory", None)),
    "evicted, and its command killed": (
        FREE,
        {},
        job_pod(main(KILLED) | EVICTED, "n"),
        (JobStage.FAILED, "Evicted: low on memory", None),
    ),
    "evicted, and its command ended by itself": (
        FREE,
        {},
        job_pod(main(WELL) | EVICTED, "n"),
        (JobStage.FAILED, "Evicted: low on memory", None),
    ),
    "evicted, as the controller has seen": (
        FREE,
        FAILED,
        job_pod(main(WELL) | EVICTED, "n"),
        (JobStage.FAILED, "Evicted: low on memory", None),
    ),
    "drained": (
        FREE,
        FAILED,
        deleted(job_pod(main(ENDED) | DRAINED, "n")),
        (JobStage.FAILED, "EvictionByEvictionAPI: drained", None),
    ),
    "drained, not seen by the controller": (
        FREE,
        {},
        deleted(job_pod(main(WELL) | DRAINED | {"phase": "Succeeded"}, "n")),
        (JobStage.PENDING, "its pod is being deleted", None),
    ),
    "its pod deleted": (
        FREE,
        FAILED,
        deleted(job_pod(main(ENDED), "n")),
        (JobStage.FAILED, "its pod was deleted (DeadlineExceeded)", None),
    ),
    "its pod being deleted": (
        FREE,
        {},
        deleted(job_pod(main({"running": {}}), "n")),
        (JobStage.RUNNING, "its pod is being deleted", None),
    ),
    "suspended while it runs": (
        {},
        {},
        job_pod(main({"running": {}}), "n"),
        (JobStage.QUEUED, "pending in queue team", None),
    ),
    "suspended, its command ended by itself": (
        {},
        {},
        job_pod(main(WELL) | {"phase": "Succeeded"}, "n"),
        (JobStage.QUEUED, "pending in queue team", None),
    ),
    "suspended, its command killed": (
        {},
        {},
        deleted(job_pod(main(ENDED) | {"phase": "Failed"}, "n")),
        (JobStage.QUEUED, "pending in queue team", None),
    ),
    "suspended after its end": ({}, COMPLETE, job_pod(main(WELL), "n"), (JobStage.SUCCEEDED, "", 0)),
    "ended well, and another container runs on": (
        FREE,
        {},
        job_pod(beside(WELL, {"running": {}}) | {"phase": "Running"}, "n"),
        (JobStage.SUCCEEDED, "", 0),
    ),
    "ended well, unless the kubelet says that it was evicted": (
        FREE,
        {},
        job_pod(main(WELL) | {"phase": "Running"}, "n"),
        (JobStage.RUNNING, "", 0),
    ),
    "failed beside another container": (
        FREE,
        {},
        job_pod(beside(ENDED, WELL) | {"phase": "Failed"}, "n"),
        (JobStage.FAILED, "its command ended with 3", 3),
    ),
    "failed, and another container runs on": (
        FREE,
        {},
        job_pod(beside(ENDED, {"running": {}}) | {"phase": "Running"}, "n"),
        (JobStage.FAILED, "its command ended with 3", 3),
    ),
    "running, and another container has ended": (
        FREE,
        {},
        job_pod(beside({"running": {}}, WELL) | {"phase": "Running"}, "n"),
        (JobStage.RUNNING, "", None),
    ),
    "unpacking": (FREE, {}, job_pod(unpack({"running": {}}), "n"), (JobStage.STARTING, "", None)),
    "without its code": (
        FREE,
        {},
        job_pod(unpack(PULL), "n"),
        (JobStage.STARTING, "ImagePullBackOff: no such image", None),
    ),
    "unpacked badly": (
        FREE,
        {},
        job_pod(unpack(TORN) | {"phase": "Failed"}, "n"),
        (JobStage.FAILED, f"{NOT_UNPACKED}tar: broken", None),
    ),
    "unpacked badly without a word": (
        FREE,
        {},
        job_pod(unpack(ENDED) | {"phase": "Failed"}, "n"),
        (JobStage.FAILED, f"{NOT_UNPACKED}exit code 3", None),
    ),
    "unpacked, then evicted": (
        FREE,
        {},
        job_pod(unpack({"terminated": {"exitCode": 0}}) | EVICTED, "n"),
        (JobStage.FAILED, "Evicted: low on memory", None),
    ),
    "its only part is tried again": (
        FREE | {"completions": 1, "backoffLimitPerIndex": 3},
        {"active": 1, "failed": 1},
        job_pod(main(ENDED) | {"phase": "Failed"}, "n"),
        (JobStage.PENDING, "0 of 1 parts done, 1 active, 1 failed pods: its command ended with 3", None),
    ),
    "failed without a pod": (FREE, FAILED, None, (JobStage.FAILED, "DeadlineExceeded", None)),
    "failed without a word": (FREE, {}, job_pod({"phase": "Failed"}, "n"), (JobStage.FAILED, "", None)),
}


@pytest.mark.parametrize("case", STATES)
def test_how_far_a_job_is(case: str) -> None:
    spec, status, one, want = STATES[case]
    job = submitted(ASKED)
    job = {**job, "spec": {**job["spec"], **spec}, "status": status}
    found = read_job(job, [one] if one else [])
    assert (found.stage, found.reason, found.exit_code) == want
    assert found.stage.ended == (found.stage in {JobStage.SUCCEEDED, JobStage.FAILED})
    assert found.requests == (("tessera.dev/gpu-memory", "10"),)
    assert (found.name, found.namespace, found.pod) == ("j", "ns", "j-1" if one else "")


PARTS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, tuple[JobStage, str]]] = {
    "nothing yet": ({}, None, (JobStage.PENDING, "0 of 60 parts done")),
    "no place": (
        {"active": 7},
        {"conditions": [{"type": "PodScheduled", "message": "no GPU has room"}]},
        (JobStage.PENDING, "0 of 60 parts done, 7 active: no GPU has room"),
    ),
    "the first run": ({"active": 7}, {"phase": "Running"}, (JobStage.RUNNING, "0 of 60 parts done, 7 active")),
    "between parts": (
        {"succeeded": 12, "active": 1, "failed": 2},
        {"phase": "Pending"},
        (JobStage.RUNNING, "12 of 60 parts done, 1 active, 2 failed pods"),
    ),
    "all": ({"succeeded": 60}, {"phase": "Succeeded"}, (JobStage.SUCCEEDED, "60 of 60 parts done")),
    "failed": (
        {"succeeded": 59, "failed": 4, "conditions": [{"type": "Failed", "status": "True"}]},
        None,
        (JobStage.FAILED, "59 of 60 parts done, 4 failed pods"),
    ),
}


@pytest.mark.parametrize("case", PARTS)
def test_how_many_parts_of_a_job_are_done(case: str) -> None:
    status, pod, want = PARTS[case]
    metadata = {"name": "j", "namespace": "ns", "uid": "7"}
    job = {"metadata": metadata, "spec": {"completions": 60, "completionMode": "Indexed"}, "status": status}
    found = read_job(job, [job_pod(pod, "")] if pod else [])
    assert (found.stage, found.reason, found.exit_code) == (*want, None)


FORMER = {
    "name": "j-0",
    "namespace": "ns",
    "labels": LABEL,
    "creationTimestamp": "9",
    "ownerReferences": [{"kind": "Job", "uid": "6"}],
}
"""Metadata of the pod of a Job of the same name that was deleted."""


def test_a_job_that_is_suspended_by_hand_says_so_and_only_its_own_newest_pod_counts() -> None:
    job = submitted(JobRequest(name="j", namespace="ns", image="a"))
    assert read_job({**job, "spec": {**job["spec"], "suspend": True}}, []).reason == "it is suspended"
    others = [
        job_pod({}, "other", name="x") | {"metadata": {"name": "x", "namespace": "ns", "labels": {}}},
        job_pod({}, "other", name="y") | {"metadata": {"name": "y", "namespace": "elsewhere", "labels": LABEL}},
        job_pod({}, "other", name="z") | {"metadata": {"name": "z", "namespace": "ns", "labels": LABEL}},
        job_pod({}, "other", name="j-0") | {"metadata": FORMER},
    ]
    both = [job_pod({}, "new", name="j-2", created="2"), job_pod({}, "old")]
    assert read_job(job, [*others, *both]).node == "new"
    assert read_job(job, others).pod == ""
    ending = deleted(job_pod({}, "ending", name="j-3", created="3"))
    assert read_job(job, [*both, ending]).node == "new"
    ended = [job_pod({"phase": each}, name=f"{each}-4") for each in ("Succeeded", "Failed")]
    assert read_job(job, [*others, *both, ending, *ended]).active_pods == ("j-2", "j-1")


def workload(uid: str, *conditions: tuple[str, str, str], created: str = "1") -> dict[str, Any]:
    listed = [{"type": kind, "status": status, "message": message} for kind, status, message in conditions]
    metadata = {"labels": {"kueue.x-k8s.io/job-uid": uid}, "creationTimestamp": created}
    return {"metadata": metadata, "status": {"conditions": listed}}


NO_QUOTA = ("QuotaReserved", "False", "no quota")
QUEUED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "nothing said yet": ([workload("7")], ""),
    "no quota": ([workload("7", NO_QUOTA)], ": no quota"),
    "quota, and a check to pass": (
        [workload("7", ("QuotaReserved", "True", "reserved"), ("Admitted", "False", "waits for a check"))],
        ": waits for a check",
    ),
    "admitted, and suspended until Kueue has changed it": (
        [workload("7", ("QuotaReserved", "True", "reserved"), ("Admitted", "True", "admitted"))],
        "",
    ),
    "that of another": ([workload("8", NO_QUOTA)], ""),
    "the newest": (
        [workload("7", NO_QUOTA, created="2"), workload("7", ("QuotaReserved", "False", "old"))],
        ": no quota",
    ),
}


@pytest.mark.parametrize("case", QUEUED)
def test_a_job_in_a_queue_says_what_kueue_says(case: str) -> None:
    workloads, want = QUEUED[case]
    job = submitted(ASKED)
    found = read_job(job, [], (), workloads)
    assert (found.stage, found.reason) == (JobStage.QUEUED, f"pending in queue team{want}")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(["metadata", "spec", "status", "name", "labels", "conditions", "containerStatuses",
                         "initContainerStatuses", "state", "terminated", "exitCode", "template", "containers",
                         "resources", "limits", "type", "env", "valueFrom", "secretKeyRef", "key",
                         "ownerReferences", "uid"]),
        inner, max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JUNK), st.lists(st.just({}) | JUNK, max_size=2))
def test_any_object_has_a_state(job: dict[str, Any], pods: list[Any]) -> None:
    assert isinstance(read_job(job, [each for each in pods if isinstance(each, dict)]), JobState)
