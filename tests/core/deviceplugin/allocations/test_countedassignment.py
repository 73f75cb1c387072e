"""Which assignment of a pod counts, in every state that any history of its annotations and of its agent leads to."""

from collections.abc import Iterator

import msgspec
import pytest

from builders.shares import amount
from tessera.core.deviceplugin.allocations.agentallocations import SignedAssignment, StartedPod
from tessera.core.deviceplugin.allocations.countedassignment import (
    AssignmentSource,
    CountedAssignment,
    PodAssignments,
    counted_assignment,
    counted_start,
)
from tessera.core.deviceplugin.allocations.kubeletallocations import RequestKey
from tessera.core.deviceplugin.allocations.matching import AssignedRequest

MEMORY = "tessera.dev/gpu-memory"
SIGNED = {"first": 0, "second": 1}
"""The GPUs of the assignments that a server signed for the pod, one after the other."""
WRITTEN = (*SIGNED, "none", "unsigned", "unknown key")


def requests(gpu: int, container: str = "main") -> tuple[AssignedRequest, ...]:
    """Return the assignment of one container to a GPU."""
    share = amount(gpu)
    return (AssignedRequest(key=RequestKey("ns", "p", container, MEMORY), units=4, shares=(share,)),)


def started(gpu: int, *containers: str) -> StartedPod:
    signed = SignedAssignment(assignment=str(gpu), key="server")
    return StartedPod(signed=signed, containers=frozenset((each, MEMORY) for each in containers or ("main",)))


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has one container, and its agent."""

    written: str
    running: bool = False
    former: int | None = None
    """The GPU of the assignment that counted when the agent last looked; None after it has started anew."""
    started: int | None = None
    """That of its container, once it was started."""
    lost: bool = False
    """Whether the servers' key is lost. What the record has is signed by the agent then."""
    revoked: bool = False

    def is_revoked(self, key: str) -> bool:
        return key == "server" and self.revoked

    def look(self) -> tuple[CountedAssignment, int | None]:
        """Return which assignment counts, and its GPU."""
        present = None if self.lost or self.revoked else SIGNED.get(self.written)
        unknown = self.written == "unknown key" or (self.written in SIGNED and present is None)
        key = "other" if self.written == "unknown key" else "server"
        begun = None if self.started is None else counted_start(started(self.started), self.is_revoked)
        pod = PodAssignments(
            present=() if present is None else requests(present),
            unknown_keys=(key,) if unknown else (),
            former=present is None and self.former is not None,
            former_is_signed=not self.lost and not self.revoked,
            running=self.running,
            started=begun,
            recorded=() if begun is None or self.started is None else requests(self.started),
        )
        found = counted_assignment(pod, self.is_revoked)
        gpus = {"present": present, "former": self.former, "recorded": self.started, "none": None}
        return found, gpus[found.source]

    def next(self) -> Iterator["State"]:
        """Yield every state that follows when the agent has looked."""
        _, gpu = self.look()
        now = msgspec.structs.replace(self, former=gpu)
        for written in WRITTEN:
            yield msgspec.structs.replace(now, written=written)
        yield msgspec.structs.replace(now, former=None)
        yield msgspec.structs.replace(now, lost=True)
        yield msgspec.structs.replace(now, revoked=True)
        if gpu is not None and not self.revoked:
            yield msgspec.structs.replace(now, started=gpu if self.started is None else self.started)
            yield msgspec.structs.replace(now, started=gpu if self.started is None else self.started, running=True)


def reachable() -> frozenset[State]:
    found, new = set[State](), {State(written=each) for each in WRITTEN}
    while new:
        found |= new
        new = {after for each in new for after in each.next()} - found
    return frozenset(found)


STATES = reachable()


def test_the_law_is_of_every_kind_of_state() -> None:
    assert len(STATES) > 150
    assert {each.look()[0].source for each in STATES} == set(AssignmentSource)


def test_a_started_container_keeps_what_it_was_started_with_whatever_is_written_and_whenever_the_agent_starts() -> None:
    live = [each for each in STATES if each.started is not None and not each.revoked]
    assert {each.look()[1] == each.started for each in live} == {True}


def test_what_no_server_signed_for_the_pod_never_counts() -> None:
    for each in STATES:
        if each.written not in SIGNED and each.former is None and each.started is None:
            assert each.look() == (CountedAssignment(source=AssignmentSource.NONE), None)


def test_nothing_counts_by_a_revoked_key_once_the_agent_starts_anew() -> None:
    revoked = [each for each in STATES if each.revoked and each.former is None]
    assert {each.look()[1] for each in revoked} == {None}


def test_a_pod_of_which_no_container_was_started_follows_what_the_server_signs() -> None:
    for each in STATES:
        if each.written in SIGNED and each.started is None and not each.lost and not each.revoked:
            assert each.look() == (CountedAssignment(source=AssignmentSource.PRESENT), SIGNED[each.written])


@pytest.mark.parametrize(
    ("present", "what"), [((), "removed or replaced"), (requests(1), "replaced by an earlier one of this pod")]
)
def test_why_the_record_counts(present: tuple[AssignedRequest, ...], what: str) -> None:
    pod = PodAssignments(present=present, started=started(0), recorded=requests(0))
    found = counted_assignment(pod, lambda _: False)
    assert found.source is AssignmentSource.RECORDED
    assert found.why == f"it was {what} since its containers started"


@pytest.mark.parametrize(("of", "want"), [("a", AssignmentSource.RECORDED), ("b", AssignmentSource.PRESENT)])
def test_what_is_assigned_to_a_container_that_was_not_started_may_change(of: str, want: AssignmentSource) -> None:
    pod = PodAssignments(
        present=(*requests(1, "a"), *requests(0, "b")),
        started=started(0, of),
        recorded=(*requests(0, "a"), *requests(0, "b")),
    )
    assert counted_assignment(pod, lambda _: False).source is want


@pytest.mark.parametrize("signed", [True, False])
def test_a_pod_that_does_not_run_yet_has_what_counted_before_while_its_signature_counts(*, signed: bool) -> None:
    pod = PodAssignments(former=True, former_is_signed=signed)
    assert (counted_assignment(pod, lambda _: False).source is AssignmentSource.FORMER) is signed


@pytest.mark.parametrize("running", [True, False])
def test_what_counted_before_counts_on_while_the_pod_runs_though_its_key_is_lost(*, running: bool) -> None:
    pod = PodAssignments(former=True, running=running)
    assert (counted_assignment(pod, lambda _: False).source is AssignmentSource.FORMER) is running


def test_an_earlier_assignment_that_was_restored_is_told_from_what_counted_before() -> None:
    """So that the agent writes on the pod what its containers were started with."""
    pod = PodAssignments(present=requests(1), former=True, running=True, started=started(0), recorded=requests(0))
    assert counted_assignment(pod, lambda _: False).source is AssignmentSource.RECORDED


def test_a_key_that_was_revoked_on_the_pod_is_not_made_good_by_the_record() -> None:
    pod = PodAssignments(unknown_keys=("stolen",), started=started(0), recorded=requests(0))
    assert counted_assignment(pod, lambda key: key == "stolen").source is AssignmentSource.NONE


def test_a_record_without_an_assignment_does_not_count() -> None:
    """Its key was revoked, and the revocation may be forgotten."""
    gone = StartedPod(signed=SignedAssignment(key="server"), containers=frozenset())
    assert counted_start(gone, lambda _: False) is None
