"""Each look of one pass of the agent fails once: pods keep their models, and new ones get no known damage."""

import errno
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.failedlooks import Looks
from harness.kills import not_killed
from harness.modelsyncs import run
from tessera.agent.deviceplugin.offers.servers import PluginServers
from tessera.agent.storage.modelcache import ModelDisk, ModelKeeper, ModelSources, Places
from tessera.agent.storage.modelcache.plugin import OfferedModel
from tessera.agent.storage.models.chunkreads import ChunkReads
from tessera.agent.storage.models.folder import ModelFolder
from tessera.api.tessera.v1alpha1.modelcaches import API_VERSION, node_spec, node_status, read_node_models
from tessera.clients.kube import NODE_MODELS, NODES, MemoryKube
from tessera.clients.store import MemoryStore, ObjectStore
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.offers.modeloffers import ModelOffer, model_offer
from tessera.core.storage.models.nodemodels import DesiredModel, ObservedModel
from tessera.errors import TesseraError, Unavailable
from tessera.log import logger

pytestmark = pytest.mark.anyio

ONCE = DesiredModel(name="m", source="memory://m", keep=1)


class Pods:
    """The pods of a node that have these revisions of model `m`."""

    def __init__(self, revisions: Iterable[str]) -> None:
        self._revisions = tuple(revisions)

    def find(self, uid: str) -> dict[str, Any]:
        return {"metadata": {"uid": uid}}

    async def allocated(self) -> tuple[KubeletAllocation, ...]:
        return tuple(
            KubeletAllocation(uid=each, container="main", resource="models.tessera.dev/m", device_ids=(device.id,))
            for each in self._revisions
            for device in model_offer("m", each).devices[:1]
        )


class Nowhere(ModelSources, frozen=True):
    """Sources that cannot be opened; those for which that was tried are noted."""

    tried: list[str] = msgspec.field(default_factory=list)

    def open(self, model: DesiredModel, credentials: Mapping[str, str]) -> ObjectStore:  # noqa: ARG002
        self.tried.append(model.source)
        raise Unavailable(model.source, found="no answer", hint="try again")


async def one_pass(
    top: Path, desired: Iterable[DesiredModel], used: Iterable[str], looks: Looks, sources: Nowhere
) -> ObservedModel:
    """Let an agent that starts anew reconcile once; return what it reports of model `m`."""
    kube = MemoryKube()
    await kube.create(NODES, {"metadata": {"name": "n1", "uid": "uid-1"}})
    body = {"apiVersion": API_VERSION, "kind": "NodeModels", "metadata": {"name": "n1"}}
    fetched = ObservedModel(name="m", state="Ready", identity=ONCE.identity, checked_s=90.0)
    status = node_status([fetched], folder=str(top), free_bytes=0, reason="")
    await kube.apply(NODE_MODELS, {**body, "spec": node_spec(desired)}, manager="tessera-controller", force=True)
    await kube.apply(NODE_MODELS, {**body, "status": status}, manager="tessera", force=True, subresource="status")
    plugins = top.with_name("plugins")  # without a kubelet
    places = Places(ModelDisk(top / "models", most_percent=100), sources, plugins)
    keeper = ModelKeeper("n1", kube, places, now_s=lambda: 100.0)
    watched: Any = keeper._store.objects
    watched["", "n1"] = await kube.get(NODE_MODELS, "n1")
    pods: Any = Pods(used)

    async def unknown() -> Mapping[str, frozenset[str]]:
        return {}

    def make(offer: ModelOffer) -> OfferedModel:
        return OfferedModel(offer, keeper._responses.respond)

    servers = PluginServers[ModelOffer](plugins, make, unknown, logger())
    try:
        with looks.observed():
            await keeper.reconcile(pods, servers)
    finally:
        await keeper._fetches.close()
        await keeper._rechecks.close()
        await servers.close()
    written = await kube.get(NODE_MODELS, "n1")
    assert written is not None
    return next(iter(read_node_models(written).observed), ObservedModel(name="m"))


@pytest.mark.parametrize(
    ("desired", "used", "is_damaged"),
    [
        ((ONCE,), (0,), False),
        ((), (1,), False),
        ((ONCE,), (0,), True),
    ],
    ids=["a-former-one-used", "deleted-current-used", "damaged"],
)
async def test_a_pass_that_cannot_look_removes_nothing_that_pods_have_and_offers_no_known_damage(
    desired: tuple[DesiredModel, ...], used: tuple[int, ...], is_damaged: bool, tmp_path: Path
) -> None:
    orig, top = tmp_path / "orig", tmp_path / "copy"
    (tmp_path / "plugins").mkdir()
    orig.mkdir()
    (orig / "not-empty").touch()
    with not_killed():
        disk = ModelDisk(orig / "models", most_percent=100)
        folder = disk.claim("m").top
        all_ = [run(MemoryStore({"a": b"%d" % each, "s/b": b"same"}), folder, keep=9).revision for each in range(2)]
    current, in_use = all_[-1], [all_[each] for each in used]
    disk.pin("m", in_use)
    if is_damaged:
        (folder / "versions" / current / "a").write_bytes(b"X")
        disk.verify("m", current, ChunkReads())
    wrong, number = [], 0
    while True:
        number += 1
        shutil.copytree(orig, top, symlinks=True)
        looks, found = Looks(top, number, errno.EIO), ObservedModel(name="m")
        try:
            with not_killed():
                found = await one_pass(top, desired, in_use, looks, Nowhere())
        except (OSError, TesseraError) as error:
            wrong.append((looks.failed, f"the pass ended: {error}"))
        if not looks.failed:
            break
        after = ModelFolder(top / "models" / "m")
        for each in in_use:
            if not (after.versions / each / "a").exists():
                wrong.append((looks.failed, "what a pod uses is gone"))
            elif not after.records.is_pinned(each):
                wrong.append((looks.failed, "what a pod uses is not pinned"))
        if desired and not is_damaged and not (after.versions / current / "a").exists():
            wrong.append((looks.failed, "the current one is gone"))
        if is_damaged and found.revision == current:
            wrong.append((looks.failed, "known damage is offered"))
        shutil.rmtree(top)
    assert not wrong
    assert number > 30


async def test_a_model_whose_pins_cannot_be_written_is_not_fetched_in_that_pass(tmp_path: Path) -> None:
    """A sync could remove what a pod uses."""
    orig, top = tmp_path / "orig", tmp_path / "copy"
    (tmp_path / "plugins").mkdir()
    orig.mkdir()
    (orig / "not-empty").touch()
    with not_killed():
        folder = ModelDisk(orig / "models", most_percent=100).claim("m").top
        revision = run(MemoryStore({"a": b"1"}), folder).revision
    follows, number, pins = msgspec.structs.replace(ONCE, interval_s=5), 0, list[str]()
    while True:
        number += 1
        shutil.copytree(orig, top, symlinks=True)
        looks, sources = Looks(top, number, errno.EIO), Nowhere()
        with not_killed():
            await one_pass(top, (follows,), (revision,), looks, sources)
        if not looks.failed:
            assert sources.tried == ["memory://m"]
            break
        if "/pins" in looks.failed:
            pins.append(looks.failed)
            assert not sources.tried, looks.failed
        shutil.rmtree(top)
    assert pins
