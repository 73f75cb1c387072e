"""The ModelServer controller: renders each server's objects by `core.serving.render`, applies and repairs them.

Each namespace has its own watches: one without the required RoleBinding does not block the others.
Objects are written by server-side apply with a field manager of its own and have the ModelServer as owner: the
garbage collector deletes them with it. An object of the same name without that owner is left alone.
"""

import asyncio
import datetime as dt
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from tessera.api.kubernetes.modelpods import read_progress
from tessera.api.kubernetes.podstates import is_terminating
from tessera.api.tessera.v1alpha1.modelservers import (
    API_VERSION,
    KIND,
    ModelServerStatus,
    read_model_server,
    refused_status,
    server_status,
    without_bad_wake,
)
from tessera.clients.kube import (
    AUTOSCALERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    MODEL_SERVERS,
    POD_MONITORS,
    SCALED_OBJECTS,
    SERVICES,
    Forbidden,
    Kind,
    Kube,
    Object,
    Selection,
    Store,
    annotations_of,
    name_of,
    uid_of,
    version_of,
)
from tessera.controller.appliedobject import AppliedObject
from tessera.controller.scaletozero import ZeroScaler
from tessera.core.serving.annotations import IDLE
from tessera.core.serving.modelserver import ModelServer
from tessera.core.serving.render import render
from tessera.core.serving.serverstatus import (
    DeploymentProgress,
    ServerProgress,
    missing_rights,
    started_replicas,
)
from tessera.errors import Conflict, InvalidInput, TesseraError, Unsupported
from tessera.log import defect, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["ModelServers", "Pace"]

_MANAGER: Final = "tessera-model-servers"
_LOOP: Final = "model_servers"
_WATCHED: Final = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, AUTOSCALERS)
_OPTIONAL: Final = (POD_MONITORS, SCALED_OBJECTS)
"""Kinds of other projects, whose CRDs may be missing: not watched, but read at intervals."""
_KINDS: Final = {each.name: each for each in (*_WATCHED, *_OPTIONAL)}
_MAY_GO: Final = (AUTOSCALERS, *_OPTIONAL)
"""Kinds whose object is deleted when the server no longer needs it."""
_MANAGED: Final = (("app.kubernetes.io/managed-by", "tessera"),)

Key = tuple[Kind, str, str]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals of reconciling, in seconds."""

    least_s: float = 1.0
    """Shortest pause between two passes, however much changes."""
    most_s: float = 10.0
    """Longest pause, and the shortest between two reads of the replicas that a server needs."""
    repair_s: float = 60.0
    """Interval at which an unwatched object is compared with what was applied, and a missing CRD is tried again."""


class _AppliedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What came of applying the objects of a server."""

    problems: tuple[str, ...]
    """Why objects are not as desired."""
    unserved: str
    """The one of these that is of the Deployment; empty for none."""
    notes: tuple[str, ...]
    """What was skipped, and why."""


