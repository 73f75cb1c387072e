"""Assignments of a node's pods over time: spoiled, forged, restored."""

from collections.abc import Mapping

import pytest

from builders.kubeobjects import amount, pod
from builders.nodepods import AnnotatedPods
from builders.signed import AGENT, SERVER, STRANGER, Trusting, keys, public, signed
from tessera.agent.deviceplugin.containers.assignedpods import AssignedPods
from tessera.api.tessera.pods.assignedrequests import read_assigned_requests
from tessera.api.tessera.pods.assignments import write_shares
from tessera.api.tessera.pods.signatures import is_signed, key_id
from tessera.clients.kube import Object, annotations_of
from tessera.core.deviceplugin.allocations.agentallocations import SignedAssignment, StartedPod
from tessera.core.deviceplugin.allocations.matching import Correction
from tessera.errors import Conflict, InvalidInput

pytestmark = pytest.mark.anyio

NEED = {"tessera.dev/gpu-memory": 4}
HONEST = signed(pod("p", NEED, amount(0)))


class Node:
    """Pods and what is written on them."""

    def __init__(self) -> None:
        self.trust = Trusting("a")
        self.pods: list[Object] = [HONEST]
        self.written: dict[str, str] = {}
        self.annotated: list[str] = []
        self.full: set[str] = set()
        """Pods that take no annotation."""
        self.started: dict[str, StartedPod] = {}
        self.vouched = False
        """Whether a container was started with just what is assigned."""
        self.unknown = set[str]()
        """Containers of which the record says nothing."""
        self.assigned = AssignedPods(AnnotatedPods(lambda: self.pods, self._annotate), self.trust, self)

    def started_pod(self, uid: str) -> StartedPod | None:
        return self.started.get(uid)

    async def _annotate(self, each: Object, annotations: Mapping[str, str]) -> Object | None:
        if each["metadata"]["name"] in self.full:
            raise InvalidInput("pod a", found="annotations of 256 KiB", expected="less")
        self.annotated.append(each["metadata"]["name"])
        self.written = dict(annotations)
        return None

    async def repair(self) -> dict[str, str]:
        """Return what is written on a pod to give it its assignment back."""
        self.written = {}
        await self.assigned.repair(lambda each: self.vouched and each.key.container not in self.unknown)
        return self.written

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


def test_no_container_is_refused_for_what_is_written_on_a_pod_that_holds_what_it_was_granted() -> None:
    node = Node()
    node.gpus()
    node.pods = [spoiled(HONEST)]
    error = Conflict("units", found="no pod waits for them", hint="wait")
    assert node.assigned.refused
    assert node.assigned.with_refused(error) is error
    node.pods = [spoiled(HONEST), spoiled(HONEST, name="forged", uid="another")]
    assert node.assigned.with_refused(error).found.startswith(f"{error.found}; assignments not signed by Tessera: ")


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
    await node.repair()
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
    await node.repair()
    assert node.written == {}
    node.pods = [spoiled(HONEST)]
    await node.repair()
    assert node.written == HONEST["metadata"]["annotations"]


async def test_nothing_is_given_back_to_a_pod_that_was_granted_nothing() -> None:
    node = Node()
    assert node.gpus() == [0]
    node.pods = [spoiled(HONEST, uid="another")]
    await node.repair()
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
    node.full = {"a"}
    with pytest.raises(InvalidInput, match="256 KiB"):
        await node.repair()
    assert node.annotated == ["b", "c"]


# What containers were started with, by the agent's record


LOST = key_id(STRANGER.public)
"""A key that nobody publishes any more."""
FORMER = signed(pod("p", NEED, amount(0)), STRANGER)
TEXT = annotations_of(HONEST)["tessera.dev/assignment"]
STARTED = StartedPod(
    signed=SignedAssignment(assignment=TEXT, key=LOST), containers=frozenset({("main", "tessera.dev/gpu-memory")})
)


def with_record(*pods: Object) -> Node:
    """Return the node of an agent that starts when its record has a pod, whose container was started."""
    node = Node()
    node.started["uid-p"], node.pods = STARTED, list(pods)
    return node


