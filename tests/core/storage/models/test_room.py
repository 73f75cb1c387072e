"""How other models make room for one that does not fit: what goes, in which order, and what must stay."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.cachedmodels import MIB, ONE, TWO, histories, model, needing, there
from tessera.core.storage.models.cachedmodels import Fetching, ModelOnDisk, ModelOnNode
from tessera.core.storage.models.cacheplan import CachePlan, plan_cache
from tessera.core.storage.models.fetchhistory import FetchHistory, RoomBackoff, fetch_history
from tessera.core.storage.models.nodemodels import DesiredModel, ObservedModel
from tessera.core.storage.models.retention import LinkedFile, RevisionOnDisk, freed_bytes
from tessera.core.storage.models.room import EvictRevision, RemoveStaged


def room_for(missing: int, found: dict[str, ModelOnNode], *others: DesiredModel, priority: int = 5) -> CachePlan:
    """Return what is planned where a model `big` did not fit."""
    desired = {each.name: each for each in (model("big", priority=priority), *others)}
    return plan_cache(desired, found, fetching=Fetching(histories={"big": needing(missing)}), displaced={})


def evicted(plan: CachePlan) -> list[tuple[str, str]]:
    return [(each.model, each.revision) for each in plan.steps if isinstance(each, EvictRevision)]


def test_room_is_made_by_what_no_new_pod_gets_and_then_by_lower_priorities() -> None:
    found = {
        "a": there(RevisionOnDisk(ONE, 9.0, 10), RevisionOnDisk(TWO, 5.0, 10)),
        "b": there(RevisionOnDisk(ONE, 9.0, 10), RevisionOnDisk(TWO, 4.0, 10)),
    }
    models = model("a", priority=3), model("b", priority=1)
    plan = room_for(11, found, *models)
    assert (evicted(plan), plan.displaced, plan.refused) == ([("b", TWO), ("a", TWO)], {}, {})
    assert plan.fetch is not None
    assert plan.fetch.name == "big", "in the room that is made at once"
    plan = room_for(21, found, *models)
    assert (len(evicted(plan)), plan.displaced, plan.offered) == (2, {"b": "big"}, {"a": ONE, "b": "", "big": ""})
    assert plan.fetch == models[0], "there is no room for the other yet"
    assert room_for(31, found, *models).displaced == {"a": "big", "b": "big"}
    plan = room_for(41, found, *models)
    assert (evicted(plan), plan.displaced, plan.refused, plan.fetch) == ([], {}, {"big": 1}, models[0])


def test_room_is_made_first_by_what_less_urgent_models_have_not_fetched_completely() -> None:
    found = {
        "a": ModelOnNode(ModelOnDisk("", ()), staged_bytes=10),
        "b": there(RevisionOnDisk(ONE, 9.0, 10), RevisionOnDisk(TWO, 4.0, 10), staged_bytes=10),
        "gone": ModelOnNode(ModelOnDisk("", ()), used=frozenset("1"), staged_bytes=10),
    }
    models = model("a", priority=1), model("b", priority=1, has_pending_pods=True, pinned=True)
    order: list[RemoveStaged | EvictRevision] = [RemoveStaged(name, "big") for name in ("gone", "a", "b")]
    order.append(EvictRevision("b", TWO, "big"))
    for count in range(1, 5):
        plan = room_for(10 * count, found, *models)
        assert (plan.steps, plan.displaced, plan.refused) == (tuple(order[:count]), {}, {})
        assert plan.fetch is not None
        assert plan.fetch.name == "big", "in the room that is made at once"
    plan = room_for(41, found, *models)
    assert (plan.steps, plan.refused) == ((), {"big": 1}), "nothing goes for what does not fit even then"


STAGED_STAYS: dict[str, tuple[dict[str, Any], str]] = {
    "that is fetched": ({}, "a"),
    "that is as urgent": ({"priority": 5}, ""),
    "that is more urgent": ({"priority": 6}, ""),
    "that pods wait for": ({"priority": 5, "has_pending_pods": True}, ""),
}


@pytest.mark.parametrize("case", STAGED_STAYS)
def test_no_room_is_made_by_what_was_fetched_so_far_of_a_model(case: str) -> None:
    more, running = STAGED_STAYS[case]
    desired = {each.name: each for each in (model("big", priority=5), model("a", **more))}
    found = {each: ModelOnNode(ModelOnDisk("", ()), staged_bytes=9) for each in ("a", "big")}
    plan = plan_cache(desired, found, fetching=Fetching(running=running, histories={"big": needing(9)}), displaced={})
    assert (plan.refused, [each for each in plan.steps if isinstance(each, RemoveStaged)]) == ({"big": 9}, [])


@pytest.mark.parametrize("priority", range(4))
def test_what_was_fetched_of_a_model_that_has_too_little_room_makes_room_for_any(priority: int) -> None:
    """Else two models that do not fit keep each other from the disk for ever."""
    models = model("a", priority=2, has_pending_pods=True), model("b", priority=priority)
    desired = {each.name: each for each in models}
    found = {"a": ModelOnNode(ModelOnDisk("", ()), staged_bytes=9)}

    tried = fetch_history("a").of(desired["a"].identity).lacked_room(9, 0).refused("no room", 0.0, 9)

    def plan(tried: FetchHistory, running: str = "") -> CachePlan:
        fetching = Fetching(running=running, histories={"a": tried, "b": needing(9)})
        return plan_cache(desired, found, fetching=fetching, displaced={})

    made = plan(tried)
    assert (made.steps, made.refused, made.fetch) == ((RemoveStaged("a", "b"),), {}, desired["b"])
    assert plan(tried, running="a").refused == {"b": 9}
    failed = tried.begun().failed("403 Forbidden", 0.0, 1)
    assert (plan(failed).refused == {}) is (priority == 3), "one that has failed otherwise is fetched on"


def test_room_is_made_by_revisions_that_share_their_files() -> None:
    weights = LinkedFile((0, 1), 8 * MIB, 2)
    low = there(RevisionOnDisk(ONE, 9.0, 4096, "", (weights,)), RevisionOnDisk(TWO, 5.0, 4096, "", (weights,)))
    plan = room_for(4 * MIB, {"low": low}, model("low"))
    assert (evicted(plan), plan.displaced) == ([("low", TWO)], {"low": "big"})


HERE = RevisionOnDisk(ONE, 1.0, 10)


STAYS: dict[str, tuple[DesiredModel, ModelOnNode]] = {
    "of its own priority": (model("a", priority=5), there(HERE)),
    "of a higher one": (model("a", priority=6), there(HERE)),
    "that is pinned": (model("a", pinned=True), there(HERE)),
    "that pods have": (model("a"), there(HERE, used=frozenset({ONE}))),
    "that a process reads": (model("a"), there(RevisionOnDisk(ONE, 1.0, 10, "in use by process 17"))),
    "whose former revision pods have": (model("a"), there(RevisionOnDisk(TWO, 1.0, 10), used=frozenset({TWO}))),
    "whose former revision a pod may get": (model("a"), there(RevisionOnDisk(TWO, 1.0, 10), listed=frozenset({TWO}))),
    "whose revision is named": (model("a", revision=TWO), there(RevisionOnDisk(TWO, 1.0, 10))),
}


@pytest.mark.parametrize("case", STAYS)
def test_no_room_is_made_by_a_model(case: str) -> None:
    desired, found = STAYS[case]
    assert room_for(1, {"a": found}, desired).refused == {"big": 1}


def test_another_makes_room_where_the_disk_refused_to_remove_a_model() -> None:
    found = {
        "a": there(HERE, staged_bytes=10, is_stuck=True),
        "b": there(HERE, staged_bytes=10),
    }
    models = model("a", priority=1), model("b", priority=2)
    plan = room_for(15, found, *models)
    assert (plan.displaced, plan.steps) == ({"b": "big"}, (RemoveStaged("b", "big"),))
    assert room_for(25, found, *models).refused == {"big": 5}


@pytest.mark.parametrize("stuck", [*"abc", ""])
@pytest.mark.parametrize("deleted", list(product([False, True], repeat=3)), ids=str)
def test_whatever_model_cannot_be_removed_a_more_urgent_one_comes_exactly_where_it_fits_in_place_of_the_others(
    deleted: tuple[bool, ...], stuck: str
) -> None:
    sizes = {"a": 10, "b": 20, "c": 40}
    others = [model(name) for name, is_deleted in zip(sizes, deleted, strict=True) if not is_deleted]
    for needed in range(5, 80, 10):
        left, history, refusing, displaced = dict(sizes), needing(needed), False, dict[str, str]()
        desired = {each.name: each for each in (model("big", priority=5), *others)}
        for step in range(12):
            found = {
                name: there(
                    RevisionOnDisk(ONE, 1.0, size),
                    used=frozenset(),
                    is_stuck=refusing and name == stuck,
                )
                for name, size in left.items()
            }
            plan = plan_cache(
                desired, found, fetching=Fetching(600.0 * step, histories={"big": history}), displaced=displaced
            )
            displaced = dict(plan.displaced)
            if history.room == "Needed":
                history = (
                    history.refused("", 600.0 * step, plan.refused["big"]) if plan.refused else history.room_made()
                )
            for each in plan.steps:
                refusing = refusing or each.model == stuck
                if each.model == stuck and isinstance(each, EvictRevision):
                    history = history.put_off("EIO", 600.0 * step)
                elif each.model != stuck:
                    left.pop(each.model)
            if plan.fetch == desired["big"]:
                history = history.begun().lacked_room(needed - sum(sizes.values()) + sum(left.values()), 0)
                if history.missing_bytes <= 0:
                    break
        assert (history.missing_bytes <= 0) == (sum(size for name, size in sizes.items() if name != stuck) >= needed)


def test_a_model_that_lacked_room_is_fetched_as_soon_as_the_disk_has_it_beside_what_others_make() -> None:
    big, low = model("big", priority=5), model("low")
    desired, refused = {"big": big, "low": low}, 0
    ready = histories(low=ObservedModel(name="low", state="Ready", identity=low.identity, checked_s=1.0))
    for free, others, missing in product(range(-3, 4), range(4), range(1, 8)):
        history = fetch_history("big").of(big.identity).lacked_room(missing, free)
        found = {"low": there(RevisionOnDisk(ONE, 1.0, others))}

        def planned_at(
            free_bytes: int, history: FetchHistory, found: dict[str, ModelOnNode], displaced: Mapping[str, str] = {}
        ) -> CachePlan:
            fetching = Fetching(1.0, histories={"big": history, **ready}, free_bytes=free_bytes)
            return plan_cache(desired, found, fetching=fetching, displaced=displaced)

        plan = planned_at(free, history, found)
        if plan.refused:
            refused += 1
            history = history.refused("no room", 0.0, plan.refused["big"])
            for growth in range(9):
                case = free, others, missing, growth
                fetch = planned_at(free + growth, history, found).fetch
                assert (fetch == big) == (others + growth >= missing), case
                if fetch != big or growth >= missing:
                    continue
                # It begins, and the other makes room for it, without a pause.
                again = history.begun().lacked_room(missing - growth, free + growth)
                plan = planned_at(free + growth, again, found)
                assert (plan.refused, plan.displaced) == ({}, {"low": "big"}), case
                made = again.room_made("evicting low")
                plan = planned_at(free + growth, made, found, plan.displaced)
                assert plan.steps == (EvictRevision("low", ONE, "big"),), case
                assert planned_at(free + growth + others, made, {}, plan.displaced).fetch == big, case
    assert refused > 100


def test_a_model_that_makes_no_room_in_any_case_is_not_named_where_the_disk_refuses_to_remove_it() -> None:
    found = {name: there(HERE, is_stuck=True) for name in "abc"}
    found["d"] = there(HERE)
    plan = room_for(25, found, model("a", priority=6), model("b"), model("d"))
    assert (plan.refused, plan.stuck) == ({"big": 15}, {"big": frozenset("bc")})


def test_what_makes_room_for_two_models_is_removed_once() -> None:
    desired = {
        each.name: each for each in (model("big", priority=5), model("huge", priority=5), model("a"), model("b"))
    }
    found = {"a": there(HERE, current=TWO), "b": ModelOnNode(ModelOnDisk("", ()), staged_bytes=10)}
    needs = {"big": needing(15), "huge": needing(20)}
    plan = plan_cache(desired, found, fetching=Fetching(histories=needs), displaced={})
    assert plan.steps == (RemoveStaged("b", "big"), EvictRevision("a", ONE, "big"))


def test_nothing_makes_room_for_a_model_that_an_error_of_the_disk_keeps_from_being_fetched() -> None:
    desired = {each.name: each for each in (model("big", priority=5), model("a"))}
    fetching = Fetching(histories={"big": needing(1)}, failing=frozenset({"big"}))
    plan = plan_cache(desired, {"a": there(HERE)}, fetching=fetching, displaced={})
    assert (plan.displaced, plan.refused) == ({}, {})


@pytest.mark.parametrize(("count", "pause_s"), [(1, 3600), (2, 7200), (3, 14400), (6, 86400), (10**6, 86400)])
def test_nothing_makes_room_for_a_model_whose_fetch_brought_nothing_until_a_pause_has_passed(
    count: int, pause_s: int
) -> None:
    desired = {each.name: each for each in (model("big", priority=5), model("a"), model("b"))}
    found = {"a": there(HERE), "b": ModelOnNode(ModelOnDisk("", ()), staged_bytes=10)}

    def plan(now_s: float) -> CachePlan:
        paused = needing(20, backoff=RoomBackoff(count, 1000.0, "403 Forbidden"))
        return plan_cache(desired, found, fetching=Fetching(now_s, histories={"big": paused}), displaced={})

    early, late = plan(999.0 + pause_s), plan(1000.0 + pause_s)
    assert (early.steps, early.displaced, early.refused) == ((), {}, {"big": 20})
    assert late.steps[0] == RemoveStaged("b", "big")
    assert (late.displaced, late.refused) == ({"a": "big"}, {})


KEPT = st.builds(
    RevisionOnDisk,
    st.sampled_from([ONE, TWO, "3" * 64]),
    st.floats(0, 9),
    st.integers(0, 9),
    st.sampled_from(["", "in use by process 17"]),
    st.lists(st.sampled_from([LinkedFile((0, 1), 9, 2), LinkedFile((0, 2), 5, 3)]), max_size=3).map(tuple),
)


MODELS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from("abcd"),
    st.tuples(
        st.none() | st.builds(dict, priority=st.integers(0, 3), pinned=st.booleans(), has_pending_pods=st.booleans()),
        st.lists(KEPT, max_size=3, unique_by=lambda each: each.revision),
        st.sampled_from(["", ONE]),
        st.frozensets(st.sampled_from([ONE, TWO])),
        st.integers(0, 9),
    ),
)


@given(others=MODELS, missing=st.integers(1, 30), priority=st.integers(0, 3))
def test_what_makes_room_is_enough_none_too_many_and_no_other_that_must_stay(
    others: dict[str, Any], missing: int, priority: int
) -> None:
    found = {
        name: there(*kept, current=current, used=used, staged_bytes=staged)
        for name, (_, kept, current, used, staged) in others.items()
    }
    models = {name: model(name, **more) for name, (more, *_) in others.items() if more is not None}
    plan = room_for(missing, found, *models.values(), priority=priority)
    of = {(name, each.revision): each for name, one in found.items() for each in one.revisions}
    of |= {(name, ""): RevisionOnDisk("", 0.0, one.staged_bytes) for name, one in found.items() if one.staged_bytes}
    staged = [(each.model, "") for each in plan.steps if isinstance(each, RemoveStaged)]
    may_go = {
        (name, "")
        for name, _ in of
        if found[name].staged_bytes and (name not in models or models[name].urgency < (priority, False))
    }
    chosen = [*staged, *evicted(plan), *((name, found[name].on_disk.current) for name in plan.displaced)]
    chosen = [each for each in dict.fromkeys(chosen) if each in of]  # what no pod may get any more goes at once
    freed = [of[each] for each in chosen]
    if plan.refused:
        assert not plan.displaced
        assert not staged
        assert sum(of[each].own_bytes for each in may_go) < missing, "what is not complete stops no more urgent model"
        return
    assert may_go.issuperset(staged)
    assert freed_bytes(freed) >= missing
    assert all(freed_bytes(other for other in freed if other is not each) < missing for each in freed)
    for name, revision in chosen:
        assert not of[name, revision].protected
        assert revision not in found[name].used
        if revision and name in plan.displaced and name in models:
            assert models[name].priority < priority
            assert not models[name].pinned
