"""Assignments that pods exchange until they say what each pod has."""

import json
import random
import shutil
from collections import Counter

import pytest

from builders.gpunodes import facts, sevenths
from builders.signed import signed
from harness.pluginnode import MEMORY, NEED, Node, share
from tessera.api.tessera.pods.signatures import is_signed
from tessera.clients.kubelet import Container
from tessera.core.gpu.sharing import AUTO, Mode, Sharing
from tessera.core.workload.need import Isolation
from tessera.core.workload.resources import SHARE_MEMORY
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio


async def test_equal_shares_that_were_mistaken_are_exchanged(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY))
    for number in range(4):
        node.assign(f"p{number}", 2, share(number % 2, 2048))
    for number in (3, 0, 2, 1):
        got = dict((await node.run(f"p{number}", NEED, 2)).env)
        assert got["NVIDIA_VISIBLE_DEVICES"] == facts(node.assigned(f"p{number}")[0]["gpu"]).uuid
        assert got["TESSERA_GPU_UUIDS"] == got["NVIDIA_VISIBLE_DEVICES"]
    gpus = [node.assigned(f"p{number}")[0]["gpu"] for number in range(4)]
    assert sorted(gpus) == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(8))
async def test_exchanges_hold_while_the_watch_is_late(node: Node, seed: int) -> None:
    """Pods are admitted and created in any order, and changes of their annotations are seen whenever."""
    rng = random.Random(seed)
    await node.offer(*((facts(index), MEMORY) for index in range(3)))
    node.late = []
    for number in range(12):
        node.assign(f"p{number:02}", 1 + number % 2, share(number % 3, 1024 * (1 + number % 2)))
    waiting = [f"p{number:02}" for number in range(12)]
    rng.shuffle(waiting)
    admitted: list[str] = []
    got: dict[str, str] = {}
    while waiting or admitted:
        node.tell(rng.randrange(4))
        if waiting and (rng.random() < 0.6 or not admitted):
            name = waiting.pop()
            await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 1 + int(name[1:]) % 2),)))
            admitted.append(name)
        else:
            name = admitted.pop(rng.randrange(len(admitted)))
            got[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    node.tell(1000)
    assert {name: facts(node.assigned(name)[0]["gpu"]).uuid for name in got} == got
    gpus = Counter((node.assigned(name)[0]["gpu"], node.assigned(name)[0]["memoryMiB"]) for name in got)
    assert gpus == Counter((number % 3, 1024 * (1 + number % 2)) for number in range(12))


async def test_an_exchange_that_cannot_be_written_is_written_later_and_not_forgotten(node: Node) -> None:
    pairs = (facts(0), MEMORY), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs)
    for number in range(3):
        node.assign(f"p{number}", 2, share(number % 2, 2048))
    node.silent = True
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="API server: silence"):
        await node.kubelet.create("default", "p1", "main")
    await node.kubelet.admit("default", "p0", Container(name="main", limits=((NEED, 2),)))
    await node.kill()
    node.plugins = node.started()
    await node.offer(*pairs)
    node.silent = False
    got = {}
    for name in ("p1", "p0"):
        got[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    assert got == {name: facts(node.assigned(name)[0]["gpu"]).uuid for name in got}
    assert sorted(node.assigned(f"p{number}")[0]["gpu"] for number in range(3)) == [0, 0, 1]


async def test_a_pod_whose_assignment_cannot_be_corrected_is_refused_alone(node: Node) -> None:
    """As one whose annotations are as long as they may be: the API server takes no change of it, ever."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(4)))
    for number in range(4):
        node.assign(f"p{number}", 2, share(number, 2048))
    node.full = {"p1"}
    await node.kubelet.admit("default", "p1", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="its assignment cannot be corrected: HTTP 422"):
        await node.kubelet.create("default", "p1", "main")
    for name in ("p2", "p0", "p3"):
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 2),)))
    got = {}
    for name in ("p2", "p0", "p3"):
        got[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    assert got == {name: facts(node.assigned(name)[0]["gpu"], "T4").uuid for name in got}
    assert len(set(got.values())) == 3
    node.passed_s += 61
    with pytest.raises(Conflict, match="its assignment cannot be corrected: HTTP 422"):
        await node.kubelet.create("default", "p1", "main")
    assert node.plugins.gate.refusals.blocked_pods().keys() == {"uid-p1"}


async def test_an_exchange_of_a_pod_that_is_out_of_view_is_not_forgotten(node: Node) -> None:
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(2)))
    for number in range(2):
        node.assign(f"p{number}", 10, share(number, 10240))
    node.full = {"p0", "p1"}
    for number in (1, 0):
        await node.kubelet.admit("default", f"p{number}", Container(name="main", limits=((NEED, 10),)))
    assert [node.assigned(name)[0]["gpu"] for name in ("p0", "p1")] == [0, 1], "nothing could be written"
    node.full, seen = set(), dict(node.watched)
    del node.watched["default", "p0"]
    await node.plugins.shares.clean_up()
    assert [node.assigned(name)[0]["gpu"] for name in ("p0", "p1")] == [0, 0], "that of the pod in view is written"
    node.watched.update(seen)
    given = {
        name: dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
        for name in ("p0", "p1")
    }
    assert given == {"p0": facts(1).uuid, "p1": facts(0).uuid}
    assert [node.assigned(name)[0]["gpu"] for name in ("p0", "p1")] == [1, 0]


async def test_pods_that_ask_the_same_may_change_shares_of_different_kinds(node: Node) -> None:
    cut = facts(1, layout=sevenths())
    await node.offer((facts(0), MEMORY), (cut, Sharing(layout=cut.layout)))
    node.assign("a", 2, share(0, 2048))
    node.assign("b", 2, share(1, 4864, profile="1g.5gb", start=3, mode=Mode.MIG))
    await node.kubelet.admit("default", "b", Container(name="main", limits=((NEED, 2),)))
    await node.kubelet.admit("default", "a", Container(name="main", limits=((NEED, 2),)))
    uuids = {}
    for name in ("b", "a"):
        uuids[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
    assert [(node.assigned(name)[0]["gpu"], node.assigned(name)[0]["mode"]) for name in ("a", "b")] == [
        (1, "mig"),
        (0, "memory-share"),
    ]
    assert uuids == {"b": facts(0).uuid, "a": cut.instances[3].uuid}


async def test_a_share_that_another_ask_needs_is_not_exchanged(node: Node) -> None:
    await node.offer((facts(0), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("a", 2, share(0, 2048))
    node.assign("b", 2, share(1, 2048, compute_percent=30), compute_percent=30)
    await node.kubelet.admit("default", "b", Container(name="main", limits=((NEED, 2),)))
    with pytest.raises(Conflict, match="differ in size or kind"):
        await node.kubelet.create("default", "b", "main")
    assert [node.assigned(name)[0]["gpu"] for name in ("a", "b")] == [0, 1]


@pytest.mark.parametrize("restart", [False, True], ids=["an agent", "the agents before and after a restart"])
@pytest.mark.parametrize("started", [False, True], ids=["before", "after"])
async def test_a_pod_that_was_mistaken_for_another_kind_is_in_nobodys_way(
    node: Node, *, restart: bool, started: bool
) -> None:
    """It is evicted at once. Its start is tried before or after the other pod comes, which gets its own share."""
    cut = facts(0, layout=sevenths())
    pairs = (cut, Sharing(layout=cut.layout)), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs)
    node.assign("a", 4, share(0, 4864, profile="1g.5gb", start=3, mode=Mode.MIG))
    node.assign("b", 4, share(1, 4096, compute_percent=30), compute_percent=30)
    await node.kubelet.admit("default", "b", Container(name="main", limits=((NEED, 4),)))
    if started:
        with pytest.raises(Conflict, match="differ in size or kind"):
            await node.kubelet.create("default", "b", "main")
    if restart:
        await node.kill()
        node.plugins = node.started()
        await node.offer(*pairs)
    assert dict((await node.run("a", NEED, 4)).env)["NVIDIA_VISIBLE_DEVICES"] == cut.instances[3].uuid
    for _ in range(2):
        with pytest.raises(Conflict, match="it was started with the devices of another pod, which differ in size"):
            await node.kubelet.create("default", "b", "main")
        node.passed_s += 61  # where the agent was restarted, only its record says so by now
    ((pod, _),) = node.plugins.gate.refusals.blocked_pods().values()
    assert pod == "default/b"


@pytest.mark.parametrize("restart", [False, True], ids=["an agent", "the agents before and after a restart"])
async def test_a_pod_that_ran_and_was_mistaken_for_another_kind_since_never_starts_with_that(
    node: Node, *, restart: bool
) -> None:
    """The kubelet lost its record while a job's container was down, and admitted it again as another was bound."""
    pairs = (facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs)
    node.assign("a", 4, share(0, 4096))
    node.pods["default", "a"]["spec"]["restartPolicy"] = "OnFailure"
    await node.run("a", NEED, 4)
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}
    node.pods["default", "a"] = node.watched["default", "a"] = {**node.pods["default", "a"], "status": status}
    node.kubelet.lose_record()
    node.assign("b", 4, share(1, 4096, compute_percent=30), compute_percent=30)
    await node.kubelet.admit("default", "a", Container(name="main", limits=((NEED, 4),)))
    for number in range(3):
        with pytest.raises(Conflict, match="differ in size or kind"):
            await node.kubelet.create("default", "a", "main")
        if restart and number == 0:
            await node.kill()
            node.plugins = node.started()
            await node.offer(*pairs)
        node.passed_s += 61
    assert list(node.plugins.gate.refusals.blocked_pods()) == ["uid-a"]
    assert dict((await node.run("b", NEED, 4)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(1, "T4").uuid
    with pytest.raises(Conflict, match="differ in size or kind"):
        await node.kubelet.create("default", "a", "main")


async def test_a_container_that_was_started_keeps_what_it_has_though_its_answer_differs_by_now(node: Node) -> None:
    """The agent was killed before it forgot the answer; it is of a version that recorded no assignment."""
    pairs = (facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY)
    await node.offer(*pairs)
    node.assign("a", 9, share(0, 9 << 10))
    await node.kubelet.admit("default", "a", Container(name="main", limits=((NEED, 9),)))
    answers = (node.root / "shares.json").read_bytes()
    await node.kubelet.create("default", "a", "main")
    await node.kill()
    (node.root / "shares.json").write_bytes(answers)
    record = node.root / "allocations.json"
    lacking = {"assignment", "key", "signature"}
    kept = [
        {key: value for key, value in each.items() if key not in lacking} for each in json.loads(record.read_text())
    ]
    record.write_text(json.dumps(kept))
    node.assign("a", 9, share(0, 9 << 10, compute_percent=30), compute_percent=30)
    node.plugins = node.started()
    await node.offer(*pairs)
    await node.plugins.shares.clean_up()
    assert node.plugins.shares._exchanges.mistaken, "the answer is another's, by what the pod requests now"
    assert node.plugins.gate.refusals.blocked_pods() == {}
    assert [(each.started, len(each.uses)) for each in node.plugins.gate.record.entries] == [(True, 1)]


@pytest.mark.parametrize("paused", [False, True], ids=["after a reboot", "with a process of its sandbox"])
async def test_a_pod_that_ran_starts_with_what_it_is_answered_when_it_is_admitted_again(
    node: Node, *, paused: bool
) -> None:
    """The kubelet lost its record while a job's container was down, and the answer was another's of the same size."""
    units = 4 if paused else 12  # what a pod with processes had counts until its container starts
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("a", units, share(0, 1024 * units))
    node.pods["default", "a"]["spec"]["restartPolicy"] = "OnFailure"
    await node.run("a", NEED, units)
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}
    node.pods["default", "a"] = node.watched["default", "a"] = {**node.pods["default", "a"], "status": status}
    if paused:
        node.process_of("a")
    node.kubelet.lose_record()
    node.assign("b", units, share(1, 1024 * units))
    for name in ("a", "b"):
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, units),)))
    await node.plugins._clean_up_record_and_shares()
    assert node.plugins.gate.refusals.double_allocations() == ()
    for name, gpu in (("a", 1), ("b", 0)):
        answer = await node.kubelet.create("default", name, "main")
        assert dict(answer.env)["NVIDIA_VISIBLE_DEVICES"] == facts(gpu, "T4").uuid
        assert node.assigned(name)[0]["gpu"] == gpu
    assert node.plugins.shares.unassigned == {}
    assert node.plugins.gate.refusals.double_allocations() == ()


