"""Laws of the ledger on small worlds of all modes and ask forms, against a judge written independently."""

import itertools
import random
from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.mixedclusters import ASKS, GPU_KINDS, Judge, World, legal, nodes_of, worlds
from builders.shares import whole
from tessera.core.cluster.snapshot import Gpu, Node, NodeName, Share
from tessera.core.gpu.gpumodels import GpuModel
from tessera.core.gpu.sharing import Mode, Sharing
from tessera.core.packing.fit import Fleet
from tessera.core.packing.ledger import Ledger, LedgerEntry, LedgerKey
from tessera.core.packing.pack import POLICIES, Choice, Packer
from tessera.core.workload.need import Isolation, Need, PodKey

PROFILES = (None, "1g.5gb", "1g.5gb+me", "2g.10gb", "3g.20gb", "7g.40gb", "9g.9gb")
wild_shares = st.builds(
    Share,
    gpu=st.sampled_from((0, 0, 2, 4, 7)),
    mode=st.sampled_from(Mode),
    profile=st.sampled_from(PROFILES),
    start=st.sampled_from((None, 0, 1, 2, 4, -1)),
    memory_mib=st.sampled_from((0, 4_000, 9_000, -1, 1 << 70)),
    compute_percent=st.sampled_from((0, 30, 100, 101, -5)),
    isolation=st.just(Isolation.NONE),
    resource=st.just("tessera.dev/gpu-memory"),
)
"""What a hostile annotation may claim."""
Step = Node | LedgerEntry | tuple[str, str]
"""A node or pod that is put, or what is dropped: its kind and its name or uid."""
policies = st.sampled_from([name for name in POLICIES if name != "random"])


def bare(need: Need) -> Need:
    return msgspec.structs.replace(need, node_selector=(), affinity=None, tolerations=())


def names_of(nodes: Iterable[Node]) -> list[str]:
    return [str(node.name) for node in nodes]


