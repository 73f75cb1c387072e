"""How far a pod is, read from a live object and from a document."""

from collections.abc import Mapping
from typing import Any

import pytest

from tessera.api.documents import Document
from tessera.api.fields import Field
from tessera.api.kubernetes.podstates import (
    container_ids,
    created_ns,
    is_finished,
    is_terminating,
    runtime_of,
    started_s,
    waiting_messages,
    was_admitted,
    was_created,
)
from tessera.errors import InvalidInput


def field(pod: Mapping[str, Any]) -> Field:
    return Field(Document(source="pods.yaml", number=1, data=dict(pod), first_line=1), dict(pod))


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Succeeded", True), ("Failed", True), ("Running", False), ("Pending", False), (None, False)],
)
def test_a_pod_has_finished_however_it_ended(phase: str | None, finished: bool) -> None:
    pod = {"status": {"phase": phase}}
    assert is_finished(pod) is is_finished(field(pod)) is finished


def test_an_object_terminates_from_when_its_deletion_was_asked_for() -> None:
    pod = {"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}}
    assert is_terminating(pod) is is_terminating(field(pod)) is True
    living: dict[str, Any] = {"metadata": {"name": "a"}}
    assert is_terminating(living) is is_terminating(field(living)) is False


@pytest.mark.parametrize(
    ("made", "want_ns"),
    [("1970-01-02T00:00:00Z", 86_400 * 10**9), ("1969-12-31T00:00:00Z", 0), (None, 0)],
)
def test_when_a_pod_was_created(made: str | None, want_ns: int) -> None:
    pod = {"metadata": {"creationTimestamp": made}}
    assert created_ns(pod) == created_ns(field(pod)) == want_ns


def test_a_creation_time_that_is_none_is_refused_in_a_document_alone() -> None:
    pod = {"metadata": {"creationTimestamp": "yesterday"}}
    assert created_ns(pod) == 0
    with pytest.raises(InvalidInput, match=r"pods.yaml.*creationTimestamp.*as 2026-01-31T12:00:00Z"):
        created_ns(field(pod))


@pytest.mark.parametrize("pod", [{}, {"metadata": None, "status": None}, {"metadata": "a", "status": ["Failed"]}])
def test_a_live_object_of_another_form_is_neither(pod: Mapping[str, Any]) -> None:
    assert (is_finished(pod), is_terminating(pod), created_ns(pod)) == (False, False, 0)


@pytest.mark.parametrize(
    ("status", "want"),
    [
        (None, {}),
        ({"containerStatuses": None}, {}),
        (
            {
                "containerStatuses": [
                    {"name": "a", "state": {"running": {}}},
                    {"name": "b"},
                    {"name": "c", "state": None},
                ]
            },
            {},
        ),
        ({"containerStatuses": [{"name": "a", "state": {"waiting": {"message": "why"}}}]}, {"a": "why"}),
        ({"initContainerStatuses": [{"name": "i", "state": {"waiting": {"reason": "PodInitializing"}}}]}, {"i": ""}),
    ],
)
def test_why_containers_do_not_run(status: dict[str, Any] | None, want: dict[str, str]) -> None:
    assert waiting_messages({"status": status}) == want


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses"])
def test_a_kubelet_reports_containers_once_it_has_admitted_their_pod(kind: str) -> None:
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    assert was_admitted({"status": {"phase": "Pending", kind: [waiting]}})
    assert not was_admitted({"status": {"phase": "Pending", kind: []}})
    assert not was_admitted({})


# sentence: a pod's status, and whether its container `c` was created
CREATED: dict[str, tuple[object, bool]] = {
    "there is no status": (None, False),
    "its image is pulled": ({"containerStatuses": [{"name": "c", "state": {"waiting": {}}}]}, False),
    "it runs, or has run": ({"containerStatuses": [{"name": "c", "containerID": "containerd://1"}]}, True),
    "it is an init container": ({"initContainerStatuses": [{"name": "c", "containerID": "containerd://1"}]}, True),
    "another was": ({"containerStatuses": [{"name": "d", "containerID": "containerd://1"}]}, False),
}


@pytest.mark.parametrize("case", CREATED)
def test_a_container_was_created_that_has_an_id(case: str) -> None:
    status, want = CREATED[case]
    assert was_created({"status": status}, "c") is want


def test_ids_of_containers_are_those_of_the_runtime() -> None:
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    status = {kind: [{"name": kind, "containerID": f"containerd://{kind}-1"}, {"name": "waits"}] for kind in kinds}
    assert list(container_ids({"status": status})) == [(f"{kind}-1", kind) for kind in kinds]
    assert list(container_ids({})) == []


# sentence: a status, and the runtime
RUNTIMES: dict[str, tuple[object, str]] = {
    "none was created": ({"containerStatuses": [{"name": "a"}]}, ""),
    "no status": (None, ""),
    "one was created": (
        {"containerStatuses": [{"name": "a"}, {"name": "b", "containerID": "containerd://1"}]},
        "containerd",
    ),
    "an init container": ({"initContainerStatuses": [{"name": "a", "containerID": "cri-o://1"}]}, "cri-o"),
    "an id without a runtime": ({"containerStatuses": [{"name": "a", "containerID": "1"}]}, ""),
}


@pytest.mark.parametrize("case", RUNTIMES)
def test_the_runtime_is_that_which_created_a_container(case: str) -> None:
    status, want = RUNTIMES[case]
    assert runtime_of({"status": status}, {}) == want
    node = {"status": {"nodeInfo": {"containerRuntimeVersion": "crun://1"}}}
    assert runtime_of({"status": status}, node) == (want or "crun"), "before, it is that of the node"
    assert runtime_of({"status": status}, {"status": {"nodeInfo": {}}}) == want


@pytest.mark.parametrize(
    ("status", "want"),
    [(None, 0), ({"startTime": None}, 0), ({"startTime": "soon"}, 0), ({"startTime": "1970-01-01T00:00:05Z"}, 5)],
)
def test_a_pod_was_started_at_the_time_of_its_status(status: object, want: int) -> None:
    assert started_s({"status": status}) == want
