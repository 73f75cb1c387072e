"""What a node offers, protects and removes of its models: all small cases, and any order of what happens to it."""

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from builders.cachedmodels import histories, model
from tessera.core.storage.models.cachedmodels import (
    Fetching,
    ModelOnDisk,
    ModelOnNode,
    unreadable_reason,
    withheld_reason,
)
from tessera.core.storage.models.cacheplan import (
    CachePlan,
    CancelFetch,
    RemoveModel,
    RemoveSuperseded,
    VerifyRevision,
    plan_cache,
)
from tessera.core.storage.models.fetchhistory import FetchHistory, RoomBackoff, fetch_history
from tessera.core.storage.models.nodemodels import DesiredModel, ObservedModel
from tessera.core.storage.models.retention import RevisionOnDisk, superseded
from tessera.core.storage.models.room import EvictRevision, RemoveStaged
from tessera.core.storage.models.verifications import Verification
from tessera.core.storage.retries import fetch_backoff_s


def on_node(current: str, revisions: str, allocated: str = "", listed: str | None = None) -> ModelOnNode:
    """Return a model whose revisions are single letters."""
    there = ModelOnDisk(current, tuple(revisions))
    return ModelOnNode(there, frozenset(allocated), None if listed is None else frozenset(listed))


def planned(
    desired: DesiredModel | None, found: ModelOnNode | None, *, fetched: str = "", makes_room_for: str = ""
) -> CachePlan:
    """Return what is planned for model `a`, where `b` is desired, too."""
    models = {each.name: each for each in (desired, model("b")) if each is not None}
    displaced = {"a": makes_room_for} if makes_room_for else {}
    there = {} if found is None else {"a": found}
    return plan_cache(models, there, fetching=Fetching(running=fetched), displaced=displaced)


OFFERED: dict[str, tuple[DesiredModel, ModelOnNode | None, str]] = {
    "nothing of what is not there": (model("a"), None, ""),
    "nothing of what is not whole": (model("a"), on_node("", "1"), ""),
    "the one that was fetched last": (model("a"), on_node("2", "12"), "2"),
    "the one that is named, where it is there": (model("a", revision="1"), on_node("2", "12"), "1"),
    "no other than the one that is named": (model("a", revision="3"), on_node("2", "12"), ""),
}


@pytest.mark.parametrize("case", OFFERED)
def test_new_pods_get(case: str) -> None:
    desired, found, want = OFFERED[case]
    assert planned(desired, found).offered == {"a": want, "b": ""}


