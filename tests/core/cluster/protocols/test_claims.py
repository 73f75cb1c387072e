"""Claims: what each method tells, and the law that no replica, delay or crash makes anything be allocated twice."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders.shares import whole
from tessera.core.cluster.gpunodestate import Claim
from tessera.core.cluster.protocols.claims import ClaimKey, Fate, NodeClaims, key_of
from tessera.core.workload.need import PodKey


def claim(uid: str, place: int = 0, attempt: str = "1") -> Claim:
    return Claim(uid=uid, pod=PodKey(f"default/{uid}"), shares=(whole(place),), attempt=attempt)


def open_all(_: str) -> Fate:
    return Fate.OPEN


def fates(**known: Fate) -> dict[str, Fate]:
    return known


A, B, C = claim("a", 0), claim("b", 1), claim("c", 2)


@pytest.fixture
def node() -> NodeClaims:
    """Return a node whose object was read at version 5 with the claims A and B."""
    one = NodeClaims()
    one.take(5, (A, B), 0.0, skipped=True)
    one.reading()
    one.read(5, (A, B), 0.0)
    return one


def test_a_node_is_verified_when_its_object_and_then_its_pods_were_read(node: NodeClaims) -> None:
    assert (node.verified, node.version, node.counting(open_all)) == (True, 5, (A, B))
    assert not NodeClaims().verified
    assert (NodeClaims().empty, node.empty) == (True, False)


def test_the_next_version_keeps_it_verified_and_a_skipped_one_does_not(node: NodeClaims) -> None:
    node.take(6, (A, B, C), 1.0)
    assert node.verified
    node.take(6, (A,), 1.0, skipped=True)
    assert node.verified, "the version is known, nothing was skipped"
    node.take(9, (A, B, C), 1.0, skipped=True)
    assert not node.verified


def test_a_loss_unverifies_also_while_the_node_is_read(node: NodeClaims) -> None:
    node.reading()
    node.lost()
    node.read(7, (A,), 1.0)
    assert not node.verified


def test_a_version_that_is_known_changes_nothing(node: NodeClaims) -> None:
    node.take(4, (C,), 1.0)
    assert node.counting(open_all) == (A, B)


def test_a_claim_that_vanished_counts_until_its_pod_is_seen(node: NodeClaims) -> None:
    node.take(6, (B,), 1.0)
    assert node.counting(open_all) == (A, B)
    assert node.counting({"a": Fate.BOUND, "b": Fate.OPEN}.__getitem__) == (B,)
    assert node.counting(open_all) == (B,), "it was forgotten"


def test_a_claim_that_vanished_before_a_read_counts_no_more(node: NodeClaims) -> None:
    node.take(6, (B,), 1.0)
    node.reading()
    node.read(7, (B,), 2.0)
    assert node.counting(open_all) == (B,)


def test_a_claim_that_vanished_makes_the_node_worth_a_look(node: NodeClaims) -> None:
    assert not node.vanished(0.0, open_all), "the object has them all"
    node.take(6, (B,), 1.0)
    assert node.vanished(0.0, open_all)
    assert not node.vanished(-1.0, open_all), "not yet: its pod's binding may be on the way"
    assert not node.vanished(0.0, lambda _: Fate.BOUND)


def test_a_claim_that_came_and_went_while_the_node_was_read_counts(node: NodeClaims) -> None:
    node.reading()
    node.take(8, (B, C), 2.0)
    node.take(9, (B,), 2.0)
    node.read(7, (A, B), 2.0)
    assert (set(node.counting(open_all)), node.version, node.verified) == ({A, B, C}, 9, True)


def test_what_is_given_up_counts_no_more_and_is_left_out_of_the_next_write(node: NodeClaims) -> None:
    assert node.without_settled(open_all) is None
    node.give_up(key_of(A))
    assert node.counting(open_all) == (B,)
    assert node.without_settled(open_all) == (B,)
    assert node.with_claims((C,), open_all) == (B, C)
    node.take(6, (B, C), 1.0)
    assert (node.without_settled(open_all), node.counting(open_all)) == (None, (B, C))


def test_a_new_attempt_takes_the_shares_of_an_earlier_one_and_replaces_it(node: NodeClaims) -> None:
    again = claim("a", 0, "2")
    assert (node.earlier("a", open_all), node.earlier("c", open_all)) == (A, None)
    assert node.with_claims((again,), open_all) == (B, again)
    node.take(6, (B, again), 1.0)
    assert [each.uid for each in node.counting(open_all)] == ["a", "b"], "equal claims count once"
    node.give_up(ClaimKey("a", "1"))
    assert node.earlier("a", open_all) == again
    assert node.earlier("a", lambda _: Fate.GONE) is None


def test_claims_are_overdue_by_when_they_were_seen_first(node: NodeClaims) -> None:
    node.take(6, (A, B, C), 10.0)
    assert node.overdue(5.0, open_all) == (A, B)
    assert node.overdue(10.0, lambda uid: Fate.BOUND if uid == "a" else Fate.OPEN) == (B, C)


def test_claims_of_a_deleted_object_are_lacking_in_the_next_until_it_has_them(node: NodeClaims) -> None:
    node.deleted()
    assert node.lacking(open_all) == (), "there is no object to have them"
    node.take(8, (), 1.0)
    assert node.lacking(open_all) == (A, B)
    assert node.lacking({"a": Fate.BOUND, "b": Fate.OPEN}.__getitem__) == (B,)
    node.take(9, (B,), 1.0)
    assert node.lacking(open_all) == (A,)
    node.take(10, (B, claim("a", 2, "2")), 1.0)
    assert node.lacking(open_all) == (), "a later attempt has claimed for that pod"
    node.reading()
    node.read(11, (), 2.0)
    assert node.lacking(open_all) == (A,)
    assert A in node.counting(open_all)
    assert B not in node.counting(open_all), "who dropped it from the new object knew its pod's fate"


def test_what_is_read_late_of_the_deleted_object_is_not_in_the_next(node: NodeClaims) -> None:
    node.deleted()
    node.reading()
    node.read(5, (A, B), 1.0)
    node.take(8, (), 1.0)
    assert node.lacking(open_all) == (A, B)
    node.reading()
    node.read(9, (A,), 1.0)
    assert node.lacking(open_all) == (B,)


# The law


PLACES, PODS, REPLICAS = 2, 4, 3
_OVERDUE_S, _POST_WITHIN_S, _REQUEST_LIVES_S, _UNKNOWN_S = 120.0, 30.0, 60.0, 5.0


@dataclass
class Pod:
    """A pod at the API server, or as a replica knows it."""

    version: int = 0
    place: int | None = None
    gone: bool = False


@dataclass
class Scene:
    """An API server with one node, and requests whose sender hears nothing any more."""

    now_s: float = 0.0
    version: int = 1
    claims: tuple[Claim, ...] = ()
    node_version: int = 1
    node_log: list[tuple[int, tuple[Claim, ...]]] = field(default_factory=list)
    pods: dict[str, Pod] = field(default_factory=lambda: {f"p{i}": Pod() for i in range(PODS)})
    pod_log: list[tuple[str, Pod]] = field(default_factory=list)
    late_posts: list[tuple[str, int, float]] = field(default_factory=list)
    late_patches: list[tuple[int, tuple[Claim, ...]]] = field(default_factory=list)

    def write_node(self, base: int, claims: tuple[Claim, ...]) -> bool:
        if base != self.node_version:
            return False
        self.version += 1
        self.node_version, self.claims = self.version, claims
        self.node_log.append((self.version, claims))
        return True

    def write_pod(self, uid: str, *, place: int | None, gone: bool = False) -> None:
        self.version += 1
        self.pods[uid] = Pod(self.version, place, gone)
        self.pod_log.append((uid, self.pods[uid]))

    def bind(self, uid: str, place: int) -> bool:
        """Carry a Binding out, where the pod is there and not bound."""
        if self.pods[uid].gone or self.pods[uid].place is not None:
            return False
        self.write_pod(uid, place=place)
        return True

    def held(self) -> set[int]:
        """Return the places that are allocated, after a look that none is allocated twice."""
        held = [pod.place for pod in self.pods.values() if pod.place is not None and not pod.gone]
        assert len(held) == len(set(held)), "a place is allocated twice"
        return set(held)


@dataclass
class Job:
    """One request to bind a pod, between two calls of the API."""

    claim: Claim
    stage: str = "choose"
    reused: bool = False
    sent_s: float = 0.0
    read: tuple[int, tuple[Claim, ...]] = (0, ())
    base: int = 0
    claims: tuple[Claim, ...] = ()


class Replica:
    """One server: late watches of its own, the protocol, and nothing that survives it."""

    def __init__(self, world: Scene, name: str) -> None:
        self.world, self.name, self.attempts = world, name, 0
        self.node = NodeClaims()
        self.pods: dict[str, Pod] = {}
        self.assumed: dict[str, int] = {}
        self.node_at = self.pod_at = 0
        self.job: Job | None = None
        self.list_node()
        self.list_pods()

    # What it sees

    def fate(self, uid: str) -> Fate:
        pod = self.pods.get(uid, Pod())
        if pod.gone:
            return Fate.GONE
        return Fate.OPEN if pod.place is None and uid not in self.assumed else Fate.BOUND

    def see(self, uid: str, pod: Pod) -> None:
        if pod.version >= self.pods.get(uid, Pod()).version:
            self.pods[uid] = pod

    def list_node(self) -> None:
        self.node_at = len(self.world.node_log)
        self.node.take(self.world.node_version, self.world.claims, self.world.now_s, skipped=True)

    def list_pods(self) -> None:
        self.pod_at = len(self.world.pod_log)
        for uid, pod in self.world.pods.items():
            self.see(uid, pod)

    def watch_node(self, events: int) -> None:
        for version, claims in self.world.node_log[self.node_at : self.node_at + events]:
            self.node.take(version, claims, self.world.now_s)
            self.node_at += 1

    def watch_pods(self, events: int) -> None:
        for uid, pod in self.world.pod_log[self.pod_at : self.pod_at + events]:
            self.see(uid, pod)
            self.pod_at += 1

    def taken(self) -> set[int]:
        known = [pod.place for pod in self.pods.values() if pod.place is not None and not pod.gone]
        assumed = [place for uid, place in self.assumed.items() if uid not in self.pods or self.pods[uid].place is None]
        claimed = [each.shares[0].gpu for each in self.node.counting(self.fate)]
        return {*known, *assumed, *claimed}

    # What it does

    def start(self, uid: str) -> None:
        if self.job is None and self.fate(uid) is Fate.OPEN:
            self.attempts += 1
            self.job = Job(claim(uid, 0, f"{self.name}/{self.attempts}"))

    def step(self, luck: int) -> None:
        if self.job is not None:
            {"choose": self.choose, "list": self.verify, "patch": self.patch, "post": self.post}[self.job.stage](luck)

    def choose(self, _: int) -> None:
        job = self.running
        if self.fate(job.claim.uid) is not Fate.OPEN:
            self.job = None
        elif not self.node.verified:
            self.node.reading()
            job.read, job.stage = (self.world.node_version, self.world.claims), "list"
        else:
            earlier = self.node.earlier(job.claim.uid, self.fate)
            free = sorted(set(range(PLACES)) - self.taken())
            if earlier is None and not free:
                self.job = None
                return
            place = earlier.shares[0].gpu if earlier else free[0]
            job.claim, job.reused = claim(job.claim.uid, place, job.claim.attempt), earlier is not None
            job.base, job.claims = self.node.version, self.node.with_claims((job.claim,), self.fate)
            job.sent_s, job.stage = self.world.now_s, "patch"

    def verify(self, _: int) -> None:
        for uid, pod in self.world.pods.items():
            self.see(uid, pod)
        self.node.read(*self.running.read, self.world.now_s)
        self.running.stage = "choose"

    def patch(self, luck: int) -> None:
        job = self.running
        if luck == 1:  # the connection broke before the server had the request, or so late that it acts on it still
            self.world.late_patches.append((job.base, job.claims))
        written = luck != 1 and self.world.write_node(job.base, job.claims)
        if luck in {0, 3} and written:
            self.node.take(self.world.node_version, job.claims, self.world.now_s)
            job.stage = "post"
        else:
            self.node.lost()
            job.stage = "choose"
            if luck in {1, 2}:  # no answer
                self.end(bound=False, never=True)

    def post(self, luck: int) -> None:
        job = self.running
        uid, place = job.claim.uid, job.claim.shares[0].gpu
        if self.world.now_s - job.sent_s > _POST_WITHIN_S:
            self.end(bound=False, never=True)
        elif luck == 0:
            bound = self.world.bind(uid, place)
            self.end(bound=bound, never=False)
        elif luck == 1:  # no answer, not carried out yet
            self.world.late_posts.append((uid, place, self.world.now_s + _REQUEST_LIVES_S))
            self.end(bound=False, never=False)
        elif luck == 2:  # no answer, carried out
            self.world.bind(uid, place)
            self.end(bound=False, never=False)
        else:  # refused for good, as for want of rights
            self.end(bound=False, never=True)

    def end(self, *, bound: bool, never: bool) -> None:
        job, self.job = self.running, None
        if bound:
            self.assumed[job.claim.uid] = job.claim.shares[0].gpu
        if never and not job.reused:
            self.node.give_up(key_of(job.claim))

    @property
    def running(self) -> Job:
        assert self.job is not None
        return self.job

    def sweep(self) -> None:
        for each in self.node.overdue(self.world.now_s - _OVERDUE_S, self.fate):
            self.see(each.uid, self.world.pods[each.uid])
            if self.fate(each.uid) is Fate.OPEN:
                self.node.give_up(key_of(each))
        if self.node.vanished(self.world.now_s - _UNKNOWN_S, self.fate):
            self.node.reading()
            for uid, pod in self.world.pods.items():
                self.see(uid, pod)
            self.node.read(self.world.node_version, self.world.claims, self.world.now_s)
        left = self.node.without_settled(self.fate)
        if left is not None and self.world.write_node(self.node.version, left):
            self.node.take(self.world.node_version, left, self.world.now_s)


def watch_node(_: Scene, replica: Replica, luck: int) -> None:
    replica.watch_node(1 + luck)


def watch_pods(_: Scene, replica: Replica, luck: int) -> None:
    replica.watch_pods(1 + luck)


def start(_: Scene, replica: Replica, luck: int) -> None:
    replica.start(f"p{luck}")


def step(_: Scene, replica: Replica, luck: int) -> None:
    del luck
    replica.step(0)


def misstep(_: Scene, replica: Replica, luck: int) -> None:
    replica.step(luck)


def relist_node(_: Scene, replica: Replica, luck: int) -> None:
    del luck
    replica.list_node()


def relist_pods(_: Scene, replica: Replica, luck: int) -> None:
    del luck
    replica.list_pods()


def crash(world: Scene, replica: Replica, luck: int) -> None:
    del luck
    vars(replica).update(vars(Replica(world, f"{replica.name}'")))


def sweep(_: Scene, replica: Replica, luck: int) -> None:
    del luck
    replica.sweep()


def wait(world: Scene, _: Replica, luck: int) -> None:
    world.now_s += (1.0, 29.0, 61.0, 121.0)[luck]
    world.late_posts = [each for each in world.late_posts if each[2] >= world.now_s]


def late_post(world: Scene, _: Replica, luck: int) -> None:
    if world.late_posts:
        uid, place, _until = world.late_posts.pop(luck % len(world.late_posts))
        world.bind(uid, place)


def late_patch(world: Scene, _: Replica, luck: int) -> None:
    if world.late_patches:
        world.write_node(*world.late_patches.pop(luck % len(world.late_patches)))


def delete(world: Scene, _: Replica, luck: int) -> None:
    pod = world.pods[f"p{luck}"]
    if not pod.gone:
        world.write_pod(f"p{luck}", place=pod.place, gone=True)


def agent_writes(world: Scene, _: Replica, luck: int) -> None:
    del luck
    world.write_node(world.node_version, world.claims)


EVENTS = (
    *(step,) * 14,
    *(start,) * 6,
    *(misstep,) * 3,
    *(watch_node, watch_pods) * 4,
    *(relist_node, relist_pods, crash, sweep, sweep, wait, wait, late_post, late_post, late_patch, delete),
    agent_writes,
)
"""What may happen, the frequent several times."""


def quiet(world: Scene, replicas: list[Replica]) -> None:
    """Let every watch arrive, time pass, and replicas look: soon they keep only what the object has, then nothing."""
    for replica in replicas:
        replica.job = None
    world.late_posts, world.late_patches = [], []
    for passed_s in (0.0, _UNKNOWN_S + 1, *(_OVERDUE_S + 1,) * 3):
        world.now_s += passed_s
        for replica in replicas:
            for each in replicas:
                each.watch_node(10_000)
                each.watch_pods(10_000)
            replica.sweep()
        if passed_s == _UNKNOWN_S + 1:
            assert all(set(each.node.counting(each.fate)) <= set(each.node.present()) for each in replicas)


Event = tuple[int, int, int]


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(EVENTS) - 1), st.integers(0, REPLICAS - 1), st.integers(0, 3)), max_size=150)
)
def test_nothing_is_allocated_twice_and_no_claim_is_left(events: list[Event]) -> None:
    world = Scene()
    replicas = [Replica(world, f"r{index}") for index in range(REPLICAS)]
    for what, which, luck in events:
        EVENTS[what](world, replicas[which], luck)
        world.held()
    quiet(world, replicas)
    world.held()
    assert world.claims == ()
    for replica in replicas:
        assert replica.node.counting(replica.fate) == ()
        assert replica.taken() == world.held(), "after all has arrived every replica's view is the API's"


def test_the_happy_way_binds_pods_to_all_places() -> None:
    world = Scene()
    replicas = [Replica(world, f"r{index}") for index in range(REPLICAS)]
    for turn in range(4):
        replicas[turn % REPLICAS].start(f"p{turn}")
        for _ in range(6):
            replicas[turn % REPLICAS].step(0)
    assert [pod.place for pod in world.pods.values()] == [0, 1, None, None]


def request(replica: Replica, uid: str, *, answer: int = 0) -> None:
    """Let a replica try to bind a pod; the Binding itself has that luck."""
    replica.start(uid)
    while replica.job is not None:
        replica.step(answer if replica.running.stage == "post" else 0)


STORIES = {
    "the answer to the first Binding was lost, and it is carried out late": 1,
    "the answer to the first Binding was lost, and it was carried out": 2,
}


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("second", [0, 1, 2, 3])
def test_a_second_attempt_elsewhere_does_not_free_what_the_first_may_hold(story: str, second: int) -> None:
    world = Scene()
    first, other, *_ = replicas = [Replica(world, f"r{index}") for index in range(REPLICAS)]
    request(first, "p0", answer=STORIES[story])
    request(other, "p0", answer=second)
    request(other, "p1")
    request(first, "p2")
    request(other, "p3")
    while world.late_posts:
        late_post(world, first, 0)
    assert len(world.held()) == PLACES
    quiet(world, replicas)
    assert world.claims == ()


def test_thousands_of_histories_grant_nothing_twice() -> None:
    """Say the law again of long histories, so many that each rule of the protocol was seen to be needed."""
    for seed in range(2500):
        rng, world = random.Random(seed), Scene()
        replicas = [Replica(world, f"r{index}") for index in range(REPLICAS)]
        for _ in range(150):
            rng.choice(EVENTS)(world, rng.choice(replicas), rng.randrange(4))
            world.held()
        quiet(world, replicas)
        assert world.claims == (), seed
