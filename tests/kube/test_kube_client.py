"""The Kubernetes client against the real API server: the conformance suite, and a server that restarts."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conformance.kubesuite import HERE, NAMESPACE, THINGS, KubeSuite, config_map, install, thing, unplaced, until
from kube.wire import Wire, proxying, wired
from tessera.clients.kube import (
    CONFIG_MAPS,
    LEASES,
    NODES,
    PODS,
    Change,
    Expired,
    HttpKube,
    Kube,
    Store,
    Unanswered,
    name_of,
)
from tessera.errors import Conflict, InvalidInput, Unavailable
from testbed import processes
from testbed.cluster import Cluster


async def emptied(kube: Kube) -> None:
    for kind in (CONFIG_MAPS, PODS, NODES, LEASES):
        for each in (await kube.list(kind)).objects:
            name, namespace = each["metadata"]["name"], each["metadata"].get("namespace", "")
            if "suite" in (each["metadata"].get("labels") or {}):
                await kube.delete(kind, name, namespace=namespace, grace_s=0)


@pytest.fixture
async def kube(control_plane: Cluster) -> AsyncIterator[HttpKube]:
    async with HttpKube.connect(control_plane.kubeconfig) as client:
        await emptied(client)
        yield client
        await emptied(client)


class TestHttpKube(KubeSuite):
    pass


class Followed:
    """A store behind a wire, what it received since the last call, and its troubles."""

    def __init__(self, kube: HttpKube) -> None:
        self.told: list[str] = []
        self.troubles: list[Exception] = []
        self.refused = asyncio.Event()
        """Set when it tried to connect again and could not."""
        self.store = Store(kube, CONFIG_MAPS, HERE, on_change=self._take, on_error=self._meet)

    def _meet(self, trouble: Exception) -> None:
        self.troubles.append(trouble)
        if type(trouble) is Unavailable:
            self.refused.set()

    def _take(self, change: Change) -> None:
        name = "all" if change.object is None else name_of(change.object)[1]
        self.told.append(f"{'-' if change.gone else '+'}{name}{'?' if change.skipped else ''}")

    def take(self) -> list[str]:
        told, self.told = self.told, []
        return told


@pytest.fixture
async def behind_a_wire(control_plane: Cluster, kube: HttpKube, tmp_path: Path) -> AsyncIterator[tuple[Wire, Followed]]:
    await kube.create(CONFIG_MAPS, config_map("stays"))
    await kube.create(CONFIG_MAPS, config_map("goes"))
    async with (
        wired(control_plane.kubeconfig, tmp_path) as (wire, kubeconfig),
        HttpKube.connect(kubeconfig) as client,
        asyncio.TaskGroup() as tasks,
    ):
        followed = Followed(client)
        following = tasks.create_task(followed.store.run())
        await asyncio.wait_for(followed.store.synced(), 30)
        assert followed.take() == ["+goes?", "+stays?", "+all"]
        yield wire, followed
        following.cancel()


@pytest.mark.anyio
async def test_a_watch_that_was_cut_is_taken_up_where_it_was(
    behind_a_wire: tuple[Wire, Followed], kube: HttpKube
) -> None:
    """No version is skipped, and nothing is listed anew."""
    wire, followed = behind_a_wire
    wire.cut()
    await kube.delete(CONFIG_MAPS, "goes", namespace=NAMESPACE)
    await kube.create(CONFIG_MAPS, config_map("comes"))
    await kube.patch(CONFIG_MAPS, "comes", {"data": {"a": "1"}}, namespace=NAMESPACE)
    await asyncio.wait_for(followed.refused.wait(), 30)
    assert set(followed.store.objects) == {(NAMESPACE, "goes"), (NAMESPACE, "stays")}
    wire.mend()
    await until(followed.store, {"stays", "comes"}, 60)
    await kube.create(CONFIG_MAPS, config_map("last"))
    await until(followed.store, {"stays", "comes", "last"}, 60)
    assert followed.take() == ["-goes", "+comes", "+comes", "+last"]
    assert {type(each) for each in followed.troubles} <= {Unavailable, Unanswered}
    assert followed.troubles


@pytest.mark.anyio
async def test_a_store_outlives_a_killed_api_server_and_misses_no_deletion(
    control_plane: Cluster, behind_a_wire: tuple[Wire, Followed], kube: HttpKube
) -> None:
    """The server that comes again does not remember: the store lists anew and marks what it may have missed."""
    wire, followed = behind_a_wire
    wire.cut()
    await kube.delete(CONFIG_MAPS, "goes", namespace=NAMESPACE)
    await kube.create(CONFIG_MAPS, config_map("brief"))
    killed = control_plane.processes.get("apiserver")
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)
    processes.until("end of the API server", lambda: not killed.alive, timeout_s=60)
    with pytest.raises(Unavailable):
        await kube.create(CONFIG_MAPS, config_map("too-early"))
    wire.mend()
    await asyncio.to_thread(control_plane.up, control_plane.desired)
    async with HttpKube.connect(control_plane.kubeconfig) as other:
        await other.delete(CONFIG_MAPS, "brief", namespace=NAMESPACE)
        await other.create(CONFIG_MAPS, config_map("after"))
    await until(followed.store, {"stays", "after"}, 60)
    told = followed.take()
    assert "-goes?" in told
    assert "+all" in told
    assert "+stays?" not in told, "it did not change"
    assert any(isinstance(each, Expired) for each in followed.troubles)


@pytest.mark.anyio
async def test_a_proxy_of_the_environment_carries_everything(
    control_plane: Cluster, kube: HttpKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kube.create(CONFIG_MAPS, config_map("one"))
    async with proxying() as (proxy, asked):
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with HttpKube.connect(control_plane.kubeconfig) as client:
            listing = await client.list(CONFIG_MAPS, HERE)
            assert [name_of(each)[1] for each in listing.objects] == ["one"]
            await client.delete(CONFIG_MAPS, "one", namespace=NAMESPACE)
            event = await anext(aiter(client.watch(CONFIG_MAPS, listing.resource_version, HERE)))
            assert (name_of(event.object)[1], event.gone) == ("one", True)
        assert asked


@pytest.mark.anyio
async def test_many_chunks_are_one_list(kube: HttpKube) -> None:
    names = [f"many-{number:04}" for number in range(520)]
    for some in range(0, len(names), 50):
        await asyncio.gather(*(kube.create(CONFIG_MAPS, config_map(name)) for name in names[some : some + 50]))
    listing = await kube.list(CONFIG_MAPS, HERE)
    assert [name_of(each)[1] for each in listing.objects] == names
    assert {each["kind"] for each in listing.objects} == {"ConfigMap"}
    await kube.create(CONFIG_MAPS, config_map("later"))
    event = await anext(aiter(kube.watch(CONFIG_MAPS, listing.resource_version, HERE)))
    assert name_of(event.object)[1] == "later", "the watch goes on where the list ended"


@pytest.mark.anyio
async def test_a_pod_that_is_being_deleted_is_not_bound(kube: HttpKube) -> None:
    body = unplaced("suite-pod")
    body["metadata"]["finalizers"] = ["suite.tessera.dev/hold"]
    made = await kube.create(PODS, body)
    await kube.delete(PODS, "suite-pod", namespace=NAMESPACE, grace_s=0)
    with pytest.raises(Conflict, match="being deleted"):
        await kube.bind("suite-pod", NAMESPACE, uid=made["metadata"]["uid"], node="n", annotations={})
    await kube.patch(PODS, "suite-pod", {"metadata": {"finalizers": None}}, namespace=NAMESPACE)


@pytest.mark.anyio
async def test_a_field_that_the_kind_does_not_have_is_refused_for_good(kube: HttpKube) -> None:
    await install(kube, THINGS)
    with pytest.raises(InvalidInput, match="CustomResourceDefinition of this version"):
        await kube.apply(THINGS, thing(spec={"newer": 1}), manager="one")


@pytest.mark.anyio
async def test_the_rights_that_lack_are_reported(control_plane: Cluster) -> None:
    """A kubeconfig of the scheduler may not write ConfigMaps."""
    path = control_plane.pki.folder / "limited.kubeconfig"
    admin = control_plane.kubeconfig.read_text()
    path.write_text(admin.replace("admin.crt", "scheduler.crt").replace("admin.key", "scheduler.key"))
    async with HttpKube.connect(path) as limited:
        with pytest.raises(Unavailable, match=r"cannot create resource \"configmaps.*a role that grants it"):
            await limited.create(CONFIG_MAPS, config_map("one"))


@pytest.mark.anyio
async def test_a_kubeconfig_that_is_none_is_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("config")
    (folder / "broken").write_text("clusters: 3")
    for name in ("absent", "broken"):
        with pytest.raises(InvalidInput, match=name):
            HttpKube.connect(folder / name)