STEPS: dict[str, tuple[dict[str, Any], object]] = {
    "what is desired stays": ({"desired": model("a"), "found": on_node("1", "1")}, None),
    "what is not desired goes": ({"desired": None, "found": on_node("1", "1")}, RemoveModel("a")),
    "what a pod has stays": ({"desired": None, "found": on_node("1", "1", allocated="1")}, None),
    "what the kubelet may give stays": ({"desired": None, "found": on_node("1", "1", listed="1")}, None),
    "a resource that the kubelet has not let go of yet keeps its model": (
        {"desired": None, "found": on_node("1", "1", listed="")},
        None,
    ),
    "a fetch that nobody needs ends before its model goes": (
        {"desired": None, "found": on_node("", ""), "fetched": "a"},
        CancelFetch("a"),
    ),
    "what makes room goes, although it is the current one": (
        {"desired": model("a"), "found": on_node("1", "1"), "makes_room_for": "b"},
        EvictRevision("a", "1", "b"),
    ),
    "what makes room is offered no more before it goes": (
        {"desired": model("a"), "found": on_node("1", "1", listed="1"), "makes_room_for": "b"},
        None,
    ),
    "what a pod got meanwhile makes no room": (
        {"desired": model("a"), "found": on_node("1", "1", allocated="1"), "makes_room_for": "b"},
        None,
    ),
    "nothing makes room for what is not desired": (
        {"desired": model("a"), "found": on_node("1", "1"), "makes_room_for": "gone"},
        None,
    ),
    "superseded ones go beyond those to keep": (
        {"desired": model("a", keep=1), "found": on_node("2", "12")},
        RemoveSuperseded("a", 1),
    ),
    "those to keep stay": ({"desired": model("a", keep=2), "found": on_node("2", "12")}, None),
    "a superseded one that a pod has stays": (
        {"desired": model("a", keep=1), "found": on_node("2", "12", allocated="1")},
        None,
    ),
    "nothing is superseded by a fetch that goes on": (
        {"desired": model("a", keep=1), "found": on_node("2", "12"), "fetched": "a"},
        None,
    ),
    "where what makes room is gone, superseded ones go": (
        {"desired": model("a", keep=1), "found": on_node("", "12"), "makes_room_for": "b"},
        RemoveSuperseded("a", 1),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_steps(case: str) -> None:
    more, want = STEPS[case]
    assert planned(**more).steps == (() if want is None else (want,))


def test_what_makes_room_and_what_it_is_made_for_are_not_fetched_before_there_is_room() -> None:
    models = {each: model(each) for each in "ab"}
    displaced = {"a": "b"}
    there, gone = on_node("1", "1"), on_node("", "")
    assert plan_cache(models, {"a": there}, fetching=Fetching(), displaced=displaced).fetch is None
    made = plan_cache(models, {"a": gone}, fetching=Fetching(), displaced=displaced)
    assert (made.fetch, made.displaced, made.offered) == (models["b"], {"a": "b"}, {"a": "", "b": ""})
    assert plan_cache(models, {"a": gone}, fetching=Fetching(running="b"), displaced=displaced).fetch is None


@pytest.mark.parametrize("ended", [{"checked_s": 9.0, "revision": "1"}, {"failed_s": 9.0, "failures": 1}])
def test_what_made_room_is_fetched_again_once_the_other_fetch_has_ended(ended: dict[str, Any]) -> None:
    models = {each: model(each) for each in "ba"}
    report = ObservedModel(name="b", identity=models["b"].identity, **ended)
    found = {"a": on_node("", ""), "b": on_node("1", "1") if "revision" in ended else on_node("", "")}
    plan = plan_cache(models, found, fetching=Fetching(now_s=9.5, histories=histories(b=report)), displaced={"a": "b"})
    assert (plan.displaced, plan.fetch) == ({}, models["a"])


def compared(**at_s: float) -> ModelOnNode:
    """Return a model whose revisions were compared with their digests then."""
    names = {f"{name.removeprefix('r')}": Verification(each) for name, each in at_s.items()}
    return ModelOnNode(ModelOnDisk(max(names), tuple(names), names))


def verified(models: dict[str, DesiredModel], found: dict[str, ModelOnNode], **fetching: Any) -> VerifyRevision | None:
    """Return what is compared at 1000 s, where all sources were checked."""
    reports = {each.name: ObservedModel(name=each.name, identity=each.identity) for each in models.values()}
    state = Fetching(now_s=1000.0, histories=histories(**reports), **fetching)
    return plan_cache(models, found, fetching=state, displaced={}).verify


def test_what_was_compared_with_its_digests_longest_ago_is_compared_next_while_nothing_is_fetched() -> None:
    models = {"a": model("a", verify_interval_s=100), "b": model("b", verify_interval_s=500), "c": model("c")}
    found = {"a": compared(r1=850.0, r2=901.0), "b": compared(r1=500.0), "c": compared(r1=0.0), "d": compared(r1=0.0)}
    assert verified(models, found) == VerifyRevision("b", "1")
    assert verified(models, {**found, "b": compared(r1=501.0)}) == VerifyRevision("a", "1")
    assert verified(models, {**found, "a": compared(r2=901.0), "b": compared(r1=501.0)}) is None
    assert verified(models, found, running="a") is None
    assert verified({**models, "new": model("new")}, found) is None, "one is fetched"


def test_a_damaged_revision_is_withheld_fetched_again_and_reported() -> None:
    desired = model("a", interval_s=9999, verify_interval_s=1)
    damaged = ModelOnDisk("2", ("1", "2"), {"1": Verification(9.0), "2": Verification(9.0, ("w.bin", "x"))})
    report = ObservedModel(name="a", identity=desired.identity, checked_s=1000.0)
    fetching = Fetching(now_s=1000.0, histories=histories(a=report))
    used = ModelOnNode(damaged, used=frozenset({"2"}))
    plan = plan_cache({"a": desired}, {"a": used}, fetching=fetching, displaced={})
    assert (plan.offered, plan.fetch, plan.verify) == ({"a": ""}, desired, None)
    assert plan.protected == {"a": frozenset({"2"})}, "pods keep it"
    assert withheld_reason(desired, damaged) == (
        "revision 2: 2 files differ from what was fetched (w.bin, ...): fetched again"
    )
    rollback = model("a", revision="1")
    plan = plan_cache({"a": rollback}, {"a": used}, fetching=fetching, displaced={})
    assert (plan.offered, withheld_reason(rollback, damaged)) == ({"a": "1"}, "")


def test_where_checksums_are_required_a_revision_that_none_verified_is_withheld_and_fetched_again() -> None:
    there = ModelOnDisk("2", ("1", "2"), unverified=frozenset("2"))
    for desired, offered in (
        (model("a", verification="Required"), ""),
        (model("a", verification="Required", revision="1"), "1"),
        (model("a"), "2"),
    ):
        report = ObservedModel(name="a", identity=desired.identity, checked_s=1000.0)
        fetching = Fetching(now_s=1000.0, histories=histories(a=report))
        plan = plan_cache({"a": desired}, {"a": ModelOnNode(there)}, fetching=fetching, displaced={})
        assert (plan.offered, plan.fetch) == ({"a": offered}, None if offered else desired)
        assert bool(withheld_reason(desired, there)) is not bool(offered)
    assert withheld_reason(model("a", verification="Required"), there) == (
        "revision 2: checksums of its source do not verify all of it, and spec.verification is Required: fetched again"
    )


INTERRUPTS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "of a higher priority": ({"priority": 1}, {}, True),
    "for which pods are pending": ({"has_pending_pods": True}, {}, True),
    "for which pods are pending, of a lower priority": ({"has_pending_pods": True}, {"priority": 1}, False),
    "for which pods are pending as for the other": ({"has_pending_pods": True}, {"has_pending_pods": True}, False),
    "that is as urgent": ({}, {}, False),
}


@pytest.mark.parametrize("case", INTERRUPTS)
def test_a_model_interrupts_the_fetch_of_another(case: str) -> None:
    first, running, want = INTERRUPTS[case]
    models = {"a": model("a", **first), "b": model("b", **running)}
    plan = plan_cache(models, {}, fetching=Fetching(running="b"), displaced={})
    assert (plan.steps, plan.fetch) == ((CancelFetch("b"),) if want else (), None)
    there = {"a": on_node("1", "1")}
    assert plan_cache(models, there, fetching=Fetching(running="b"), displaced={}).steps == (), "new pods get one"
    failed = ObservedModel(name="a", identity=models["a"].identity, failures=1)
    fetching = Fetching(now_s=1e6, running="b", histories=histories(a=failed))
    assert plan_cache(models, {}, fetching=fetching, displaced={}).steps == (), "it may fail again"


URGENCIES = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=5)


