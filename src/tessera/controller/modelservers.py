"""ModelServers: the objects of each are as `core.serving.render` says; observe, render, apply, repair.

Each namespace is read by itself: one without the RoleBinding that it needs keeps none of the others waiting.
Objects are written by server-side apply as a field manager of its own, and belong to their ModelServer by owner
reference: the API server deletes them with it. An object of that name that is not the server's is left alone.
"""

import asyncio
import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from tessera.api.tessera.modelservers import (
    API_VERSION,
    KIND,
    Status,
    missing_rights,
    observed,
    read_model_server,
    refused_status,
    server_status,
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
    name_of,
    uid_of,
    version_of,
)
from tessera.core.serving.modelserver import ModelServer
from tessera.core.serving.render import render
from tessera.errors import Conflict, InvalidInput, TesseraError, Unsupported
from tessera.log import defect, logger
from tessera.loops import one_turn
from tessera.measures import Measures
from tessera.wakeup import WakeUp

__all__ = ["ModelServers"]

_MANAGER: Final = "tessera-model-servers"
_LONGEST_S: Final = 10.0
_LOOP: Final = "model_servers"
_WATCHED: Final = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS, AUTOSCALERS)
_OPTIONAL: Final = (POD_MONITORS, SCALED_OBJECTS)
"""Kinds of others, which a cluster may have: each look gets their objects."""
_KINDS: Final = {each.name: each for each in (*_WATCHED, *_OPTIONAL)}
_MAY_GO: Final = (AUTOSCALERS, *_OPTIONAL)
"""Kinds of which a server may want none any more."""
_MANAGED: Final = (("app.kubernetes.io/managed-by", "tessera"),)

Key = tuple[Kind, str, str]