def sealed(node: Node, each: Object) -> bool:
    """Return whether what was written is the assignment on record, signed by the agent for this very pod."""
    now = {**each, "metadata": {**each["metadata"], "annotations": node.written}}
    return node.written["tessera.dev/assignment"] == TEXT and is_signed(now, keys(AGENT))


async def test_a_pod_whose_key_is_lost_has_what_it_was_started_with_and_is_signed_anew() -> None:
    node = with_record(FORMER)
    assert node.gpus() == [0]
    assert (node.assigned.by_record(("ns", "p")), node.assigned.lapsed) == (True, True)
    assert LOST in node.assigned.why(("ns", "p"))
    assert await node.repair() == {}, "it is not known to have that still"
    node.vouched = True
    await node.repair()
    assert sealed(node, FORMER)
    node.pods = [{**FORMER, "metadata": {**FORMER["metadata"], "annotations": node.written}}]
    assert (node.gpus(), node.assigned.by_record(("ns", "p")), node.assigned.why(("ns", "p"))) == ([0], False, "")
    assert node.assigned.assignments() == {"uid-p": SignedAssignment(assignment=TEXT, key=LOST)}, (
        "who revokes the lost key revokes this too"
    )
    assert await node.repair() == {}


def with_text(each: Object, **changes: str) -> Object:
    annotations = {**annotations_of(each), **{f"tessera.dev/{key.replace('_', '-')}": t for key, t in changes.items()}}
    return {**each, "metadata": {**each["metadata"], "annotations": annotations}}


MORE = with_text(FORMER, assignment=write_shares((amount(0, memory_mib=38000), amount(1))))


async def test_who_writes_an_unknown_key_on_a_pod_gets_what_it_was_started_with_and_nothing_else() -> None:
    node = with_record(MORE)
    node.vouched = True
    assert [request.shares for request in node.assigned.assigned_requests()] == [(amount(0),)]
    await node.repair()
    assert sealed(node, MORE)


async def test_what_is_on_record_is_given_back_as_it_was_signed_while_that_counts() -> None:
    """What the agent signed in its place would outlive a key that was stolen."""
    node = with_record(MORE)
    signature = annotations_of(HONEST)["tessera.dev/assignment-signature"]
    signed = SignedAssignment(assignment=TEXT, key=key_id(SERVER.public), signature=signature)
    node.started["uid-p"] = StartedPod(signed=signed, containers=STARTED.containers)
    node.vouched = True
    assert node.gpus() == [0]
    assert await node.repair() == annotations_of(HONEST)
    node.trust.unpublished = frozenset(public(SERVER))
    await node.repair()
    assert sealed(node, MORE)


NOTHING: dict[str, Object] = {
    "another pod of that name": {**FORMER, "metadata": {**FORMER["metadata"], "uid": "another"}},
    "one that has ended": {**FORMER, "status": {"phase": "Succeeded"}},
}


@pytest.mark.parametrize("case", NOTHING)
async def test_nothing_is_taken_from_the_record_for(case: str) -> None:
    node = with_record(NOTHING[case])
    node.vouched = True
    assert (node.gpus(), node.assigned.by_record(("ns", "p"))) == ([], False)
    assert await node.repair() == {}


SPOILED: dict[str, Object] = {
    "removed": {**HONEST, "metadata": {**HONEST["metadata"], "annotations": {}}},
    "no signature": pod("p", NEED, amount(1)),
    "an unknown key": MORE,
    "a signature of another text by a key that counts": with_text(HONEST, assignment=write_shares((amount(1),))),
    "no signature that can be one": with_text(FORMER, assignment_signature="v1.x"),
}


@pytest.mark.parametrize("phase", ["Pending", "Running"])
@pytest.mark.parametrize("case", SPOILED)
async def test_an_agent_that_starts_finds_what_a_pod_runs_with_although_its_assignment_was(
    case: str, phase: str
) -> None:
    """With admission switched off a tenant may write anything on its pod while no agent runs."""
    each = {**SPOILED[case], "status": {"phase": phase}}
    node = with_record(each)
    assert (node.gpus(), node.assigned.by_record(("ns", "p"))) == ([0], True)
    assert "pod ns/p: " in node.assigned.why(("ns", "p"))
    assert await node.repair() == {}, "no container is known to have it still"
    node.vouched = True
    await node.repair()
    assert sealed(node, each)