class ModelServers:
    """Reconciles the ModelServers of some namespaces; `run` ends when it is canceled and leaves all objects in place.

    Args:
        kube: the Kubernetes API.
        namespaces: where it may write; a ModelServer elsewhere reports this in its status.
        prometheus: URL of the Prometheus that KEDA queries; empty for none.
        now: the wall clock.
        pace: intervals of reconciling.

    """

    def __init__(
        self,
        kube: Kube,
        namespaces: Collection[str],
        *,
        prometheus: str = "",
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        pace: Pace | None = None,
    ) -> None:
        self._kube = kube
        self._namespaces = frozenset(namespaces)
        self._prometheus = prometheus
        self._now = now
        self._pace = pace or Pace()
        self._log = logger()
        self._wakeup = WakeUp()
        self._servers = self._store(MODEL_SERVERS, Selection())
        self._stores = {
            (kind, namespace): self._store(kind, Selection(namespace=namespace, labels=_MANAGED))
            for kind in _WATCHED
            for namespace in sorted(self._namespaces)
        }
        self._zero_scaler = ZeroScaler(kube, now, self._pace.most_s)
        self._applied: dict[Key, AppliedObject] = {}
        self._lacking: dict[Kind, tuple[float, Unsupported]] = {}
        """Kinds whose CRD is missing, and when that was last observed."""
        self._read: set[str] = set()
        """Namespaces whose stores are synced."""
        self._forbidden: dict[str, str] = {}
        """Why the objects of a namespace cannot be read: missing RBAC rules."""
        self._complaints: dict[str, str] = {}
        """The last error of each namespace; the empty name is for the ModelServers themselves."""

    def _store(self, kind: Kind, selection: Selection) -> Store:
        log_error = partial(self._log_error, selection.namespace)
        return Store(self._kube, kind, selection, wake=self._wakeup.set, on_error=log_error)

    def _log_error(self, namespace: str, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        if isinstance(error, Forbidden) and namespace and namespace not in self._read:
            # One error stands for all: the kinds of a namespace fail alike, and its servers repeat the same error.
            if namespace in self._forbidden:
                return
            self._forbidden[namespace] = reason = missing_rights(namespace, reason)
            self._wakeup.set()
        if reason != self._complaints.get(namespace):
            self._complaints[namespace] = reason
            fields = {"namespace": namespace} if namespace else {}
            self._log.warning("model_servers_not_followed", reason=reason, exc_info=defect(error), **fields)

    async def run(self, measures: Measures) -> None:
        """Run until canceled; while the CRD or RBAC rules are missing, wait for them."""

        def passed() -> None:
            self._complaints.pop("", None)
            measures.turned(_LOOP)

        stores = (self._servers, *self._stores.values())
        try:
            async with asyncio.TaskGroup() as tasks:
                for store in stores:
                    tasks.create_task(store.run())
                for namespace in self._namespaces:
                    tasks.create_task(self._follow(namespace))
                await self._servers.synced()
                measures.started(_LOOP)
                while True:
                    await one_turn(self.reconcile, partial(self._log_error, ""), passed)
                    await asyncio.sleep(self._pace.least_s)
                    await self._wakeup.wait(self._pace.most_s)
        finally:
            measures.stopped(_LOOP)

    async def _follow(self, namespace: str) -> None:
        """Wait until the stores of a namespace are synced."""
        for kind in _WATCHED:
            await self._stores[kind, namespace].synced()
        self._read.add(namespace)
        self._forbidden.pop(namespace, None)
        self._complaints.pop(namespace, None)
        self._wakeup.set()

    async def reconcile(self) -> None:
        """Reconcile all ModelServers once.

        Raises:
            TesseraError: a status could not be written; the other servers were reconciled.

        """
        failure: Exception | None = None
        servers = sorted(self._servers.objects.values(), key=name_of)
        alive = [each for each in servers if not is_terminating(each)]
        await self._zero_scaler.read(server for each in alive if (server := self._scaling_to_zero(each)) is not None)
        for found in alive:
            try:
                former = _status(found)
                status = await self._reconcile_server(found, former)
                if status != former:
                    await self._write_status(found, status)
            except Exception as error:  # noqa: BLE001 a defect about one server shall not stop the others
                failure = error
        present = {name_of(each) for each in servers}
        for key in [key for key in self._applied if key[1:] not in present]:
            del self._applied[key]
        if failure is not None:
            raise failure

    def _scaling_to_zero(self, obj: Object) -> ModelServer | None:
        """Return a server that may scale to zero; None for any other, and for an invalid one."""
        if name_of(obj)[0] not in self._read:
            return None
        try:
            server, _ = _server_of(obj)
        except Exception:  # noqa: BLE001 its reconciliation reports it; the other servers are scaled
            return None
        return server if server.scales_to_zero else None

    async def _reconcile_server(self, custom_resource: Object, former: ModelServerStatus) -> ModelServerStatus:
        """Reconcile one server and return its status."""
        generation = custom_resource["metadata"].get("generation", 0)
        namespace, name = name_of(custom_resource)
        # 1. Refuse what may not be written.
        if namespace not in self._namespaces:
            problem = (
                f"the controller has no --model-servers={namespace}: add it (docs/model-server.md), or apply what "
                "`tessera render` prints"
            )
            return refused_status(former, generation, "NamespaceNotServed", problem, self._now())
        if namespace not in self._read:
            refusal = self._forbidden.get(namespace)
            if refusal is None:
                return former  # its objects are being read
            return refused_status(former, generation, "RoleBindingMissing", refusal, self._now())
        # 2. Render the objects, and write those that differ.
        try:
            server, ignored = _server_of(custom_resource)
            started = started_replicas(self._progress(server))
            objects = render(server, f"{KIND} {name}", prometheus=self._prometheus, started=started)
        except InvalidInput as error:
            return refused_status(former, generation, "Invalid", str(error), self._now())
        applied = await self._apply_all(server, objects)
        problems, notes = applied.problems, applied.notes
        # 3. Scale to zero or to one.
        if server.scales_to_zero and (deployment := self._own_deployment(server)):
            try:
                notes += await self._zero_scaler.step(server, deployment)
            except TesseraError as error:
                problems += (_problem(server, error),)
        # 4. Report what was observed.
        if ignored:
            notes += (f"ignored: {ignored}",)
        observed = ServerProgress(
            deployment=self._progress(server),
            scales_to_zero=server.scales_to_zero,
            min_replicas=server.min_replicas,
            problems=problems,
            unserved=applied.unserved,
            notes=notes,
        )
        return server_status(former, generation, observed, self._now())

    def _own_deployment(self, server: ModelServer) -> Object:
        """Return the server's Deployment as last observed; an empty one where it has none."""
        deployment = self._stores[DEPLOYMENTS, server.namespace].objects.get((server.namespace, server.name), {})
        return deployment if _is_owned(deployment, server.uid) else {}

    def _progress(self, server: ModelServer) -> DeploymentProgress | None:
        """Return how far the server's Deployment is; None where it has none. Its store may be behind the last write."""
        deployment = self._own_deployment(server)
        if not deployment:
            return None
        written = self._applied.get((DEPLOYMENTS, server.namespace, server.name), AppliedObject())
        progress = read_progress(deployment)
        return msgspec.structs.replace(progress, generation=max(progress.generation, written.generation))

    async def _apply_all(self, server: ModelServer, objects: Iterable[Object]) -> _AppliedObjects:
        """Create or update the objects. One failure does not stop the rest."""
        problems, notes, desired, unserved = list[str](), list[str](), set[Kind](), ""
        for body in objects:
            kind = _KINDS[body["kind"]]
            desired.add(kind)
            try:
                await self._apply(kind, server, body)
                known = self._applied[kind, server.namespace, server.name]
                notes += known.rival_notes(kind.name, asyncio.get_running_loop().time())
            except Unsupported as error:
                if kind != POD_MONITORS:
                    problems.append(str(error))
                notes.append(f"no {kind.name}: the cluster has no {kind.api_version}")
            except TesseraError as error:
                problems.append(_problem(server, error))
                unserved = problems[-1] if kind is DEPLOYMENTS else unserved
        for kind in _MAY_GO:
            try:
                if kind not in desired:
                    await self._remove(kind, server)
            except Unsupported:
                continue
            except TesseraError as error:
                problems.append(_problem(server, error))
        return _AppliedObjects(problems=tuple(problems), unserved=unserved, notes=tuple(notes))

    async def _live(self, kind: Kind, server: ModelServer) -> Object | None:
        """Return the object with the server's name; an unwatched one is read from the API server.

        Raises:
            Unsupported: the kind is not installed, or was not at the last try.

        """
        store = self._stores.get((kind, server.namespace))
        live = None if store is None else store.objects.get((server.namespace, server.name))
        if live is not None:
            return live
        now_s = asyncio.get_running_loop().time()
        tried_s, lacking = self._lacking.get(kind, (0.0, None))
        if lacking is not None and now_s - tried_s < self._pace.repair_s:
            raise lacking
        try:
            return await self._kube.get(kind, server.name, server.namespace)
        except Unsupported as error:
            self._lacking[kind] = now_s, error
            raise

    async def _apply(self, kind: Kind, server: ModelServer, body: Object) -> None:
        """Create or update one object.

        Raises:
            Conflict: an object of this name exists and has another owner, or cannot become the desired one.

        """
        replicas = body["spec"].get("replicas") if kind is DEPLOYMENTS else None
        if replicas is not None:
            # Patched below: a field that is no longer applied gets its default, so turning the
            # autoscaler on would leave one replica.
            body = {**body, "spec": {field: each for field, each in body["spec"].items() if field != "replicas"}}
        key = (kind, server.namespace, server.name)
        now_s = asyncio.get_running_loop().time()
        former = self._applied.get(key, AppliedObject())
        if kind in _OPTIONAL and former.body == body and now_s - former.checked_s < self._pace.repair_s:
            return
        # 1. Compare with the object that there is.
        self._applied[key] = former = msgspec.structs.replace(former, absent="")
        live = await self._live(kind, server)
        if live is not None:
            _check_applicable(live, body, server)
            if _must_leave_zero(live, body):
                patch = {"metadata": {"uid": uid_of(live)}, "spec": {"replicas": 1}}
                live = await self._kube.patch(kind, server.name, patch, namespace=server.namespace)
        # 2. Apply it, unless nothing changed since it was applied last.
        if live is None or (former.body, former.version) != (body, version_of(live)):
            before = version_of(live or {})
            if live is None:  # not by force: an object created just now belongs to another program
                live = await self._kube.apply(kind, body, manager=_MANAGER)
            else:
                live, former = await self._update(kind, body, uid_of(live), former)
            former = msgspec.structs.replace(former, body=body, version=version_of(live))
            if version_of(live) != before:  # only its status may have changed
                self._log.info("model_server_applied", kind=kind.name, name=server.name, namespace=server.namespace)
        self._applied[key] = msgspec.structs.replace(former, checked_s=now_s)
        # 3. Scale it, where the number is fixed.
        if replicas is not None and live["spec"].get("replicas") != replicas:
            patch = {"metadata": {"uid": uid_of(live)}, "spec": {"replicas": replicas}}
            # By version: a store may show what was repaired once more.
            former = former.with_rescaled(version_of(live), now_s)
            live = await self._kube.patch(kind, server.name, patch, namespace=server.namespace)
        generation = live["metadata"].get("generation", 0)
        self._applied[key] = msgspec.structs.replace(former, checked_s=now_s, generation=generation)

    async def _update(self, kind: Kind, body: Object, uid: str, former: AppliedObject) -> tuple[Object, AppliedObject]:
        """Apply an object that exists; return it, and who had changed fields of what was applied before."""
        same = {**body, "metadata": {**body["metadata"], "uid": uid}}
        if former.body == body:
            try:
                return await self._kube.apply(kind, same, manager=_MANAGER), former
            except Conflict as error:  # it names the fields and their managers
                former = former.with_contest(error.cause, asyncio.get_running_loop().time())
        return await self._kube.apply(kind, same, manager=_MANAGER, force=True), former

    async def _remove(self, kind: Kind, server: ModelServer) -> None:
        """Delete an object that the server no longer needs."""
        key = (kind, server.namespace, server.name)
        former = msgspec.structs.replace(self._applied.get(key, AppliedObject()), checked_s=-math.inf)
        self._applied[key] = former
        if former.absent == server.uid:
            return
        live = await self._live(kind, server)
        own = live is not None and _is_owned(live, server.uid)
        # It is not absent until its deletion is observed.
        self._applied[key] = msgspec.structs.replace(former, absent="" if own else server.uid)
        if live is not None and own:
            try:
                await self._kube.delete(kind, server.name, namespace=server.namespace, uid=uid_of(live))
            except Conflict:
                return  # another object has the name now, which the next pass observes
            self._log.info("model_server_removed", kind=kind.name, name=server.name, namespace=server.namespace)

    async def _write_status(self, obj: Object, status: ModelServerStatus) -> None:
        namespace, name = name_of(obj)
        body: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid_of(obj)},
            "status": msgspec.to_builtins(status),
        }
        await self._kube.apply(MODEL_SERVERS, body, manager=_MANAGER, force=True, subresource="status")


