"""An in-memory Kubernetes API: storage, watches, bindings, apply and eviction with the API server's semantics.

For demos, the simulator and tests; without admission, defaults, validation of kinds, finalizers, or garbage collection.
"""

import asyncio
import copy
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from tessera.api.kubernetes.podstates import is_terminating
from tessera.clients.kube.accounts import Accounts
from tessera.clients.kube.ownership import UNNAMED, Owner, Owners, applied, contested, fields_of, updated
from tessera.clients.kube.podstreams import LocalSocket, TimedLines, check_started
from tessera.clients.kube.protocol import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    EVERYTHING,
    PODS,
    SELF_SUBJECT_REVIEWS,
    Forbidden,
    Kind,
    Listing,
    Object,
    Selection,
    Subresource,
    Unanswered,
    WatchEvent,
    labels_of,
    name_of,
    not_served,
    version_of,
)
from tessera.clients.kube.storage import Backup, Key, Storage
from tessera.errors import Conflict, InvalidInput, Unavailable

__all__ = ["MemoryKube"]


class MemoryKube:
    """An in-memory `Kube`. It serves every kind except those removed from it.

    Args:
        clock: the seconds since 1970, for creation timestamps.

    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._storage = Storage()
        self._owners: dict[tuple[Kind, Key], Owners] = {}
        """Of objects that were ever applied; all fields of others are owned by managers that write without apply."""
        self._numbers = itertools.count(1)
        self._uninstalled: dict[str, Kind] = {}
        """Removed kinds, by the name of the CustomResourceDefinition that installs them again."""
        self._outage: Unavailable | None = None
        self._lost_answers = 0
        self._withheld: frozenset[tuple[Kind, str]] = frozenset()
        self.answers: dict[Key, dict[tuple[int, str], bytes]] = {}
        """Answers of pods, by namespace and name, then by port and path."""
        self.written: dict[Key, list[bytes]] = {}
        """Logs of containers, by the namespace and name of their pods."""
        self.listening: dict[tuple[Key, int], tuple[str, int]] = {}
        """Addresses of pods' ports, by the namespace and name of the pod and the port: host and port."""
        self.accounts = Accounts()
        """Users and their permissions, for reviews; calls themselves are never forbidden."""

    # Faults on demand

    def forget_history(self) -> None:
        """Compact, as etcd does: a watch from an earlier version expires."""
        self._storage.compact()

    def backup(self) -> Backup:
        """Return a copy of all objects, for `restore`."""
        return self._storage.backup()

    def restore(self, backup: Backup) -> None:
        """Go back to a copy and end every watch, as a restore of etcd does: versions count on from there.

        Owners of applied fields and removed kinds stay as they are.
        """
        self._storage.restore(backup)
        self.break_watches()

    def break_watches(self) -> None:
        """End every watch, as a restart of the API server does."""
        self._storage.break_watches()

    def stop(self) -> None:
        """Reject every call from now on and end every watch, until `start`."""
        self._outage = Unavailable("Kubernetes API in memory", found="it is stopped", hint="start it again")
        self.break_watches()

    def start(self) -> None:
        """Answer again."""
        self._outage = None

    def lose_answers(self, number: int) -> None:
        """Process this many of the next writes and lose their answers."""
        self._lost_answers = number

    def uninstall(self, kind: Kind) -> None:
        """Stop serving a custom kind, until its CustomResourceDefinition is created; its objects are gone."""
        for each in self._storage.select(kind, EVERYTHING):
            self._remove(kind, _key(kind, *reversed(name_of(each))))
        self._uninstalled[f"{kind.plural}.{kind.group}"] = kind
        self.break_watches()

    def withhold(self, namespace: str, *kinds: Kind) -> None:
        """Forbid calls for these kinds in a namespace, until `withhold` names none."""
        others = {each for each in self._withheld if each[1] != namespace}
        self._withheld = frozenset(others | {(kind, namespace) for kind in kinds})
        self.break_watches()

    # Reading

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return an object; None where there is none."""
        await self._reach(kind, namespace)
        return self._storage.get(kind, _key(kind, name, namespace))

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        """Return the objects of a kind, sorted by namespace and name."""
        await self._reach(kind, selection.namespace)
        objects = self._storage.select(kind, selection)
        return Listing(objects=objects, resource_version=str(self._storage.version))

    async def version(self, kind: Kind, selection: Selection = EVERYTHING) -> str:
        """Return the version of the last change."""
        await self._reach(kind, selection.namespace)
        return str(self._storage.version)

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        """Yield the changes after a version."""
        await self._reach(kind, selection.namespace)
        async for event in self._storage.watch(kind, int(since), selection):
            yield event

    # Changing

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object and return it as stored; that of a custom kind without its status."""
        await self._reach(kind, name_of(body)[0])
        if kind == SELF_SUBJECT_REVIEWS:
            return {"metadata": {"creationTimestamp": self._now()}}
        if (reviewed := self.accounts.answer(kind, body)) is not None:
            return reviewed
        namespace, name = name_of(body)
        if not name and (prefix := (body.get("metadata") or {}).get("generateName")):
            name = f"{prefix}{next(self._numbers):05x}"
        if not name or bool(namespace) != kind.namespaced:
            raise InvalidInput(
                f"{kind.name} to create", found=f"{namespace}/{name} lacks a name or namespace", hint="give both"
            )
        key = _key(kind, name, namespace)
        if self._storage.get(kind, key) is not None:
            raise Conflict(_subject(kind, key), found="it exists already", hint="choose a new name")
        return self._answer(self._put(kind, key, self._new(kind, key, body)))

    def _new(self, kind: Kind, key: Key, body: Object) -> Object:
        """Return a new object with the server's metadata."""
        own: Object = {
            "name": key[1],
            **({"namespace": key[0]} if key[0] else {}),
            "uid": f"uid-{next(self._numbers)}",
        } | ({"generation": 1} if kind.custom or kind == DEPLOYMENTS else {})
        stored = copy.deepcopy({field: part for field, part in body.items() if field != "status" or not kind.custom})
        if kind == CUSTOM_RESOURCE_DEFINITIONS:
            self._uninstalled.pop(key[1], None)
        metadata = {"creationTimestamp": self._now()} | _without_own(stored["metadata"]) | own
        return stored | {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata}

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Subresource = ""
    ) -> Object:
        """Merge a patch into an object and return it as stored."""
        await self._reach(kind, namespace)
        key = _key(kind, name, namespace)
        present = self._storage.get(kind, key)
        if present is None:
            raise _absent(kind, key)
        _check_identity(kind, key, body, present)
        return self._answer(self._change(kind, key, present, _merged(present, _within(kind, body, subresource))))

    async def apply(
        self, kind: Kind, body: Object, *, manager: str, force: bool = False, subresource: Subresource = ""
    ) -> Object:
        """Apply the fields in `body`, owned by the manager."""
        await self._reach(kind, name_of(body)[0])
        key = _key(kind, *reversed(name_of(body)))
        present = self._storage.get(kind, key)
        if present is None and subresource:
            raise _absent(kind, key)
        owner, desired = (manager, subresource), copy.deepcopy(_without_nulls(_within(kind, body, subresource)))
        if present is None:
            self._owners[kind, key] = {owner: fields} if (fields := fields_of(desired)) else {}
            return self._answer(self._put(kind, key, self._new(kind, key, desired)))
        _check_identity(kind, key, body, present)
        owners = self._owners.get((kind, key), {UNNAMED: fields_of(present)})
        if not force and (others := contested(present, desired, owners, owner)):
            raise _owned(kind, key, others)
        merged, owned = applied(present, desired, owners, owner)
        self._owners[kind, key] = owned
        if merged == present and owned != owners:
            return self._answer(self._put(kind, key, present))
        return self._answer(self._store_change(kind, key, present, merged))

    async def bind(self, name: str, namespace: str, *, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod and merge annotations into it."""
        await self._reach(PODS, namespace)
        if not node:
            raise InvalidInput(f"binding of pod {namespace}/{name}", found="it has no node", hint="name one")
        key = (namespace, name)
        pod = self._storage.get(PODS, key)
        if pod is None:
            raise _absent(PODS, key)
        found = _unbindable(pod, uid)
        if found:
            raise Conflict(_subject(PODS, key), found=found, hint=f"observe the pod {uid} again")
        scheduled = {"type": "PodScheduled", "status": "True"}
        rest = [each for each in (pod.get("status") or {}).get("conditions") or () if each["type"] != "PodScheduled"]
        bound = {
            "metadata": {"annotations": dict(annotations)},
            "spec": {"nodeName": node},
            "status": {"conditions": [*rest, scheduled]},
        }
        self._answer(self._change(PODS, key, pod, _merged(pod, bound)))

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", grace_s: int | None = None
    ) -> None:
        """Delete an object at once, regardless of its grace period: nothing here could use it."""
        del grace_s
        await self._reach(kind, namespace)
        self._check_uid(kind, _key(kind, name, namespace), uid)
        self._remove(kind, _key(kind, name, namespace))
        self._confirm()

    async def evict(self, name: str, namespace: str, *, uid: str = "") -> None:
        """Delete a pod, if every PodDisruptionBudget that selects it allows a disruption by its status."""
        await self._reach(PODS, namespace)
        pod = self._storage.get(PODS, (namespace, name))
        if pod is None:
            return
        for budget in self._storage.select(DISRUPTION_BUDGETS, Selection(namespace=namespace)):
            chosen = ((budget.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
            if chosen.items() <= labels_of(pod).items():
                allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
                if allowed < 1:
                    raise _forbidden(name, namespace, name_of(budget)[1])
        self._check_uid(PODS, (namespace, name), uid)
        self._remove(PODS, (namespace, name))
        self._confirm()

    async def ask_pod(self, name: str, namespace: str, *, port: int, path: str, most: int, tls: bool = False) -> bytes:
        """Return the entry of `answers` for a pod; with TLS for `https:` and its name."""
        await self._reach(PODS, namespace)
        subject = f"request to {_subject(PODS, (namespace, name))} at port {port}"
        answer = self.answers.get((namespace, f"https:{name}" if tls else name), {}).get((port, path))
        if answer is None or self._storage.get(PODS, (namespace, name)) is None:
            raise Unavailable(subject, found=f"no answer to /{path}", hint="try again")
        if len(answer) > most:
            raise Unavailable(subject, found=f"an answer of more than {most} bytes", hint="try again")
        return answer

    async def logs(
        self, name: str, namespace: str, *, container: str = "", follow: bool = False, since: str | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the pieces in `written` for a pod; with `follow` also later ones until it has ended.

        Two lines are written in each tenth of a second.
        """
        await self._reach(PODS, namespace)
        subject, pod = f"log of {_subject(PODS, (namespace, name))}", self._storage.get(PODS, (namespace, name))
        if pod is None:
            raise Unavailable(subject, found="there is no such pod", hint="start it first")
        names = [each["name"] for each in (pod.get("spec") or {}).get("containers", ())]
        if names and (container not in names if container else len(names) > 1):
            raise InvalidInput(subject, found=f"container {container!r}", expected=f"one of {', '.join(names)}")
        if not (pod.get("spec") or {}).get("nodeName"):
            return  # as the API server, which asks no kubelet then
        check_started(subject, pod, container or next(iter(names), ""))
        pieces, given, timed = self.written.get((namespace, name), []), 0, TimedLines(since or "")
        while True:
            for piece in pieces[given:]:
                given += 1
                yield piece if since is None else timed.of(piece)
            pod = self._storage.get(PODS, (namespace, name)) or {}
            if not follow or (pod.get("status") or {}).get("phase") != "Running":
                return
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def tunnel(self, name: str, namespace: str, *, port: int) -> AsyncIterator[LocalSocket]:
        """Yield a connection to the port's address in `listening`."""
        await self._reach(PODS, namespace)
        subject = f"port {port} of {_subject(PODS, (namespace, name))}"
        if self._storage.get(PODS, (namespace, name)) is None:
            raise Unavailable(subject, found="there is no such pod", hint="start it first")
        try:
            host, there = self.listening[(namespace, name), port]
            reader, writer = await asyncio.open_connection(host, there)
        except (KeyError, OSError) as error:
            found = "no container listens on the port"
            raise Unavailable(subject, found=found, hint="name the port of a container that does") from error
        try:
            yield LocalSocket(subject, reader, writer)
        finally:
            writer.close()

    async def close(self) -> None:
        """End every watch under way."""
        self.break_watches()

    # Within

    def _check_uid(self, kind: Kind, key: Key, uid: str) -> None:
        """Reject a write to another object of the name than the one that is meant."""
        present = self._storage.get(kind, key)
        if uid and present is not None and uid != present["metadata"]["uid"]:
            found = f"another object has the name now, {present['metadata']['uid']}"
            raise Conflict(_subject(kind, key), found=found, hint=f"observe {uid} again")

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def _reach(self, kind: Kind, namespace: str = "") -> None:
        await asyncio.sleep(0)
        if self._outage is not None:
            raise self._outage
        if (kind, namespace) in self._withheld:
            subject = f"{kind.plural} of namespace {namespace}"
            raise Forbidden(subject, found="you have no right to do so", hint="use a role that grants it")
        if kind in self._uninstalled.values():
            raise not_served(kind, f"{kind.plural} of the Kubernetes API in memory")

    def _answer(self, stored: Object) -> Object:
        self._confirm()
        return stored

    def _confirm(self) -> None:
        if self._lost_answers:
            self._lost_answers -= 1
            raise Unanswered(
                "Kubernetes API in memory", found="its answer was lost", hint="see whether the write happened"
            )

    def _change(self, kind: Kind, key: Key, present: Object, changed: Object) -> Object:
        """Store a write without apply."""
        owners = self._owners.get((kind, key))
        if owners is not None:
            self._owners[kind, key] = updated(present, changed, owners)
        return self._store_change(kind, key, present, changed)

    def _store_change(self, kind: Kind, key: Key, present: Object, changed: Object) -> Object:
        if changed == present:
            return present
        if "generation" in present["metadata"] and _specified(changed) != _specified(present):
            generation = present["metadata"]["generation"] + 1
            changed = changed | {"metadata": changed["metadata"] | {"generation": generation}}
        return self._put(kind, key, changed)

    def _put(self, kind: Kind, key: Key, stored: Object) -> Object:
        return self._storage.put(kind, key, stored)

    def _remove(self, kind: Kind, key: Key) -> None:
        self._owners.pop((kind, key), None)
        self._storage.remove(kind, key)


def _key(kind: Kind, name: str, namespace: str) -> Key:
    return (namespace if kind.namespaced else "", name)


def _subject(kind: Kind, key: Key) -> str:
    return f"{kind.name} {'/'.join(part for part in key if part)}"


def _absent(kind: Kind, key: Key) -> Conflict:
    return Conflict(_subject(kind, key), found="there is no such object", hint="observe it again")


def _owned(kind: Kind, key: Key, others: frozenset[tuple[Owner, tuple[str, ...]]]) -> Conflict:
    fields = ", ".join(sorted(f".{'.'.join(path)} of {owner[0] or 'another client'}" for owner, path in others))
    return Conflict(_subject(kind, key), found=f"{fields} have other owners", hint="force the change")


def _forbidden(name: str, namespace: str, budget: str) -> Unavailable:
    return Unavailable(
        f"eviction of pod {namespace}/{name}",
        found=f"PodDisruptionBudget {budget} allows no disruption now",
        hint="wait until more of its pods are healthy",
    )


def _check_identity(kind: Kind, key: Key, body: Object, present: Object) -> None:
    desired, uid = version_of(body), (body.get("metadata") or {}).get("uid")
    if desired and desired != version_of(present):
        raise Conflict(
            _subject(kind, key), found=f"it changed since resourceVersion {desired}", hint="observe it again"
        )
    if uid and uid != present["metadata"]["uid"]:
        raise InvalidInput(
            _subject(kind, key),
            found=f"uid {uid} is not its uid, {present['metadata']['uid']}",
            hint="observe it again",
        )


def _unbindable(pod: Object, uid: str) -> str:
    """Return why a pod cannot be bound. Source: kubernetes pkg/registry/core/pod/storage, BindingREST."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    if metadata["uid"] != uid:
        return f"another pod of that name, {metadata['uid']}"
    if is_terminating(pod):
        return "a pod that is being deleted"
    if spec.get("nodeName"):
        return f"a pod that is assigned to node {spec['nodeName']} already"
    return "a pod with scheduling gates" if spec.get("schedulingGates") else ""


def _specified(obj: Object) -> Object:
    return {key: part for key, part in obj.items() if key not in {"metadata", "status"}}


def _merged(value: Any, patch: Any) -> Any:
    """Return a value with a merge patch applied, sharing unchanged parts. Source: RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), part)
    return merged


def _without_nulls(body: Object) -> Object:
    return {
        key: _without_nulls(part) if isinstance(part, dict) else part for key, part in body.items() if part is not None
    }


def _within(kind: Kind, body: Object, subresource: str) -> Object:
    """Return the part of a body that an endpoint accepts: the main one all but the status, the other the status.

    Metadata is accepted by both, except for custom kinds.
    """
    if subresource and kind.custom:
        return {key: part for key, part in body.items() if key == "status"}
    taken = {key: part for key, part in body.items() if (key == "status") == bool(subresource) and key != "metadata"}
    return taken | ({"metadata": _without_own(body["metadata"])} if body.get("metadata") else {})


_OWN = frozenset({"name", "namespace", "uid", "resourceVersion", "generation"})
"""Metadata that only the server writes."""


def _without_own(metadata: Object) -> Object:
    return {key: part for key, part in metadata.items() if key not in _OWN}