@pytest.mark.parametrize("watch", [False, True], ids=["before the other is admitted", "with a pass in between"])
@pytest.mark.parametrize("kind", ["equal shares", "hardware"])
async def test_pods_that_ran_are_admitted_again_in_another_order(node: Node, kind: str, *, watch: bool) -> None:
    """After a reboot that lost the kubelet's record `b` comes first, and is answered with what `a` had before."""
    isolated = kind == "hardware"
    pairs = [(facts(index, "T4"), AUTO if isolated else MEMORY) for index in range(2)]
    exclusive = {"mode": Mode.WHOLE, "isolation": Isolation.HARDWARE, "compute_percent": 100}
    units, memory_mib, more = (4, 15360, exclusive) if isolated else (12, 12288, {})
    await node.offer(*pairs)
    for index, name in enumerate("ab"):
        node.assign(name, units, share(index, memory_mib, **more))
        pod = node.pods["default", name]
        pod["metadata"]["creationTimestamp"] = f"2026-01-31T12:00:0{index}Z"
        if isolated:
            pod["metadata"]["annotations"]["tessera.dev/isolation"] = "hardware"
        status = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}
        node.pods["default", name] = node.watched["default", name] = signed({**pod, "status": status})
        await node.run(name, NEED, units)
    await node.kill()
    node.kubelet.lose_record()
    node.plugins = node.started()
    await node.offer(*pairs)
    for name in "ba":
        await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, units),)))
        if watch:
            await node.plugins._clean_up_record_and_shares()
            assert node.plugins.gate.refusals.double_allocations() == ()
    told = {}
    for name in "ba":
        told[name] = dict((await node.kubelet.create("default", name, "main")).env)["NVIDIA_VISIBLE_DEVICES"]
        assert told[name] == facts(node.assigned(name)[0]["gpu"], "T4").uuid
    assert len(set(told.values())) == 2
    assert node.plugins.gate.refusals.double_allocations() == ()


