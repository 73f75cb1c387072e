"""What a node offers, protects and removes of its models: all small cases, and any order of what happens to it."""

from collections.abc import Iterator
from itertools import chain, combinations, product
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tessera.core.storage.models.cache import CachedModel, DesiredModel, victims
from tessera.core.storage.models.cacheplan import (
    AbandonFetch,
    CachePlan,
    EvictRevision,
    ModelOnNode,
    OnDisk,
    RemoveModel,
    RemoveSuperseded,
    deferred_fetches,
    plan_cache,
    waiting_for_room,
)
from tessera.core.storage.models.retention import Kept, superseded
from tessera.errors import Unavailable


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def on_node(current: str, revisions: str, held: str = "", listed: str | None = None) -> ModelOnNode:
    """Return a model whose revisions are single letters."""
    there = OnDisk(current, tuple(revisions))
    return ModelOnNode(there, frozenset(held), None if listed is None else frozenset(listed))


def planned(
    desired: DesiredModel | None, found: ModelOnNode | None, *, fetched: str = "", makes_room_for: str = ""
) -> CachePlan:
    """Return what is planned for model `a`, where `b` is desired, too."""
    models = {each.name: each for each in (desired, model("b")) if each is not None}
    displaced = {"a": makes_room_for} if makes_room_for else {}
    return plan_cache(models, {} if found is None else {"a": found}, fetched=fetched, displaced=displaced)


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
    "what a pod has stays": ({"desired": None, "found": on_node("1", "1", held="1")}, None),
    "what the kubelet may give stays": ({"desired": None, "found": on_node("1", "1", listed="1")}, None),
    "a resource that the kubelet has not let go of yet keeps its model": (
        {"desired": None, "found": on_node("1", "1", listed="")},
        None,
    ),
    "a fetch that nobody needs ends before its model goes": (
        {"desired": None, "found": on_node("", ""), "fetched": "a"},
        AbandonFetch("a"),
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
        {"desired": model("a"), "found": on_node("1", "1", held="1"), "makes_room_for": "b"},
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
        {"desired": model("a", keep=1), "found": on_node("2", "12", held="1")},
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
    displaced = {"a": "b", "c": "d", "e": "f"}
    found = {"a": on_node("1", "1"), "c": on_node("", "1")}
    assert waiting_for_room(displaced, found) == {"a": "b"}
    assert deferred_fetches(displaced, found) == {"a", "b", "c", "e"}


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
        there, offered = found.there, plan.offered.get("a", "")
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
            case (AbandonFetch(),):
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
        self.plan: tuple[CachePlan, dict[str, ModelOnNode]] | None = None
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
            there = OnDisk(self.current[name], tuple(revisions))
            found[name] = ModelOnNode(there, held, listed or None)
        return found

    def kept(self, name: str) -> tuple[Kept, ...]:
        stay = self.pins.get(name, frozenset()) | {self.current[name]}
        return tuple(
            Kept(each, last_used=place, own_bytes=1, protected="stays" if each in stay else "")
            for place, each in enumerate(self.revisions[name])
        )

    # What happens on its own

    @rule(
        names=st.frozensets(st.sampled_from(NAMES)),
        keep=st.integers(1, 2),
        priorities=st.permutations((0, 1)),
        named=st.sampled_from(("", *NAMES)),
    )
    def desire(self, names: frozenset[str], keep: int, priorities: list[int], named: str) -> None:
        """The controller says what the node shall have; of one model perhaps its oldest revision."""
        first = {name: each[0] for name, each in self.revisions.items() if name == named and each}
        self.desired = {
            each: model(each, keep=keep, priority=priority, revision=first.get(each, ""))
            for each, priority in zip(NAMES, priorities, strict=True)
            if each in names
        }

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
        """What is fetched is the current one; the fetch itself removes what is superseded."""
        name, self.fetched, self.made = self.fetched, "", self.made + 1
        self.revisions.setdefault(name, []).append(f"{self.made:03}")
        self.current[name] = self.revisions[name][-1]
        for each in superseded(self.kept(name), self.desired[name].keep if name in self.desired else 2):
            self.revisions[name].remove(each)
        self.displaced = {one: other for one, other in self.displaced.items() if other != name}

    @rule()
    @precondition(lambda self: self.fetched in self.desired)
    def fetch_needs_room(self) -> None:
        name, self.fetched = self.fetched, ""
        this = CachedModel(name=name, current="", kept=(), priority=self.desired[name].priority)
        others = [
            CachedModel(
                name=each,
                current=self.current[each],
                kept=self.kept(each),
                used=found.used,
                priority=self.desired[each].priority if each in self.desired else -1,
            )
            for each, found in self.on_disk().items()
            if each != name
        ]
        most = sum(len(each.kept) for each in others)
        for missing in range(most, 0, -1):
            try:
                chosen = victims(this, others, missing_bytes=missing, subject="disk")
            except Unavailable:
                continue  # there is less that may go
            for victim in chosen:
                if victim.current:
                    self.displaced[victim.model] = name
                else:
                    self.revisions[victim.model].remove(victim.revision)
            return

    # What the node does: look, then act, while other things happen

    @rule()
    @precondition(lambda self: self.plan is None)
    def look(self) -> None:
        found = self.on_disk()
        plan = plan_cache(self.desired, found, fetched=self.fetched, displaced=self.displaced)
        self.displaced = dict(plan.displaced)
        self.plan = plan, found

    @rule(data=st.data())
    @precondition(lambda self: self.plan is not None)
    def act(self, data: st.DataObject) -> None:
        self.fetched = self.fetched or data.draw(st.sampled_from(["", *self.acted()]))

    def acted(self) -> list[str]:
        """Do what is planned; return the models that may be fetched then, those that are not there first."""
        assert self.plan is not None
        (plan, found), self.plan = self.plan, None
        former, self.pins = self.choosable(), dict(plan.protected)
        self.offered = {name: each for name, each in plan.offered.items() if each in self.revisions.get(name, ())}
        self.withdrawn = former - set(self.offered.items())
        for step in plan.steps:
            match step:
                case AbandonFetch(name):
                    self.fetched = "" if self.fetched == name else self.fetched
                case RemoveModel(name):
                    del self.revisions[name], self.current[name]
                case EvictRevision(name, revision, _):
                    self.revisions[name].remove(revision)
                    self.current[name] = ""
                case RemoveSuperseded(name, keep):
                    for each in superseded(self.kept(name), keep):
                        self.revisions[name].remove(each)
        candidates = set(self.desired) - deferred_fetches(self.displaced, found)
        return sorted(candidates, key=lambda name: (bool(plan.offered.get(name)), name))

    def is_due(self, name: str) -> bool:
        """Return whether a model is to be fetched: room is made for it, or what its source has is not there."""
        return name in self.displaced.values() or not (self.desired[name].revision or self.current.get(name))

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
            due = (each for each in self.acted() if self.is_due(each))
            self.fetched = next(due, "")
            self.withdrawn.clear()
        self.look()
        assert self.plan is not None
        assert (self.plan[0].steps, self.fetched) == ((), "")
        held = {name for name, _ in self.pods}
        assert set(self.revisions) <= {*self.desired, *held}
        for name, each in self.desired.items():
            revision = each.revision or self.current[name]
            assert revision, "what is desired is fetched"
            assert revision not in self.revisions.get(name, ()) or self.offered[name] == revision, "and offered"
            there = set(self.revisions.get(name, ()))
            assert len(there) <= each.keep or there == self.pins[name] | {self.current[name]}


def test_whatever_happens_nothing_is_removed_that_a_pod_has_or_may_get() -> None:
    run_state_machine_as_test(Node, settings=settings(max_examples=200, stateful_step_count=40, deadline=None))
