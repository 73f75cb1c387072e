"""Two pods never have one device, in any order of events, whatever the kubelet forgets: every state of a small node.

The model has one MIG instance that the controller wants now and then, a device that overlaps it, pods that request the
instance by name and come by the default scheduler, pods with needs that a server places, and the kubelet as it is,
with its races (docs/kubelet-races.md), and without its checkpoint after a start. What is handed over, what overlaps,
and what may be allocated and started is decided by the code that agents run (`core.cluster.protocols.allocators`,
`core.deviceplugin.allocations.lastgate`); the order of their calls, and the server, are modeled.
"""

import random
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.core.cluster.protocols.allocators import DeviceState, Handshake, plan_offer, released_devices, state_of
from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.lastgate import GateDecision
from tessera.core.gpu.deviceids import DeviceId, overlap
from tessera.core.gpu.gpumodels import model
from tessera.core.gpu.mig import Placement

pytestmark = pytest.mark.search

A100 = model("A100-40GB")
GPU = "GPU-0"
SLICE = DeviceId(GPU, Placement(0, 1, "1g.5gb"))
PAIR = DeviceId(GPU, Placement(0, 2, "2g.10gb"))
OTHER = DeviceId(GPU, Placement(4, 1, "1g.5gb"))
WHOLE = DeviceId(GPU)
MODELS = {GPU: A100}
NOBODY = frozenset[DeviceId]()


class Pod(NamedTuple):
    """A pod, and how far it has come."""

    state: str = "new"
    """new, claimed (needs), bound, starting (by name: the kubelet has inserted it), running, dying, gone, failed.

    One that dies is gone for the API server and has a process left.
    """
    device: DeviceId | None = None


Pods: TypeAlias = tuple[tuple[str, Pod], ...]
Inserted: TypeAlias = frozenset[tuple[str, DeviceId]]


class Object(NamedTuple):
    """The GPUNode."""

    desired: frozenset[DeviceId] = NOBODY
    offered: frozenset[DeviceId] = NOBODY
    claims: frozenset[tuple[str, DeviceId]] = frozenset()


class State(NamedTuple):
    """The whole node."""

    pods: Pods
    stored: Object = Object()
    seen: Object = Object()
    """The object as the agent's watch shows it."""
    read: tuple[Object, frozenset[DeviceId] | None] | None = None
    """The object as the agent read it to write on its version, and what pods had then; None after any other write."""
    server: Object | None = None
    """The object as the server verified it; None after any other write."""
    listed: frozenset[DeviceId] = NOBODY
    """What the agent advertises."""
    leaving: frozenset[DeviceId] = NOBODY
    """What it has taken back and would still allocate."""
    checked: frozenset[DeviceId] = NOBODY
    """What the kubelet has let go of and nobody had when the agent looked."""
    letting_go: frozenset[DeviceId] = NOBODY
    """What it refuses by now, and has not written yet."""
    healthy: frozenset[DeviceId] = NOBODY
    """What the kubelet knows to be healthy."""
    taken: frozenset[DeviceId] = NOBODY
    """The kubelet's `allocatedDevices`."""
    inserted: Inserted = frozenset()
    """The kubelet's `podDevices`."""
    flight: tuple[str, DeviceId, bool] | None = None
    """The call of Allocate that is under way: pod, device, whether the agent has answered."""
    record: frozenset[AgentAllocation] = frozenset()
    """The agent's."""
    faults: int = 0


