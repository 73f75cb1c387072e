"""One verdict: plan, explain pod, the extender, defrag and the controller say the same of a pod on a node."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.randomclusters import WANT, random_cluster
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.cluster.cluster import Cluster, ObservedPod
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.packing.defrag import Asker, Evictable, propose
from tessera.core.packing.ledger import Ledger
from tessera.core.packing.obstacles import Cause
from tessera.core.packing.partitioning import advance_all, observe_cluster
from tessera.core.packing.plan import plan
from tessera.core.packing.reasons import NodeFit, Reasons

OF_NODES = {Cause.CPU, Cause.MEMORY, Cause.PODS, Cause.REFUSED, Cause.UNREADABLE, Cause.WITHHELD, Cause.NO_AGENT}
"""Causes that kube-scheduler finds before it asks the extender."""
seeds = st.integers(0, 1 << 30)


def explained(seed: int, *, desired: bool, running: int) -> tuple[Cluster, ObservedPod, tuple[NodeFit, ...]] | None:
    """Return a random cluster, its pending pod, and the verdict on each node; None where its request is invalid."""
    rng = random.Random(seed)
    cluster = read_cluster(as_fields(random_cluster(rng, desired=desired, running=running)))
    found, me = explain_pod(cluster, WANT), next(each for each in cluster.pods if each.pod.key == WANT)
    assert found is not None
    return None if me.unread or not me.pod.need.asks else (cluster, me, found.nodes)


@settings(max_examples=150, deadline=None)
@given(seed=seeds, running=st.integers(0, 3))
@example(seed=195298, running=0).via(
    "an unhealthy GPU that the planner gives a layout: its instances and their slices are the same places"
)
@example(seed=422, running=0).via("a GPU with instances of another profile that can be repartitioned")
@example(seed=5012, running=3).via("devices are recorded on a pod whose request cannot be read")
def test_plan_explain_and_the_extender_say_the_same_of_every_node_word_for_word(seed: int, running: int) -> None:
    """But for a device that a node without agent does not advertise: a plan may be for agents yet to come.

    Nothing is desired by name here: see the next law.
    """
    case = explained(seed, desired=False, running=running)
    if case is None:
        return
    cluster, me, verdicts = case
    planned = Reasons(cluster.snapshot).verdicts(me.pod.need)
    for mine, other in zip(verdicts, planned, strict=True):
        if mine.obstacle is None or mine.obstacle.cause is not Cause.NO_AGENT:
            assert (other.node, other.obstacle and other.obstacle.text, other.detail) == (
                mine.node,
                mine.obstacle and mine.obstacle.text,
                mine.detail,
            )
    placed = {each.node for each in plan(cluster.snapshot).assignments if each.pod == WANT}
    assert placed <= {each.node for each in planned if each.obstacle is None}
    ledger, names = Ledger.of(cluster), [each.node for each in verdicts]
    unsuited = ledger.unsuited(me.pod.need, names)
    answers = ledger.filter(me.pod.need, [name for name in names if name not in unsuited])
    texts = answers.failed | answers.hopeless | {name: each.text for name, each in unsuited.items()}
    for each in verdicts:
        if each.obstacle is None or each.obstacle.cause not in OF_NODES:
            assert texts.get(each.node, "") == (each.obstacle.text if each.obstacle else "")


@settings(max_examples=100, deadline=None)
@given(seed=seeds, running=st.integers(0, 3))
def test_a_plan_counts_as_free_what_is_kept_for_pods_by_name_and_says_so_of_each_gpu(seed: int, running: int) -> None:
    """Idle devices that are desired give way to pods that fit nowhere else, which a plan shows before it happens.

    Explain and the extender answer for this moment, and count them. So plan and explain differ on GPUs that have them
    alone; a plan has room there where explain has none, never the other way.
    """
    case = explained(seed, desired=True, running=running)
    if case is None:
        return
    cluster, me, verdicts = case
    for mine, other in zip(verdicts, Reasons(cluster.snapshot).verdicts(me.pod.need), strict=True):
        if mine.obstacle is not None and mine.obstacle.cause is Cause.NO_AGENT:
            continue
        if (mine.obstacle, mine.detail) != (other.obstacle, other.detail):
            kept = f" of {mine.node}: the controller keeps idle devices for pods that request them by name"
            assert any(kept in note for note in cluster.snapshot.notes)
            assert mine.obstacle is not None


@settings(max_examples=60, deadline=None)
@given(seed=seeds, running=st.integers(1, 4))
def test_defrag_makes_room_only_where_the_scheduler_would_place_the_pod(seed: int, running: int) -> None:
    case = explained(seed, desired=True, running=running)
    if case is None:
        return
    cluster, me, verdicts = case
    obstacles = {each.node: each.obstacle for each in verdicts}
    may_go = {each.pod.key: Evictable(pod=each.pod.key) for each in cluster.pods}
    made = propose(cluster, [Asker(pod=me.pod.key, need=me.pod.need)], may_go)
    for each in made.placed:
        obstacle = obstacles[each.place.node]
        assert obstacle is None or (bool(made.moves) and not obstacle.cause.lasting)
    assert not made.stuck or all(each is not None for each in obstacles.values())


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_the_controller_keeps_no_device_for_a_pod_that_the_scheduler_refuses_everywhere(seed: int) -> None:
    case = explained(seed, desired=False, running=0)
    if case is None:
        return
    cluster, _, verdicts = case
    refused = all(each.obstacle is not None and each.obstacle.cause.lasting for each in verdicts)
    memory, _ = advance_all({}, (), observe_cluster(cluster), 0.0)
    _, decisions = advance_all(memory, (), observe_cluster(cluster), 20.0)
    desired = [each for decision in decisions.values() for each in decision.desired]
    assert not (refused and desired)