def _server_of(obj: Object) -> tuple[ModelServer, str]:
    """Return a server, and why its wake annotation is ignored; empty where it is not."""
    usable, ignored = without_bad_wake(obj)
    return read_model_server({**usable, "apiVersion": API_VERSION, "kind": KIND}), ignored


def _problem(server: ModelServer, error: TesseraError) -> str:
    """Return why an object differs from the desired one."""
    return missing_rights(server.namespace, str(error)) if isinstance(error, Forbidden) else str(error)


def _check_applicable(live: Object, body: Object, server: ModelServer) -> None:
    """Check that an object can become the desired one.

    Raises:
        Conflict: it has another owner, or Kubernetes does not change it to that.

    """
    subject = f"{body['kind']} {server.namespace}/{server.name}"
    if not _is_owned(live, server.uid):
        found, hint = "it exists and belongs to something else", "rename one of the two, or delete the other"
        raise Conflict(subject, found=found, hint=hint)
    if body["kind"] == SERVICES.name and _is_headless(live) != _is_headless(body):
        found = "Kubernetes does not change a Service to or from Headless"
        command = f"kubectl delete service {server.name} -n {server.namespace}"
        raise Conflict(subject, found=found, hint=f"`{command}`: Tessera then creates it again")


def _must_leave_zero(live: Object, body: Object) -> bool:
    """Return whether a Deployment still has zero replicas though its server may no longer scale to zero.

    Its autoscaler would leave it at zero.
    """
    return IDLE in annotations_of(live) and IDLE not in annotations_of(body) and live["spec"].get("replicas") == 0


def _is_headless(service: Object) -> bool:
    return bool(service["spec"].get("clusterIP") == "None")


def _is_owned(live: Mapping[str, Any], uid: str) -> bool:
    """Return whether a ModelServer owns an object, by UID: an earlier server may have had the same name."""
    owners = (live.get("metadata") or {}).get("ownerReferences") or ()
    return any(each.get("kind") == KIND and each.get("uid") == uid for each in owners)


def _status(obj: Object) -> ModelServerStatus:
    """Return the status of an object; one that cannot be parsed counts as none."""
    try:
        return msgspec.convert(obj.get("status") or {}, ModelServerStatus)
    except msgspec.ValidationError:
        return ModelServerStatus()