class Model(NamedTuple):
    """What may happen."""

    pods: tuple[str, ...]
    """Those named `need` have needs, the others ask for `by_name` by name."""
    by_name: frozenset[DeviceId]
    for_needs: tuple[DeviceId, ...] = ()
    """The devices that serve a need."""
    changing: bool = True
    """Whether the controller wants the devices by name now and then, or they are fixed."""
    gate: bool = True
    """Whether the agent keeps its record; without it only the handshake stands between the allocators."""
    faults: int = 0
    """How often the kubelet forgets a pod that runs (race B) or its checkpoint, or the agent is killed."""
    races: bool = True
    """Whether somebody lists while the kubelet allocates (race A)."""
    counted: bool = True
    """Whether what `Allocate` was answered counts as held before the kubelet shows it."""
    versioned: bool = True
    """Whether the agent writes on the version that it decided on."""
    rechecked: bool = True
    """Whether the agent looks again who has a device after it refuses it, before it gives it to the scheduler."""
    readmits: bool = False
    """Whether containers end and are started again, and the kubelet starts without its checkpoint."""
    observes: bool = True
    """Whether the agent looks which containers run before it forgets what they had."""
    units: int = 0
    """Of memory, where needs share a device: each pod has one, so many are there; 0 where each has it to itself."""


@cache
def entry(device: DeviceId, name: str = "", *, units: int = 0) -> AgentAllocation:
    """Return what the agent records of a device, and of its pod if that is known; a need has units of its own."""
    gpu, placement = device
    if units and is_need(name):
        uses = (AllocatedDevice(device=DeviceId(gpu, placement), exclusivity=Exclusivity.MEMORY, memory_mib=1),)
        return AgentAllocation(resource="need", ids=(name,), uses=uses, uid=name, pod=name, container="main")
    requested = ("need", (name,)) if is_need(name) else ("named", (f"{device}",))
    uses = (AllocatedDevice(device=DeviceId(gpu, placement)),)
    return AgentAllocation(
        resource=requested[0], ids=requested[1], uses=uses, uid=name, pod=name, container="main" * bool(name)
    )


def device_of(known: AgentAllocation) -> DeviceId:
    (only,) = known.uses
    return only.device


@cache
def observation(pods: Pods, inserted: Inserted) -> GateObservation:
    """Return what the agent sees: the API server's pods, their processes, the kubelet's record."""
    there = {
        name: GatePod(
            name=name,
            ended=pod.state == "failed",
            ending=pod.state == "failed",
            requests=frozenset({("main", "need" if is_need(name) else "named")}),
            lasting=frozenset({"main"}),
        )
        for name, pod in pods
        if pod.state not in {"new", "dying", "gone"}
    }
    recorded = tuple(
        KubeletAllocation(uid=name, container="main", resource=known.resource, device_ids=known.ids)
        for name, device in sorted(inserted, key=str)
        for known in (entry(device, name),)
    )
    processes = frozenset(name for name, pod in pods if pod.state in {"running", "dying"})
    return GateObservation(pods=there, running=processes, recorded=recorded)


@cache
def allocated(record: frozenset[AgentAllocation], device: DeviceId, pods: Pods, inserted: Inserted) -> GateDecision:
    """Return what `Allocate` is answered for a device by name."""
    return lastgate.admit(in_order(record), entry(device), observation(pods, inserted), {})


@cache
def started(
    record: frozenset[AgentAllocation], new: AgentAllocation, pods: Pods, inserted: Inserted, units: int
) -> GateDecision:
    """Return what `PreStartContainer` is answered."""
    capacity_mib = {device_of(new): units} if units else {}
    return lastgate.start(in_order(record), new, observation(pods, inserted), capacity_mib, ids=not is_need(new.uid))


def in_order(record: frozenset[AgentAllocation]) -> tuple[AgentAllocation, ...]:
    return tuple(sorted(record, key=lambda each: (each.uid, each.ids)))


def is_need(name: str) -> bool:
    return name.startswith("need")


def alter(state: State, name: str, pod: Pod, **more: object) -> State:
    pods = tuple((each, pod if each == name else known) for each, known in state.pods)
    return state._replace(pods=pods, **more)  # type: ignore[arg-type]


def store(state: State, stored: Object, model: Model, **more: object) -> State:
    """Write the object: whoever read it before has another version."""
    read = None if model.versioned else state.read
    return state._replace(stored=stored, **{"read": read, "server": None, **more})  # type: ignore[arg-type]


def assigned(state: State) -> frozenset[DeviceId]:
    """Return what pods with needs were assigned, by the API server."""
    return frozenset(
        pod.device for name, pod in state.pods if is_need(name) and pod.device and pod.state in {"bound", "running"}
    )


