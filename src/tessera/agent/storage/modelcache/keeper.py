"""Reconciles a node's models with its NodeModels: fetches them, offers them to the kubelet, makes room, reports.

It keeps no state of its own: revisions are on the disk, pods' models in the kubelet's record, and the time of the
last check of a source in the status.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from tessera.agent.deviceplugin.servers import PluginServers
from tessera.agent.nodestate.ownobject import create_own
from tessera.agent.pods.podsview import PodsInView, is_ended
from tessera.agent.storage.modelcache.disk import ModelDisk, OnDisk
from tessera.agent.storage.modelcache.fetching import Fetches, Neighbour
from tessera.agent.storage.modelcache.plugin import OfferedModel
from tessera.agent.storage.modelcache.sources import ModelSources
from tessera.api.tessera.modelcaches import (
    API_VERSION,
    NODE_MODELS,
    new_node_models,
    node_status,
    read_credentials,
    read_node_models,
)
from tessera.api.tessera.objects import NAMESPACE
from tessera.clients.kube import NODE_MODELS as KIND
from tessera.clients.kube import SECRETS, Kube, Object, Selection, Store
from tessera.clients.store import Store as ObjectStore
from tessera.core.deviceplugin.edits import Mount
from tessera.core.deviceplugin.grant import Grant
from tessera.core.deviceplugin.modeloffers import ModelOffer, offer_of, revisions_held
from tessera.core.storage.models.cache import DesiredModel, environment_name, folder_name, peers_of
from tessera.core.storage.models.peers import meeting_pause_s
from tessera.core.usage.processmetrics import MODEL_BYTES, MODEL_BYTES_GIVEN, MODEL_BYTES_READ, MODELS, PEERS_DROPPED
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.errors import InvalidInput, TesseraError, Unavailable
from tessera.log import Complaint, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["ModelKeeper", "Places"]

_MANAGER = "tessera-agent"
_TEND_S = 0.2
"""A restarted kubelet must have its plugins before it syncs its pods (docs/kubelet-races.md)."""
_FIRST_MEET_S, _MEET_S = 1.0, 30.0
"""Between two reads of which nodes fetch the same model: soon after the start, because not all learn of it at once."""
_ROUND = 30
"""Free bytes are reported in steps of a GiB, so that a growing log causes no report."""
_ABSENT = OnDisk("", ())


class Places(msgspec.Struct, frozen=True):
    """The models' folder, their allowed sources, and the kubelet's folder for device plugins."""

    disk: ModelDisk
    sources: ModelSources
    plugins: Path


class ModelKeeper:
    """Reconciles a node's models with its NodeModels; `run` ends when it is cancelled.

    Args:
        node: name of the Node object.
        kube: the Kubernetes API.
        places: folders and sources.
        interval_s: longest pause between two passes.
        now_s: seconds since 1970.

    """

    def __init__(
        self,
        node: str,
        kube: Kube,
        places: Places,
        *,
        interval_s: float = 10.0,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._kube = kube
        self._disk = places.disk
        self._sharing = places.disk.sharing
        self._sources = places.sources
        self._plugins = places.plugins
        self._interval_s = interval_s
        self._log = logger(node=node)
        self._complain = Complaint(self._log, "models_not_followed")
        self._wakeup = WakeUp()
        selection = Selection(fields=(("metadata.name", node),))
        self._store = Store(kube, KIND, selection, wake=self._wakeup.set, on_trouble=self._complain)
        self._desired: dict[str, DesiredModel] = {}
        self._there: dict[str, OnDisk] = {}
        self._held: dict[str, frozenset[str]] = {}
        """Revisions in use by pods, by model."""
        self._fetches = Fetches(
            disk=places.disk,
            open_store=self._open,
            neighbours=self._neighbours,
            now_s=now_s,
            wake=self._wakeup.set,
            log=self._log,
        )
        self._states: Counter[str] = Counter()
        """Models by state, as last reported."""
        self._bytes = 0
        self._listed = 0
        """Number of nodes when peers for the current fetch were last read."""
        self._gone: set[str] = set()
        """UIDs of pods that are in the kubelet's record and have ended."""

    async def run(self, view: PodsInView, measures: Measures) -> None:
        """Run until cancelled; while the CRD is missing or the API server does not answer, wait for it.

        Args:
            view: the pods of this node.
            measures: counts the node's models.

        """

        def done() -> None:
            measures.turned("models")
            measures.set(MODELS, {(("state", state),): count for state, count in self._states.items()})
            measures.set(MODEL_BYTES, {(): self._bytes})
            if self._sharing is not None:
                read = {"peers": self._sharing.bytes_from_peers, "stores": self._sharing.bytes_from_stores}
                measures.set(MODEL_BYTES_READ, {(("source", each),): count for each, count in read.items()})
                measures.set(MODEL_BYTES_GIVEN, {(): self._sharing.bytes_given})
                measures.set(PEERS_DROPPED, {(): len(self._sharing.liars)})

        servers = PluginServers[ModelOffer](
            self._plugins, lambda offer: OfferedModel(offer, self._give), view.allocatable, self._log
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._store.run(measures))
                tasks.create_task(self._tend(servers, partial(measures.turned, "model-plugins")))
                if self._sharing is not None:
                    tasks.create_task(self._meet_again())
                await self._store.synced()
                while True:
                    await one_turn(lambda: self.reconcile(view, servers), self._complain, done)
                    await self._wakeup.wait(self._interval_s)
        finally:
            await self._fetches.close()
            await servers.close()

    async def _tend(self, servers: PluginServers[ModelOffer], done: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(_TEND_S)
            before = servers.unsettled
            await one_turn(servers.tend, self._complain, done)
            if servers.unsettled != before:
                self._wakeup.set()

    async def reconcile(self, view: PodsInView, servers: PluginServers[ModelOffer]) -> None:
        """Reconcile once, and report.

        Raises:
            TesseraError: the API server, the kubelet or the disk does not answer.

        """
        # 1. Read the desired models; the object's existence shows that there is an agent.
        found = self._store.objects.get(("", self._node)) or await create_own(
            self._kube, KIND, self._node, new_node_models
        )
        node_models = read_node_models(found)
        for each in node_models.observed:
            self._fetches.reports.setdefault(each.name, each)
        problem = await asyncio.to_thread(self._disk.problem)
        # 2. Observe the models, and the pods that use them. A model that is not listed when the kubelet's record is
        # read cannot get into it any more.
        listed = servers.listed
        self._there = {} if problem else await asyncio.to_thread(self._disk.observe)
        ids = await self._allocated(view)
        self._held = {
            name: revisions_held(ids.get(f"{MODEL_RESOURCE}{name}", ()), there.revisions)
            for name, there in self._there.items()
        }
        # A model allocated before it could be withdrawn makes no room: it is offered again, and others are chosen.
        held = [name for name, there in self._there.items() if there.current in self._held[name]]
        self._fetches.displace_no_more(held)
        if node_models.desired is not None:
            self._desired = {each.name: each for each in node_models.desired}
            # 3. Pin what pods use or may get, then offer it.
            offered = {name: self._offered(each) for name, each in self._desired.items()}
            superseded = await self._protect(offered, listed)
            await servers.offer(
                [offer_of(name, revision) for name, revision in offered.items() if revision], policy="distributed"
            )
            # 4. Remove models that are not desired, or make room.
            if not problem:
                await self._remove(superseded, listed)
                # 5. Start the next fetch.
                current = {name: there.current for name, there in self._there.items()}
                self._fetches.begin(self._desired, offered, current)
        # 6. Report.
        await self._report(found, problem, ids)
        self._complain.settle()

    # Models in use

    async def _allocated(self, view: PodsInView) -> dict[str, list[str]]:
        """Return the model devices of living pods' containers, by resource, one for each container."""
        recorded = [each for each in await view.allocated() if each.resource.startswith(MODEL_RESOURCE)]
        unknown = {each.uid for each in recorded if view.find(each.uid) is None}
        if unknown - self._gone:
            await view.refresh()  # a pod that the watch does not show may be new
            # The kubelet keeps ended pods in its record for a while; none of these comes back.
            self._gone = {each for each in unknown if view.find(each) is None}
        found: dict[str, list[str]] = {}
        for each in recorded:
            if each.device_ids and not is_ended(view.find(each.uid)):
                found.setdefault(each.resource, []).append(each.device_ids[0])
        return found

    def _offered(self, model: DesiredModel) -> str:
        """Return the revision that new pods get; empty for none."""
        there = self._there.get(model.name, _ABSENT)
        if model.name in self._fetches.displaced:
            return ""
        if model.revision:
            return model.revision if model.revision in there.revisions else ""
        return there.current

    async def _protect(self, offered: Mapping[str, str], listed: Mapping[str, frozenset[str]]) -> set[str]:
        """Pin what must stay on the disk; return the models with other revisions that may go."""
        superseded = set()
        for name, there in self._there.items():
            choosable = revisions_held(listed.get(f"{MODEL_RESOURCE}{name}", ()), there.revisions)
            stays = choosable | self._held[name] | {offered.get(name, "")}
            await asyncio.to_thread(self._disk.pin, name, there, stays)
            if set(there.revisions) - stays - {there.current}:
                superseded.add(name)
        return superseded

    def _give(self, resource: str, device: str) -> Grant:
        """Return the mount that a container gets with a device."""
        name = resource.removeprefix(MODEL_RESOURCE)
        there = self._there.get(name, _ABSENT)
        revision = next(iter(revisions_held((device,), there.revisions)), "")
        if not revision or not self._disk.has(name, revision):
            raise Unavailable(
                f"model {name}",
                found="the revision that was offered is not on this node's disk any more",
                hint="recreate the pod, which then gets what is there",
            )
        path = folder_name(name)
        return Grant(
            env=((environment_name(name), path),),
            mounts=(Mount(host_path=str(self._disk.path(name, revision)), container_path=path, read_only=True),),
        )

    # Removing

    async def _remove(self, superseded: Iterable[str], listed: Iterable[str]) -> None:
        names = {each.removeprefix(MODEL_RESOURCE) for each in listed}
        busy, displaced = self._fetches.busy, self._fetches.displaced
        for name, there in self._there.items():
            listed_or_held = name in names or self._held[name]
            if name not in self._desired:
                if name == busy:
                    self._fetches.abandon()
                elif not listed_or_held and await asyncio.to_thread(self._disk.remove, name):
                    self._log.info("model_removed", model=name)
            elif name in displaced and name not in names and there.current and there.current not in self._held[name]:
                if await asyncio.to_thread(self._disk.evict, name, there.current):
                    self._log.info("model_evicted", model=name, makes_room_for=displaced[name])
                    self._wakeup.set()
            elif name in superseded and name != busy and len(there.revisions) > self._desired[name].keep:
                await asyncio.to_thread(self._disk.tidy, name, self._desired[name].keep)

    # Fetching

    async def _open(self, model: DesiredModel) -> ObjectStore:
        """Return the store of a model.

        Raises:
            TesseraError: its Secret cannot be read or has no credentials, or the source is not allowed.

        """
        await self._meet(model)
        credentials: dict[str, str] = {}
        if model.secret:
            subject, hint = f"Secret {NAMESPACE}/{model.secret}", "name it in the chart's value agent.modelSecrets"
            try:
                secret = await self._kube.get(SECRETS, model.secret, NAMESPACE)
            except Unavailable as error:
                raise Unavailable(subject, found=error.found, hint=hint) from error
            if secret is None:
                raise InvalidInput(
                    subject,
                    found="there is no Secret of this name",
                    hint="create it with the credentials, or correct the name",
                )
            credentials = read_credentials(secret)
        return self._sources.open(model, credentials)

    async def _meet_again(self) -> None:
        """Read which nodes fetch the same model, during a fetch."""
        pause = _FIRST_MEET_S
        while True:
            await asyncio.sleep(meeting_pause_s(pause, self._listed))
            model = self._desired.get(self._fetches.busy)
            pause = _FIRST_MEET_S if model is None else min(2 * pause, _MEET_S)
            if model is not None:
                await self._meet(model)

    async def _meet(self, model: DesiredModel) -> None:
        """Read which nodes fetch a model, too; without an answer the node fetches it alone."""
        if self._sharing is None:
            return
        nodes = []
        with contextlib.suppress(TesseraError):
            found = (await self._kube.list(KIND)).objects
            self._listed = len(found)
            for each in found:
                with contextlib.suppress(InvalidInput):  # an agent of another version must not stop this one
                    nodes.append(read_node_models(each))
        self._sharing.meet(peers_of(model, nodes))

    def _neighbours(self) -> dict[str, Neighbour]:
        desired, held = self._desired, self._held
        return {
            name: Neighbour(desired.get(name), there, held.get(name, frozenset()))
            for name, there in self._there.items()
        }

    # Reporting

    async def _report(self, found: Object, problem: str, ids: Mapping[str, list[str]]) -> None:
        reports = []
        for name, each in self._desired.items():
            revision = self._offered(each)
            size, files = await asyncio.to_thread(self._disk.facts, name, revision) if revision else (0, 0)
            containers = len(ids.get(f"{MODEL_RESOURCE}{name}", ()))
            more = {"revision": revision, "bytes": size, "files": files, "containers": containers}
            reports.append(msgspec.structs.replace(self._fetches.report(name), **more))
        self._states = Counter(each.state for each in reports)
        self._bytes = sum(each.bytes for each in reports)
        free = 0 if problem else await asyncio.to_thread(self._disk.free_bytes)
        rounded = free >> _ROUND << _ROUND
        peer = self._sharing.me if self._sharing is not None and not problem else ""
        status = node_status(reports, folder=str(self._disk.folder), free_bytes=rounded, reason=problem, peer=peer)
        if found.get("status") != status:
            body = {"apiVersion": API_VERSION, "kind": NODE_MODELS, "metadata": {"name": self._node}, "status": status}
            await self._kube.apply(KIND, body, manager=_MANAGER, force=True, subresource="status")
