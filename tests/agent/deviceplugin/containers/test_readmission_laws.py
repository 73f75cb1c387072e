"""After a kubelet has started without its record, no pod fails whose assignment nobody else uses.

It allocates nothing for containers that run, and admits those again that have ended, in any order. A pod whose
container has ended has a process left all the same: its sandbox.
"""

import contextlib
import hashlib
import itertools
import random
from typing import NamedTuple

import pytest

from builders.gpunodes import facts, sevenths
from builders.signed import signed
from harness.livingpods import add_init, admit_all, admit_with_init, ask_with_init, passes, process, run, run_init
from harness.pluginnode import MEMORY, NEED, SLICE, Node, mig, share
from tessera.clients.kubelet import Container
from tessera.core.gpu.sharing import AUTO, Mode
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.core.workload.need import Isolation
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio

GPUS = 3
GIB = 15
"""Of each."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
INIT_PHASES = ["Pending", "Running"]
"""Of a pod whose init container runs: what a kubelet reports, and what it reported of a former sandbox."""


@pytest.mark.parametrize("pause", [False, True], ids=["no process left", "the pods' sandboxes are left"])
@pytest.mark.parametrize("how", ["envvar", "cdi-cri"])
@pytest.mark.parametrize("seed", range(10))
async def test_who_is_admitted_again_starts_with_a_share_that_nobody_uses(
    node: Node, seed: int, how: ListStrategy, *, pause: bool
) -> None:
    rng = random.Random(seed)
    offers = tuple((facts(index, "T4"), MEMORY) for index in range(GPUS))
    options = PluginOptions(list_strategies=(how,))
    await node.offer(*offers, how=options)
    units, told, used = dict[str, int](), dict[str, str](), dict[int, int]()
    for number in range(rng.randrange(3, 9)):
        name, size, gpu = f"p{number}", rng.choice((4, 5, 12)), rng.randrange(GPUS)
        if used.get(gpu, 0) + size > GIB:
            continue
        used[gpu] = used.get(gpu, 0) + size
        units[name] = size
        node.assign(name, size, share(gpu, size << 10))
        told[name] = dict((await node.run(name, NEED, size)).env).get(VISIBLE, "")
    ended = [name for name in units if rng.random() < 0.6]
    for name in units:
        run(node, name, pause=pause, ends=name in ended)
    if rng.random() < 0.3:
        await node.kill()
        node.plugins = node.started()
        await node.offer(*offers, how=options)
    node.kubelet.lose_record()
    rng.shuffle(ended)
    for name in ended:
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, units[name]),)))
        if rng.random() < 0.3:
            await node.plugins._clean_up_record_and_shares()  # the pass of every half minute
    for name in rng.sample(ended, len(ended)):
        told[name] = dict((await node.kubelet.create("default", name, "main")).env).get(VISIBLE, "")
    memory = dict[str, int]()
    for name, size in units.items():
        uuid = facts(node.assigned(name)[0]["gpu"], "T4").uuid
        assert told[name] in (uuid, "")  # with CDI the container learns it from a file
        memory[uuid] = memory.get(uuid, 0) + size
    assert all(each <= GIB for each in memory.values())
    assert node.plugins.gate.refusals.double_allocations() == ()


@pytest.mark.parametrize("how", ["envvar", "volume-mounts"])
@pytest.mark.parametrize("seed", range(12))
async def test_in_the_order_of_the_kubelet_each_pod_has_its_own_share(node: Node, seed: int, how: ListStrategy) -> None:
    """It admits the oldest pod first, and a pod's containers in their order; some wait for their image, some crashed.

    Of equal pods with init containers none is allocated the share of another, which it could not exchange.
    """
    rng = random.Random(seed)
    await node.offer(
        *((facts(index, "T4"), MEMORY) for index in range(GPUS)), how=PluginOptions(list_strategies=(how,))
    )
    lives, used = list[Life](), dict[int, int]()
    for number in range(rng.randrange(4, 10)):
        initial, gpu = rng.random() < 0.6, rng.randrange(GPUS)
        state = rng.choice(("waits", "runs", "crashed", "init")[: 4 if initial else 3])
        life = Life(f"p{9 - number}", rng.choice((4, 5)), state, ("init", "main") if initial else ("main",))
        used[gpu] = used.get(gpu, 0) + life.size
        if used[gpu] <= GIB:
            lives.append(life)
            node.assign(life.name, life.size, share(gpu, life.size << 10))
            node.pods["default", life.name]["metadata"]["creationTimestamp"] = f"2026-01-31T12:00:0{number}Z"
            await begin(node, life, rng.choice(INIT_PHASES))
    node.kubelet.lose_record()
    for life in lives:
        ran = {"runs": "main", "init": "init"}.get(life.state)
        await admit_all(node, life.name, life.size, *(each for each in life.containers if each != ran))
        if rng.random() < 0.3:
            await node.plugins._clean_up_record_and_shares()
    for life in lives:
        for container in {"runs": (), "init": ("main",)}.get(life.state, life.containers):
            answer = await node.kubelet.create("default", life.name, container)
            assert facts(node.assigned(life.name)[0]["gpu"], "T4").uuid in str(answer)
    assert node.plugins.gate.refusals.blocked_pods() == {}
    assert node.plugins.gate.refusals.double_allocations() == ()


class Life(NamedTuple):
    """A pod when the kubelet loses its record."""

    name: str
    size: int
    state: str
    """waits (for its image), init (that container runs), runs, crashed."""
    containers: tuple[str, ...]


async def begin(node: Node, life: Life, phase: str) -> None:
    """Bring a pod to its state; while its init container runs it has this phase."""
    if "init" in life.containers:
        add_init(node, life.name)
    await admit_all(node, life.name, life.size, *life.containers)
    if life.state == "waits":
        return
    if "init" in life.containers:
        await node.kubelet.create("default", life.name, "init")
    if life.state == "init":
        run_init(node, life.name, phase)
    else:
        await node.kubelet.create("default", life.name, "main")
        run(node, life.name, pause=True, ends=life.state == "crashed")


@pytest.mark.parametrize("ended", ["p", "q"])
@pytest.mark.parametrize("pause", [False, True], ids=["no process left", "the sandbox runs"])
async def test_of_equal_pods_the_one_is_meant_that_does_not_run(node: Node, ended: str, *, pause: bool) -> None:
    """Both have a GPU each, with few units of many: what differs is who runs."""
    await node.offer((facts(0, "T4"), AUTO), (facts(1, "T4"), AUTO))
    whole = {"mode": Mode.WHOLE, "isolation": Isolation.HARDWARE, "compute_percent": 100}
    told = {}
    for index, name in enumerate("pq"):
        node.assign(name, 4, share(index, 15360, **whole))
        pod = node.pods["default", name]
        pod["metadata"]["creationTimestamp"] = f"2026-01-31T12:00:0{index}Z"
        pod["metadata"]["annotations"]["tessera.dev/isolation"] = "hardware"
        node.pods["default", name] = node.watched["default", name] = signed(pod)
        told[name] = dict((await node.run(name, NEED, 4)).env)[VISIBLE]
        run(node, name, pause=pause, ends=name == ended)
    node.kubelet.lose_record()
    await node.kubelet.admit("default", ended, Container(name="main", limits=((NEED, 4),)))
    assert dict((await node.kubelet.create("default", ended, "main")).env)[VISIBLE] == told[ended]


@pytest.mark.parametrize("pause", [False, True], ids=["no process left", "the sandbox runs"])
async def test_what_a_container_had_by_name_is_its_pod_s_again(node: Node, *, pause: bool) -> None:
    layout = sevenths()[:2]
    await node.offer((facts(0, layout=layout), mig(layout)))
    told = {name: dict((await node.run(name, SLICE)).env)[VISIBLE] for name in "pq"}
    for name in "pq":
        run(node, name, pause=pause, ends=name == "q")
    node.kubelet.lose_record()
    await node.kubelet.admit("default", "q", Container(name="main", limits=((SLICE, 1),)))
    assert dict((await node.kubelet.create("default", "q", "main")).env)[VISIBLE] == told["q"]
    node.ask("r", SLICE)
    with pytest.raises(Conflict, match=r"pod default/[pq]"):
        await node.kubelet.admit("default", "r", Container(name="main", limits=((SLICE, 1),)))


@pytest.mark.parametrize("command", ["python", "pause"])
async def test_a_container_that_its_pod_s_status_does_not_show_yet_keeps_its_device_whatever_its_name(
    node: Node, command: str
) -> None:
    """It was restarted a moment before the kubelet started without its record."""
    layout = sevenths()[:1]
    await node.offer((facts(0, layout=layout), mig(layout)))
    await node.run("p", SLICE)
    run(node, "p", pause=True, ends=True)
    process(node, "uid-p", hashlib.sha256(b"of the restart").hexdigest(), command)
    node.kubelet.lose_record()
    node.ask("q", SLICE)
    with pytest.raises(Conflict, match="pod default/p"):
        await node.kubelet.admit("default", "q", Container(name="main", limits=((SLICE, 1),)))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", ["envvar", "cdi-cri"])
async def test_a_share_that_waits_for_its_image_is_not_in_its_own_way(
    node: Node, how: ListStrategy, times: int
) -> None:
    """More than half of the units are in use, and a pass has found whose they are: nobody uses them."""
    await node.offer((facts(0, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    for name, units in (("p", 5), ("q", 9)):
        node.assign(name, units, share(0, units << 10))
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, units),)))
    await node.kubelet.create("default", "p", "main")
    run(node, "p", pause=False, ends=False)
    for _ in range(times):
        await passes(node)
        node.kubelet.lose_record()
        await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 9),)))
    await node.kubelet.create("default", "q", "main")


@pytest.mark.parametrize("how", ["envvar", "cdi-cri"])
async def test_an_instance_that_waits_for_its_image_is_not_in_its_own_way(node: Node, how: ListStrategy) -> None:
    layout = sevenths()[:2]
    await node.offer((facts(0, layout=layout), mig(layout)), how=PluginOptions(list_strategies=(how,)))
    await node.run("p", SLICE)
    run(node, "p", pause=False, ends=False)
    node.ask("q", SLICE)
    for _ in range(2):
        await node.kubelet.admit("default", "q", Container(name="main", limits=((SLICE, 1),)))
        await passes(node)
        node.kubelet.lose_record()
    await node.kubelet.admit("default", "q", Container(name="main", limits=((SLICE, 1),)))
    await node.kubelet.create("default", "q", "main")


@pytest.mark.parametrize("order", list(itertools.permutations("pqr")), ids="".join)
async def test_of_equal_pods_as_many_fail_as_have_no_gpu(node: Node, order: tuple[str, ...]) -> None:
    """`Allocate` names no pod: whichever comes first may have what the last one was assigned."""
    await node.offer((facts(0, "T4"), MEMORY))
    for number, (name, gpu) in enumerate((("q", 1), ("p", 0), ("r", 0))):
        node.assign(name, 5, share(gpu, 5120))
        node.pods["default", name]["metadata"]["creationTimestamp"] = f"2026-01-31T12:00:0{number}Z"
    failed = []
    for name in order:
        try:
            await node.run(name, NEED, 5)
        except Conflict as error:
            failed.append(str(error))
    assert [each.partition("Allocate cannot be answered: ")[2].partition(",")[0] for each in failed] == [
        "GPU 1: there is no such GPU"
    ]


@pytest.mark.parametrize("how", ["envvar", "cdi-cri"])
@pytest.mark.parametrize("units", [5, 12])
async def test_a_pod_that_runs_is_admitted_again_for_its_init_container(
    node: Node, how: ListStrategy, units: int
) -> None:
    """The kubelet allocates for the container that has ended, with units of the one that runs: its pod was ended."""
    await node.offer((facts(0, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    ask_with_init(node, "p", 0, units)
    init, main = (Container(name=name, limits=((NEED, units),)) for name in ("init", "main"))
    await node.kubelet.admit("default", "p", init)
    (ids,) = {each.device_ids for each in await node.plugins.gate.view.allocated()}
    await node.kubelet.create("default", "p", "init")
    await node.kubelet.allocate("default", "p", main, ids)
    await node.kubelet.create("default", "p", "main")
    run(node, "p", pause=True, ends=False)
    await node.plugins._clean_up_record_and_shares()
    for _ in range(2):
        node.kubelet.lose_record()
        await node.kubelet.admit("default", "p", init)
        await node.plugins._clean_up_record_and_shares()
        assert node.plugins.gate.refusals.double_allocations() == ()
    node.assign("q", GIB - units, share(0, GIB - units << 10))
    await node.run("q", NEED, GIB - units)
    node.assign("r", 1, share(0, 1 << 10))
    with pytest.raises(Conflict):
        await node.run("r", NEED, 1)


@pytest.mark.parametrize("phase", INIT_PHASES)
@pytest.mark.parametrize("loses", [0, 1, 2])
@pytest.mark.parametrize("how", ["envvar", "cdi-cri"])
async def test_what_an_init_container_uses_is_not_given_to_another(
    node: Node, how: ListStrategy, loses: int, phase: str
) -> None:
    """Its start is recorded as the other container's, which has the same ids; then its pod is deleted by force."""
    await node.offer((facts(0, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    ask_with_init(node, "p", 0, 9)
    init, main = (Container(name=name, limits=((NEED, 9),)) for name in ("init", "main"))
    await node.kubelet.admit("default", "p", init)
    (ids,) = {each.device_ids for each in await node.plugins.gate.view.allocated()}
    await node.kubelet.allocate("default", "p", main, ids)
    await node.kubelet.create("default", "p", "init")
    run_init(node, "p", phase)
    for _ in range(loses):
        node.kubelet.lose_record()
        await passes(node)
        await node.kubelet.admit("default", "p", main)
    node.version += 5
    node.end("p")
    await passes(node)
    node.assign("q", 9, share(0, 9 << 10))
    with pytest.raises(Conflict):
        await node.run("q", NEED, 9)


@pytest.mark.parametrize("order", ["pq", "qp"])
@pytest.mark.parametrize("how", ["envvar", "volume-mounts", "cdi-cri"])
async def test_what_an_ended_init_container_is_answered_keeps_nobody_out(
    node: Node, how: ListStrategy, order: str
) -> None:
    """Both pods run. `Allocate` may answer for the init container of one with the share of the other."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    for gpu, name in enumerate("pq"):
        await run_after_init(node, name, gpu, 4)
        run(node, name, pause=True, ends=False)
    node.kubelet.lose_record()
    for name in order:
        await admit_with_init(node, name, 4, again=True)
    for gpu in (0, 1):
        node.assign(f"full-{gpu}", 11, share(gpu, 11 << 10))
        await node.run(f"full-{gpu}", NEED, 11)
        await passes(node)
    assert node.plugins.gate.refusals.double_allocations() == ()
    node.assign("r", 1, share(0, 1 << 10))
    with pytest.raises(Conflict):
        await node.run("r", NEED, 1)
    for name in "pq":  # a new sandbox: the init container starts again, with its own pod's share or not at all
        with contextlib.suppress(Conflict):
            answer = await node.kubelet.create("default", name, "init")
            assert answer.cdi_devices or facts(node.assigned(name)[0]["gpu"], "T4").uuid in str(answer)


@pytest.mark.parametrize("order", ["pq", "qp"])
@pytest.mark.parametrize("how", ["envvar", "cdi-cri"])
async def test_an_ended_init_container_takes_no_share_from_a_pod_that_starts_again(
    node: Node, how: ListStrategy, order: str
) -> None:
    """Pod p runs and is admitted again for its init container, q with all containers."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    for gpu, name in enumerate("pq"):
        await run_after_init(node, name, gpu, 4)
        run(node, name, pause=True, ends=name == "q")
    node.kubelet.lose_record()
    for name in order:
        await admit_with_init(node, name, 4, again=name == "p")
    for container in ("init", "main"):
        told = dict((await node.kubelet.create("default", "q", container)).env).get(VISIBLE, "")
        assert told in ("", facts(1, "T4").uuid)


@pytest.mark.parametrize("phase", INIT_PHASES)
@pytest.mark.parametrize("inits", [1, 3])
@pytest.mark.parametrize("how", ["envvar", "volume-mounts", "cdi-cri"])
async def test_a_pod_whose_init_container_runs_counts_once(
    node: Node, how: ListStrategy, inits: int, phase: str
) -> None:
    """Its start is recorded as the other container's, for which the kubelet allocates anew: other ids, equal share."""
    await node.offer((facts(0, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    first, main = "pqr"[:inits], Container(name="main", limits=((NEED, 5),))
    for name in "pqr":
        if name in first:
            ask_with_init(node, name, 0, 5)
            await admit_with_init(node, name, 5)
            await node.kubelet.create("default", name, "init")
            run_init(node, name, phase)
        else:
            node.assign(name, 5, share(0, 5 << 10))
            await node.run(name, NEED, 5)
            run(node, name, pause=True, ends=True)
    node.kubelet.lose_record()
    for name in "pqr":
        await node.kubelet.admit("default", name, main)
    for name in "pqr"[inits:]:
        await node.kubelet.create("default", name, "main")
    await passes(node)
    assert node.plugins.gate.refusals.double_allocations() == ()
    node.assign("s", 1, share(0, 1 << 10))
    with pytest.raises(Conflict):
        await node.run("s", NEED, 1)


async def run_after_init(node: Node, name: str, gpu: int, units: int) -> None:
    """Run a pod whose init container has the units of the other."""
    ask_with_init(node, name, gpu, units)
    await admit_with_init(node, name, units)
    await node.kubelet.create("default", name, "init")
    await node.kubelet.create("default", name, "main")