def steps(state: State, model: Model) -> Iterator[State]:
    yield from controller_and_server(state, model)
    yield from agent_s_handshake(state, model)
    yield from kubelet(state, model)
    yield from pods_end(state)
    if (kept := without_former(state, model)) != state.record:
        yield state._replace(record=kept)
    if state.faults < model.faults:
        yield from faults(state._replace(faults=state.faults + 1), model)


def controller_and_server(state: State, model: Model) -> Iterator[State]:
    old = state.stored
    if model.changing or not old.desired:
        yield store(state, old._replace(desired=old.desired ^ model.by_name), model)
    if state.server is None and model.for_needs:
        yield state._replace(server=old)
    for name, pod in state.pods:
        if not is_need(name):
            continue
        if pod.state == "new" and state.server is not None:
            kept = (
                state.server.desired
                | state.server.offered
                | {device for _, device in state.server.claims}
                | assigned(state)
            )
            for device in model.for_needs:
                if not any(overlap(device, each) for each in kept) or has_room(state, state.server, device, model):
                    claimed = old._replace(claims=old.claims | {(name, device)})
                    yield alter(store(state, claimed, model), name, Pod("claimed", device))
        if pod.state == "claimed":
            yield alter(state, name, pod._replace(state="bound"))
        if pod.state not in {"new", "claimed"} and any(each == name for each, _ in old.claims):
            settled = frozenset(each for each in old.claims if each[0] != name)
            yield store(state, old._replace(claims=settled), model)


def agent_s_handshake(state: State, model: Model) -> Iterator[State]:
    shown = frozenset(name for name, _ in state.inserted)
    named = (each for each in state.record if each.resource == "named" and (model.counted or each.uid in shown))
    held = frozenset(map(device_of, named)) & model.by_name
    desired = state.seen.desired | held
    taken = frozenset(each for each in desired for other in assigned(state) if overlap(each, other))
    if state.seen != state.stored:
        yield state._replace(seen=state.stored)
    # to the kubelet: read the object, then the pods, then write on that version, then advertise
    if state.read is None:
        yield state._replace(read=(state.stored, None))
    elif state.read[1] is None:
        yield state._replace(read=(state.read[0], assigned(state)))
    elif state.read[0] == state.stored or not model.versioned:
        read, pods = state.read[0], state.read[1]
        others = pods | {device for _, device in read.claims}
        foreign = frozenset(each for each in desired for other in others if overlap(each, other))
        add = plan_offer(desired, read.offered, held, foreign).add
        if add:
            yield store(state, state.stored._replace(offered=read.offered | add), model, read=None)
    plan = plan_offer(desired, state.seen.offered & state.stored.offered, held, taken)
    if plan.advertise != state.listed:
        gone = (state.listed | state.leaving) - plan.advertise
        listed = plan.advertise
        yield state._replace(
            listed=listed, leaving=gone & plan.withdrawing, letting_go=state.letting_go - listed, checked=NOBODY
        )
    # to the scheduler: what the kubelet does not know any more and nobody has is refused from now on; then, unless
    # somebody was given it in between, it is written
    done = released_devices(desired, state.stored.offered, held, state.healthy) - state.listed
    if done - state.letting_go - state.checked:
        yield state._replace(checked=done)
    if state.checked:
        refused = state.checked - state.listed
        yield state._replace(leaving=state.leaving - refused, letting_go=refused, checked=NOBODY)
    going = state.letting_go - (held if model.rechecked else NOBODY)
    if going and state.read is not None and state.read[0] == state.stored and not going & state.listed:
        kept = state.stored._replace(offered=state.stored.offered - going)
        yield store(state, kept, model, letting_go=NOBODY)