def answers(ledger: Ledger, kinds: Sequence[Need], names: Sequence[str]) -> list[object]:
    """All that can be asked of a ledger."""
    found: list[object] = [ledger.impossible_shares]
    for need in kinds:
        found += [ledger.filter(need, names), ledger.scores(need, names), ledger.best(need, names)]
        found += [ledger.choose(need, name) for name in names]
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Puts and drops of a few nodes and pods, nodes being seen differently each time."""
    needs = draw(worlds)[1]
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 12))):
        name, uid = draw(st.sampled_from(("node-0", "node-1", "node-2"))), draw(st.sampled_from("abcdef"))
        match draw(st.sampled_from(("node", "node", "pod", "pod", "pod", "drop node", "drop pod"))):
            case "node":
                steps.append(msgspec.structs.replace(draw(nodes_of())[0], name=NodeName(name)))
            case "pod":
                shares = tuple(draw(st.lists(wild_shares, max_size=3)))
                steps.append(
                    LedgerEntry(uid, PodKey(f"default/{uid}"), NodeName(name), draw(st.sampled_from(needs)), shares)
                )
            case "drop node":
                steps.append(("node", name))
            case _:
                steps.append(("pod", uid))
    return steps


def apply(ledger: Ledger, step: Step) -> None:
    match step:
        case Node():
            reserved = tuple(whole(gpu.index, gpu.memory_mib) for gpu in step.gpus[:1] if step.cpu_milli == 4_000)
            ledger.put_node(step, reserved=reserved)
        case LedgerEntry():
            ledger.put_pod(step)
        case ("node", name):
            ledger.drop_node(name)
        case (_, uid):
            ledger.drop_pod(uid)


@settings(max_examples=80, deadline=None)
@given(steps=histories(), world=worlds, policy=policies, look=st.booleans())
def test_any_order_of_puts_and_drops_equals_a_fresh_ledger_of_the_final_objects(
    steps: list[Step], world: World, policy: str, *, look: bool
) -> None:
    kinds = [bare(need) for need in world[1]]
    mix = tuple((need, 3) for need in kinds)
    lived, nodes, pods = Ledger(policy, mix=mix), dict[str, Node](), dict[LedgerKey, LedgerEntry]()
    names = ["node-0", "node-1", "node-2", "nowhere"]
    for step in steps:
        apply(lived, step)
        match step:
            case Node():
                nodes[step.name] = step
            case LedgerEntry():
                pods[step.id] = step
            case ("node", name):
                nodes.pop(name, None)
            case (_, uid):
                pods.pop(uid, None)
        if look:
            answers(lived, kinds, names)
    fresh = Ledger(policy, mix=mix)
    every: list[Step] = [*nodes.values(), *pods.values()]
    for each in every:
        apply(fresh, each)
    assert answers(lived, kinds, names) == answers(fresh, kinds, names)
    turned = Ledger(policy, mix=mix)
    for each in [*reversed(every[len(nodes) :]), *every[: len(nodes)]]:
        apply(turned, each)
    assert answers(turned, kinds, names) == answers(fresh, kinds, names)


@pytest.mark.search
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "random"])
def test_types_of_gpus_that_come_and_go_change_no_answer(policy: str) -> None:
    """Each kind of GPU gives way to each other and comes back, on a node beside two that stay."""
    needs = [Need(cpu_milli=1_000, requests=requests) for requests in ASKS]
    mix = tuple((need, 3) for need in needs if need.requests)
    rng = random.Random(policy)
    pairs = list(itertools.permutations(GPU_KINDS, 2))
    for former, later in rng.sample(pairs, 12):
        beside, stays = rng.choices(GPU_KINDS, k=2)
        others = (node_of("b", beside, stays), node_of("c", stays))
        first, second = node_of("a", former, beside), node_of("a", later, beside)
        lived = Ledger(policy, mix=mix)
        for node in (first, *others):
            lived.put_node(node)
        answers(lived, needs, "abc")
        for node in (second, first, second):
            lived.put_node(node)
            fresh = Ledger(policy, mix=mix)
            for each in (node, *others):
                fresh.put_node(each)
            assert answers(lived, needs, "abc") == answers(fresh, needs, "abc"), (former, later, beside, stays)


def node_of(name: str, *kinds: tuple[GpuModel, Sharing]) -> Node:
    gpus = (
        Gpu(index=i, model=model, memory_mib=model.memory_mib, sharing=sharing)
        for i, (model, sharing) in enumerate(kinds)
    )
    return Node(name=NodeName(name), cpu_milli=64_000, memory_mib=64_000, gpus=tuple(gpus))


@settings(max_examples=40, deadline=None)
@given(world=worlds, wild=st.lists(wild_shares, max_size=4))
def test_what_is_granted_can_be_held_beside_everything_that_is_held(world: World, wild: list[Share]) -> None:
    nodes, kinds, rng = world
    ledger = Ledger()
    held = {node.name: list[tuple[LedgerKey, Share]]() for node in nodes}
    for node in nodes:
        ledger.put_node(node)
    pods = [
        LedgerEntry(f"w{i}", PodKey(f"default/w{i}"), rng.choice(nodes).name, Need(), (share,))
        for i, share in enumerate(wild)
    ]
    for pod in pods:
        ledger.put_pod(pod)
        held[pod.node] += [(pod.id, share) for share in pod.shares]
    for number in range(14):
        if number == 9 and pods:
            gone = pods.pop(rng.randrange(len(pods)))
            ledger.drop_pod(gone.id)
            held[gone.node] = [each for each in held[gone.node] if each[0] != gone.id]
        need = rng.choice(kinds)
        fitting, failed, hopeless = ledger.filter(need, names_of(nodes))
        assert sorted([*fitting, *failed, *hopeless]) == names_of(nodes)
        for name in (*failed, *hopeless):
            assert isinstance(ledger.choose(need, name), str)
        for name in fitting[:1]:
            shares = ledger.choose(need, name)
            assert not isinstance(shares, str)
            pods.append(LedgerEntry(f"p{number}", PodKey(f"default/p{number}"), NodeName(name), need, shares))
            ledger.put_pod(pods[-1])
            held[pods[-1].node] += [(pods[-1].id, share) for share in shares]
        closed = {(clash.node, clash.gpu) for clash in ledger.impossible_shares}
        assert not any((name, share.gpu) in closed for name in fitting[:1] for share in pods[-1].shares)
        for node in nodes:
            for gpu in node.gpus:
                on_gpu = [share for _, share in held[node.name] if share.gpu == gpu.index]
                assert ((node.name, gpu.index) in closed) or holdable(gpu, on_gpu)


def holdable(gpu: Gpu, shares: Sequence[Share]) -> bool:
    """Whether shares of any kind may be on a GPU at once, modes that were allowed once included."""
    return all(share.memory_mib >= 0 and 0 <= share.compute_percent <= 100 for share in shares) and legal(gpu, shares)


@settings(max_examples=30, deadline=None)
@given(world=worlds)
def test_a_node_fits_where_some_devices_would_serve_and_is_hopeless_where_none_would_even_if_it_were_empty(
    world: World,
) -> None:
    nodes, kinds, rng = world
    roomy = [msgspec.structs.replace(n, cpu_milli=1 << 30, memory_mib=1 << 30, max_pods=99, taints=()) for n in nodes]
    needs = [bare(need) for need in kinds]
    ledger, judge, empty = Ledger(), Judge(roomy), Judge(roomy)
    for node in roomy:
        ledger.put_node(node)
    for number in range(8):
        need = rng.choice(needs)
        fitting, failed, hopeless = ledger.filter(need, names_of(roomy))
        assert list(fitting) == [str(n.name) for i, n in enumerate(roomy) if judge.fits(i, need)]
        for i, node in enumerate(roomy):
            if str(node.name) in hopeless:
                assert not empty.fits(i, need)
            if str(node.name) in failed and ledger_of(node).fits(need, node.name):
                assert empty.fits(i, need)
        if fitting:
            name = rng.choice(fitting)
            shares = ledger.choose(need, name)
            assert not isinstance(shares, str)
            ledger.put_pod(LedgerEntry(f"{number}", PodKey(f"default/{number}"), NodeName(name), need, shares))
            judge.held[names_of(roomy).index(name)].append((need, shares))


def ledger_of(node: Node) -> Ledger:
    ledger = Ledger("first-fit")
    ledger.put_node(node)
    return ledger


@pytest.mark.search
@settings(max_examples=30, deadline=None)
@given(world=worlds, policy=policies)
def test_a_replay_through_filter_scores_and_choose_equals_the_packer(world: World, policy: str) -> None:
    nodes, kinds, rng = world
    open_nodes = [msgspec.structs.replace(node, taints=()) for node in nodes]
    needs = list(dict.fromkeys(bare(need) for need in kinds))
    packer, ledger = Packer(Fleet(open_nodes), policy), Ledger(policy)
    for node in open_nodes:
        ledger.put_node(node)
    ids = [packer.intern(need) for need in needs]
    for need in needs:
        ledger.filter(need, ())
    running: list[tuple[int, Choice, LedgerEntry]] = []
    for number in range(60):
        if running and rng.random() < 0.4:
            kind, choice, pod = running.pop(rng.randrange(len(running)))
            packer.release(kind, choice)
            ledger.drop_pod(pod.id)
            continue
        kind = rng.randrange(len(needs))
        want = packer.place(ids[kind])
        got = schedule(ledger, open_nodes, needs[kind], f"p{number}")
        assert (got is None) == (want is None)
        if want is not None and got is not None:
            assert (got.node, got.shares) == (open_nodes[want.node].name, want.shares)
            running.append((ids[kind], want, got))


def schedule(ledger: Ledger, nodes: Sequence[Node], need: Need, uid: str) -> LedgerEntry | None:
    """What kube-scheduler and the extender do: nodes with room that suit the pod, filter, the best score, and bind."""
    ledger.arrive(uid, need)
    roomy = [
        str(node.name)
        for node in nodes
        if all(map(int.__ge__, ledger.free_resources(node.name), (need.cpu_milli, need.memory_mib, 1)))
    ]
    unsuited = ledger.unsuited(need, roomy)
    roomy = [name for name in roomy if name not in unsuited]
    fitting = ledger.filter(need, roomy).fitting
    best = ledger.best(need, roomy)
    if not fitting:
        assert best is None
        return None
    scores = ledger.scores(need, fitting)
    assert scores.count(10) == 1
    node = fitting[scores.index(10)]
    assert best == node, "of all that were asked about it is the best of those that fit"
    shares = ledger.choose(need, node)
    assert not isinstance(shares, str)
    pod = LedgerEntry(uid, PodKey(f"default/{uid}"), NodeName(node), need, shares)
    ledger.put_pod(pod)
    return pod
