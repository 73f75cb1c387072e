"""What the kubelet lost of pods that ran is given to no new pod, also when their containers have ended since."""

import hashlib
import os
import shutil
from datetime import UTC, datetime

import pytest

from builders.gpunodes import facts
from builders.signed import signed
from harness.livingpods import admit_with_init, ask_with_init, run, run_init
from harness.pluginnode import MEMORY, NEED, Node, share
from tessera.clients.kubelet import Container
from tessera.core.node.nodesharing import ListStrategy, PluginOptions
from tessera.errors import Conflict

pytestmark = pytest.mark.anyio

STRATEGIES: tuple[ListStrategy, ...] = ("envvar", "volume-mounts")
LONG_AGO = datetime(2026, 1, 31, tzinfo=UTC).timestamp()


async def lose_and_crash(node: Node, how: ListStrategy, *, compute_percent: int = 0) -> None:
    """The kubelet starts without its record while pod `old` runs on GPU 1; then its container crashes."""
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    node.assign("old", 5, share(1, 5 << 10, compute_percent=compute_percent), compute_percent=compute_percent)
    await node.run("old", NEED, 5)
    run(node, "old", pause=True, ends=False)
    node.kubelet.lose_record()
    own = hashlib.sha256(b"old").hexdigest()
    (process,) = (each for each in node.proc.glob("[0-9]*") if own in (each / "cgroup").read_text())
    shutil.rmtree(process)


def ask(node: Node, name: str, *, initial: bool) -> None:
    """Assign GPU 0 to a new pod."""
    if initial:
        ask_with_init(node, name, 0, 5)
    else:
        node.assign(name, 5, share(0, 5 << 10))
    node.pods["default", name]["metadata"]["creationTimestamp"] = "2026-01-31T12:00:09Z"
    node.pods["default", name] = node.watched["default", name] = signed(node.pods["default", name])


@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("initial", [True, False], ids=["with an init container", "without"])
@pytest.mark.parametrize("compute_percent", [0, 30], ids=["equal shares", "shares of two kinds"])
async def test_a_new_pod_has_its_own_share_a_minute_after_the_kubelet_started(
    node: Node, how: ListStrategy, compute_percent: int, *, initial: bool
) -> None:
    """It allocates for a started pod's container only when it starts itself."""
    await lose_and_crash(node, how, compute_percent=compute_percent)
    os.utime(node.kubelet.socket, (LONG_AGO, LONG_AGO))
    ask(node, "new", initial=initial)
    await admit_with_init(node, "new", 5) if initial else await admit(node, "new")
    for container in ("init", "main") if initial else ("main",):
        assert facts(0, "T4").uuid in str(await node.kubelet.create("default", "new", container))
    assert node.assigned("new")[0]["gpu"] == 0
    assert node.plugins.gate.refusals.blocked_pods() == {}


async def admit(node: Node, name: str) -> None:
    await node.kubelet.admit("default", name, Container(name="main", limits=((NEED, 5),)))


@pytest.mark.parametrize("how", STRATEGIES)
async def test_no_container_starts_with_what_its_init_container_was_not_answered(node: Node, how: ListStrategy) -> None:
    """In the first minute the kubelet may ask for the former pod; nothing tells the new one's containers apart."""
    await lose_and_crash(node, how)
    ask(node, "new", initial=True)
    with pytest.raises(Conflict, match="init container of its pod was answered with the devices of pod default/old"):
        await admit_with_init(node, "new", 5)


@pytest.mark.parametrize("how", STRATEGIES)
async def test_a_pod_that_was_deleted_a_moment_ago_is_not_admitted_again(node: Node, how: ListStrategy) -> None:
    await lose_and_crash(node, how)
    await node.plugins.gate.view.refresh()
    node.end("old")
    ask(node, "new", initial=True)
    await admit_with_init(node, "new", 5)
    for container in ("init", "main"):
        assert facts(0, "T4").uuid in str(await node.kubelet.create("default", "new", container))


@pytest.mark.parametrize("how", STRATEGIES)
async def test_a_kubelet_that_admits_its_pods_late_is_answered_all_the_same(node: Node, how: ListStrategy) -> None:
    """As where the API server answered it late: no other pod waits."""
    await lose_and_crash(node, how)
    os.utime(node.kubelet.socket, (LONG_AGO, LONG_AGO))
    await admit(node, "old")
    assert facts(1, "T4").uuid in str(await node.kubelet.create("default", "old", "main"))


@pytest.mark.parametrize("how", STRATEGIES)
async def test_where_processes_cannot_be_observed_the_phase_tells_who_is_admitted_again(
    node: Node, how: ListStrategy
) -> None:
    """The init container ran: the kubelet allocates anew for the container after it, while a newer pod waits."""
    (node.proc / "self/ns/pid").unlink()
    await node.offer((facts(0, "T4"), MEMORY), (facts(1, "T4"), MEMORY), how=PluginOptions(list_strategies=(how,)))
    ask_with_init(node, "old", 1, 5)
    await admit_with_init(node, "old", 5)
    await node.kubelet.create("default", "old", "init")
    run_init(node, "old", "Pending")
    for process in node.proc.glob("[0-9]*"):
        shutil.rmtree(process)
    node.kubelet.lose_record()
    ask(node, "new", initial=False)
    assert node.plugins.gate.view.blind
    await admit(node, "old")
    assert facts(1, "T4").uuid in str(await node.kubelet.create("default", "old", "main"))
    assert node.assigned("old")[0]["gpu"] == 1
