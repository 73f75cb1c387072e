"""The model cache's decisions: who shall have what, what is fetched next, what makes room."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.storage.models.cache import (
    MOST_OF_NODE,
    CachedModel,
    DesiredCache,
    DesiredModel,
    ModelProblem,
    ModelSummary,
    NodeModels,
    ObservedModel,
    Victim,
    back_off_s,
    environment_name,
    folder_name,
    models_of_nodes,
    next_fetch,
    peers_of,
    summary,
    victims,
)
from tessera.core.storage.models.retention import Kept, LinkedFile, freed_bytes
from tessera.errors import Unavailable

ONE, TWO = "1" * 64, "2" * 64


def cache(name: str, *nodes: str, **more: Any) -> DesiredCache:
    return DesiredCache(name=name, source=f"s3://b/{name}", nodes=frozenset(nodes), **more)


def model(name: str, **more: Any) -> DesiredModel:
    return DesiredModel(name=name, source=f"s3://b/{name}", **more)


def test_nodes_have_the_models_that_select_them_in_the_order_of_priority_and_demand() -> None:
    caches = [cache("a", "n1", "n2"), cache("b", "n1", priority=1), cache("c", "n1"), cache("d", "n2")]
    nodes = [NodeModels(name="n1"), NodeModels(name="n2", desired=(model("d"), model("gone"), model("broken")))]
    found = models_of_nodes(caches, nodes, {"c": 3}, {"broken"})
    assert {name: [each.name for each in models] for name, models in found.items()} == {
        "n1": ["b", "c", "a"],
        "n2": ["broken", "a", "d"],
    }
    assert found["n1"][0] == model("b", priority=1)


def test_peers_are_the_nodes_that_shall_have_the_same_source_and_give_it() -> None:
    nodes = [
        NodeModels(name="same", desired=(model("b"), model("a")), peer="10.0.0.1:9443"),
        NodeModels(name="another name", desired=(DesiredModel(name="c", source="s3://b/a"),), peer="10.0.0.2:9443"),
        NodeModels(name="another endpoint", desired=(model("a", endpoint="https://rgw"),), peer="10.0.0.3:9443"),
        NodeModels(name="another source", desired=(model("b"),), peer="10.0.0.4:9443"),
        NodeModels(name="gives nothing", desired=(model("a"),)),
        NodeModels(name="was assigned nothing", peer="10.0.0.5:9443"),
    ]
    assert peers_of(model("a"), nodes) == ("10.0.0.1:9443", "10.0.0.2:9443")


def test_a_node_gets_no_more_than_its_object_can_hold() -> None:
    caches = [cache(f"m{number:03}", "n1") for number in range(200)]
    (found,) = models_of_nodes(caches, [NodeModels(name="n1")], {"m199": 1}).values()
    assert (len(found), found[0].name) == (MOST_OF_NODE, "m199")


DUE: dict[str, tuple[DesiredModel, ObservedModel | None, bool]] = {
    "one that was never looked at": (model("a"), None, True),
    "one that is there": (model("a"), ObservedModel(name="a", revision=ONE, checked_s=1.0), False),
    "one that is to be looked at again": (
        model("a", interval_s=60),
        ObservedModel(name="a", revision=ONE, checked_s=940.0),
        True,
    ),
    "one that was looked at": (
        model("a", interval_s=60),
        ObservedModel(name="a", revision=ONE, checked_s=941.0),
        False,
    ),
    "one whose revision is said": (
        model("a", interval_s=60, revision=ONE),
        ObservedModel(name="a", revision=ONE, checked_s=1.0),
        False,
    ),
    "one that vanished from the disk": (model("a"), ObservedModel(name="a", checked_s=999.0), True),
    "one that failed a moment ago": (model("a"), ObservedModel(name="a", failures=1, failed_s=991.0), False),
    "one that failed": (model("a"), ObservedModel(name="a", failures=1, failed_s=990.0), True),
    "one that failed twice": (model("a"), ObservedModel(name="a", failures=2, failed_s=990.0), False),
}


@pytest.mark.parametrize("case", DUE)
def test_what_is_due_is_fetched(case: str) -> None:
    desired, found, want = DUE[case]
    if found is not None:
        found = msgspec.structs.replace(found, identity=desired.identity)
    seen = {} if found is None else {"a": found}
    assert (next_fetch([desired], seen, 1000.0) == desired) is want
    if not want:
        changed = model("a", include=("*.bin",), interval_s=desired.interval_s, revision=desired.revision)
        assert next_fetch([changed], seen, 1000.0) == changed, "another source is looked at, at once"


def test_the_first_that_is_due_is_fetched() -> None:
    there = ObservedModel(name="a", revision=ONE, identity=model("a").identity)
    assert next_fetch([model("a"), model("b"), model("c")], {"a": there}, 0.0) == model("b")
    assert next_fetch([], {}, 0.0) is None


def test_a_pause_after_failures_doubles_up_to_ten_minutes() -> None:
    assert [back_off_s(each) for each in (1, 2, 3, 7, 10**9)] == [10.0, 20.0, 40.0, 600.0, 600.0]


def test_priority_pins_and_intervals_fetch_nothing_anew() -> None:
    assert model("a", priority=3, pinned=True, interval_s=9, keep=1).identity == model("a").identity
    others = (model("b"), model("a", secret="s"), model("a", revision=ONE), model("a", exclude=("x",)))
    assert model("a").identity not in {each.identity for each in others}


def test_a_summary_counts_nodes_and_names_the_first_problems() -> None:
    nodes = [
        NodeModels(name="n1", observed=(ObservedModel(name="a", state="Ready", revision=ONE, bytes=7, containers=2),)),
        NodeModels(name="n2", observed=(ObservedModel(name="a", state="Fetching", revision=ONE, bytes=7),)),
        NodeModels(name="n3", observed=(ObservedModel(name="a", state="Failed", revision=TWO, reason="no rights"),)),
        NodeModels(name="n4", ready=False),
        NodeModels(name="n5", reason="no disk"),
        NodeModels(name="n6", observed=(ObservedModel(name="b", reason="not of this model"),)),
        NodeModels(name="other", reason="not selected"),
    ]
    names = [each.name for each in nodes[:-1]]
    assert summary(cache("a", *names), nodes, {"a": 4}) == ModelSummary(
        nodes=6,
        ready=3,
        fetching=1,
        revision=ONE,
        on_revision=2,
        bytes=7,
        containers=2,
        pending_pods=4,
        problems=(
            ModelProblem(node="n3", reason="no rights"),
            ModelProblem(node="n4", reason="the node is not ready"),
            ModelProblem(node="n5", reason="no disk"),
        ),
    )
    assert summary(cache("a", *names, revision=TWO), nodes, {}).ready == 1
    assert summary(cache("a"), nodes, {}) == ModelSummary()
    lost = [NodeModels(name=f"n{number}", ready=False) for number in range(20)]
    assert len(summary(cache("a", *(each.name for each in lost)), lost, {}).problems) == 16


def cached(name: str, *kept: Kept, current: str = ONE, **more: Any) -> CachedModel:
    return CachedModel(name=name, current=current, kept=kept, **more)


def victim(model: str, revision: str, *, current: bool) -> Victim:
    return Victim(model=model, revision=revision, current=current)


BIG = cached("big", priority=5)


def test_room_is_made_by_what_nobody_gets_any_more_and_then_by_lower_priorities() -> None:
    others = [
        cached("a", Kept(ONE, 9.0, 10, "current"), Kept(TWO, 5.0, 10), priority=3),
        cached("b", Kept(ONE, 9.0, 10, "current"), Kept(TWO, 4.0, 10), priority=1),
    ]
    assert victims(BIG, others, missing_bytes=0, subject="disk") == ()
    assert victims(BIG, others, missing_bytes=11, subject="disk") == (
        victim("b", TWO, current=False),
        victim("a", TWO, current=False),
    )
    assert victims(BIG, others, missing_bytes=31, subject="disk")[2:] == (
        victim("b", ONE, current=True),
        victim("a", ONE, current=True),
    )
    with pytest.raises(Unavailable, match="1 MiB too little"):
        victims(BIG, others, missing_bytes=41, subject="disk")


def test_room_is_made_by_revisions_that_share_their_files() -> None:
    weights = LinkedFile((0, 1), 8 << 20, 2)
    low = cached("low", Kept(ONE, 9.0, 4096, "current", (weights,)), Kept(TWO, 5.0, 4096, "", (weights,)))
    assert victims(BIG, [low], missing_bytes=4 << 20, subject="disk") == (
        victim("low", TWO, current=False),
        victim("low", ONE, current=True),
    )


STAYS = {
    "of its own priority": cached("a", Kept(ONE, 1.0, 10, "current"), priority=5),
    "of a higher one": cached("a", Kept(ONE, 1.0, 10, "current"), priority=6),
    "that is pinned": cached("a", Kept(ONE, 1.0, 10, "current"), pinned=True),
    "that pods have": cached("a", Kept(ONE, 1.0, 10, "current"), used=frozenset({ONE})),
    "whose former revision pods have": cached("a", Kept(TWO, 1.0, 10, "pinned")),
}


@pytest.mark.parametrize("case", STAYS)
def test_no_room_is_made_by_a_model(case: str) -> None:
    with pytest.raises(Unavailable):
        victims(BIG, [STAYS[case]], missing_bytes=1, subject="disk")


KEPT = st.builds(
    Kept,
    st.sampled_from([ONE, TWO, "3" * 64]),
    st.floats(0, 9),
    st.integers(0, 9),
    st.sampled_from(["", "current", "pinned"]),
    st.lists(st.sampled_from([LinkedFile((0, 1), 9, 2), LinkedFile((0, 2), 5, 3)]), max_size=3).map(tuple),
)
MODELS = st.lists(
    st.builds(
        CachedModel,
        name=st.sampled_from("abcd"),
        current=st.sampled_from(["", ONE]),
        kept=st.lists(KEPT, max_size=3, unique_by=lambda each: each.revision).map(tuple),
        used=st.frozensets(st.sampled_from([ONE, TWO])),
        priority=st.integers(0, 3),
        pinned=st.booleans(),
    ),
    max_size=4,
    unique_by=lambda each: each.name,
)


@given(others=MODELS, missing=st.integers(1, 30), priority=st.integers(0, 3))
def test_what_makes_room_is_enough_none_too_many_and_nobodys_that_must_stay(
    others: list[CachedModel], missing: int, priority: int
) -> None:
    this = cached("this", current="", priority=priority)
    known = {(each.name, one.revision): (each, one) for each in others for one in each.kept}
    try:
        chosen = victims(this, others, missing_bytes=missing, subject="disk")
    except Unavailable:
        return
    freed = [known[each.model, each.revision][1] for each in chosen]
    assert freed_bytes(freed) >= missing
    assert all(freed_bytes(other for other in freed if other is not each) < missing for each in freed)
    for each in chosen:
        other, kept = known[each.model, each.revision]
        assert each.current == (each.revision == other.current)
        assert not kept.protected or (each.current and other.priority < priority and not other.pinned)
        assert not each.current or each.revision not in other.used
    assert [each.current for each in chosen] == sorted(each.current for each in chosen)


def test_a_container_learns_where_a_model_is() -> None:
    assert (environment_name("llama-3-8b"), folder_name("llama")) == ("TESSERA_MODEL_LLAMA_3_8B_PATH", "/models/llama")