def kubelet(state: State, model: Model) -> Iterator[State]:
    if state.healthy != state.listed:
        yield state._replace(healthy=state.listed)
    if state.flight is not None:
        yield from allocation(state, model)
    for name, pod in state.pods:
        if not is_need(name) and pod.state == "new":
            yield alter(state, name, Pod("bound"))
        if not is_need(name) and pod.state == "bound" and state.flight is None:
            for device in state.healthy - state.taken:
                yield state._replace(flight=(name, device, False), taken=state.taken | {device})
        if model.readmits and not is_need(name) and pod.state == "running":
            yield alter(state, name, pod._replace(state="starting"))
        starting = pod.state == ("bound" if is_need(name) else "starting")
        if starting and pod.device and (is_need(name) or (name, pod.device) in state.inserted):
            yield from prestart(state, name, pod.device, model)
    # any client of PodResources lists, while pods that have ended are still recorded: race A where a call is under way
    ended = {name for name, pod in state.pods if pod.state in {"dying", "gone"}}
    left = frozenset(each for each in state.inserted if each[0] not in ended)
    if left != state.inserted and (model.races or state.flight is None):
        yield state._replace(inserted=left, taken=frozenset(device for _, device in left))


def allocation(state: State, model: Model) -> Iterator[State]:
    assert state.flight is not None
    name, device, answered = state.flight
    if answered:
        inserted = state.inserted | {(name, device)}
        yield alter(state, name, Pod("starting", device), flight=None, inserted=inserted)
        return
    record = state.record | {entry(device)}
    refused = device not in (state.listed | state.leaving) - state.letting_go
    if model.gate and not refused:
        verdict = allocated(without_former(state, model), device, state.pods, state.inserted)
        record, refused = frozenset(verdict.record), verdict.refused is not None
    if refused:
        healed = frozenset(each for _, each in state.inserted)
        yield alter(state, name, Pod("failed"), flight=None, taken=healed)
    else:
        yield state._replace(flight=(name, device, True), record=record)


def without_former(state: State, model: Model) -> frozenset[AgentAllocation]:
    """Return the record without what containers had that do not run, and the kubelet has lost or admits again."""
    if not model.readmits:
        return state.record
    ids = {(name, "main", "named"): (f"{device}",) for name, device in state.inserted}
    lost = {each.container_key for each in state.record if each.pod and each.resource == "named"} - ids.keys()
    running = {name for name, pod in state.pods if model.observes and pod.state in {"running", "dying"}}
    former = lastgate.former_entries(state.record, ids, lost)
    return frozenset(each for each in state.record if each not in former or each.uid in running)


def prestart(state: State, name: str, device: DeviceId, model: Model) -> Iterator[State]:
    new = entry(device, name, units=model.units)
    record = frozenset(lastgate.put(state.record, new))
    if model.gate:
        verdict = started(without_former(state, model), new, state.pods, state.inserted, model.units)
        if verdict.refused:
            return  # the kubelet tries again
        record = frozenset(verdict.record)
    yield alter(state, name, Pod("running", device), record=record)


def pods_end(state: State) -> Iterator[State]:
    for name, pod in state.pods:
        if pod.state == "running":
            yield alter(state, name, pod._replace(state="dying"))  # deleted, by force or not: a process is left
        if pod.state == "dying" or (pod.state == "starting" and pod.device):
            yield alter(state, name, pod._replace(state="gone"))
    released = frozenset(lastgate.release(state.record, observation(state.pods, state.inserted)))
    if released != state.record:
        yield state._replace(record=released)


def faults(state: State, model: Model) -> Iterator[State]:
    # the agent is killed: its streams end; what it wrote down is there when it starts again
    yield begin(model)._replace(
        pods=state.pods,
        stored=state.stored,
        server=state.server,
        taken=state.taken,
        inserted=state.inserted,
        record=state.record,
        faults=state.faults,
    )
    if model.readmits:  # the kubelet starts without its checkpoint: it allocates nothing for containers that run
        lost = state._replace(inserted=frozenset(), taken=NOBODY, flight=None, healthy=NOBODY)
        ended = [name for name, pod in state.pods if not is_need(name) and pod.state == "starting"]
        for name in ended:
            lost = alter(lost, name, Pod("bound"))
        yield lost
    if model.races:  # race B: the kubelet forgets a pod that runs
        for each in state.inserted:
            left = state.inserted - {each}
            yield state._replace(inserted=left, taken=frozenset(device for _, device in left))


