"""Reconciles a node's models with its NodeModels: fetches them, offers them to the kubelet, makes room, reports.

Revisions are on the disk, pods' models in the kubelet's record, and the time of the last check of a source in the
status. After a restart of the agent, models that were to make room are chosen anew.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from tessera.agent.deviceplugin.offers.servers import PluginServers
from tessera.agent.nodestate.ownobject import create_own
from tessera.agent.pods.podsview import PodsInView, is_ended
from tessera.agent.storage.modelcache.disk import ModelDisk, RevisionFacts
from tessera.agent.storage.modelcache.fetching import Fetches, OpenedSource
from tessera.agent.storage.modelcache.membership import membership
from tessera.agent.storage.modelcache.plugin import ModelResponses, OfferedModel
from tessera.agent.storage.modelcache.rechecks import DEFAULT_BYTES_PER_S, Rechecks
from tessera.agent.storage.modelcache.sources import ModelSources
from tessera.agent.storage.models.reading import TransferLimits
from tessera.api.tessera.v1alpha1.modelcaches import (
    API_VERSION,
    NODE_MODELS,
    new_node_models,
    node_status,
    read_credentials,
    read_node_models,
)
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.clients.kube import NODE_MODELS as KIND
from tessera.clients.kube import SECRETS, Forbidden, Kube, Object, Selection, Store
from tessera.core.deviceplugin.offers.modeloffers import ModelOffer, allocated_revisions, model_offer
from tessera.core.storage.models.cachedmodels import (
    Fetching,
    ModelOnDisk,
    ModelOnNode,
    unreadable_reason,
    withheld_reason,
)
from tessera.core.storage.models.cacheplan import (
    CachePlan,
    CacheStep,
    CancelFetch,
    RemoveModel,
    RemoveSuperseded,
    plan_cache,
)
from tessera.core.storage.models.nodemodels import DesiredModel, NodeModels, followed_models, unknown_model
from tessera.core.storage.models.refusals import DiskRefusals
from tessera.core.storage.models.room import EvictRevision, RemoveStaged
from tessera.core.usage.ownmetrics import MODEL_BYTES, MODELS
from tessera.core.workload.resources import MODEL_RESOURCE
from tessera.core.workload.tesseranames import AGENT
from tessera.errors import InvalidInput, TesseraError, Unavailable
from tessera.log import RepeatedError, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["ModelKeeper", "Places"]

_TEND_S = 0.2
"""A restarted kubelet must have its plugins before it syncs its pods (docs/kubelet-races.md)."""
_ROUND = 30
"""Free bytes are reported in steps of a GiB, so that a growing log causes no report."""
_USED_S = 600.0
"""A revision that pods use is noted as used so often."""
_MAKES_ROOM = EvictRevision | RemoveModel | RemoveStaged
_ABSENT = ModelOnNode(ModelOnDisk("", ()))


class Places(msgspec.Struct, frozen=True):
    """The models' folder, their allowed sources, the kubelet's folder for device plugins, and limits of reads."""

    disk: ModelDisk
    sources: ModelSources
    plugins: Path
    limits: TransferLimits = TransferLimits()
    verify_bytes_per_s: float = DEFAULT_BYTES_PER_S


class ModelKeeper:
    """Reconciles a node's models with its NodeModels; `run` ends when it is canceled.

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
        self._now_s = now_s
        self._disk = places.disk
        self._peers = membership(places.disk.sharing.peers, kube)
        self._sources = places.sources
        self._plugins = places.plugins
        self._interval_s = interval_s
        self._log = logger(node=node)
        self._complain = RepeatedError(self._log, "models_not_followed")
        self._wakeup = WakeUp()
        selection = Selection(fields=(("metadata.name", node),))
        self._store = Store(kube, KIND, selection, wake=self._wakeup.set, on_error=self._complain)
        self._desired: dict[str, DesiredModel] = {}
        self._found: dict[str, ModelOnNode] = {}
        """The models on the disk, as observed last."""
        self._displaced: Mapping[str, str] = {}
        """The models that make room by the last plan."""
        self._fetches = Fetches(
            disk=places.disk,
            open_source=self._open,
            now_s=now_s,
            wake=self._wakeup.set,
            log=self._log,
            limits=places.limits,
        )
        self._rechecks = Rechecks(places.disk, places.verify_bytes_per_s, wake=self._wakeup.set, log=self._log)
        self._responses = ModelResponses(places.disk, lambda name: self._found.get(name, _ABSENT).on_disk)
        self._states: Counter[str] = Counter()
        """Models by state, as last reported."""
        self._bytes = 0
        self._free_bytes = 0
        """Of the disk, above its reserve, as observed last."""
        self._refusals = DiskRefusals()
        self._gone: set[str] = set()
        """UIDs of pods that are in the kubelet's record and have ended."""

    async def run(self, view: PodsInView, measures: Measures) -> None:
        """Run until canceled; while the CRD is missing or the API server does not answer, wait for it.

        Args:
            view: the pods of this node.
            measures: counts the node's models.

        """

        def done() -> None:
            measures.turned("models")
            measures.set(MODELS, {(("state", state),): count for state, count in self._states.items()})
            measures.set(MODEL_BYTES, {(): self._bytes})
            self._peers.report(measures)

        servers = PluginServers[ModelOffer](
            self._plugins, lambda offer: OfferedModel(offer, self._responses.respond), view.allocatable, self._log
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._store.run(measures))
                tasks.create_task(self._tend(servers, partial(measures.turned, "model-plugins")))
                tasks.create_task(self._peers.follow(lambda: self._desired.get(self._fetches.busy)))
                await self._store.synced()
                measures.started("models")
                while True:
                    await one_turn(lambda: self.reconcile(view, servers), self._complain, done)
                    await self._wakeup.wait(self._interval_s)
        finally:
            await self._fetches.close()
            await self._rechecks.close()
            await servers.close()
            self._responses.close()

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
        if node_models.desired is not None:
            self._desired = followed_models(node_models, self._desired)
        self._fetches.follow(self._desired, node_models.observed)
        # 2. Observe the models, and the pods that use them.
        # A model that is not listed when the kubelet's record is read cannot get into it any more.
        listed = servers.listed
        self._refusals = self._refusals.next_pass(self._now_s())
        on_disk, problem = await self._observe()
        ids = await self._allocated(view)
        self._found = {
            name: _readers(f"{MODEL_RESOURCE}{name}", each, listed, ids, is_stuck=name in self._refusals.stuck)
            for name, each in on_disk.items()
        }
        for name, model in self._found.items():
            for revision in model.used:
                await asyncio.to_thread(self._disk.use, name, revision, after_s=_USED_S)
        fetching = await self._observe_fetches()
        # 3. Plan.
        # An unknown model that was never followed stays as it is.
        unfollowed = node_models.unknown.keys() - self._desired
        planned = {name: each for name, each in self._found.items() if name not in unfollowed}
        plan = plan_cache(self._desired, planned, fetching=fetching, displaced=self._displaced)
        if node_models.desired is not None:
            self._displaced = plan.displaced
            self._fetches.decided(fetching.needs, plan, self._desired, self._refusals)
            # 4. Pin what pods use or may get, offer it, and remove models that are not desired, or make room.
            refused = await self._apply(plan, servers)
            # 5. Start the next fetch.
            if plan.fetch is not None and plan.fetch.name not in refused and not problem:
                self._fetches.begin(plan.fetch)
            # 6. Start the next comparison of what is on the disk.
            if plan.verify is not None:
                self._rechecks.begin(plan.verify)
        # 7. Report.
        await self._report(found, node_models, problem, ids, plan.offered)
        self._complain.clear()

    async def _observe(self) -> tuple[dict[str, ModelOnDisk], str]:
        """Return the models on the disk, and why none can be kept there; empty for no reason.

        A model that cannot be read has failed; pods keep it, and it is not removed.
        """
        self._free_bytes = 0
        try:
            if problem := await asyncio.to_thread(self._disk.problem):
                return {}, problem
            found = await asyncio.to_thread(self._disk.observe, self._fetches.busy)
            self._free_bytes = await asyncio.to_thread(self._disk.free_bytes)
        except OSError as error:
            return {}, self._disk.reason("", error)
        for name, each in found.errors.items():
            self._fail(name, each)
        for name, each in found.remaining.items():
            self._remains(name, f"model {name}: {self._disk.reason(name, each)}")
        self._refusals = self._refusals.removed(found.removed)
        return found.models, ""

    async def _observe_fetches(self) -> Fetching:
        """Return what came of fetches; where one needs room, note what the removal of each model frees."""
        fetching = self._fetches.observed(self._desired, self._refusals.failing, self._free_bytes)
        for name, model in self._found.items() if fetching.needs else ():
            self._found[name] = msgspec.structs.replace(
                model,
                revisions=await asyncio.to_thread(self._disk.revisions, name),
                staged_bytes=await asyncio.to_thread(self._disk.staged_bytes, name),
            )
        return fetching

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

    # Applying

    async def _apply(self, plan: CachePlan, servers: PluginServers[ModelOffer]) -> set[str]:
        """Protect, offer and take the steps; return the models that are not to be fetched now.

        Models with less room than planned, and models whose folder cannot be changed. The others go on.
        """
        refused = set[str]()
        for name, revisions in plan.protected.items():
            try:
                await asyncio.to_thread(
                    self._disk.pin, name, revisions, unreadable=self._found[name].on_disk.unreadable
                )
            except OSError as error:
                self._fail(name, error)
                refused.add(name)
        offers = [(name, revision) for name, revision in plan.offered.items() if revision]
        # A fetch that ended meanwhile may have removed what was not pinned yet.
        on_disk = [each for each in offers if await asyncio.to_thread(self._disk.has, *each)]
        await servers.offer([model_offer(*each) for each in on_disk], policy="distributed")
        for step in plan.steps:
            problem = ""
            try:
                if await self._take(step):
                    self._refusals = self._refusals.removed({step.model} if isinstance(step, _MAKES_ROOM) else ())
                    continue
            except (TesseraError, OSError) as error:
                problem = self._fail(step.model, error)
                refused.add(step.model)
            if problem and isinstance(step, _MAKES_ROOM):
                self._refusals = self._refusals.stays(step.model, problem, self._now_s())
            # What is displaced is removed by a later plan; for the rest there may be no such plan.
            match step:
                case EvictRevision(model, revision, other) if problem or model not in plan.displaced:
                    reason = problem or f"model {model}: revision {revision[:12]} is in use by a process: retrying"
                case RemoveStaged(model, other):
                    reason = problem or f"model {model}: another process works in its folder: retrying"
                case _:
                    continue
            self._fetches.put_off(self._desired[other], reason)
            refused.add(other)
        return refused

    def _fail(self, name: str, error: TesseraError | OSError) -> str:
        """Note an error of a model's folder, which fails the model while it lasts, and return the reason."""
        reason = f"model {name}: {self._disk.reason(name, error)}"
        if not self._refusals.is_known(name, reason):
            event = "model_failed" if name in self._desired else "model_not_removed"
            self._log.warning(event, model=name, reason=reason)
        self._refusals = self._refusals.failure(name, reason)
        return reason

    def _remains(self, name: str, reason: str) -> None:
        """Note that something of a model is not removed, by which the model goes on."""
        if not self._refusals.is_known(name, reason):
            self._log.warning("model_not_removed", model=name, reason=reason)
        self._refusals = self._refusals.remains(name, reason)

    async def _take(self, step: CacheStep) -> bool:
        """Take a step; return whether it is done: what a process reads or works on stays."""
        match step:
            case CancelFetch():
                self._fetches.cancel()
            case RemoveModel(model):
                if is_done := await asyncio.to_thread(self._disk.remove, model):
                    self._log.info("model_removed", model=model)
                    self._wakeup.set()
                return is_done
            case RemoveStaged(model, other):
                if is_done := await asyncio.to_thread(self._disk.remove_staged, model):
                    self._log.info("model_fetch_removed", model=model, makes_room_for=other)
                return is_done
            case EvictRevision(model, revision, other):
                if is_done := await asyncio.to_thread(self._disk.evict, model, revision):
                    self._log.info("model_evicted", model=model, makes_room_for=other)
                    self._wakeup.set()
                return is_done
            case RemoveSuperseded(model, keep):
                if reason := await asyncio.to_thread(self._disk.remove_superseded, model, keep):
                    self._remains(model, reason)
        return True

    # Fetching

    async def _open(self, model: DesiredModel) -> OpenedSource:
        """Open the source of a model.

        Raises:
            TesseraError: its Secret cannot be read or has no credentials, or the source is not allowed.

        """
        await self._peers.refresh(model)
        credentials: dict[str, str] = {}
        digest = ""
        if model.secret:
            subject = f"Secret {NAMESPACE}/{model.secret}"
            try:
                secret = await self._kube.get(SECRETS, model.secret, NAMESPACE)
            except Forbidden as error:
                fix = "name it in the chart's value agent.modelSecrets"
                raise Unavailable(subject, found=error.found, hint=fix) from error
            if secret is None:
                raise InvalidInput(
                    subject,
                    found="there is no Secret of this name",
                    hint="create it with the credentials, or correct the name",
                )
            credentials = read_credentials(secret)
            # Not its version: other programs write a Secret anew with what is in it.
            digest = hashlib.sha256(msgspec.json.encode(credentials, order="sorted")).hexdigest()
        return OpenedSource(self._sources.open(model, credentials), digest)

    # Reporting

    async def _report(
        self,
        stored: Object,
        node_models: NodeModels,
        problem: str,
        ids: Mapping[str, list[str]],
        offered: Mapping[str, str],
    ) -> None:
        unknown = node_models.unknown
        containers = {name: len(ids.get(f"{MODEL_RESOURCE}{name}", ())) for name in (*offered, *unknown)}
        reports = []
        for name, revision in offered.items():
            facts = await asyncio.to_thread(self._disk.facts, name, revision) if revision else RevisionFacts()
            on_disk = self._found.get(name, _ABSENT).on_disk
            report = self._fetches.report(name)
            failure = unknown.get(name) or self._refusals.failed.get(name)
            unreadable = unreadable_reason(self._desired[name], on_disk)
            more = {
                "state": "Failed" if (failure or unreadable) and report.state != "Fetching" else report.state,
                "revision": revision,
                "containers": containers[name],
                "verified_s": on_disk.verification(revision).at_s,
                "reason": failure
                or report.reason
                or unreadable
                or withheld_reason(self._desired[name], on_disk)
                or next(iter(on_disk.unreadable.values()), "")
                or self._refusals.remaining.get(name, ""),
                **facts._asdict(),
            }
            reports.append(msgspec.structs.replace(report, **more))
        for name in sorted(unknown.keys() - offered.keys()):
            report = unknown_model(node_models, name)
            reports.append(msgspec.structs.replace(report, containers=containers[name]))
        self._states = Counter(each.state for each in reports)
        self._bytes = sum(each.bytes for each in reports)
        reason = problem or await asyncio.to_thread(self._disk.read_only)
        status = node_status(
            reports,
            folder=str(self._disk.folder),
            free_bytes=max(0, self._free_bytes) >> _ROUND << _ROUND,
            reason=reason,
            peer="" if problem else self._peers.address,
            removing=(self._found.keys() | self._refusals.remaining.keys()) - offered.keys() - unknown.keys(),
        )
        if stored.get("status") != status:
            body = {"apiVersion": API_VERSION, "kind": NODE_MODELS, "metadata": {"name": self._node}, "status": status}
            await self._kube.apply(KIND, body, manager=AGENT, force=True, subresource="status")


def _readers(
    resource: str,
    on_disk: ModelOnDisk,
    listed: Mapping[str, frozenset[str]],
    ids: Mapping[str, list[str]],
    *,
    is_stuck: bool,
) -> ModelOnNode:
    """Return a model on the disk, with what the kubelet may allocate to pods of it, and what it has allocated."""
    present = on_disk.examined.union(on_disk.unreadable)
    choosable = allocated_revisions(listed[resource], present) if resource in listed else None
    return ModelOnNode(on_disk, allocated_revisions(ids.get(resource, ()), present), choosable, is_stuck=is_stuck)
