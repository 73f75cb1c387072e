"""What every implementation of the Kubernetes client's Protocol does; each is run through it by a subclass."""

import asyncio
import time
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from tessera.api.kubernetes.reviews import Attributes, ReviewedUser, access_review, refusal, reviewed_user, token_review
from tessera.api.kubernetes.times import read_time
from tessera.clients.kube import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    EVERYTHING,
    LEASES,
    NODES,
    PODS,
    SELF_SUBJECT_REVIEWS,
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    Election,
    Kind,
    Kube,
    LeaseLock,
    Object,
    Selection,
    Store,
    annotations_of,
    follow,
    name_of,
    version_of,
)
from tessera.core.cluster.protocols.leadership import Terms
from tessera.errors import Conflict, InvalidInput, TesseraError, Unavailable, Unsupported

NAMESPACE = "default"
HERE = Selection(namespace=NAMESPACE, labels=(("suite", "kube"),))

THINGS = Kind(group="suite.tessera.dev", version="v1alpha1", name="Thing", plural="things", namespaced=False)
GHOSTS = Kind(group="suite.tessera.dev", version="v1alpha1", name="Ghost", plural="ghosts", namespaced=False)
"""A kind that no implementation under test serves."""


def definition(kind: Kind) -> Object:
    """Return the CustomResourceDefinition of a kind with the fields that the suite uses."""
    anything = {"x-kubernetes-preserve-unknown-fields": True}
    numbers = {"type": "array", "items": {"type": "integer"}}
    inner = {"type": "object", "properties": {"a": anything, "b": anything}}
    spec = {"type": "object", "properties": {"inner": inner, "other": anything, "list": numbers}}
    status = {"type": "object", "properties": {"seen": anything, "known": anything}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Cluster",
            "names": {"plural": kind.plural, "kind": kind.name},
            "versions": [version],
        },
    }


async def install(kube: Kube, kind: Kind) -> None:
    """Install a kind where it is not, and return when it is served and empty."""
    found = await kube.get(CUSTOM_RESOURCE_DEFINITIONS, f"{kind.plural}.{kind.group}")
    if found is None:
        await kube.create(CUSTOM_RESOURCE_DEFINITIONS, definition(kind))
    async with asyncio.timeout(20):
        async for change in follow(kube, kind):  # it goes on trying until the kind is served
            if change.object is None:
                return
            await kube.delete(kind, name_of(change.object)[1])


def thing(**fields: Any) -> Object:
    return {"metadata": {"name": "one"}, **fields}


def unplaced(name: str, **spec: Any) -> Object:
    """Return a pod that no scheduler places."""
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"suite": "kube"}, "annotations": {"a": "1", "b": "2"}}
    container = {"name": "c", "image": "none"}
    return {"metadata": metadata, "spec": {"schedulerName": "nobody", "containers": [container], **spec}}


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"suite": "kube"}}, "data": data}


async def until(store: Store, names: set[str], deadline_s: float = 20.0) -> None:
    """Return when the store holds these objects."""
    for _ in range(round(deadline_s / 0.01)):
        if {name for _, name in store.objects} == names:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{set(store.objects)} after {deadline_s} s is not {names}")


async def lasted(kube: Kube, lock: LeaseLock) -> None:
    """Return when a lease was renewed for longer than it is good for without that."""
    async with asyncio.timeout(20):
        async for change in follow(kube, LEASES, Selection(namespace=lock.namespace)):
            if change.object is not None and name_of(change.object)[1] == lock.lease:
                spec = change.object["spec"]
                if _seconds(spec["renewTime"]) > _seconds(spec["acquireTime"]) + lock.terms.lease_s:
                    return


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


