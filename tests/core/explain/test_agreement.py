"""One verdict: plan, explain pod, the extender, defrag and the controller say the same of a pod on a node."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders.kubeobjects import Object
from builders.randomclusters import WANT, random_cluster
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.core.cluster.cluster import Cluster, ObservedPod
from tessera.core.explain.podexplanation import explain_pod
from tessera.core.packing.defrag import Evictable, PodToPlace, propose
from tessera.core.packing.ledger import Ledger
from tessera.core.packing.obstacles import Cause
from tessera.core.packing.partitioning import advance_all, observe_cluster
from tessera.core.packing.plan import plan
from tessera.core.packing.reasons import NodeFit, Reasons

OF_AGENTS = {Cause.UNREADABLE, Cause.UNREPORTED, Cause.WITHHELD, Cause.NO_AGENT, Cause.ADVERTISED}
"""Causes that do not matter where a node advertises enough by name, and what kube-scheduler finds where it does not."""
OF_NODES = OF_AGENTS - {Cause.UNREPORTED} | {Cause.CPU, Cause.MEMORY, Cause.PODS, Cause.REFUSED}
"""Causes that kube-scheduler finds before it asks the extender."""
KUBE_SCHEDULER = {Cause.CPU, Cause.MEMORY, Cause.PODS, Cause.REFUSED}
"""What excludes a node that advertises enough, where the extender does not."""
NAMES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.6gb")
seeds = st.integers(0, 1 << 30)


def explained(seed: int, *, desired: bool, running: int) -> tuple[Cluster, ObservedPod, tuple[NodeFit, ...]] | None:
    """Return a random cluster, its pending pod, and the verdict on each node; None where its request is invalid."""
    rng = random.Random(seed)
    cluster = read_cluster(as_fields(random_cluster(rng, desired=desired, running=running)))
    found, me = explain_pod(cluster, WANT), next(each for each in cluster.pods if each.pod.key == WANT)
    assert found is not None
    return None if me.unread or not me.pod.need.requests else (cluster, me, found.nodes)


def counted_by_name(cluster: Cluster, me: ObservedPod, mine: NodeFit, other: NodeFit) -> bool:
    """Return whether what the node advertises decides, which only explain counts.

    Without an agent it may advertise GPUs by name that pods have by amounts.
    """
    causes = {each.obstacle.cause for each in (mine, other) if each.obstacle is not None}
    silent = mine.obstacle is None and mine.node in {each.node.name for each in cluster.nodes if each.state is None}
    return mine.obstacle != other.obstacle and me.pod.need.by_name and (silent or not causes.isdisjoint(OF_AGENTS))


@pytest.mark.search
@settings(max_examples=150, deadline=None)
@given(seed=seeds, running=st.integers(0, 3))
@example(seed=195298, running=0).via(
    "an unhealthy GPU that the planner gives a layout: its instances and their slices are the same places"
)
@example(seed=422, running=0).via("a GPU with instances of another profile that can be repartitioned")
@example(seed=5012, running=3).via("devices are recorded on a pod whose request cannot be read")
@example(seed=570893145, running=4).via("a node without agent advertises a GPU by name that a pod has an amount of")
@example(seed=726340452, running=3).via("a GPU with instances that can be repartitioned, and a name that is no profile")
def test_plan_explain_and_the_extender_say_the_same_of_every_node_word_for_word(seed: int, running: int) -> None:
    """But for what a node advertises by name, which kube-scheduler counts: a plan may be for agents yet to come.

    Nothing is desired by name here: see the next law.
    """
    case = explained(seed, desired=False, running=running)
    if case is None:
        return
    cluster, me, verdicts = case
    planned = Reasons(cluster.snapshot).verdicts(me.pod.need)
    for mine, other in zip(verdicts, planned, strict=True):
        if not counted_by_name(cluster, me, mine, other):
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
        if each.obstacle is None and me.pod.need.by_name:  # the extender counts no devices by name
            assert each.node not in unsuited
        elif each.obstacle is None or each.obstacle.cause not in OF_NODES:
            assert texts.get(each.node, "") == (each.obstacle.text if each.obstacle else "")


@pytest.mark.search
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
        if not counted_by_name(cluster, me, mine, other) and (mine.obstacle, mine.detail) != (
            other.obstacle,
            other.detail,
        ):
            kept = f" of {mine.node}: the controller keeps idle devices for pods that request them by name"
            assert any(kept in note for note in cluster.snapshot.notes)
            assert mine.obstacle is not None


def resources_fit(objects: list[Object], node: Object, count: dict[str, int]) -> bool:
    """Whether kube-scheduler's NodeResourcesFit finds enough devices of each name; pods here have one container."""
    allocatable = node["status"]["allocatable"]
    there = [
        each for each in objects if each["kind"] == "Pod" and each["spec"].get("nodeName") == node["metadata"]["name"]
    ]
    limits = [each["spec"]["containers"][0]["resources"]["limits"] for each in there]
    return all(
        int(allocatable.get(name, 0)) - sum(int(each.get(name, 0)) for each in limits) >= requested
        for name, requested in count.items()
    )