@given(URGENCIES, st.integers(0, 4), st.integers(1, 4))
def test_each_fetch_is_interrupted_by_more_urgent_ones_alone_and_all_models_are_fetched(
    urgencies: list[tuple[int, bool]], first: int, takes: int
) -> None:
    """Takes: of how many plans a fetch sees the end."""
    models = {
        f"m{number}": model(f"m{number}", priority=priority, has_pending_pods=waits)
        for number, (priority, waits) in enumerate(urgencies)
    }
    models = dict(sorted(models.items(), key=lambda each: (-each[1].priority, -each[1].has_pending_pods)))
    running, left, there, canceled = f"m{first % len(models)}", takes, dict[str, ModelOnNode](), 0
    reports: dict[str, ObservedModel] = {}
    for _ in range(3 * takes * len(models)):
        plan = plan_cache(
            models, there, fetching=Fetching(running=running, histories=histories(**reports)), displaced={}
        )
        if plan.steps:
            assert plan.steps == (CancelFetch(running),)
            next_ = plan_cache(models, there, fetching=Fetching(histories=histories(**reports)), displaced={}).fetch
            assert next_ is not None
            assert next_.urgency > models[running].urgency
            running, canceled = "", canceled + 1
        elif plan.fetch is not None:
            running, left = plan.fetch.name, takes
        elif running:
            left -= 1
            if not left:
                there[running] = on_node("1", "1")
                reports[running] = ObservedModel(name=running, identity=models[running].identity)
                running = ""
    assert there.keys() == models.keys()
    assert canceled <= 1, "what is fetched in order is interrupted by nothing"


