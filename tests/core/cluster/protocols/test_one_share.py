"""A GPU's memory is never in use by more pods than fit, whatever the kubelet forgets: every state of a small GPU.

Pods request one unit each, and have an init container that requests it too, whose unit the kubelet gives to the other
container. Their answers name the device (`envvar`): `Allocate` names no pod, so it may be answered for another of them.
What is allocated, started, forgotten and released is decided by `core.deviceplugin.allocations.lastgate`.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tessera.core.deviceplugin.allocations import lastgate
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice, Exclusivity
from tessera.core.deviceplugin.allocations.gateobservation import GateObservation, GatePod
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.gpu.deviceids import DeviceId

pytestmark = pytest.mark.search

GPU = DeviceId("GPU-0")
NEED = "tessera.dev/gpu-memory"
USES = (AllocatedDevice(device=GPU, exclusivity=Exclusivity.MEMORY, memory_mib=1),)
LIVING = frozenset({"bound", "init", "inited", "main"})


class Held(NamedTuple):
    """A unit that a container has by the kubelet's record."""

    pod: str
    container: str
    unit: str


class State(NamedTuple):
    """The GPU."""

    pods: tuple[tuple[str, str], ...]
    """new, bound, init (it runs), inited, main (it runs), dying (gone for the API server, and runs), gone, failed."""
    admitting: frozenset[str] = frozenset()
    """Pods that the kubelet has to admit, or to admit again."""
    inserted: frozenset[Held] = frozenset()
    """The kubelet's record."""
    taken: frozenset[str] = frozenset()
    """The units that it does not give away."""
    flight: Held | None = None
    """The answered call of `Allocate`, before it is recorded."""
    record: frozenset[AgentAllocation] = frozenset()
    """The agent's."""
    created: frozenset[str] = frozenset()
    """Pods of whose last container the status says that it was created."""
    faults: int = 0


class Model(NamedTuple):
    """What may happen."""

    pods: int
    units: int = 2
    containers: tuple[str, ...] = ("init", "main")
    faults: int = 0
    """How often the kubelet starts without its checkpoint, or forgets one container (race B)."""
    sandboxes: bool = False
    """Whether a pod's sandbox may end, so that the pod's containers start again, the init container first."""
    ends: bool = True
    """Whether pods are deleted, and their processes stay for a while."""
    named: bool = True
    """Whether the answer of `Allocate` names the device (`envvar`), or only the start does (CDI)."""
    observes: bool = True
    """Whether the agent looks which containers run before it forgets what they had."""


def alter(state: State, name: str, phase: str) -> State:
    return state._replace(pods=tuple((each, phase if each == name else known) for each, known in state.pods))


def observation(state: State, model: Model) -> GateObservation:
    requests = frozenset((container, NEED) for container in model.containers)
    there = {
        name: GatePod(
            name=name,
            ended=phase == "failed",
            ending=phase == "failed",
            requests=requests,
            lasting=frozenset({"main"}),
            order=model.containers,
            created=frozenset({"main"}) if name in state.created else frozenset(),
        )
        for name, phase in state.pods
        if phase in LIVING | {"failed"}
    }
    recorded = tuple(
        KubeletAllocation(uid=each.pod, container=each.container, resource=NEED, device_ids=(each.unit,))
        for each in sorted(state.inserted)
    )
    running = frozenset(name for name, phase in state.pods if phase in {"init", "inited", "main", "dying"})
    return GateObservation(pods=there, running=running, recorded=recorded)


def without_former(state: State, model: Model) -> frozenset[AgentAllocation]:
    """Return the record without what containers had that do not run, and the kubelet has lost or admits again."""
    ids = {(each.pod, each.container, NEED): (each.unit,) for each in state.inserted}
    lost = {each.container_key for each in state.record if each.pod} - ids.keys()
    running = {(name, each) for name, phase in state.pods for each in model.containers if phase in {each, "dying"}}
    former = lastgate.former_entries(in_order(state.record), ids, lost)
    users = lastgate.possible_users(former, observation(state, model).pods)
    runs = {each for each in former if model.observes and not running.isdisjoint(users[each])}
    return (state.record - former) | runs


USING = frozenset({"init", "main", "dying"})


def in_order(record: frozenset[AgentAllocation]) -> tuple[AgentAllocation, ...]:
    return tuple(sorted(record, key=lambda each: (each.uid, each.container, each.ids)))


def steps(state: State, model: Model) -> Iterator[State]:
    bound = sum(phase in LIVING for _, phase in state.pods)
    if state.flight is not None:
        yield state._replace(flight=None, inserted=state.inserted | {state.flight})
    for name, phase in state.pods:
        if phase == "new" and bound < model.units:
            yield alter(state, name, "bound")._replace(admitting=state.admitting | {name})
        if name in state.admitting and state.flight is None:
            yield from admission(state, name, phase, model)
        yield from starts(state, name, phase, model)
        yield from ends(state, name, phase, model)
    ended = {name for name, phase in state.pods if phase not in LIVING}
    left = frozenset(each for each in state.inserted if each.pod not in ended)
    if left != state.inserted and state.flight is None:
        yield state._replace(inserted=left, taken=frozenset(each.unit for each in left))
    for record in (without_former(state, model), lastgate.release(in_order(state.record), observation(state, model))):
        if frozenset(record) != state.record:
            yield state._replace(record=frozenset(record))
    if state.faults < model.faults:
        yield from faults(state._replace(faults=state.faults + 1))