class ModelServers:
    """Carries out the ModelServers of some namespaces; `run` ends when it is cancelled, and leaves all as it is.

    Args:
        kube: the Kubernetes API.
        namespaces: where it may write; a ModelServer elsewhere is told so.
        prometheus: URL of the Prometheus that KEDA asks; empty for none.
        now: the wall clock.
        least_s: shortest pause between two looks, however much changes.

    """

    def __init__(
        self,
        kube: Kube,
        namespaces: Collection[str],
        *,
        prometheus: str = "",
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        least_s: float = 1.0,
    ) -> None:
        self._kube = kube
        self._namespaces = frozenset(namespaces)
        self._prometheus = prometheus
        self._now = now
        self._least_s = least_s
        self._log = logger()
        self._wakeup = WakeUp()
        self._servers = self._store(MODEL_SERVERS, Selection())
        self._stores = {
            (kind, namespace): self._store(kind, Selection(namespace=namespace, labels=_MANAGED))
            for kind in _WATCHED
            for namespace in sorted(self._namespaces)
        }
        self._applied: dict[Key, tuple[Object, str]] = {}
        """What was applied last and the version that this gave: what is still so is not applied again."""
        self._read: set[str] = set()
        """Namespaces whose objects are known."""
        self._forbidden: dict[str, str] = {}
        """Why the objects of a namespace cannot be read: the rights are missing."""
        self._complaints: dict[str, str] = {}
        """The last trouble of each namespace; under the empty name that of the servers."""

    def _store(self, kind: Kind, selection: Selection) -> Store:
        trouble = partial(self._trouble, selection.namespace)
        return Store(self._kube, kind, selection, wake=self._wakeup.set, on_trouble=trouble)

    def _trouble(self, namespace: str, error: BaseException) -> None:
        reason = str(error) or type(error).__name__
        if isinstance(error, Forbidden) and namespace and namespace not in self._read:
            # One refusal stands for all: the kinds of a namespace take turns, and its servers say the same each time.
            if namespace in self._forbidden:
                return
            self._forbidden[namespace] = reason = missing_rights(namespace, reason)
            self._wakeup.set()
        if reason != self._complaints.get(namespace):
            self._complaints[namespace] = reason
            fields = {"namespace": namespace} if namespace else {}
            self._log.warning("model_servers_not_followed", reason=reason, exc_info=defect(error), **fields)

    async def run(self, measures: Measures) -> None:
        """Run until cancelled; without the kind, or the rights, wait for them."""

        def well() -> None:
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
                while True:
                    await one_turn(self.look, partial(self._trouble, ""), well)
                    await asyncio.sleep(self._least_s)
                    await self._wakeup.wait(_LONGEST_S)
        finally:
            measures.stopped(_LOOP)

    async def _follow(self, namespace: str) -> None:
        """Wait until the objects of a namespace are known."""
        for kind in _WATCHED:
            await self._stores[kind, namespace].synced()
        self._read.add(namespace)
        self._forbidden.pop(namespace, None)
        self._complaints.pop(namespace, None)
        self._wakeup.set()

    async def look(self) -> None:
        """Look at all servers once and do what is to be done.

        Raises:
            TesseraError: a status could not be written; the other servers were looked at all the same.

        """
        failure: Exception | None = None
        servers = sorted(self._servers.objects.values(), key=name_of)
        for found in servers:
            if (found.get("metadata") or {}).get("deletionTimestamp"):
                continue
            try:
                former = _status(found)
                status = await self._status_of(found, former)
                if status != former:
                    await self._write_status(found, status)
            except Exception as error:  # noqa: BLE001 a defect about one server shall not stop the others
                failure = error
        present = {name_of(each) for each in servers}
        self._applied = {key: said for key, said in self._applied.items() if key[1:] in present}
        if failure is not None:
            raise failure

    async def _status_of(self, found: Object, former: Status) -> Status:
        """Carry out one server and return how it is."""
        generation = found["metadata"].get("generation", 0)
        namespace, name = name_of(found)
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
        try:
            server = read_model_server({**found, "apiVersion": API_VERSION, "kind": KIND})
            objects = render(server, f"{KIND} {name}", prometheus=self._prometheus)
        except InvalidInput as error:
            return refused_status(former, generation, "Invalid", str(error), self._now())
        problems, notes = await self._carry_out(server, objects)
        deployment = self._stores[DEPLOYMENTS, namespace].objects.get((namespace, name), {})
        own = deployment if _owned(deployment, server.uid) else {}
        return server_status(former, generation, observed(own, problems, notes), self._now())

    async def _carry_out(
        self, server: ModelServer, objects: Iterable[Object]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Make the objects as they shall be; return what failed and what was left out, one object not for another's."""
        problems, notes, desired = [], [], set()
        for body in objects:
            kind = _KINDS[body["kind"]]
            desired.add(kind)
            try:
                await self._apply(kind, server, body)
            except Unsupported as error:
                if kind != POD_MONITORS:
                    problems.append(str(error))
                notes.append(f"no {kind.name}: the cluster has no {kind.api_version}")
            except TesseraError as error:
                problems.append(_problem(server, error))
        for kind in _MAY_GO:
            try:
                if kind not in desired:
                    await self._remove(kind, server)
            except Unsupported:
                continue
            except TesseraError as error:
                problems.append(_problem(server, error))
        return tuple(problems), tuple(notes)

    async def _live(self, kind: Kind, server: ModelServer) -> Object | None:
        """Return an object of the server's name; one that is not where it is watched is asked for."""
        store = self._stores.get((kind, server.namespace))
        live = None if store is None else store.objects.get((server.namespace, server.name))
        return live if live is not None else await self._kube.get(kind, server.name, server.namespace)

    async def _apply(self, kind: Kind, server: ModelServer, body: Object) -> None:
        """Make an object as it shall be.

        Raises:
            Conflict: there is one of this name that is not the server's.

        """
        replicas = body["spec"].get("replicas") if kind is DEPLOYMENTS else None
        if replicas is not None:
            # By a patch below: an applied field that is applied no more gets its default, so that turning the
            # autoscaler on would leave one replica.
            body = {**body, "spec": {field: each for field, each in body["spec"].items() if field != "replicas"}}
        key = (kind, server.namespace, server.name)
        live = await self._live(kind, server)
        if live is not None and not _owned(live, server.uid):
            raise Conflict(
                f"{kind.name} {server.namespace}/{server.name}",
                found="one that is not this ModelServer's",
                expected="none, or its own",
                hint="rename one of the two, or delete the other",
            )
        if live is None or self._applied.get(key) != (body, version_of(live)):
            before = version_of(live or {})
            if live is None:  # not by force: one that came this moment is somebody's
                live = await self._kube.apply(kind, body, manager=_MANAGER)
            else:
                same = {**body, "metadata": {**body["metadata"], "uid": uid_of(live)}}
                live = await self._kube.apply(kind, same, manager=_MANAGER, force=True)
            self._applied[key] = (body, version_of(live))
            if version_of(live) != before:  # its status alone may have changed
                self._log.info("model_server_applied", kind=kind.name, name=server.name, namespace=server.namespace)
        if replicas is not None and live["spec"].get("replicas") != replicas:
            patch = {"spec": {"replicas": replicas}}
            await self._kube.patch(kind, server.name, patch, namespace=server.namespace)

    async def _remove(self, kind: Kind, server: ModelServer) -> None:
        """Delete an object of the server's that it wants no more."""
        live = await self._live(kind, server)
        if live is not None and _owned(live, server.uid):
            await self._kube.delete(kind, server.name, namespace=server.namespace)
            self._log.info("model_server_removed", kind=kind.name, name=server.name, namespace=server.namespace)

    async def _write_status(self, found: Object, status: Status) -> None:
        namespace, name = name_of(found)
        body: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace, "uid": uid_of(found)},
            "status": msgspec.to_builtins(status),
        }
        await self._kube.apply(MODEL_SERVERS, body, manager=_MANAGER, force=True, subresource="status")


def _problem(server: ModelServer, error: TesseraError) -> str:
    """Return why an object is not as it shall be."""
    return missing_rights(server.namespace, str(error)) if isinstance(error, Forbidden) else str(error)


def _owned(live: Mapping[str, Any], uid: str) -> bool:
    """Return whether an object is that of a ModelServer, by the UID: another of the same name may have been before."""
    owners = (live.get("metadata") or {}).get("ownerReferences") or ()
    return any(each.get("kind") == KIND and each.get("uid") == uid for each in owners)


def _status(found: Object) -> Status:
    """Return the status that an object has; an unreadable one counts as none."""
    try:
        return msgspec.convert(found.get("status") or {}, Status)
    except msgspec.ValidationError:
        return Status()