DUE: dict[str, tuple[DesiredModel, ObservedModel | None, bool]] = {
    "one that was never checked": (model("a"), None, True),
    "one that is there": (model("a"), ObservedModel(name="a", revision="1", checked_s=1.0), False),
    "one that is to be checked again": (
        model("a", interval_s=60),
        ObservedModel(name="a", revision="1", checked_s=940.0),
        True,
    ),
    "one that was checked": (
        model("a", interval_s=60),
        ObservedModel(name="a", revision="1", checked_s=941.0),
        False,
    ),
    "one of a named revision": (
        model("a", interval_s=60, revision="1"),
        ObservedModel(name="a", revision="1", checked_s=1.0),
        False,
    ),
    "one that vanished from the disk": (model("a"), ObservedModel(name="a", checked_s=999.0), True),
    "one that failed a moment ago": (model("a"), ObservedModel(name="a", failures=1, failed_s=991.0), False),
    "one that failed": (model("a"), ObservedModel(name="a", failures=1, failed_s=990.0), True),
    "one that failed twice": (model("a"), ObservedModel(name="a", failures=2, failed_s=990.0), False),
}


@given(st.floats(0, 2e9), st.floats(0, 2e9), st.integers(0, 12))
def test_whatever_the_clock_showed_when_it_was_noted_nothing_waits_longer_than_two_pauses(
    noted_s: float, now_s: float, failures: int
) -> None:
    desired = model("a", interval_s=60, verify_interval_s=60)
    pause_s = fetch_backoff_s(failures) if failures else 60.0
    backoff = msgspec.structs.replace(fetch_history("a"), backoff=RoomBackoff(1, noted_s))

    def plan(now_s: float, checked_s: float) -> CachePlan:
        report = ObservedModel(name="a", identity=desired.identity, revision="1", checked_s=checked_s)
        if checked_s == noted_s:
            report = msgspec.structs.replace(report, failed_s=noted_s, failures=failures)
        fetching = Fetching(now_s=now_s, histories=histories(a=report))
        return plan_cache({"a": desired}, {"a": compared(r1=noted_s)}, fetching=fetching, displaced={})

    assert plan(now_s, noted_s).fetch or plan(now_s + 2 * pause_s, noted_s).fetch
    assert plan(now_s, now_s + 1).verify or plan(now_s + 121, now_s + 121).verify
    assert None in (backoff.room_backoff(now_s), backoff.room_backoff(now_s + 7201))


@pytest.mark.parametrize("case", DUE)
def test_what_is_due_is_fetched(case: str) -> None:
    desired, found, want = DUE[case]
    if found is not None:
        found = msgspec.structs.replace(found, identity=desired.identity)

    def fetched(desired: DesiredModel) -> bool:
        there = {} if found is None else {"a": ModelOnNode(ModelOnDisk(found.revision, (found.revision,)))}
        fetching = Fetching(now_s=1000.0, histories={} if found is None else histories(a=found))
        return plan_cache({"a": desired}, there, fetching=fetching, displaced={}).fetch is not None

    assert fetched(desired) is want
    if not want:
        changed = model("a", include=("*.bin",), interval_s=desired.interval_s, revision=desired.revision)
        assert fetched(changed), "another source is checked at once"