def ends(state: State, name: str, phase: str, model: Model) -> Iterator[State]:
    if phase in {"init", "main"}:  # the container ends by itself
        yield alter(state, name, "inited")
    if model.ends and phase in LIVING:
        deleted = state._replace(admitting=state.admitting - {name})
        yield alter(deleted, name, "dying" if phase in USING else "gone")
    if phase == "dying":
        yield alter(state, name, "gone")
    if model.sandboxes and phase in {"inited", "main"}:
        yield alter(state, name, "bound")


def faults(state: State) -> Iterator[State]:
    again = frozenset(name for name, phase in state.pods if phase in LIVING)
    yield state._replace(inserted=frozenset(), taken=frozenset(), flight=None, admitting=again)
    for each in state.inserted:
        left = state.inserted - {each}
        yield state._replace(inserted=left, taken=frozenset(held.unit for held in left))


def admission(state: State, name: str, phase: str, model: Model) -> Iterator[State]:
    """Allocate for the next container that has nothing and does not run, what an init container had first."""
    own = {each.container: each.unit for each in state.inserted if each.pod == name}
    lacking = [each for each in model.containers if each not in own and each != phase]
    if not lacking:
        yield state._replace(admitting=state.admitting - {name})
        return
    units = {f"u{number}" for number in range(model.units)} - state.taken
    for unit in {own["init"]} if "init" in own else units:
        new = AgentAllocation(resource=NEED, ids=(unit,), uses=USES if model.named else (), presumed=True)
        unserved = [
            each for each in sorted(state.admitting) if (each, lacking[0]) not in {held[:2] for held in state.inserted}
        ]
        for other in unserved:
            meant = AgentAllocation(
                resource=NEED,
                ids=(),
                uid=other,
                pod=other,
                container=lacking[0],
                initial=lacking[0] == "init",
                order=model.containers.index(lacking[0]),
            )
            kept = in_order(without_former(state, model))
            verdict = lastgate.admit(kept, new, observation(state, model), {GPU: model.units}, meant)
            after = state._replace(record=frozenset(verdict.record))
            if verdict.refused is None:
                yield after._replace(flight=Held(name, lacking[0], unit), taken=state.taken | {unit})
            else:
                healed = frozenset(each.unit for each in state.inserted)
                failed = after._replace(taken=healed, admitting=state.admitting - {name})
                yield alter(failed, name, "dying" if phase in USING else "failed")


def starts(state: State, name: str, phase: str, model: Model) -> Iterator[State]:
    following = {"bound": model.containers[0], "inited": "main"}.get(phase)
    held = next((each for each in state.inserted if each[:2] == (name, following)), None)
    if held is None or name in state.admitting:
        return
    observed = observation(state, model)
    found = lastgate.holders(NEED, (held.unit,), observed)
    if {each.uid for each in found} != {name}:
        return  # the kubelet tries again
    new = AgentAllocation(
        resource=NEED,
        ids=(held.unit,),
        uses=USES,
        uid=name,
        pod=name,
        container=found[0].container,
        initial=found[0].initial,
        order=found[0].order,
    )
    kept = in_order(without_former(state, model))
    verdict = lastgate.start(kept, new, observed, {GPU: model.units}, ids=False)
    if verdict.refused is None:
        created = state.created | ({name} if held.container == "main" else set())
        yield alter(state, name, held.container)._replace(record=frozenset(verdict.record), created=created)


def reachable(model: Model) -> Iterator[State]:
    """Yield every state that the GPU can come into."""
    begin = State(pods=tuple((f"p{number}", "new") for number in range(model.pods)))
    known, waiting = {begin}, deque([begin])
    while waiting:
        state = waiting.popleft()
        yield state
        for after in steps(state, model):
            if after not in known:
                known.add(after)
                waiting.append(after)


def uses(state: State) -> int:
    return sum(phase in USING for _, phase in state.pods)


# sentence: what may happen; no more memory is in use in any state than there is
SOUND = {
    "three pods with an init container": Model(3),
    "by CDI": Model(3, named=False),
    "a kubelet without its checkpoint": Model(2, faults=1),
    "by CDI, a kubelet without its checkpoint": Model(2, named=False, faults=1),
    "the same twice, of one unit": Model(2, units=1, faults=2),
    "a kubelet without its checkpoint, and new sandboxes": Model(2, units=1, faults=1, sandboxes=True),
    "by CDI, the same twice, of one unit": Model(2, units=1, named=False, faults=2),
}


@pytest.mark.parametrize("case", SOUND)
def test_no_more_memory_is_in_use_than_there_is(case: str) -> None:
    count = 0
    for state in reachable(SOUND[case]):
        count += 1
        assert uses(state) <= SOUND[case].units
    assert count > 2_000, "the model has come to something"


@pytest.mark.parametrize("named", [True, False], ids=["envvar", "cdi"])
def test_where_nothing_fails_no_pod_that_fits_is_refused(*, named: bool) -> None:
    assert not any("failed" in dict(state.pods).values() for state in reachable(Model(3, named=named)))


def test_the_agent_has_to_look_which_containers_run() -> None:
    model = Model(2, units=1, faults=1, observes=False)
    assert any(uses(state) > model.units for state in reachable(model))