async def test_what_a_pod_had_before_it_was_admitted_again_counts_while_it_has_processes(node: Node) -> None:
    """A kubelet that admits a running container again would hand its GPU on."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    main = Container(name="main", limits=((NEED, 12),))
    node.assign("a", 12, share(0, 12288))
    await node.run("a", NEED, 12)
    status = {"phase": "Running", "containerStatuses": [{"name": "main", "containerID": "containerd://1"}]}
    node.pods["default", "a"] = node.watched["default", "a"] = {**node.pods["default", "a"], "status": status}
    process = node.process_of("a")
    node.kubelet.lose_record()
    node.assign("b", 12, share(1, 12288))
    await node.kubelet.admit("default", "a", main)
    with pytest.raises(Conflict, match="container main of pod default/a"):
        await node.kubelet.admit("default", "b", main)
    shutil.rmtree(process)
    await node.kubelet.admit("default", "b", main)
    assert (
        dict((await node.kubelet.create("default", "b", "main")).env)["NVIDIA_VISIBLE_DEVICES"] == facts(0, "T4").uuid
    )


async def test_the_other_half_of_an_exchange_is_written_by_the_next_agent(node: Node) -> None:
    pairs = [(facts(index, "T4"), MEMORY) for index in range(2)]
    await node.offer(*pairs)
    for number in range(2):
        node.assign(f"p{number}", 10, share(number, 10240))
    node.full = {"p0"}
    await node.run("p1", NEED, 10)
    assert [node.assigned(f"p{number}")[0]["gpu"] for number in range(2)] == [0, 0], "one of two was written"
    await node.kill()
    node.plugins = node.started()
    node.full = set()
    await node.offer(*pairs)
    assert dict((await node.run("p0", NEED, 10)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(1, "T4").uuid
    assert [node.assigned(f"p{number}")[0]["gpu"] for number in range(2)] == [1, 0]


async def test_what_half_an_exchange_leaves_free_is_used_by_one_pod_alone(node: Node) -> None:
    """A server that saw one write of two may give the place away: whom it was for has not started, and does not."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(2)))
    for number in range(2):
        node.assign(f"p{number}", 10, share(number, 10240))
    node.full = {"p0"}
    given = dict((await node.run("p1", NEED, 10)).env)["NVIDIA_VISIBLE_DEVICES"]
    assert given == facts(0, "T4").uuid
    assert [node.assigned(f"p{number}")[0]["gpu"] for number in range(2)] == [0, 0], "one of two was written"
    node.assign("late", 8, share(1, 8192))
    assert dict((await node.run("late", NEED, 8)).env)["NVIDIA_VISIBLE_DEVICES"] == facts(1, "T4").uuid
    with pytest.raises(Conflict):
        await node.run("p0", NEED, 10)