@pytest.mark.anyio
class KubeSuite:
    """Subclasses give the fixture `kube`: a client of an API that holds nothing labeled `suite=kube`."""

    async def test_an_object_is_read_as_it_was_written(self, kube: Kube) -> None:
        stored = await kube.create(CONFIG_MAPS, config_map("one", a="1"))
        found = await kube.get(CONFIG_MAPS, "one", NAMESPACE)
        assert found == stored
        assert (found["kind"], found["apiVersion"], found["data"]) == ("ConfigMap", "v1", {"a": "1"})

    async def test_what_is_not_there_is_none(self, kube: Kube) -> None:
        assert await kube.get(CONFIG_MAPS, "absent", NAMESPACE) is None
        await kube.delete(CONFIG_MAPS, "absent", namespace=NAMESPACE)
        await kube.evict("absent", NAMESPACE)

    async def test_a_pod_that_is_not_there_answers_nothing(self, kube: Kube) -> None:
        with pytest.raises(Unavailable, match="Pod default/absent at port 80"):
            await kube.ask_pod("absent", NAMESPACE, port=80, path="usage", most=99)

    async def test_a_pod_that_is_not_there_has_no_log(self, kube: Kube) -> None:
        with pytest.raises(Unavailable, match="log of Pod default/absent"):
            [each async for each in kube.logs("absent", NAMESPACE)]

    async def test_a_pod_without_a_node_has_an_empty_log(self, kube: Kube) -> None:
        await kube.create(PODS, unplaced("suite-pod"))
        assert [each async for each in kube.logs("suite-pod", NAMESPACE, container="c")] == []
        with pytest.raises(InvalidInput, match="log of Pod default/suite-pod"):
            [each async for each in kube.logs("suite-pod", NAMESPACE, container="other")]

    async def test_a_name_is_given_once(self, kube: Kube) -> None:
        await kube.create(CONFIG_MAPS, config_map("one"))
        with pytest.raises(Conflict, match=r"ConfigMap default/one.*: choose a new name"):
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
        others = Selection(namespace=NAMESPACE, other_fields=(("metadata.name", "two"), ("metadata.name", "x")))
        assert [name_of(each)[1] for each in (await kube.list(CONFIG_MAPS, others)).objects][-1:] == ["one"]
        assert (await kube.list(CONFIG_MAPS, Selection(labels=(("suite", "other"),)))).objects == ()
        labeled = Selection(namespace=NAMESPACE, having=("suite",))
        assert [name_of(each)[1] for each in (await kube.list(CONFIG_MAPS, labeled)).objects] == ["one", "two"]
        assert (await kube.list(CONFIG_MAPS, Selection(having=("suite", "other")))).objects == ()
        assert {"one", "two"} <= {name_of(each)[1] for each in (await kube.list(CONFIG_MAPS, EVERYTHING)).objects}

    @pytest.mark.parametrize("found", [True, False])
    async def test_a_version_is_as_late_as_the_last_change(self, kube: Kube, *, found: bool) -> None:
        """A watch that has seen it is resumed only where the server's version is no older."""
        selection = HERE if found else Selection(namespace=NAMESPACE, fields=(("metadata.name", "none"),))
        stored = await kube.create(CONFIG_MAPS, config_map("one"))
        listing = await kube.list(CONFIG_MAPS, selection)
        read = await kube.version(CONFIG_MAPS, selection)
        assert int(version_of(stored)) <= int(listing.resource_version) <= int(read)
        changed = await kube.patch(CONFIG_MAPS, "one", {"data": {"a": "2"}}, namespace=NAMESPACE)
        assert int(read) < int(version_of(changed)) <= int(await kube.version(CONFIG_MAPS, selection))

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
        await kube.create(PODS, unplaced("suite-pod"))
        await kube.evict("suite-pod", NAMESPACE)
        assert await kube.get(PODS, "suite-pod", NAMESPACE) is None

    async def test_a_pod_of_another_uid_is_not_evicted(self, kube: Kube) -> None:
        uid = (await kube.create(PODS, unplaced("suite-pod")))["metadata"]["uid"]
        with pytest.raises(Conflict):
            await kube.evict("suite-pod", NAMESPACE, uid="00000000-0000-4000-8000-000000000000")
        assert await kube.get(PODS, "suite-pod", NAMESPACE) is not None
        await kube.evict("suite-pod", NAMESPACE, uid=uid)
        assert await kube.get(PODS, "suite-pod", NAMESPACE) is None

    async def test_an_object_of_another_uid_is_not_deleted(self, kube: Kube) -> None:
        uid = (await kube.create(CONFIG_MAPS, config_map("one")))["metadata"]["uid"]
        with pytest.raises(Conflict, match="ConfigMap default/one"):
            await kube.delete(CONFIG_MAPS, "one", namespace=NAMESPACE, uid="00000000-0000-4000-8000-000000000000")
        assert await kube.get(CONFIG_MAPS, "one", NAMESPACE) is not None
        await kube.delete(CONFIG_MAPS, "one", namespace=NAMESPACE, uid=uid)
        assert await kube.get(CONFIG_MAPS, "one", NAMESPACE) is None
        await kube.delete(CONFIG_MAPS, "one", namespace=NAMESPACE, uid=uid)

    async def test_a_kind_that_is_not_installed_is_distinguished_from_an_object_that_is_not_there(
        self, kube: Kube
    ) -> None:
        calls = {
            "list": kube.list(GHOSTS),
            "watch": anext(aiter(kube.watch(GHOSTS, "1"))),
            "get": kube.get(GHOSTS, "one"),
            "create": kube.create(GHOSTS, thing()),
            "patch": kube.patch(GHOSTS, "one", {"spec": {}}),
            "apply": kube.apply(GHOSTS, thing(), manager="suite"),
            "delete": kube.delete(GHOSTS, "one"),
        }
        for call in calls.values():
            with pytest.raises(Unsupported, match=r"ghosts\.suite\.tessera\.dev"):
                await call

    async def test_a_name_that_leads_elsewhere_is_refused(self, kube: Kube) -> None:
        for name in ("", ".."):
            with pytest.raises(TesseraError):
                await kube.patch(CONFIG_MAPS, name, {"data": {}}, namespace=NAMESPACE)
        assert await kube.get(CONFIG_MAPS, "../pods", NAMESPACE) is None

    # Reviews

    async def test_a_token_that_nobody_has_is_nobodys(self, kube: Kube) -> None:
        assert reviewed_user(await kube.create(TOKEN_REVIEWS, token_review("no-such-token"))) is None

    async def test_access_is_reviewed_by_name_and_group(self, kube: Kube) -> None:
        questions = [Attributes(verb="list", resource="pods", namespace=each) for each in ("", NAMESPACE)]
        for groups, want in (((), False), (("system:masters",), True)):
            user = ReviewedUser(username="somebody", groups=groups)
            for requested in (*questions, Attributes(path="/no-such-path")):
                answer = await kube.create(SUBJECT_ACCESS_REVIEWS, access_review(user, requested))
                assert (refusal(answer) is None) is want

    async def test_a_review_of_oneself_has_the_time_of_the_server(self, kube: Kube) -> None:
        review = await kube.create(SELF_SUBJECT_REVIEWS, {"metadata": {}})
        assert read_time(review["metadata"]["creationTimestamp"]) == pytest.approx(time.time(), abs=60)

    # Binding

    async def test_a_binding_gives_the_node_and_annotations_in_one_write(self, kube: Kube) -> None:
        made = await kube.create(PODS, unplaced("suite-pod"))
        versions = []
        annotations = {"b": "3", "tessera.dev/assignment": '[{"x": 1}]'}
        await kube.bind("suite-pod", NAMESPACE, uid=made["metadata"]["uid"], node="suite-node", annotations=annotations)
        found = await kube.get(PODS, "suite-pod", NAMESPACE)
        assert found is not None
        assert found["spec"]["nodeName"] == "suite-node"
        assert annotations_of(found) == {"a": "1"} | annotations
        conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
        assert conditions["PodScheduled"] == "True"
        async for event in kube.watch(PODS, version_of(made), HERE):
            versions.append(event.object)
            if version_of(event.object) == version_of(found):
                break
        assert len(versions) == 1

    async def test_what_cannot_be_bound_is_refused_and_stays(self, kube: Kube) -> None:
        """A pod of another uid, one bound already (to the same node too), a gated one, one that is not there."""
        bound = (await kube.create(PODS, unplaced("bound")))["metadata"]["uid"]
        await kube.bind("bound", NAMESPACE, uid=bound, node="suite-node", annotations={})
        gated = await kube.create(PODS, unplaced("gated", schedulingGates=[{"name": "suite.tessera.dev/gate"}]))
        await kube.create(PODS, unplaced("other"))
        refused = {
            "bound": bound,
            "gated": gated["metadata"]["uid"],
            "other": "00000000-0000-0000-0000-000000000000",
            "absent": bound,
        }
        before = await kube.list(PODS, HERE)
        for name, uid in refused.items():
            with pytest.raises(Conflict, match=f"Pod default/{name}"):
                await kube.bind(name, NAMESPACE, uid=uid, node="suite-node", annotations={"a": "9"})
        assert (await kube.list(PODS, HERE)).objects == before.objects

    async def test_two_bindings_at_once_bind_once(self, kube: Kube) -> None:
        uid = (await kube.create(PODS, unplaced("suite-pod")))["metadata"]["uid"]
        nodes = [f"suite-{number}" for number in range(8)]
        binding = (
            kube.bind("suite-pod", NAMESPACE, uid=uid, node=node, annotations={"tessera.dev/node": node})
            for node in nodes
        )
        answers = await asyncio.gather(*binding, return_exceptions=True)
        assert sum(answer is None for answer in answers) == 1
        assert sum(isinstance(answer, Conflict) for answer in answers) == 7
        found = await kube.get(PODS, "suite-pod", NAMESPACE)
        assert found is not None
        assert found["spec"]["nodeName"] == nodes[answers.index(None)] == annotations_of(found)["tessera.dev/node"]

    async def test_a_binding_without_a_node_is_refused(self, kube: Kube) -> None:
        with pytest.raises(InvalidInput, match="name one"):
            await kube.bind("suite-pod", NAMESPACE, uid="1", node="", annotations={})

    # Custom resources and apply

    async def test_a_generation_counts_changes_of_the_spec_alone(self, kube: Kube) -> None:
        await install(kube, THINGS)
        made = await kube.create(THINGS, thing(spec={"other": 1}, status={"seen": 1}))
        assert "status" not in made
        by_status = await kube.patch(THINGS, "one", {"status": {"seen": 2}, "spec": {"other": 9}}, subresource="status")
        by_label = await kube.patch(THINGS, "one", {"metadata": {"labels": {"a": "b"}, "generation": 7}})
        by_spec = await kube.patch(THINGS, "one", {"spec": {"other": 2}, "status": {"seen": 9}})
        generations = [each["metadata"]["generation"] for each in (made, by_status, by_label, by_spec)]
        assert generations == [1, 1, 1, 2]
        assert (by_status["spec"], by_spec["status"]) == ({"other": 1}, {"seen": 2})

    async def test_what_an_applier_leaves_out_is_removed(self, kube: Kube) -> None:
        await install(kube, THINGS)
        made = await kube.apply(THINGS, thing(spec={"inner": {"a": 1, "b": 2}, "list": [1, 2]}), manager="one")
        assert (made["kind"], made["metadata"]["generation"]) == ("Thing", 1)
        await kube.patch(THINGS, "one", {"spec": {"other": "theirs"}})
        after = await kube.apply(THINGS, thing(spec={"inner": {"a": 1}}), manager="one")
        assert after["spec"] == {"inner": {"a": 1}, "other": "theirs"}
        nothing = await kube.apply(THINGS, thing(), manager="one")
        assert nothing["spec"] == {"other": "theirs"}

    async def test_applying_the_same_again_writes_nothing(self, kube: Kube) -> None:
        await install(kube, THINGS)
        made = await kube.apply(THINGS, thing(spec={"list": [1]}), manager="one")
        assert await kube.apply(THINGS, thing(spec={"list": [1]}), manager="one") == made

    async def test_a_field_of_another_with_another_value_is_a_conflict(self, kube: Kube) -> None:
        await install(kube, THINGS)
        await kube.apply(THINGS, thing(spec={"inner": {"a": 1, "b": 1}, "list": [1]}), manager="one")
        for spec in ({"inner": {"a": 2}}, {"list": [1, 2]}, {"inner": {"b": {"deeper": 1}}}):
            with pytest.raises(Conflict, match="one"):
                await kube.apply(THINGS, thing(spec=spec), manager="two")
        taken = await kube.apply(THINGS, thing(spec={"inner": {"a": 2}}), manager="two", force=True)
        assert taken["spec"] == {"inner": {"a": 2, "b": 1}, "list": [1]}
        with pytest.raises(Conflict, match="two"):
            await kube.apply(THINGS, thing(spec={"inner": {"a": 1, "b": 1}, "list": [1]}), manager="one")

    async def test_a_field_that_two_applied_stays_until_both_left_it_out(self, kube: Kube) -> None:
        await install(kube, THINGS)
        await kube.apply(THINGS, thing(spec={"inner": {"a": 1}}), manager="one")
        await kube.apply(THINGS, thing(spec={"inner": {"a": 1}}), manager="two")
        kept = await kube.apply(THINGS, thing(), manager="one")
        assert kept["spec"] == {"inner": {"a": 1}}
        assert "spec" not in await kube.apply(THINGS, thing(), manager="two")

    async def test_a_patch_takes_a_field_from_its_applier(self, kube: Kube) -> None:
        await install(kube, THINGS)
        await kube.apply(THINGS, thing(spec={"inner": {"a": 1, "b": 1}}), manager="one")
        await kube.patch(THINGS, "one", {"spec": {"inner": {"a": 2}}})
        with pytest.raises(Conflict):
            await kube.apply(THINGS, thing(spec={"inner": {"a": 1, "b": 1}}), manager="one")
        left = await kube.apply(THINGS, thing(spec={"inner": {"b": 2}}), manager="one")
        assert left["spec"] == {"inner": {"a": 2, "b": 2}}

    async def test_what_was_created_without_apply_is_owned_by_its_creator(self, kube: Kube) -> None:
        await install(kube, THINGS)
        await kube.create(THINGS, thing(spec={"inner": {"a": 1, "b": 1}}))
        with pytest.raises(Conflict):
            await kube.apply(THINGS, thing(spec={"inner": {"a": 2}}), manager="one")
        await kube.apply(THINGS, thing(spec={"inner": {"a": 1}}), manager="one")
        after = await kube.apply(THINGS, thing(), manager="one")
        assert after["spec"] == {"inner": {"a": 1, "b": 1}}

    async def test_spec_and_status_are_applied_by_their_own_doors(self, kube: Kube) -> None:
        await install(kube, THINGS)
        with pytest.raises(Conflict, match="one"):
            await kube.apply(THINGS, thing(status={"seen": 1}), manager="agent", subresource="status")
        made = await kube.apply(THINGS, thing(spec={"other": 1}, status={"seen": 1}), manager="agent")
        assert "status" not in made
        both = thing(spec={"other": 2}, status={"seen": 1, "known": [1]})
        after = await kube.apply(THINGS, both, manager="agent", subresource="status")
        assert (after["spec"], after["status"]) == ({"other": 1}, {"seen": 1, "known": [1]})
        after = await kube.apply(THINGS, thing(), manager="agent")
        assert after["status"] == {"seen": 1, "known": [1]}
        after = await kube.apply(THINGS, thing(status={"seen": 1}), manager="agent", subresource="status")
        assert after["status"] == {"seen": 1}

    async def test_an_apply_of_a_changed_object_is_refused(self, kube: Kube) -> None:
        await install(kube, THINGS)
        old = await kube.apply(THINGS, thing(spec={"other": 1}), manager="one")
        await kube.patch(THINGS, "one", {"spec": {"list": [1]}})
        stale = {"metadata": {"name": "one", "resourceVersion": version_of(old)}, "spec": {"other": 2}}
        with pytest.raises(Conflict, match="Thing one"):
            await kube.apply(THINGS, stale, manager="one")
        other = {"metadata": {"name": "one", "uid": "other"}, "spec": {"other": 2}}
        with pytest.raises(InvalidInput, match="Thing one"):
            await kube.apply(THINGS, other, manager="one")

    async def test_labels_and_annotations_are_owned_too(self, kube: Kube) -> None:
        await kube.create(CONFIG_MAPS, config_map("one"))
        labeled = {"name": "one", "namespace": NAMESPACE, "labels": {"x": "1"}, "annotations": {"y": "2"}}
        after = await kube.apply(CONFIG_MAPS, {"metadata": labeled}, manager="one")
        assert after["metadata"]["labels"] == {"suite": "kube", "x": "1"}
        after = await kube.apply(CONFIG_MAPS, {"metadata": labeled | {"annotations": {}}}, manager="one")
        assert annotations_of(after) == {}

    # Leases

    async def test_a_lease_is_renewed_by_who_has_the_version(self, kube: Kube) -> None:
        body = {"metadata": {"name": "suite-lease", "namespace": NAMESPACE, "labels": {"suite": "kube"}}}
        made = await kube.create(LEASES, body | {"spec": {"holderIdentity": "one", "leaseDurationSeconds": 15}})
        version = {"metadata": {"resourceVersion": version_of(made)}}
        moment = {"renewTime": "2026-11-21T12:00:00.000001Z"}
        after = await kube.patch(LEASES, "suite-lease", version | {"spec": moment}, namespace=NAMESPACE)
        assert (after["spec"]["holderIdentity"], after["spec"]["renewTime"]) == ("one", moment["renewTime"])
        with pytest.raises(Conflict):
            await kube.patch(LEASES, "suite-lease", version | {"spec": moment}, namespace=NAMESPACE)
        await kube.delete(LEASES, "suite-lease", namespace=NAMESPACE)

    async def test_of_two_candidates_one_leads_and_the_other_when_it_stops(self, kube: Kube) -> None:
        lock = LeaseLock(lease="suite-election", namespace=NAMESPACE, terms=Terms(lease_s=2, renew_s=1.5, retry_s=0.2))
        await kube.delete(LEASES, lock.lease, namespace=NAMESPACE)
        leading = asyncio.Queue[str]()

        async def work(name: str) -> None:
            await leading.put(name)
            await asyncio.sleep(60)

        elections = {name: Election(kube, lock, name) for name in ("one", "two")}
        async with asyncio.TaskGroup() as tasks:
            running = {name: tasks.create_task(each.run(partial(work, name))) for name, each in elections.items()}
            first = await asyncio.wait_for(leading.get(), 10)
            other = "two" if first == "one" else "one"
            await lasted(kube, lock)
            assert (elections[first].leading, elections[other].leading, leading.qsize()) == (True, False, 0)
            lease = await kube.get(LEASES, lock.lease, NAMESPACE)
            assert lease is not None
            assert lease["spec"]["holderIdentity"] == elections[first].identity
            running[first].cancel()
            assert await asyncio.wait_for(leading.get(), 10) == other
            running[other].cancel()
        lease = await kube.get(LEASES, lock.lease, NAMESPACE)
        assert lease is not None
        assert lease["spec"].get("holderIdentity", "") == ""
        await kube.delete(LEASES, lock.lease, namespace=NAMESPACE)
