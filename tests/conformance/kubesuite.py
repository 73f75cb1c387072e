"""What every implementation of the Kubernetes client's Protocol does; each is run through it by a subclass."""

import asyncio

import pytest

from tessera.clients.kube import CONFIG_MAPS, EVERYTHING, NODES, Kind, Kube, Object, Selection, Store, name_of
from tessera.errors import Conflict, InvalidInput

NAMESPACE = "default"
HERE = Selection(namespace=NAMESPACE, labels=(("suite", "kube"),))


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"suite": "kube"}}, "data": data}


async def until(store: Store, names: set[str], deadline_s: float = 20.0) -> None:
    """Return when the store holds these objects."""
    for _ in range(round(deadline_s / 0.01)):
        if {name for _, name in store.objects} == names:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{set(store.objects)} after {deadline_s} s, wanted {names}")


@pytest.mark.anyio
class KubeSuite:
    """Subclasses give the fixture `kube`: a client of an API that holds nothing labelled `suite=kube`."""

    async def test_an_object_is_read_as_it_was_written(self, kube: Kube) -> None:
        stored = await kube.create(CONFIG_MAPS, config_map("one", a="1"))
        found = await kube.get(CONFIG_MAPS, "one", NAMESPACE)
        assert found == stored
        assert (found["kind"], found["apiVersion"], found["data"]) == ("ConfigMap", "v1", {"a": "1"})

    async def test_what_is_not_there_is_none(self, kube: Kube) -> None:
        assert await kube.get(CONFIG_MAPS, "absent", NAMESPACE) is None
        await kube.delete(CONFIG_MAPS, "absent", namespace=NAMESPACE)
        await kube.evict("absent", NAMESPACE)

    async def test_a_name_is_given_once(self, kube: Kube) -> None:
        await kube.create(CONFIG_MAPS, config_map("one"))
        with pytest.raises(Conflict, match="ConfigMap default/one"):
            await kube.create(CONFIG_MAPS, config_map("one"))

    async def test_a_nameless_object_is_refused(self, kube: Kube) -> None:
        with pytest.raises(InvalidInput):
            await kube.create(CONFIG_MAPS, {"metadata": {"namespace": NAMESPACE}})

    async def test_a_prefix_becomes_a_name(self, kube: Kube) -> None:
        metadata = {"generateName": "some-", "namespace": NAMESPACE, "labels": {"suite": "kube"}}
        _, name = name_of(await kube.create(CONFIG_MAPS, {"metadata": metadata}))
        assert name.startswith("some-")
        assert name != "some-"

    async def test_a_patch_merges_and_removes(self, kube: Kube) -> None:
        await kube.create(CONFIG_MAPS, config_map("one", a="1", b="2"))
        after = await kube.patch(CONFIG_MAPS, "one", {"data": {"a": None, "c": "3"}}, namespace=NAMESPACE)
        assert after["data"] == {"b": "2", "c": "3"}
        assert await kube.get(CONFIG_MAPS, "one", NAMESPACE) == after

    async def test_a_patch_of_a_changed_object_is_refused(self, kube: Kube) -> None:
        old = await kube.create(CONFIG_MAPS, config_map("one"))
        await kube.patch(CONFIG_MAPS, "one", {"data": {"a": "1"}}, namespace=NAMESPACE)
        version = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}}
        with pytest.raises(Conflict, match="ConfigMap default/one"):
            await kube.patch(CONFIG_MAPS, "one", version | {"data": {"a": "2"}}, namespace=NAMESPACE)

    async def test_a_patch_of_nothing_is_refused(self, kube: Kube) -> None:
        with pytest.raises(Conflict, match="ConfigMap default/absent"):
            await kube.patch(CONFIG_MAPS, "absent", {"data": {}}, namespace=NAMESPACE)

    async def test_a_patch_that_changes_nothing_makes_no_new_version(self, kube: Kube) -> None:
        old = await kube.create(CONFIG_MAPS, config_map("one", a="1"))
        assert await kube.patch(CONFIG_MAPS, "one", {"data": {"a": "1"}}, namespace=NAMESPACE) == old

    async def test_status_is_changed_by_its_own_door_alone(self, kube: Kube) -> None:
        await kube.create(NODES, {"metadata": {"name": "suite-node", "labels": {"suite": "kube"}}})
        status = {"status": {"capacity": {"nvidia.com/gpu": "8"}}}
        by_main = await kube.patch(NODES, "suite-node", {"metadata": {"labels": {"a": "b"}}, **status})
        assert "capacity" not in by_main.get("status", {})
        by_status = await kube.patch(NODES, "suite-node", status, subresource="status")
        assert by_status["status"]["capacity"] == {"nvidia.com/gpu": "8"}
        assert by_status["metadata"]["labels"]["a"] == "b"

    async def test_a_selection_lists_what_meets_it(self, kube: Kube) -> None:
        await kube.create(CONFIG_MAPS, config_map("one"))
        await kube.create(CONFIG_MAPS, config_map("two"))
        names = [name_of(each)[1] for each in (await kube.list(CONFIG_MAPS, HERE)).objects]
        assert names == ["one", "two"]
        field = Selection(namespace=NAMESPACE, fields=(("metadata.name", "two"),))
        assert [name_of(each)[1] for each in (await kube.list(CONFIG_MAPS, field)).objects] == ["two"]
        assert (await kube.list(CONFIG_MAPS, Selection(labels=(("suite", "other"),)))).objects == ()
        assert {"one", "two"} <= {name_of(each)[1] for each in (await kube.list(CONFIG_MAPS, EVERYTHING)).objects}

    async def test_a_store_follows_what_comes_changes_and_goes(self, kube: Kube) -> None:
        await kube.create(CONFIG_MAPS, config_map("before"))
        store = Store(kube, CONFIG_MAPS, HERE)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(store.run())
            await asyncio.wait_for(store.synced(), 20)
            assert {name for _, name in store.objects} == {"before"}
            await kube.create(CONFIG_MAPS, config_map("after"))
            await until(store, {"before", "after"})
            await kube.delete(CONFIG_MAPS, "before", namespace=NAMESPACE)
            await until(store, {"after"})
            await kube.patch(CONFIG_MAPS, "after", {"metadata": {"labels": {"suite": "other"}}}, namespace=NAMESPACE)
            await until(store, set())
            following.cancel()

    async def test_a_pod_is_evicted(self, kube: Kube) -> None:
        pods = Kind(name="Pod", plural="pods")
        container = {"name": "c", "image": "none"}
        metadata = {"name": "suite-pod", "namespace": NAMESPACE, "labels": {"suite": "kube"}}
        await kube.create(pods, {"metadata": metadata, "spec": {"containers": [container]}})
        await kube.evict("suite-pod", NAMESPACE)
        assert await kube.get(pods, "suite-pod", NAMESPACE) is None
