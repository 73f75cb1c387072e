"""Which node pulls which image next: order, limits, back-off, and that all nodes get all images in the end."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tessera.core.storage.images.warmup import (
    MOST_OF_NODE,
    DesiredImage,
    ImageProblem,
    ImageStep,
    NodeImages,
    ObservedImage,
    Turn,
    Warmup,
    image_nodes,
    next_steps,
    observed_image,
    plan_warmups,
    summarize_warmup,
)
from tessera.core.storage.retries import fetch_backoff_s

A, B, C = "r.example/a:1", "r.example/b:1", "q.example/c:1"
ONE, TWO = "sha256:1", "sha256:2"


def warmup(*images: str, nodes: str = "n1", **more: Any) -> Warmup:
    return Warmup(name=more.pop("name", "w"), images=images, nodes=frozenset(nodes.split()), **more)


def present(image: str, digest: str = ONE, **more: Any) -> ObservedImage:
    return ObservedImage(image=image, state="Present", digest=digest, **more)


def failed(image: str, attempt: int, at_s: float, failures: int = 1) -> ObservedImage:
    return ObservedImage(
        image=image, state="Failed", attempt=attempt, failures=failures, failed_s=at_s, reason="no such image"
    )


def attempts(found: dict[str, tuple[DesiredImage, ...]]) -> dict[str, dict[str, int]]:
    return {node: {each.image: each.attempt for each in images if each.attempt} for node, images in found.items()}


def desired_images(*pairs: tuple[str, int]) -> tuple[DesiredImage, ...]:
    return tuple(DesiredImage(image=image, attempt=attempt, pinned=True) for image, attempt in pairs)


N1 = NodeImages(name="n1")
CASES: dict[str, tuple[list[Warmup], list[NodeImages], dict[str, int], dict[str, dict[str, int]]]] = {
    "the first that is listed": ([warmup(A, B)], [N1], {}, {"n1": {A: 1}}),
    "an image of pending pods before": ([warmup(A, B, C)], [N1], {B: 1, C: 2}, {"n1": {C: 1}}),
    "several at once": ([warmup(A, B, C, per_node=2)], [N1], {}, {"n1": {A: 1, B: 1}}),
    "the least of two warmups' limits": (
        [warmup(A, B, per_node=2), warmup(C, name="x")],
        [N1],
        {},
        {"n1": {A: 1}},
    ),
    "a registry's limit for all nodes": (
        [warmup(A, B, nodes="n1 n2 n3", per_registry=2)],
        [N1, NodeImages(name="n2"), NodeImages(name="n3")],
        {},
        {"n1": {A: 1}, "n2": {A: 1}, "n3": {}},
    ),
    "another registry meanwhile": (
        [warmup(A, C, nodes="n1 n2", per_registry=1)],
        [N1, NodeImages(name="n2")],
        {},
        {"n1": {A: 1}, "n2": {C: 1}},
    ),
    "what is there is not pulled": (
        [warmup(A, B)],
        [NodeImages(name="n1", observed=(present(A),))],
        {},
        {"n1": {B: 1}},
    ),
    "of another digest it is": (
        [warmup(A, digests=((A, TWO),))],
        [NodeImages(name="n1", desired=desired_images((A, 1)), observed=(present(A, attempt=1),))],
        {},
        {"n1": {A: 2}},
    ),
    "a disk that is not as full as this warmup lets it be": (
        [warmup(A, disk_percent=90), warmup(B, name="x", nodes="n2", disk_percent=10)],
        [NodeImages(name="n1", disk_percent=89)],
        {},
        {"n1": {A: 1}},
    ),
    "a report of another version, until it is written anew": (
        [warmup(A, B)],
        [NodeImages(name="n1", observed=(ObservedImage(image=A, state="Failed", attempt=1, unread=True),))],
        {},
        {"n1": {B: 1}},
    ),
    "a full disk": ([warmup(A)], [NodeImages(name="n1", disk_percent=80)], {}, {"n1": {}}),
    "a node that is not ready": (
        [warmup(A, nodes="n1 n2", per_registry=1)],
        [NodeImages(name="n1", ready=False, desired=desired_images((A, 1))), NodeImages(name="n2")],
        {},
        {"n1": {A: 1}, "n2": {A: 1}},
    ),
    "a node that no warmup selects": (
        [warmup(A)],
        [NodeImages(name="n2", desired=desired_images((A, 1)))],
        {},
        {"n2": {}},
    ),
    "a failure of now": (
        [warmup(A, B)],
        [NodeImages(name="n1", desired=desired_images((A, 1)), observed=(failed(A, 1, 995.0),))],
        {},
        {"n1": {A: 1, B: 1}},
    ),
    "a failure of a while ago": (
        [warmup(A)],
        [NodeImages(name="n1", desired=desired_images((A, 1)), observed=(failed(A, 1, 990.0),))],
        {},
        {"n1": {A: 2}},
    ),
    "what runs is not begun again": (
        [warmup(A, B)],
        [
            NodeImages(
                name="n1",
                desired=desired_images((A, 1)),
                observed=(ObservedImage(image=A, state="Pulling", attempt=1),),
            )
        ],
        {B: 9},
        {"n1": {A: 1}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_whose_turn_it_is(case: str) -> None:
    warmups, nodes, demand, want = CASES[case]
    found = plan_warmups(warmups, nodes, demand, {}, 1000.0)
    assert attempts(found) == want
    again = [msgspec.structs.replace(each, desired=found[each.name]) for each in nodes]
    assert plan_warmups(warmups, again, demand, {}, 1000.0) == found


def test_a_turn_of_which_nothing_is_heard_ends_for_others() -> None:
    """Without an agent after two minutes, with one that pulls after an hour; the node that has waited least is last."""
    both = [warmup(A, nodes="n1 n2", per_registry=1)]
    turns = {Turn("n1", A, 1): 0.0}
    silent = [NodeImages(name="n1", desired=desired_images((A, 1))), NodeImages(name="n2")]
    pulling = (ObservedImage(image=A, state="Pulling", attempt=1),)
    slow = [msgspec.structs.replace(silent[0], observed=pulling), silent[1]]
    for nodes, last_s in ((silent, 119.0), (slow, 3599.0)):
        assert attempts(plan_warmups(both, nodes, {}, turns, last_s)) == {"n1": {A: 1}, "n2": {}}
        assert attempts(plan_warmups(both, nodes, {}, turns, last_s + 1)) == {"n1": {A: 1}, "n2": {A: 1}}


@given(st.floats(0, 2e9), st.floats(0, 2e9), st.integers(1, 12))
def test_whatever_the_clocks_showed_nothing_waits_longer_than_two_pauses(
    noted_s: float, now_s: float, failures: int
) -> None:
    wants = [warmup(A)]
    failing = [NodeImages(name="n1", desired=desired_images((A, 1)), observed=(failed(A, 1, noted_s, failures),))]
    silent = [NodeImages(name="n1", desired=desired_images((A, 1)))]
    pulling = [msgspec.structs.replace(silent[0], observed=(ObservedImage(image=A, state="Pulling", attempt=1),))]
    cases = ((failing, fetch_backoff_s(failures)), (silent, 120.0), (pulling, 3600.0))
    for nodes, pause_s in cases:
        turns = {} if nodes is failing else {Turn("n1", A, 1): noted_s}
        again = (attempts(plan_warmups(wants, nodes, {}, turns, each)) for each in (now_s, now_s + 2 * pause_s))
        assert {"n1": {A: 2}} in again


@settings(max_examples=60)
@given(st.one_of(st.floats(-1e5, 1e5), st.sampled_from([0.0, 599.0, 601.0, -601.0])), st.floats(1, 30))
@example(45.0, 16.0)
def test_however_far_the_clocks_are_apart_a_pull_that_fails_has_pauses(ahead_s: float, step_s: float) -> None:
    """Two hours; the controller remembers its turns, as it does. By clocks that agree these are at most 18 pulls."""
    node, turns, starts, now_s = NodeImages(name="n1"), dict[Turn, float](), list[float](), 1e9
    while now_s < 1e9 + 7200:
        (image,) = plan_warmups([warmup(A)], [node], {}, turns, now_s)["n1"]
        if image.attempt > len(starts):
            starts.append(now_s)
        turns.setdefault(Turn("n1", A, image.attempt), now_s)
        node = NodeImages(
            name="n1", desired=(image,), observed=(failed(A, image.attempt, starts[-1] + ahead_s, len(starts)),)
        )
        now_s += step_s
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    for number, pause_s in enumerate(pauses, 1):  # it is seen a step after it failed, and again only with a step
        assert fetch_backoff_s(number) <= pause_s <= 3 * fetch_backoff_s(number) + 2 * step_s
    assert 8 <= len(starts) <= 18


def test_a_node_whose_runtime_does_not_answer_has_no_turn_and_says_why() -> None:
    nodes = [NodeImages(name="n1", reason="container runtime: it does not answer: start it"), NodeImages(name="n2")]
    both = warmup(A, nodes="n1 n2", per_registry=1)
    assert attempts(plan_warmups([both], nodes, {}, {}, 0.0)) == {"n1": {}, "n2": {A: 1}}
    summary = summarize_warmup(both, nodes, {})
    assert summary.problems == (ImageProblem(node="n1", image="", reason=nodes[0].reason),)


def test_each_pull_after_which_the_runtime_cannot_say_what_it_has_counts_as_a_failed_one() -> None:
    """All reports before it: no number falls, and a report does not change by itself."""
    wants = DesiredImage(image="r/a:1")
    for former, ended in product(reports(), [each for each in reports() if each is None or each.state != "Pulling"]):
        before = former
        for now_s in (100.0, 200.0):
            unknown = ObservedImage(image="r/a:1", state="Failed", failed_s=now_s, reason="no blob")
            got = observed_image(wants, unknown, pulling=None, ended=ended, former=before)
            assert (got.state, got.reason) == ("Failed", "no blob")
            last = before or ObservedImage(image="r/a:1", state="Missing")
            assert got.attempt == max(last.attempt, ended.attempt if ended is not None else 0)
            is_new = last.attempt < got.attempt or last.state == "Pulling"
            assert got.failures == last.failures + is_new
            assert got.failed_s == (last.failed_s if last.state == "Failed" and not is_new else now_s)
            assert observed_image(wants, unknown, pulling=None, ended=ended, former=got) == got
            assert next_steps([msgspec.structs.replace(wants, pinned=True)], [got], ()) == ()
            again = DesiredImage(image="r/a:1", attempt=got.attempt + 1)
            assert next_steps([again], [got], ()) == (ImageStep("pull", again),)
            before = got


def test_what_several_warmups_say_of_an_image_is_joined() -> None:
    first = warmup(A, pinned=False, secrets=("one",), digests=((A, ONE),))
    second = warmup(B, A, name="x", secrets=("two", "one"), digests=((A, TWO),))
    assert plan_warmups([first, second], [NodeImages(name="n1", disk_percent=99)], {}, {}, 0.0)["n1"] == (
        DesiredImage(image=A, digest=ONE, pinned=True, secrets=("one", "two")),
        DesiredImage(image=B, pinned=True, secrets=("two", "one")),
    )


def test_a_summary_reports_how_far_all_nodes_are() -> None:
    nodes = [
        NodeImages(name="n1", observed=(present(A, pinned=True), present(B, pinned=True))),
        NodeImages(name="n2", observed=(present(A), present(B))),
        NodeImages(name="n3", observed=(present(A, TWO), ObservedImage(image=B, state="Pulling"))),
        NodeImages(name="n4", observed=(failed(A, 1, 0.0), failed(C, 1, 0.0)), disk_percent=85),
        NodeImages(name="n5", ready=False),
        NodeImages(name="other", observed=(failed(A, 1, 0.0),)),
    ]
    found = summarize_warmup(warmup(A, B, nodes="n1 n2 n3 n4 n5"), nodes, {A: 3})
    assert (found.nodes, found.ready, found.pulling, found.pinned) == (5, 2, 1, 1)
    assert [(each.image, each.digest, each.nodes, each.pending_pods) for each in found.images] == [
        (A, ONE, 2, 3),
        (B, ONE, 2, 0),
    ]
    assert found.problems == (
        ImageProblem(node="n4", image="", reason="its disk for images is 85 % full; nothing is pulled from 80 % on"),
        ImageProblem(node="n4", image=A, reason="no such image"),
        ImageProblem(node="n5", image="", reason="the node is not ready"),
    )


def test_an_image_is_to_be_on_the_nodes_of_every_warmup_that_lists_it() -> None:
    nodes = [
        NodeImages(name="n1", observed=(present(A),)),
        NodeImages(name="n2", observed=(failed(A, 1, 0.0), present(B))),
        NodeImages(name="n3", observed=(present(A),)),
        NodeImages(name="other", observed=(present(A),)),
    ]
    warmups = [warmup(A, nodes="n1 n2"), warmup(A, B, nodes="n2 n3"), warmup(B, nodes="other")]
    assert [image_nodes(each, warmups, nodes) for each in (A, B, C)] == [(3, 2), (3, 1), (0, 0)]


def test_all_images_of_a_node_stay_while_one_that_must_stay_cannot_be_written_back() -> None:
    unread = DesiredImage(image=B, attempt=4, pinned=True, unread="image B: unknown")
    node = NodeImages(name="n1", desired=(*desired_images((A, 0)), unread))
    plan = {
        name: plan_warmups(warmups, [node], {}, {}, 1000.0, retained=retained)["n1"]
        for name, warmups, retained in (
            ("an invalid warmup had it", [warmup(A, C)], {B}),
            ("a valid one lists it", [warmup(A, B)], {B}),
            ("nobody has it", [warmup(A, C)], ()),
        )
    }
    assert plan.pop("an invalid warmup had it") == node.desired
    assert [[(each.image, each.unread) for each in found] for found in plan.values()] == [
        [(A, ""), (B, "")],
        [(A, ""), (C, "")],
    ]


def test_a_turn_that_cannot_be_read_ends() -> None:
    for unread, former, want in (("image A: unknown", 2, 4), ("image A: unknown", 6, 6), ("", 2, 2)):
        desired = DesiredImage(image=A, attempt=4, unread=unread)
        got = observed_image(desired, present(A), pulling=None, ended=None, former=present(A, attempt=former))
        assert (got.state, got.attempt) == ("Present", want)


def test_a_digest_stays_what_it_was_resolved_to() -> None:
    nodes = [NodeImages(name="n1", observed=(present(A, TWO),)), NodeImages(name="n2", observed=(present(A),))]
    assert [summarize_warmup(warmup(A, nodes="n1 n2"), nodes[:end], {}).images[0].digest for end in (0, 1, 2)] == [
        "",
        TWO,
        ONE,
    ]
    assert summarize_warmup(warmup(A, nodes="n1 n2", digests=((A, TWO),)), nodes, {}).images[0].digest == TWO


def test_problems_are_bounded() -> None:
    names = [f"n{number}" for number in range(100)]
    found = summarize_warmup(
        warmup(A, nodes=" ".join(names)), [NodeImages(name=each, ready=False) for each in names], {}
    )
    assert len(found.problems) == 16


STEPS: dict[str, tuple[list[DesiredImage], list[ObservedImage], list[str], list[tuple[str, str]]]] = {
    "a turn": ([DesiredImage(image=A, attempt=1)], [], [], [("pull", A)]),
    "no turn": ([DesiredImage(image=A)], [], [], []),
    "a turn that is over": ([DesiredImage(image=A, attempt=1)], [failed(A, 1, 0.0)], [], []),
    "the next turn": ([DesiredImage(image=A, attempt=2)], [failed(A, 1, 0.0)], [], [("pull", A)]),
    "it is there": ([DesiredImage(image=A, attempt=1)], [present(A)], [], []),
    "it is there, of another digest": ([DesiredImage(image=A, digest=TWO, attempt=1)], [present(A)], [], [("pull", A)]),
    "a pin": ([DesiredImage(image=A, pinned=True)], [present(A)], [], [("pin", A)]),
    "a pin that holds": ([DesiredImage(image=A, pinned=True)], [present(A, pinned=True)], [A], []),
    "no longer listed": ([], [present(B, pinned=True)], [B, A], [("unpin", A), ("unpin", B)]),
    "listed, no longer pinned": ([DesiredImage(image=A)], [present(A, pinned=True)], [A], [("unpin", A)]),
}


@pytest.mark.parametrize("case", STEPS)
def test_what_an_agent_does_next(case: str) -> None:
    desired, observed, pinned, want = STEPS[case]
    got = next_steps(desired, observed, pinned)
    assert [(each.kind, each.image.image) for each in got] == want
    assert all(isinstance(each, ImageStep) for each in got)


WARMUPS = st.lists(
    st.builds(
        Warmup,
        name=st.sampled_from("xyz"),
        images=st.lists(st.sampled_from([A, B, C, "q.example/d:1"]), min_size=1, max_size=4, unique=True).map(tuple),
        nodes=st.frozensets(st.sampled_from(["n1", "n2", "n3", "n4"])),
        per_node=st.integers(1, 3),
        per_registry=st.integers(1, 3),
        pinned=st.booleans(),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda each: each.name,
)


OF_NODE = st.builds(
    NodeImages,
    name=st.sampled_from(["n1", "n2", "n3"]),
    ready=st.booleans(),
    desired=st.lists(
        st.builds(
            DesiredImage,
            image=st.sampled_from([A, B, C, "q.example/d:1", "p.example/e:1"]),
            digest=st.sampled_from(["", ONE]),
            pinned=st.booleans(),
            secrets=st.sampled_from([(), ("s",)]),
            attempt=st.integers(0, 2),
        ),
        unique_by=lambda each: each.image,
    ).map(tuple),
    observed=st.lists(
        st.builds(
            ObservedImage,
            image=st.sampled_from([A, B, "p.example/e:1"]),
            state=st.sampled_from(["Missing", "Pulling", "Present", "Failed"]),
            attempt=st.integers(0, 2),
        ),
        unique_by=lambda each: each.image,
    ).map(tuple),
)


@given(
    st.one_of(st.just([]), WARMUPS),
    st.lists(OF_NODE, max_size=3, unique_by=lambda each: each.name),
    st.frozensets(st.sampled_from([A, B, C, "p.example/e:1", "p.example/never:1"])),
    st.sampled_from([0.0, 130.0, 1e4]),
    st.sampled_from([5, MOST_OF_NODE]),
)
@example([warmup(A, per_node=3)], [NodeImages(name="n1", desired=desired_images((B, 0)))], frozenset({B}), 0.0, 5)
def test_images_of_an_invalid_warmup_stay_pinned_where_they_were_and_only_what_a_valid_one_lists_comes_or_gets_a_turn(
    warmups: list[Warmup], nodes: list[NodeImages], retained: frozenset[str], now_s: float, most: int
) -> None:
    """Also where a node has no room for all of them."""
    turns = {Turn(node.name, each.image, each.attempt): 0.0 for node in nodes for each in node.desired}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tessera.core.storage.images.warmup.MOST_OF_NODE", most)
        with_invalid = plan_warmups(warmups, nodes, {}, turns, now_s, retained=retained)
        again = [msgspec.structs.replace(node, desired=with_invalid[node.name]) for node in nodes]
        turns |= {Turn(node.name, each.image, each.attempt): now_s for node in again for each in node.desired}
        assert plan_warmups(warmups, again, {}, turns, now_s, retained=retained) == with_invalid
    for node in nodes:
        found = {each.image: each for each in with_invalid[node.name]}
        former = {each.image: each for each in node.desired}
        stay = former.keys() & retained
        listed = dict.fromkeys(image for each in warmups if node.name in each.nodes for image in each.images)
        others = [each for each in listed if each not in stay][: most - len(stay)]
        assert found.keys() == stay.union(others)
        assert [each for each in found if each in listed] == [each for each in listed if each in found]
        assert all(found[image].pinned or not former[image].pinned for image in stay)
        assert all(found[image] == former[image] for image in stay - listed.keys()), "without another turn"


@given(WARMUPS, st.lists(OF_NODE, max_size=3, unique_by=lambda each: each.name), st.sampled_from([0.0, 130.0]))
def test_what_a_valid_warmup_says_of_an_image_counts_whatever_an_invalid_one_had(
    warmups: list[Warmup], nodes: list[NodeImages], now_s: float
) -> None:
    turns = {Turn(node.name, each.image, each.attempt): 0.0 for node in nodes for each in node.desired}
    retained = {each.image for node in nodes for each in node.desired}
    valid, both = (plan_warmups(warmups, nodes, {}, turns, now_s, retained=each) for each in ((), retained))
    for node in nodes:
        found = {each.image: msgspec.structs.replace(each, attempt=0, pinned=False) for each in both[node.name]}
        want = {each.image: msgspec.structs.replace(each, attempt=0, pinned=False) for each in valid[node.name]}
        assert want.items() <= found.items()


def test_of_more_images_than_a_node_may_have_the_last_are_left_out_and_said() -> None:
    names = [[f"r.example/{letter}{number}:1" for number in range(100)] for letter in "xyz"]
    warmups = [warmup(*images, name=str(place)) for place, images in enumerate(names)]
    former = "r.example/former:1"
    node = NodeImages(name="n1", desired=desired_images((former, 0), (names[2][99], 0)))
    listed = [each for images in names for each in images]
    for retained, want in ((), listed[:MOST_OF_NODE]), ((former, names[2][99]), [*listed[:254], names[2][99], former]):
        (found,) = plan_warmups(warmups, [node], {}, {}, 0.0, retained=retained).values()
        assert [each.image for each in found] == want
        full = NodeImages(name="n1", desired=found)
        problems = [summarize_warmup(each, [full], {}).problems for each in warmups]
        assert problems[:2] == [(), ()]
        left_out = [each for each in names[2] if each not in want][:16]
        assert [(each.node, each.image) for each in problems[2]] == [("n1", each) for each in left_out]
        assert "at most 256 images" in problems[2][0].reason


def is_reported(nodes: dict[str, NodeImages], name: str, image: DesiredImage) -> bool:
    return any(each.image == image.image and each.attempt == image.attempt for each in nodes[name].observed)


@settings(max_examples=60)
@given(
    WARMUPS, st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 3)), st.lists(st.integers(0, 4), max_size=30)
)
def test_all_nodes_get_all_images_and_no_limit_is_passed(
    warmups: list[Warmup], demand: dict[str, int], ends: list[int]
) -> None:
    """Nodes pull what has its turn; of those that pull, some end at each step, now and then by a failure."""
    nodes = {name: NodeImages(name=name) for name in ("n1", "n2", "n3", "n4")}
    turns: dict[Turn, float] = {}
    now_s, step = 0.0, 0
    while True:
        desired = plan_warmups(warmups, tuple(nodes.values()), demand, turns, now_s)
        running = [
            (name, each)
            for name, images in desired.items()
            for each in images
            if each.attempt > next((one.attempt for one in nodes[name].observed if one.image == each.image), 0)
        ]
        per_node = Counter(name for name, _ in running)
        registries = Counter(each.image.partition("/")[0] for _, each in running)
        for one in warmups:
            assert all(per_node[name] <= one.per_node for name in one.nodes)
            assert all(registries[image.partition("/")[0]] <= one.per_registry for image in one.images)
        if not running:
            break
        turns |= {Turn(name, each.image, each.attempt): now_s for name, each in running if each.attempt}
        for number, (name, each) in enumerate(running):
            verdict = ends[(step + number) % len(ends)] if ends and step < 40 else 1
            state = (
                failed(each.image, each.attempt, now_s) if verdict == 0 else present(each.image, attempt=each.attempt)
            )
            kept = tuple(one for one in nodes[name].observed if one.image != each.image)
            done = () if verdict > 1 else (state,)
            nodes[name] = NodeImages(
                name=name, desired=desired[name], observed=(*kept, *done) if done else nodes[name].observed
            )
        nodes = {name: msgspec.structs.replace(each, desired=desired[name]) for name, each in nodes.items()}
        now_s, step = now_s + 700.0, step + 1
        turns |= {
            Turn(name, each.image, each.attempt): now_s for name, each in running if not is_reported(nodes, name, each)
        }
    assert all(summarize_warmup(each, tuple(nodes.values()), {}).ready == len(each.nodes) for each in warmups)


@pytest.mark.parametrize(("failures", "fetch_backoff_s"), [(0, 10.0), (1, 10.0), (2, 20.0), (4, 80.0), (99, 600.0)])
def test_the_back_off_counts_failures_in_a_row_and_no_earlier_pulls(failures: int, fetch_backoff_s: float) -> None:
    node = NodeImages(name="n1", desired=desired_images((A, 8)), observed=(failed(A, 8, 1000.0, failures),))
    for now_s, attempt in ((1000.0 + fetch_backoff_s - 1, 8), (1000.0 + fetch_backoff_s, 9)):
        assert attempts(plan_warmups([warmup(A)], [node], {}, {}, now_s)) == {"n1": {A: attempt}}


def reports() -> Iterator[ObservedImage | None]:
    """Yield every kind of report of an image, with up to three pulls before it."""
    yield None
    for state, attempt in product(("Missing", "Pulling", "Present", "Failed"), range(4)):
        failed = {"failures": attempt, "failed_s": 9.0 + attempt, "reason": "no"} if state == "Failed" else {}
        yield msgspec.convert({"image": "r/a:1", "state": state, "attempt": attempt, **failed}, ObservedImage)


def test_an_agent_reports_what_the_node_has_and_no_pull_twice() -> None:
    """All cases of one image."""
    present = [ObservedImage(image="r/a:1", state="Present", digest=each, bytes=7) for each in ("one", "two")]
    going_on = ObservedImage(image="r/a:1", state="Pulling", attempt=4, failures=2)
    all_ended = [each for each in reports() if each is None or each.state in {"Missing", "Failed"}]
    cases = 0
    for digest, on_node, pulling, ended, former in product(
        ("", "one"), (None, *present), (None, going_on), all_ended, reports()
    ):
        cases += 1
        desired = DesiredImage(image="r/a:1", digest=digest)
        got = observed_image(desired, on_node, pulling=pulling, ended=ended, former=former)
        attempts = [each.attempt for each in (ended, former) if each is not None]
        assert got.attempt >= max(attempts, default=0), "the number of pulls never falls"
        assert (got.state == "Pulling") is (pulling is not None)
        is_right = on_node is not None and digest in ("", on_node.digest) and pulling is None
        assert (got.state == "Present") is is_right, "never without the image, or with another digest"
        if is_right and on_node is not None:
            assert (got.digest, got.bytes) == (on_node.digest, 7)
        elif pulling is None:
            if former is not None and former.state == "Failed" and (ended is None or ended.attempt < former.attempt):
                assert got == former, "a former agent's failure stays until a later pull has ended"
            else:
                assert (got.state, got.failures) == (("Missing", 0) if ended is None else (ended.state, ended.failures))
    assert cases == 2 * 3 * 2 * 9 * 17