async def test_an_exchange_is_never_written_to_the_next_pod_of_a_name(node: Node) -> None:
    """As a StatefulSet makes them: the same name, another pod, another GPU."""
    await node.offer(*((facts(index, "T4"), MEMORY) for index in range(3)))
    node.assign("p", 2, share(0, 2048))
    node.assign("q", 2, share(1, 2048))
    await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 2),)))
    node.silent = True  # that it was given the other's cannot be written
    with pytest.raises(Conflict):
        await node.kubelet.create("default", "q", "main")
    node.silent = False
    node.end("q")
    node.assign("q", 2, share(2, 2048))
    again = node.pods["default", "q"]
    again["metadata"]["uid"] = "uid-q-again"
    node.pods["default", "q"] = node.watched["default", "q"] = signed(again)
    await node.kubelet.admit("default", "q", Container(name="main", limits=((NEED, 2),)), uid="uid-q-again")
    assert [each["gpu"] for each in node.assigned("q")] == [2]


async def test_who_restores_an_assignment_from_before_an_exchange_is_given_the_later_one_back(node: Node) -> None:
    """Servers would take the GPU that the pod uses for free, and the other for used."""
    await node.offer((facts(0), MEMORY), (facts(1), MEMORY))
    for number in range(2):
        node.assign(f"p{number}", 2, share(number, 2048))
    former = {f"p{number}": dict(node.pods["default", f"p{number}"]["metadata"]["annotations"]) for number in range(2)}
    for name in ("p1", "p0"):
        await node.run(name, NEED, 2)
    assert [node.assigned(f"p{number}")[0]["gpu"] for number in range(2)] == [1, 0], "they were exchanged"
    for _ in range(2):
        for name, annotations in former.items():
            changed = {**node.pods["default", name]["metadata"], "annotations": dict(annotations)}
            node.pods["default", name] = node.watched["default", name] = {**node.pods["default", name]} | {
                "metadata": changed
            }
        assert [each.shares[0].gpu for each in node.plugins.shares.assigned_requests()] == [1, 0]
        await node.plugins.shares.repair()
        assert [node.assigned(f"p{number}")[0]["gpu"] for number in range(2)] == [1, 0]
        assert is_signed(node.pods["default", "p0"], node.trust.keys)
        await node.kill()
        node.plugins = node.started()  # and one that starts then knows it too
        await node.offer((facts(0), MEMORY), (facts(1), MEMORY))