@pytest.mark.parametrize("now_s", [0.0, 1e9])
def test_an_error_of_the_disk_makes_nothing_due_and_changes_nothing_that_is_fetched_once(now_s: float) -> None:
    once, follows = model("a"), model("a", interval_s=60)
    at_its_revision = model("a", revision="1")

    def fetched(desired: DesiredModel, found: ModelOnDisk | None, *failing: str) -> bool:
        report = ObservedModel(name="a", state="Ready", identity=desired.identity, checked_s=1.0)
        fetching = Fetching(now_s=now_s, histories=histories(a=report), failing=frozenset(failing))
        there = {} if found is None else {"a": ModelOnNode(found)}
        return plan_cache({"a": desired}, there, fetching=fetching, displaced={}).fetch is not None

    for desired in (once, follows, at_its_revision):
        assert fetched(desired, None)
        assert not fetched(desired, None, "a")
        assert not fetched(desired, ModelOnDisk("", ()), "a")
    unreadable = ModelOnDisk("", (), unreadable={"1": "EIO"}, unreadable_current="1")
    assert not fetched(once, unreadable)
    assert not fetched(at_its_revision, unreadable)
    assert fetched(follows, unreadable) == (now_s > 60)
    former = msgspec.structs.replace(unreadable, unreadable_current="")
    assert fetched(once, former), "there is no current one"
    assert not fetched(at_its_revision, former)
    assert unreadable_reason(once, unreadable) == unreadable_reason(at_its_revision, former) == "EIO"
    assert unreadable_reason(once, former) == ""


def test_a_revision_whose_manifest_is_broken_stays_pinned_while_a_pod_has_it() -> None:
    found = ModelOnDisk("2", ("2",), unreadable={"0": "EIO"}, broken=frozenset("1"))
    for used, pinned in (("1", "12"), ("0", "2"), ("", "2")):
        plan = planned(model("a"), ModelOnNode(found, used=frozenset(used)))
        assert (plan.protected["a"], plan.steps) == (frozenset(pinned), ())
        gone = planned(None, ModelOnNode(found, used=frozenset(used)))
        assert gone.steps == (() if used else (RemoveModel("a"),))


def subsets(of: str) -> Iterator[str]:
    return ("".join(each) for each in chain.from_iterable(combinations(of, size) for size in range(len(of) + 1)))


def small_cases() -> Iterator[tuple[DesiredModel | None, ModelOnNode, str, str]]:
    """Yield every case of one model with up to two revisions."""
    models = [None, *(model("a", revision=each, keep=keep) for each in ("", "1", "2") for keep in (1, 2))]
    for revisions in subsets("12"):
        readers = list(subsets(revisions))
        for current, held, listed in product(("", *revisions), readers, (None, *readers)):
            found = on_node(current, revisions, held, listed)
            for each, fetched, makes_room_for in product(models, ("", "a"), ("", "b", "gone")):
                yield each, found, fetched, makes_room_for


def test_all_small_cases() -> None:
    cases = 0
    for desired, found, fetched, makes_room_for in small_cases():
        cases += 1
        plan = planned(desired, found, fetched=fetched, makes_room_for=makes_room_for)
        there, offered = found.on_disk, plan.offered.get("a", "")
        # 1. What is desired and there is offered, unless it makes room for what is desired.
        wants = (desired.revision or there.current) if desired else ""
        displaced = makes_room_for == "b" and (not there.current or there.current not in found.used)
        assert offered == (wants if wants in there.revisions and not displaced else "")
        assert plan.displaced == ({"a": "b"} if displaced else {})
        # 2. What a pod has, or may get, is protected, and nothing else is.
        readers = found.used | (found.listed or frozenset())
        assert plan.protected["a"] == readers | ({offered} - {""})
        # 3. What goes is none of it, and none of what is desired unless it makes room.
        match plan.steps:
            case ():
                assert desired or readers or found.listed is not None, "what nobody needs goes"
            case (CancelFetch(),):
                assert (desired, fetched) == (None, "a")
            case (RemoveModel(),):
                assert (desired, readers, fetched) == (None, frozenset(), "")
            case (EvictRevision(_, revision, other),):
                assert revision == there.current
                assert revision not in plan.protected["a"]
                assert (displaced, other, found.listed) == (True, "b", None)
            case (RemoveSuperseded(_, keep),):
                assert set(there.revisions) - plan.protected["a"] - {there.current}
                assert desired
                assert keep == desired.keep < len(there.revisions)
                assert fetched == ""
            case _:
                raise AssertionError(plan.steps)
    assert cases == 7 * 2 * 3 * (1 * 1 * 2 + 2 * 2 * 3 * 2 + 3 * 4 * 5)


