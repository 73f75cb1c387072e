"""The API in memory: the conformance suite, and the faults only it can have on demand."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conformance.kubesuite import GHOSTS, HERE, NAMESPACE, KubeSuite, config_map, unplaced, until
from tessera.clients.kube import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    PODS,
    Expired,
    Forbidden,
    Kube,
    MemoryKube,
    Selection,
    Store,
    Unanswered,
)
from tessera.errors import Conflict, Unavailable

pytestmark = pytest.mark.anyio


class TestMemoryKube(KubeSuite):
    @pytest.fixture
    def kube(self) -> Kube:
        kube = MemoryKube()
        kube.uninstall(GHOSTS)
        return kube


@pytest.fixture
async def followed() -> AsyncIterator[tuple[MemoryKube, Store, asyncio.Queue[Exception]]]:
    """Yield an API, a store that follows it, and the troubles the store has met."""
    kube, troubles = MemoryKube(), asyncio.Queue[Exception]()
    await kube.create(CONFIG_MAPS, config_map("one"))
    store = Store(kube, CONFIG_MAPS, HERE, on_error=troubles.put_nowait)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(store.run())
        await store.synced()
        yield kube, store, troubles
        following.cancel()


Followed = tuple[MemoryKube, Store, asyncio.Queue[Exception]]


async def test_a_deletion_during_an_outage_is_not_missed(followed: Followed) -> None:
    kube, store, troubles = followed
    kube.stop()
    with pytest.raises(Unavailable, match="stopped"):
        await kube.list(CONFIG_MAPS)
    assert isinstance(await asyncio.wait_for(troubles.get(), 20), Unavailable)
    kube.start()
    await kube.delete(CONFIG_MAPS, "one", namespace=NAMESPACE)
    await kube.create(CONFIG_MAPS, config_map("two"))
    kube.forget_history()
    await until(store, {"two"})


async def test_a_broken_watch_begins_anew(followed: Followed) -> None:
    kube, store, _ = followed
    await kube.close()
    await kube.create(CONFIG_MAPS, config_map("two"))
    await until(store, {"one", "two"})


async def test_a_moment_too_long_ago_is_expired() -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, config_map("one"))
    kube.forget_history()
    with pytest.raises(Expired):
        await anext(kube.watch(CONFIG_MAPS, "0"))


async def test_an_expired_watch_lists_anew(followed: Followed) -> None:
    kube, store, troubles = followed
    await kube.create(CONFIG_MAPS, config_map("two"))
    kube.forget_history()
    await until(store, {"one", "two"})
    assert isinstance(troubles.get_nowait(), Expired)


async def test_a_disruption_budget_holds_an_eviction_up() -> None:
    kube = MemoryKube()
    pod = {"metadata": {"name": "p", "namespace": NAMESPACE, "labels": {"app": "a"}}, "spec": {}}
    await kube.create(PODS, pod)
    selector = {"selector": {"matchLabels": {"app": "a"}}}
    budget = {"metadata": {"name": "b", "namespace": NAMESPACE}, "spec": selector, "status": {"disruptionsAllowed": 0}}
    await kube.create(DISRUPTION_BUDGETS, budget)
    with pytest.raises(Unavailable, match="PodDisruptionBudget b"):
        await kube.evict("p", NAMESPACE)
    assert await kube.get(PODS, "p", NAMESPACE)
    await kube.patch(
        DISRUPTION_BUDGETS, "b", {"status": {"disruptionsAllowed": 1}}, namespace=NAMESPACE, subresource="status"
    )
    await kube.evict("p", NAMESPACE)
    assert await kube.get(PODS, "p", NAMESPACE) is None


async def test_what_changes_while_a_watcher_works_is_reported(followed: Followed) -> None:
    kube, _, _ = followed
    told = []
    async for event in kube.watch(CONFIG_MAPS, "0"):
        told.append(event.object["metadata"]["name"])
        if len(told) == 1:
            await kube.create(CONFIG_MAPS, config_map("two"))
        if len(told) == 2:
            break
    assert told == ["one", "two"]


async def test_a_lost_answer_says_that_nobody_knows() -> None:
    kube = MemoryKube()
    uid = (await kube.create(PODS, unplaced("p")))["metadata"]["uid"]
    kube.lose_answers(2)
    with pytest.raises(Unanswered):
        await kube.bind("p", NAMESPACE, uid=uid, node="n", annotations={"a": "9"})
    with pytest.raises(Unanswered):
        await kube.delete(CONFIG_MAPS, "absent", namespace=NAMESPACE)
    found = await kube.get(PODS, "p", NAMESPACE)
    assert found is not None
    assert found["spec"]["nodeName"] == "n"
    with pytest.raises(Conflict, match="node n already"):
        await kube.bind("p", NAMESPACE, uid=uid, node="n", annotations={})


async def test_a_pod_that_is_being_deleted_is_not_bound() -> None:
    kube, body = MemoryKube(), unplaced("p")
    body["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    uid = (await kube.create(PODS, body))["metadata"]["uid"]
    with pytest.raises(Conflict, match="being deleted"):
        await kube.bind("p", NAMESPACE, uid=uid, node="n", annotations={})


async def test_an_object_is_as_old_as_the_clock_says() -> None:
    kube = MemoryKube(clock=lambda: 86_400.0)
    made = await kube.create(CONFIG_MAPS, config_map("one"))
    assert made["metadata"]["creationTimestamp"] == "1970-01-02T00:00:00Z"


async def test_a_watcher_that_is_further_behind_than_anybody_remembers_is_reported() -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, config_map("one"))
    for number in range(10_000):
        await kube.patch(CONFIG_MAPS, "one", {"data": {"n": str(number)}}, namespace=NAMESPACE)
    with pytest.raises(Expired):
        await anext(kube.watch(CONFIG_MAPS, "0"))
    assert (await anext(kube.watch(CONFIG_MAPS, "1"))).object["data"] == {"n": "0"}


async def test_pods_are_selected_by_their_node() -> None:
    kube, here = MemoryKube(), Selection(fields=(("spec.nodeName", "n"),))
    uids = {name: (await kube.create(PODS, unplaced(name)))["metadata"]["uid"] for name in ("b", "a", "c")}
    for name, uid in uids.items():
        await kube.bind(name, NAMESPACE, uid=uid, node="n" if name < "c" else "m", annotations={})
    assert [each["metadata"]["name"] for each in (await kube.list(PODS, here)).objects] == ["a", "b"]
    await kube.delete(PODS, "a", namespace=NAMESPACE)
    assert [each["metadata"]["name"] for each in (await kube.list(PODS, here)).objects] == ["b"]
    named = Selection(fields=(("metadata.name", "c"),))
    assert [each["metadata"]["name"] for each in (await kube.list(PODS, named)).objects] == ["c"]


async def test_what_is_withheld_in_a_namespace_is_refused_until_it_is_not() -> None:
    kube = MemoryKube()
    await kube.create(CONFIG_MAPS, config_map("one"))
    kube.withhold(NAMESPACE, CONFIG_MAPS)
    with pytest.raises(Forbidden, match=f"namespace {NAMESPACE}.*a role that grants it"):
        await kube.get(CONFIG_MAPS, "one", NAMESPACE)
    with pytest.raises(Forbidden):
        await kube.apply(CONFIG_MAPS, config_map("one"), manager="m")
    assert [each["metadata"]["name"] for each in (await kube.list(CONFIG_MAPS)).objects] == ["one"]
    kube.withhold(NAMESPACE)
    assert await kube.get(CONFIG_MAPS, "one", NAMESPACE) is not None