def has_room(state: State, read: Object, device: DeviceId, model: Model) -> bool:
    """Return whether a server that has read an object sees memory left of a device that needs share."""
    claims = dict(read.claims) | {
        name: pod.device for name, pod in state.pods if is_need(name) and pod.state in {"bound", "running"}
    }
    by_name = read.desired | read.offered
    return len(claims) < model.units and not any(overlap(device, each) for each in by_name)


def twice(state: State, among: frozenset[str] = frozenset({"running", "dying"}), units: int = 0) -> bool:
    """Return whether two pods have processes on one device, or more than it has memory for."""
    used = [(is_need(name), pod.device) for name, pod in state.pods if pod.state in among and pod.device]
    if units and all(need for need, _ in used):
        return len(used) > units
    return any(overlap(a, b) for i, (_, a) in enumerate(used) for _, b in used[i + 1 :])


def states(state: State, model: Model) -> dict[DeviceId, DeviceState]:
    """Return how far each device has come that changes hands."""
    named = (each for each in state.record if each.resource == "named")
    claimed = assigned(state) | {device for _, device in state.stored.claims}
    handshake = Handshake(
        desired=state.stored.desired,
        offered=state.stored.offered,
        allocated=frozenset(map(device_of, named)) & model.by_name,
        reserved=frozenset(each for each in model.by_name for other in claimed if overlap(each, other)),
        allocatable=state.healthy,
    )
    return {device: state_of(device, handshake) for device in model.by_name}


def crossed(state: State) -> bool:
    """Return whether kubelet and server have both given something away.

    A pod that the kubelet forgot before it was started has nothing, and is never started.
    """
    needs = [pod.device for name, pod in state.pods if is_need(name) and pod.state in {"claimed", "bound", "running"}]
    named = [
        pod.device
        for name, pod in state.pods
        if not is_need(name)
        and (pod.state == "running" or (pod.state == "starting" and (name, pod.device) in state.inserted))
    ]
    return any(overlap(a, b) for a in needs for b in named if a and b)


def begin(model: Model) -> State:
    return State(pods=tuple((name, Pod()) for name in model.pods))


def reachable(model: Model) -> Iterator[State]:
    """Yield every state that the node can come into."""
    known = {begin(model)}
    waiting = deque(known)
    while waiting:
        state = waiting.popleft()
        yield state
        for after in steps(state, model):
            if after not in known:
                known.add(after)
                waiting.append(after)


BOTH = Model(pods=("named-0", "need-0"), by_name=frozenset({SLICE}), for_needs=(SLICE, PAIR))
NAMED = Model(pods=("named-0", "named-1", "named-2"), by_name=frozenset({SLICE, OTHER}), changing=False)
SHARED = Model(pods=("named-0", "need-0", "need-1"), by_name=frozenset({WHOLE}), for_needs=(WHOLE,), units=2)
FULL = Model(pods=("need-0", "need-1", "need-2"), by_name=NOBODY, for_needs=(WHOLE,), changing=False, units=2)
LOST = NAMED._replace(pods=("named-0", "named-1"), faults=1, readmits=True)

# sentence: what may happen; nothing is had twice in any state
SOUND = {
    "a pod by name and one with a need, an agent that is killed once, a kubelet that forgets once": BOTH._replace(
        faults=1
    ),
    "three pods by name on two instances, somebody lists at any moment": NAMED,
    "two pods by name on two instances, an agent that is killed, a kubelet that forgets": NAMED._replace(
        pods=("named-0", "named-1"), faults=2
    ),
    "a pod by name, and two with needs that share its GPU": SHARED,
    "three pods that share a GPU with memory for two": FULL,
    "two pods by name whose containers end, a kubelet without its checkpoint": LOST,
    "one instance for both, twice": LOST._replace(faults=2, by_name=frozenset({SLICE})),
    "a pod with a need, too": BOTH._replace(faults=1, readmits=True, races=False),
}


