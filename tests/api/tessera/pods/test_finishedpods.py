"""How a pod ended, read from its object, whatever else is in it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.kubeobjects import Object, pod, share
from tessera.api.tessera.pods.finishedpods import read_finished_pod
from tessera.core.cluster.cluster import FinishedPod
from tessera.core.cluster.snapshot import NodeName
from tessera.core.workload.need import PodKey

ENDED = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, "name": "main"}
PLAIN = FinishedPod(pod=PodKey("ns/p"), node=NodeName("a"), scheduler="tessera-scheduler", failed=True)


def failed(**status: Any) -> Object:
    return pod("p", {"tessera.dev/gpu-memory": 4}, share(0, 4096), phase="Failed", status=status)


def test_its_end_and_what_it_had() -> None:
    got = read_finished_pod(
        failed(
            reason="Evicted",
            message="The node was low on memory.",
            initContainerStatuses=[{"name": "init", "state": {"terminated": {"exitCode": 2}}}],
            containerStatuses=[ENDED, {"name": "side", "state": {"terminated": {"exitCode": 0}}}],
        )
    )
    assert got == FinishedPod(
        pod=PodKey("ns/p"),
        node=NodeName("a"),
        scheduler="tessera-scheduler",
        failed=True,
        reason="Evicted: The node was low on memory.",
        containers=("container init ended with exit code 2", "container main ended with exit code 137 (OOMKilled)"),
        shares=(share(0, 4096),),
    )


def test_a_pod_that_succeeded_without_a_gpu() -> None:
    got = read_finished_pod(pod("p", phase="Succeeded"))
    assert got == FinishedPod(pod=PodKey("ns/p"), node=NodeName("a"), scheduler="tessera-scheduler", failed=False)


# Keyed by a sentence: a pod that is read as one that failed, of which nothing more is known.
ODD: dict[str, Object] = {
    "an assignment that is no JSON": pod("p", phase="Failed", annotations={"tessera.dev/assignment": "{"}),
    "statuses that are none": failed(containerStatuses=7, initContainerStatuses=[7, {"state": []}])
    | {"metadata": {"name": "p", "namespace": "ns", "annotations": 5}},
    "a reason that is a number": pod("p", phase="Failed", status={"reason": 5, "message": ["x"]}),
}


@pytest.mark.parametrize("sentence", ODD)
def test_what_is_odd_is_passed_over(sentence: str) -> None:
    assert read_finished_pod(ODD[sentence]) == PLAIN


# Keyed by a sentence: an object of which no end is read.
NONE: dict[str, Object] = {
    "it runs": pod("p"),
    "it waits": pod("p", node=None),
    "its status is a list": pod("p") | {"status": ["Failed"]},
    "it is empty": {},
}


@pytest.mark.parametrize("sentence", NONE)
def test_a_pod_that_has_not_finished(sentence: str) -> None:
    assert read_finished_pod(NONE[sentence]) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["state", "name", "x"]), inner),
    max_leaves=8,
)


@given(metadata=_JSON, spec=_JSON, statuses=_JSON)
def test_no_object_is_too_odd(metadata: Any, spec: Any, statuses: Any) -> None:
    status = {"phase": "Failed", "containerStatuses": statuses}
    got = read_finished_pod({"kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
    assert got is not None
    assert got.failed