@pytest.mark.search
@settings(max_examples=300, deadline=None)
@given(seed=seeds, running=st.integers(0, 4), honest=st.booleans())
def test_a_pod_by_name_fits_now_where_kube_scheduler_finds_enough_devices_left(
    seed: int, running: int, *, honest: bool
) -> None:
    """Otherwise there is room only where the planner has it too, on a GPU that the controller partitions, and the
    obstacle says what is true of the devices."""
    rng = random.Random(seed)
    objects = random_cluster(rng, desired=True, running=running)
    nodes = {each["metadata"]["name"]: each for each in objects if each["kind"] == "Node"}
    if not honest:  # such as where the agent is late
        for made in nodes.values():
            made["status"]["allocatable"] |= {name: str(rng.randrange(3)) for name in NAMES if rng.random() < 0.4}
    cluster = read_cluster(as_fields(objects))
    explained, me = explain_pod(cluster, WANT), next(each for each in cluster.pods if each.pod.key == WANT)
    assert explained is not None
    if me.unread or not me.pod.need.by_name:
        return
    count = {request.resource: request.count for request in me.pod.need.requests}
    planned = {each.node: each.obstacle for each in Reasons(cluster.snapshot).verdicts(me.pod.need)}
    states = {each.node.name: each.state for each in cluster.nodes}
    now = " ".join(each for each in explained.sentences if each.startswith("it fits on "))
    room = " ".join(each for each in explained.sentences if each.startswith("there is room on "))
    unsuited = Ledger.of(cluster).unsuited(me.pod.need, list(nodes))
    enough = [each.node for each in explained.nodes if resources_fit(objects, nodes[each.node], count)]
    fitting = [each.node for each in explained.nodes if each.obstacle is None and each.node in enough]
    assert bool(now) == bool(fitting)
    assert not now or all(name in now for name in fitting)
    for each in explained.nodes:
        if each.node in enough:
            assert each.obstacle is None or each.obstacle.cause in KUBE_SCHEDULER or each.node in unsuited
            assert each.obstacle is None or each.node not in now
        elif each.obstacle is None:
            assert each.node not in now
            assert now or each.node in room
            state = states[each.node]
            assert planned[each.node] is None
            assert state is None or any(gpu.sharing.managed for gpu in state.gpus)
        elif each.obstacle.cause is Cause.ADVERTISED and "requested" in each.obstacle.text:
            (name,) = count
            assert f"{count[name]} x {name} requested" in each.obstacle.text
            assert f" of {nodes[each.node]['status']['allocatable'][name]} advertised are free" in each.obstacle.text
        elif each.obstacle.cause is Cause.ADVERTISED:
            assert not [name for name in count if int(nodes[each.node]["status"]["allocatable"].get(name, 0))]
        elif each.obstacle.cause not in KUBE_SCHEDULER | OF_AGENTS:
            assert planned[each.node] is not None


@pytest.mark.search
@settings(max_examples=150, deadline=None)
@given(seed=seeds, running=st.integers(0, 4))
def test_defrag_moves_nothing_for_a_pod_by_name_that_fits_now(seed: int, running: int) -> None:
    case = explained(seed, desired=True, running=running)
    if case is None or not case[1].pod.need.by_name:
        return
    cluster, me, verdicts = case
    may_go = {each.pod.key: Evictable(pod=each.pod.key) for each in cluster.pods}
    made = propose(cluster, [PodToPlace(pod=me.pod.key, need=me.pod.need)], may_go)
    able = {each.node for each in verdicts if each.obstacle is None}
    assert (bool(made.placed) and not made.moves) == bool(able)
    assert not able or {each.place.node for each in made.placed} <= able


@settings(max_examples=60, deadline=None)
@given(seed=seeds, running=st.integers(1, 4))
def test_defrag_makes_room_only_where_the_scheduler_would_place_the_pod(seed: int, running: int) -> None:
    case = explained(seed, desired=True, running=running)
    if case is None:
        return
    cluster, me, verdicts = case
    obstacles = {each.node: each.obstacle for each in verdicts}
    may_go = {each.pod.key: Evictable(pod=each.pod.key) for each in cluster.pods}
    made = propose(cluster, [PodToPlace(pod=me.pod.key, need=me.pod.need)], may_go)
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