async def admit(node: Node, name: str, resource: str) -> None:
    await node.kubelet.admit("default", name, Container(name="main", limits=((resource, 5),)))


async def test_answers_of_both_resources_of_memory_are_not_mistaken_though_their_ids_are_the_same(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY))
    node.assign("gpushare", 5, share(0, 5120, resource=SHARE_MEMORY), resource=SHARE_MEMORY)
    node.assign("a", 5, share(0, 5120))
    node.assign("b", 5, share(1, 5120))
    await admit(node, "gpushare", SHARE_MEMORY)
    await admit(node, "b", NEED)  # it is answered with what `a` was assigned
    await admit(node, "a", NEED)
    assert len({entry.ids for entry in node.plugins.gate.record.entries}) == 2
    for name in ("gpushare", "b", "a"):
        got = dict((await node.kubelet.create("default", name, "main")).env)
        assert got["NVIDIA_VISIBLE_DEVICES"] == facts(node.assigned(name)[0]["gpu"]).uuid
    assert [node.assigned(name)[0]["gpu"] for name in ("gpushare", "a", "b")] == [0, 1, 0]


async def test_the_answer_of_a_pod_that_is_gone_keeps_none_of_the_other_resource_from_starting(node: Node) -> None:
    await node.offer((facts(0, "T4"), MEMORY))
    node.assign("gpushare", 5, share(0, 5120, resource=SHARE_MEMORY), resource=SHARE_MEMORY)
    node.assign("need", 5, share(0, 5120))
    await admit(node, "need", NEED)
    await admit(node, "gpushare", SHARE_MEMORY)
    node.version += 1
    node.end("gpushare")
    assert dict((await node.kubelet.create("default", "need", "main")).env)["TESSERA_GPU_MEMORY_MIB"] == "5120"
