"""Assignments of a node's pods over time: spoiled, forged, restored."""

from collections.abc import Mapping

import pytest

from builders.kubeobjects import amount, pod
from builders.signed import SERVER, STRANGER, Trusting, keys, signed
from tessera.agent.deviceplugin.assignedpods import AssignedPods
from tessera.api.tessera.pods.assignedrequests import read_assigned_requests
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.signatures import is_signed
from tessera.clients.kube import Object
from tessera.core.deviceplugin.matching import Correction
from tessera.errors import InvalidInput

pytestmark = pytest.mark.anyio

NEED = {"tessera.dev/gpu-memory": 4}
HONEST = signed(pod("p", NEED, amount(0)))


class Node:
    """Pods and what is written on them."""

    def __init__(self) -> None:
        self.trust = Trusting("a")
        self.pods: list[Object] = [HONEST]
        self.written: dict[str, str] = {}
        self.assigned = AssignedPods(lambda: self.pods, self.write, self.trust)

    async def write(self, _: Object, annotations: Mapping[str, str]) -> Object | None:
        self.written = dict(annotations)
        return None

    def gpus(self) -> list[int]:
        return [share.gpu for request in self.assigned.assigned_requests() for share in request.shares]


def spoiled(each: Object, **instead: str) -> Object:
    """Return a pod on which somebody wrote another assignment, and what else is said."""
    annotations = each["metadata"]["annotations"] | {"tessera.dev/assignment": write_shares((amount(1),))}
    return {**each, "metadata": {**each["metadata"], "annotations": annotations, **instead}}


def test_a_pod_that_runs_holds_what_it_was_granted_whatever_is_written_on_it() -> None:
    node = Node()
    assert (node.gpus(), node.assigned.refused) == ([0], ())
    node.pods = [spoiled(HONEST)]
    assert node.gpus() == [0]
    assert "not signed by Tessera, pod ns/p" in node.assigned.refused[0]
    node.pods = [HONEST]
    assert (node.gpus(), node.assigned.refused) == ([0], ())


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_another_pod_one_that_has_ended_and_one_that_was_never_seen_hold_nothing(phase: str) -> None:
    for each in (spoiled(HONEST, uid="another"), {**spoiled(HONEST), "status": {"phase": phase}}):
        node = Node()
        assert node.gpus() == [0]
        node.pods = [each]
        assert node.gpus() == []
    node = Node()
    node.pods = [spoiled(HONEST)]
    assert node.gpus() == []


async def test_a_pod_of_which_one_container_runs_and_another_has_no_image_holds_what_it_was_granted() -> None:
    """It is Pending: who takes its annotations away must not take the limits off what computes already."""
    node = Node()
    assert node.gpus() == [0]
    waiting = spoiled(HONEST)
    node.pods = [{**waiting, "status": {"phase": "Pending"}}]
    assert node.gpus() == [0]
    await node.assigned.repair()
    assert node.written == {key: HONEST["metadata"]["annotations"][key] for key in node.written} != {}


async def test_what_is_corrected_is_what_was_granted_never_what_somebody_wrote_meanwhile() -> None:
    node = Node()
    (request,) = node.assigned.assigned_requests()
    node.pods = [spoiled(HONEST)]
    await node.assigned.correct(Correction(request=request, shares=(amount(1),)))
    assert is_signed({**HONEST, "metadata": {**HONEST["metadata"], "annotations": node.written}}, node.trust.keys)
    assert node.gpus() == [1]


async def test_the_same_text_without_signature_is_written_again() -> None:
    node = Node()
    (request,) = node.assigned.assigned_requests()
    await node.assigned.correct(Correction(request=request, shares=(amount(0),)))
    assert node.written == {}
    node.pods = [pod("p", NEED, amount(0))]
    await node.assigned.correct(Correction(request=request, shares=(amount(0),)))
    assert "tessera.dev/assignment-signature" in node.written


async def test_nothing_is_signed_for_a_pod_that_was_never_granted_anything() -> None:
    node = Node()
    node.pods = [spoiled(HONEST)]
    assert node.gpus() == []
    (request,) = read_assigned_requests((HONEST,)).requests
    with pytest.raises(InvalidInput):
        await node.assigned.correct(Correction(request=request, shares=(amount(1),)))
    assert node.written == {}


async def test_nothing_is_signed_for_the_next_pod_of_a_name() -> None:
    node = Node()
    (request,) = node.assigned.assigned_requests()
    node.pods = [signed(pod("p", NEED, amount(0), metadata={"uid": "another"}))]
    await node.assigned.correct(Correction(request=request, shares=(amount(1),)))
    assert node.written == {}


async def test_a_pod_that_runs_is_given_its_spoiled_assignment_back() -> None:
    node = Node()
    assert node.gpus() == [0]
    await node.assigned.repair()
    assert node.written == {}
    node.pods = [spoiled(HONEST)]
    await node.assigned.repair()
    assert node.written == HONEST["metadata"]["annotations"]


async def test_nothing_is_given_back_to_a_pod_that_was_granted_nothing() -> None:
    node = Node()
    assert node.gpus() == [0]
    node.pods = [spoiled(HONEST, uid="another")]
    await node.assigned.repair()
    assert node.written == {}


def test_other_keys_let_everything_be_read_again() -> None:
    node = Node()
    node.pods = [{**HONEST, "status": {"phase": "Pending"}}]
    assert node.gpus() == [0]
    node.trust.keys = keys(STRANGER)
    assert node.gpus() == []
    node.trust.keys = keys(SERVER)
    assert node.gpus() == [0]


def test_a_pod_that_runs_holds_what_it_was_granted_also_when_keys_or_units_change() -> None:
    node = Node()
    assert node.gpus() == [0]
    node.pods = [spoiled(HONEST)]
    node.trust.keys = keys(STRANGER)
    assert node.gpus() == [0]
    node.assigned.count_in(512)
    assert node.gpus() == [0]


async def test_a_pod_that_cannot_be_given_its_assignment_back_keeps_no_other_from_it() -> None:
    node = Node()
    others = [signed(pod(name, NEED, amount(0))) for name in ("a", "b", "c")]
    node.pods = list(others)
    assert node.gpus() == [0, 0, 0]
    node.pods = [spoiled(each) for each in others]
    written: list[str] = []

    async def write(each: Object, _: Mapping[str, str]) -> Object | None:
        if each["metadata"]["name"] == "a":
            raise InvalidInput("pod a", found="annotations of 256 KiB", expected="less")
        written.append(each["metadata"]["name"])
        return None

    node.assigned._write = write
    with pytest.raises(InvalidInput, match="256 KiB"):
        await node.assigned.repair()
    assert written == ["b", "c"]