@pytest.mark.parametrize("case", SOUND)
def test_no_device_is_had_twice_in_any_state(case: str) -> None:
    count = 0
    for state in reachable(SOUND[case]):
        count += 1
        assert not twice(state, units=SOUND[case].units)
        assert not crossed(state)
    assert count > 5_000, "the model has come to something"


S = DeviceState
# how far a device has come: how far it can be next; never from one allocator to the other in one step
NEXT = {
    S.POOLED: {S.CLAIMED, S.OFFERED, S.RELEASING},
    S.CLAIMED: {S.POOLED},
    S.OFFERED: {S.ALLOCATED, S.WITHDRAWING, S.RELEASING, S.POOLED},
    S.ALLOCATED: {S.OFFERED, S.WITHDRAWING, S.RELEASING},
    S.WITHDRAWING: {S.OFFERED, S.ALLOCATED, S.RELEASING},
    S.RELEASING: {S.OFFERED, S.WITHDRAWING, S.ALLOCATED, S.POOLED},
}
"""`RELEASING` and `OFFERED` are followed by `POOLED` only by a write of the agent that decided while nobody had it."""


def test_each_device_goes_from_state_to_state_as_the_table_says() -> None:
    found = {state: set[DeviceState]() for state in DeviceState}
    for state in reachable(BOTH):
        before = states(state, BOTH)
        for after in steps(state, BOTH):
            for device, now in states(after, BOTH).items():
                found[before[device]] |= {now} - {before[device]}
    assert found == NEXT


def test_the_handshake_alone_keeps_the_allocators_apart() -> None:
    assert not any(crossed(state) for state in reachable(BOTH._replace(gate=False)))


# sentence: what is left out, and what is found then; so each rule is needed, and the model can find its lack
LACKING = {
    "what Allocate was answered is not counted": (BOTH._replace(gate=False, counted=False), crossed),
    "nobody looks again before a device is the scheduler's": (BOTH._replace(gate=False, rechecked=False), crossed),
    "the agent writes on any version": (BOTH._replace(gate=False, versioned=False), crossed),
    "no record, and a process that is left of a pod": (NAMED._replace(gate=False, races=False), twice),
    "no record, and memory that a process has of a pod that is gone": (
        FULL._replace(gate=False),
        lambda state: twice(state, units=FULL.units),
    ),
    "what containers had that run is forgotten, too": (LOST._replace(observes=False), twice),
    "no record, and race A": (NAMED._replace(gate=False), lambda state: twice(state, frozenset({"running"}))),
}


@pytest.mark.parametrize("case", LACKING)
def test_what_each_rule_is_for(case: str) -> None:
    model, found = LACKING[case]
    assert any(found(state) for state in reachable(model))


def test_without_race_a_the_kubelet_itself_gives_no_device_to_two_that_run() -> None:
    model = NAMED._replace(gate=False, races=False)
    assert not any(twice(state, frozenset({"running"})) for state in reachable(model))


LARGE = Model(
    pods=(*(f"named-{i}" for i in range(5)), *(f"need-{i}" for i in range(3))),
    by_name=frozenset({SLICE, OTHER}),
    for_needs=(SLICE, PAIR, OTHER),
    faults=6,
)


# sentence: a node that is too large for all of its states
LARGER = {
    "five pods by name, three with needs, six faults": LARGE,
    "the same, whose containers end, and a kubelet that loses its checkpoint": LARGE._replace(readmits=True),
    "three pods by name, six that share the GPU when it is not offered, six faults": Model(
        pods=(*(f"named-{i}" for i in range(3)), *(f"need-{i}" for i in range(6))),
        by_name=frozenset({WHOLE}),
        for_needs=(WHOLE,),
        faults=6,
        units=4,
    ),
}


@pytest.mark.parametrize("case", LARGER)
@settings(max_examples=40)
@given(st.randoms(use_true_random=False))
def test_long_histories_of_a_larger_node(case: str, rng: random.Random) -> None:
    larger = LARGER[case]
    state = begin(larger)
    for _ in range(250):
        after = list(steps(state, larger))
        if not after:
            break
        state = rng.choice(after)
        assert not twice(state, units=larger.units)
        assert not crossed(state)