@pytest.mark.parametrize("revoked", [LOST, key_id(SERVER.public)])
async def test_nothing_is_signed_anew_that_a_revoked_key_signed(revoked: str) -> None:
    """Neither where the record says so, nor where the pod does, which a tenant may have made to name another key."""
    node = with_record(FORMER)
    node.started["uid-p"] = StartedPod(
        signed=SignedAssignment(assignment=TEXT, key=key_id(SERVER.public)), containers=STARTED.containers
    )
    node.trust.revoked_keys = {revoked}
    node.vouched = True
    assert node.gpus() == []
    assert await node.repair() == {}


async def test_an_assignment_that_a_pod_had_before_is_replaced_by_the_one_it_was_started_with() -> None:
    """Its tenant has kept what the server signed before the agent exchanged it."""
    before = signed(pod("p", NEED, amount(1)))
    node = with_record(before)
    assert node.gpus() == [0]
    assert "it was replaced by an earlier one of this pod" in node.assigned.refused[0]
    node.vouched = True
    await node.repair()
    assert sealed(node, before)
    node.pods = [HONEST]
    assert (node.gpus(), await node.repair()) == ([0], {})
    node.pods = [before]
    assert node.gpus() == [0], "also while the agent runs"


async def test_what_is_assigned_to_a_container_that_was_not_started_may_change() -> None:
    two = {"containers": [{"name": name, "resources": {"limits": {"tessera.dev/gpu-memory": "4"}}} for name in "ab"]}
    first, second = amount(0, container="a"), amount(1, container="b")
    node = Node()
    text = write_shares((first, amount(0, container="b")))
    node.started["uid-p"] = StartedPod(
        signed=SignedAssignment(assignment=text, key=LOST), containers=frozenset({("a", "tessera.dev/gpu-memory")})
    )
    node.pods = [signed(pod("p", NEED, first, second, spec=two))]
    assert (node.gpus(), node.assigned.by_record(("ns", "p"))) == ([0, 1], False)


async def test_what_a_key_signed_that_no_server_publishes_any_more_is_signed_anew() -> None:
    """The agent knows the key still; a server that starts now does not."""
    node = Node()
    node.trust.unpublished = frozenset(public(SERVER))
    assert (node.gpus(), node.assigned.lapsed) == ([0], True)
    assert await node.repair() == {}, "its container was not started yet"
    node.vouched = True
    await node.repair()
    assert sealed(node, HONEST)
    node.vouched, node.pods = False, [spoiled(HONEST)]
    assert await node.repair() == annotations_of(HONEST), "what was spoiled is given back in any case"


async def test_a_pod_whose_init_container_alone_has_a_gpu_is_signed_anew_only_where_that_was_started() -> None:
    init = {"name": "main", "resources": {"limits": {"tessera.dev/gpu-memory": "4"}}}
    spec = {"initContainers": [init], "containers": [{"name": "other"}]}
    node = Node()
    node.trust.unpublished = frozenset(public(SERVER))
    node.pods = [signed(pod("p", {}, amount(0), spec=spec))]
    assert [request.initial for request in node.assigned.assigned_requests()] == [True]
    assert await node.repair() == {}
    node.vouched = True
    assert await node.repair() != {}


async def test_a_pod_is_signed_anew_though_nothing_says_any_more_what_its_init_container_had() -> None:
    """The kubelet's record lacks an init container that ended; those that last tell."""
    init = {"name": "init", "resources": {"limits": NEED}}
    plain = pod("p", NEED, amount(0))
    node = Node()
    node.trust.unpublished, node.vouched = frozenset(public(SERVER)), True
    node.pods = [signed({**plain, "spec": {**plain["spec"], "initContainers": [init]}})]
    assert sorted(each.initial for each in node.assigned.assigned_requests()) == [False, True]
    node.unknown = {"main"}
    assert await node.repair() == {}
    node.unknown = {"init"}
    await node.repair()
    assert sealed(node, node.pods[0])
