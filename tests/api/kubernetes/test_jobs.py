"""Jobs that one command makes: what is in them, and how far each is."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.api.kubernetes.jobs import (
    BEGUN,
    BY_RUN,
    JobRequest,
    WorkRequest,
    job_object,
    job_selection,
    own_secret,
    owned_by,
    secret_of,
)
from tessera.api.kubernetes.jobstates import read_job

LABEL = dict(job_selection("j"))
ASKED = JobRequest(
    name="j",
    namespace="ns",
    image="busybox:1",
    command=("sh", "-c", "exit 3"),
    limits={"tessera.dev/gpu-memory": "10", "cpu": "2"},
    annotations={"tessera.dev/isolation": "driver"},
    scheduler="tessera-scheduler",
    env=(("A", "1"),),
    env_secrets=(("TOKEN", "hub", "key"),),
    queue="team",
)


def test_a_job_is_one_pod_that_is_never_started_again() -> None:
    job = job_object(ASKED)
    assert job["metadata"] == {
        "name": "j", "namespace": "ns", "labels": {**dict(BY_RUN), "kueue.x-k8s.io/queue-name": "team"},
    }  # fmt: skip
    spec, template = job["spec"], job["spec"]["template"]
    assert (spec["backoffLimit"], spec["suspend"], template["metadata"]["labels"]) == (0, True, dict(BY_RUN))
    assert template["metadata"]["annotations"] == {"tessera.dev/isolation": "driver"}
    pod = template["spec"]
    assert (pod["restartPolicy"], pod["schedulerName"], pod["automountServiceAccountToken"]) == (
        "Never", "tessera-scheduler", False,
    )  # fmt: skip
    (container,) = pod["containers"]
    assert (container["image"], container["command"]) == ("busybox:1", ["sh", "-c", "exit 3"])
    assert container["resources"] == {"limits": {"tessera.dev/gpu-memory": "10", "cpu": "2"}}
    secret = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "key"}}}
    assert container["env"] == [{"name": "A", "value": "1"}, secret]


def test_work_is_the_same_in_every_image() -> None:
    named = {name: getattr(ASKED, name) for name in WorkRequest.__struct_fields__}
    assert WorkRequest(**named).in_image("busybox:1") == ASKED
    assert ASKED.in_image("other") == msgspec.structs.replace(ASKED, image="other")


@given(st.text("$()AB{ ", max_size=12))
@example("kill $$; echo $(A) $$(A) $A")
def test_a_command_and_variables_come_as_they_were_typed(text: str) -> None:
    job = job_object(JobRequest(namespace="ns", image="a", command=("sh", "-c", text), env=(("A", "1"), ("B", text))))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert expanded(container["command"][2], {"A": "1"}) == text
    assert expanded(container["env"][1]["value"], {"A": "1"}) == text


def expanded(text: str, known: dict[str, str]) -> str:
    """Return what the kubelet makes of a text: `$(NAME)` is the variable's value, if there is one, and `$$` a `$`.

    Source: Kubernetes API, `core/v1` (`Container.Command`, `EnvVar.Value`).
    """
    return re.sub(r"\$(\$|\(([^)]*)\))", lambda found: "$" if found[1] == "$" else known.get(found[2], found[0]), text)


def test_what_is_not_asked_for_is_left_to_the_cluster() -> None:
    job = job_object(JobRequest(namespace="ns", image="a"))
    assert job["metadata"]["generateName"] == "run-"
    assert "suspend" not in job["spec"]
    template = job["spec"]["template"]
    assert "annotations" not in template["metadata"]
    (container,) = template["spec"]["containers"]
    assert container.keys() == {"name", "image", "securityContext"}
    assert "schedulerName" not in template["spec"]


# Keyed by a sentence: the user, what the pod says, and what each container says.
RESTRICTED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "the image's user": (0, {}, {}),
    "a user": (1000, {"runAsNonRoot": True, "runAsUser": 1000}, {"capabilities": {"drop": ["ALL"]}}),
}


@pytest.mark.parametrize("case", RESTRICTED)
def test_every_container_is_restricted_as_far_as_its_user_allows(case: str) -> None:
    user, pod, container = RESTRICTED[case]
    request = JobRequest(namespace="ns", image="a", user=user, code=True, own_secret="j-own")
    spec = job_object(request)["spec"]["template"]["spec"]
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}, **pod}
    want = {"allowPrivilegeEscalation": False, **container}
    assert [each["securityContext"] for each in (*spec["initContainers"], *spec["containers"])] == [want, want]


def test_code_is_unpacked_into_the_folder_where_the_command_starts_and_its_secret_goes_with_the_job() -> None:
    requested = JobRequest(
        name="j",
        namespace="ns",
        image="a",
        own_secret="j-own",
        code=True,
        limits={"cpu": "1", "memory": "2Gi", "x/y": "1"},
    )
    pod = job_object(requested)["spec"]["template"]["spec"]
    unpack, main, archive = pod["initContainers"][0], pod["containers"][0], pod["volumes"][0]
    assert unpack["image"] == main["image"]
    assert unpack["command"] == ["tar", "-xzf", "/archive/code.tar.gz", "-C", main["workingDir"]]
    assert unpack["resources"]["limits"] == {"cpu": "1", "memory": "2Gi"}
    assert [each["name"] for each in unpack["volumeMounts"]] == [each["name"] for each in pod["volumes"]]
    assert main["volumeMounts"] == [unpack["volumeMounts"][1]]
    found = own_secret(requested, {"code.tar.gz": b"x"})
    assert (found["metadata"]["name"], found["data"]) == (archive["secret"]["secretName"], {"code.tar.gz": "eA=="})
    assert found["metadata"]["labels"] == dict(BY_RUN)
    assert own_secret(requested, {}, begun=True)["metadata"]["labels"] == dict(BEGUN)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "7"}
    patch = {"labels": {"tessera.dev/submission": None}, "ownerReferences": [owner]}
    assert owned_by({"metadata": {"name": "j", "uid": "7"}})["metadata"] == patch
    assert secret_of(job_object(requested)) == "j-own"
    small = job_object(JobRequest(namespace="ns", image="a", own_secret="c", code=True))["spec"]["template"]["spec"]
    assert "resources" not in small["initContainers"][0]


def test_a_notebook_takes_its_token_from_its_own_secret_and_is_known_by_it() -> None:
    job = job_object(
        JobRequest(name="j", namespace="ns", image="a", env=(("A", "1"),), own_secret="j-own", notebook=True)
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    reference = {"secretKeyRef": {"name": "j-own", "key": "token"}}
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "JUPYTER_TOKEN", "valueFrom": reference}]
    assert "volumes" not in job["spec"]["template"]["spec"]
    assert read_job(job, []).token_secret == secret_of(job) == "j-own"
    assert read_job(job_object(ASKED), []).token_secret == secret_of(job_object(ASKED)) == ""
    others = JobRequest(name="j", namespace="ns", image="a", env_secrets=(("JUPYTER_TOKEN", "mine", "key"),))
    assert read_job(job_object(others), []).token_secret == ""
    foreign = {**job, "metadata": {"name": "j", "namespace": "ns"}}
    assert read_job(foreign, []).token_secret == "", "its token is not of tessera notebook"


def test_secrets_are_variables_or_read_only_files_and_claims_are_only_read() -> None:
    request = JobRequest(
        namespace="ns", image="a", secrets=("hub", "bucket"), secret_folders=(("keys", "/keys"),), claims=(("d", "/d"),)
    )
    pod = job_object(request)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}, {"secretRef": {"name": "bucket"}}]
    assert pod["volumes"] == [
        {"name": "folder-0", "secret": {"secretName": "keys"}},
        {"name": "folder-1", "persistentVolumeClaim": {"claimName": "d", "readOnly": True}},
    ]
    assert container["volumeMounts"] == [
        {"name": "folder-0", "mountPath": "/keys", "readOnly": True},
        {"name": "folder-1", "mountPath": "/d", "readOnly": True},
    ]