NAMES = ("a", "b")


class Node(RuleBasedStateMachine):
    """A node with two models, whose kubelet, pods and fetches do what they may at any time between two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.desired: dict[str, DesiredModel] = {}
        self.revisions: dict[str, list[str]] = {}
        """Of each model on the disk, the latest last."""
        self.current: dict[str, str] = {}
        self.pins: dict[str, frozenset[str]] = {}
        self.offered: dict[str, str] = {}
        self.withdrawn: set[tuple[str, str]] = set()
        """What is offered no more and the kubelet may still choose."""
        self.pods: list[tuple[str, str]] = []
        self.fetched = ""
        self.displaced: dict[str, str] = {}
        self.now_s = 0.0
        self.histories: dict[str, FetchHistory] = {}
        self.staged: dict[str, int] = {}
        """Bytes of fetches that were interrupted or failed."""
        self.damaged: set[tuple[str, str]] = set()
        """Revisions that differ from what was fetched."""
        self.plan: CachePlan | None = None
        """What is planned and not done yet."""
        self.made = 0

    # What the kubelet may give, and what the node observes

    def choosable(self) -> set[tuple[str, str]]:
        return self.withdrawn | {(name, each) for name, each in self.offered.items() if each}

    def on_disk(self) -> dict[str, ModelOnNode]:
        may, found = self.choosable(), {}
        for name, revisions in self.revisions.items():
            listed = frozenset(each for one, each in may if one == name)
            held = frozenset(each for one, each in self.pods if one == name)
            damaged = {each: Verification(0.0, ("w",)) for each in revisions if (name, each) in self.damaged}
            there = ModelOnDisk(self.current[name], tuple(revisions), damaged)
            kept = tuple(RevisionOnDisk(each, last_used=place, own_bytes=1) for place, each in enumerate(revisions))
            found[name] = ModelOnNode(there, held, listed or None, kept, self.staged.get(name, 0))
        return found

    def kept(self, name: str) -> tuple[RevisionOnDisk, ...]:
        stay = self.pins.get(name, frozenset()) | {self.current[name]}
        return tuple(
            RevisionOnDisk(each, last_used=place, own_bytes=1, protected="stays" if each in stay else "")
            for place, each in enumerate(self.revisions[name])
        )

    # What happens on its own

    @rule(
        names=st.frozensets(st.sampled_from(NAMES)),
        keep=st.integers(1, 2),
        priorities=st.permutations((0, 1)),
        named=st.sampled_from(("", *NAMES)),
        awaited=st.frozensets(st.sampled_from(NAMES)),
    )
    def desire(
        self, names: frozenset[str], keep: int, priorities: list[int], named: str, awaited: frozenset[str]
    ) -> None:
        """The controller says what the node shall have; of one model perhaps its oldest revision."""
        first = {name: each[0] for name, each in self.revisions.items() if name == named and each}
        self.desired = {
            each: model(
                each, keep=keep, priority=priority, revision=first.get(each, ""), has_pending_pods=each in awaited
            )
            for each, priority in zip(NAMES, priorities, strict=True)
            if each in names
        }
        self.histories = {each: self.history(each) for each in self.desired}

    @rule(data=st.data())
    @precondition(lambda self: self.choosable())
    def admit(self, data: st.DataObject) -> None:
        self.pods.append(data.draw(st.sampled_from(sorted(self.choosable()))))

    @rule(data=st.data())
    @precondition(lambda self: self.pods)
    def pod_ends(self, data: st.DataObject) -> None:
        self.pods.remove(data.draw(st.sampled_from(self.pods)))

    @rule(data=st.data())
    @precondition(lambda self: self.withdrawn)
    def kubelet_lets_go(self, data: st.DataObject) -> None:
        self.withdrawn.remove(data.draw(st.sampled_from(sorted(self.withdrawn))))

    @rule()
    @precondition(lambda self: self.fetched)
    def fetch_succeeds(self) -> None:
        """What is fetched is the current one, unless another is named; the fetch itself removes what is superseded."""
        name, self.fetched, self.made = self.fetched, "", self.made + 1
        self.staged.pop(name, None)
        desired = self.desired.get(name)
        here = desired is not None and desired.revision in self.revisions.get(name, ())
        if desired is not None and here and (name, desired.revision) not in self.damaged:
            self.current[name] = desired.revision  # it is not fetched
            self.histories[name] = self.history(name).fetched(self.now_s)
            return
        self.revisions.setdefault(name, []).append(f"{self.made:03}")
        self.current.setdefault(name, "")
        if desired is None or not desired.revision:
            self.current[name] = self.revisions[name][-1]
        for each in superseded(self.kept(name), desired.keep if desired is not None else 2):
            self.revisions[name].remove(each)
        if desired is not None and desired.revision:
            self.histories[name] = self.history(name).failed("another revision", self.now_s, 0)
        elif desired is not None:
            self.histories[name] = self.history(name).fetched(self.now_s)

    @rule(data=st.data())
    @precondition(lambda self: self.fetched in self.desired)
    def fetch_needs_room(self, data: st.DataObject) -> None:
        name, self.fetched = self.fetched, ""
        self.histories[name] = self.history(name).lacked_room(data.draw(st.integers(1, 3)), 0)

    @rule(staged=st.integers(0, 3))
    @precondition(lambda self: self.fetched in self.desired)
    def fetch_fails(self, staged: int) -> None:
        name = self.fetched
        self.histories[name] = self.history(name).failed("403 Forbidden", self.now_s, staged)
        self.fetch_ends(staged)

    def fetch_ends(self, staged: int) -> None:
        """End a fetch, which leaves so many bytes for the next one."""
        self.revisions.setdefault(self.fetched, [])
        self.current.setdefault(self.fetched, "")
        self.staged[self.fetched] = staged
        self.fetched = ""

    @rule(data=st.data())
    @precondition(lambda self: any(self.revisions.values()))
    def disk_rots(self, data: st.DataObject) -> None:
        there = [(name, each) for name, revisions in sorted(self.revisions.items()) for each in revisions]
        self.damaged.add(data.draw(st.sampled_from(there)))

    @rule()
    def time_passes(self) -> None:
        self.now_s += 1000.0

    def history(self, name: str) -> FetchHistory:
        return (self.histories.get(name) or fetch_history(name)).of(self.desired[name].identity)

    # What the node does: look, then act, while other things happen

    @rule(free_bytes=st.integers(-3, 9))
    @precondition(lambda self: self.plan is None)
    def look(self, free_bytes: int = 0) -> None:
        found = self.on_disk()
        known = {name: self.history(name) for name in self.desired}
        fetching = Fetching(self.now_s, self.fetched, known, free_bytes=free_bytes)
        former = self.displaced
        self.plan = plan = plan_cache(self.desired, found, fetching=fetching, displaced=self.displaced)
        self.displaced = dict(plan.displaced)
        if self.fetched in self.desired and CancelFetch(self.fetched) in plan.steps:
            most = max(each.urgency for each in self.desired.values())
            assert self.desired[self.fetched].urgency < most, "only a less urgent fetch is interrupted"
        assert self.damaged.isdisjoint(plan.offered.items()), "what is damaged is offered to no new pod"
        backoffs = {name: each.backoff for name, each in fetching.histories.items() if each.backoff is not None}
        paused = {name for name, each in backoffs.items() if self.now_s - each.failed_s < 3600.0}
        made_for = {each.makes_room_for for each in plan.steps if isinstance(each, RemoveStaged)}
        made_for |= {other for name, other in plan.displaced.items() if former.get(name) != other}
        assert paused.isdisjoint(made_for), "nothing makes room for a model in its back-off"
        for name, missing in plan.refused.items():
            if name in backoffs:
                continue
            freed = sum(self.staged[each] for each in self.less_urgent(name))
            assert freed <= fetching.needs[name] - missing, "what is not complete stops no more urgent model"
        for step in plan.steps:
            assert not isinstance(step, RemoveStaged) or step.model in self.less_urgent(step.makes_room_for)
        for name in fetching.needs:
            refused = name in plan.refused
            history = self.history(name)
            self.histories[name] = (
                history.refused("no room", self.now_s, plan.refused[name]) if refused else history.room_made()
            )

    def less_urgent(self, name: str) -> list[str]:
        """Return the models with bytes of a fetch that is over, which are less urgent than this one."""
        urgency, desired = self.desired[name].urgency, self.desired
        refused = {each for each, history in self.histories.items() if history.room == "Refused"}
        less = (
            each for each in self.staged if each not in desired or each in refused or desired[each].urgency < urgency
        )
        return [each for each in less if each not in {name, self.fetched}]

    @rule(data=st.data())
    @precondition(lambda self: self.plan is not None)
    def act(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(["", self.acted()]))
        if chosen and not self.fetched:
            self.fetched = chosen
            if chosen in self.desired:
                self.histories[chosen] = self.history(chosen).begun()

    def acted(self) -> str:
        """Do what is planned; return the model that may be fetched then, if any."""
        assert self.plan is not None
        plan, self.plan = self.plan, None
        former, self.pins = self.choosable(), dict(plan.protected)
        self.offered = {name: each for name, each in plan.offered.items() if each in self.revisions.get(name, ())}
        self.withdrawn = former - set(self.offered.items())
        for step in plan.steps:
            match step:
                case CancelFetch(name):
                    if self.fetched == name:
                        self.fetch_ends(staged=2)
                case RemoveModel(name):
                    del self.revisions[name], self.current[name]
                    self.staged.pop(name, None)
                case RemoveStaged(name, _):
                    assert name != self.fetched
                    del self.staged[name]
                case EvictRevision(name, revision, _):
                    self.revisions[name].remove(revision)
                    if self.current[name] == revision:
                        self.current[name] = ""
                case RemoveSuperseded(name, keep):
                    for each in superseded(self.kept(name), keep):
                        self.revisions[name].remove(each)
        return plan.fetch.name if plan.fetch is not None else ""

    # Laws

    @invariant()
    def what_pods_have_or_may_get_is_there(self) -> None:
        for name, revision in {*self.pods, *self.choosable()}:
            assert revision in self.revisions.get(name, ()), (name, revision)

    def teardown(self) -> None:
        """Once nothing happens any more, the steps end, and the node has what is desired, and what pods have."""
        for _ in range(40):
            if self.fetched:
                self.fetch_succeeds()
            if self.plan is None:
                self.look()
            self.fetched = self.acted()
            self.withdrawn.clear()
            self.now_s += 1000.0
        self.look()
        assert self.plan is not None
        assert (self.plan.steps, self.plan.displaced) == ((), {})
        whole = {(name, one) for name, each in self.revisions.items() for one in ("", *each)} - self.damaged
        lost = {name for name, each in self.desired.items() if (name, each.revision) not in whole}
        assert self.fetched in {"", *lost}, "a named revision that no source has is tried again and again"
        held = {name for name, _ in self.pods}
        assert set(self.revisions) <= {*self.desired, *held}
        for name, each in self.desired.items():
            revision = each.revision or self.current.get(name)
            assert revision, "what is desired is fetched"
            assert (name, revision) not in whole or self.offered[name] == revision, "and offered"
            there = set(self.revisions.get(name, ()))
            assert len(there) <= each.keep or there == self.pins[name] | ({self.current[name]} - {""})


def test_whatever_happens_nothing_is_removed_that_a_pod_has_or_may_get() -> None:
    run_state_machine_as_test(Node, settings=settings(max_examples=200, stateful_step_count=40, deadline=None))
