"""A Kubernetes API in this process: storage, watches and eviction as the API server does them.

For demos, the simulator and tests; without admission, defaults, validation of kinds, or garbage collection.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator
from typing import Any, Literal

from tessera.clients.kube.protocol import (
    DISRUPTION_BUDGETS,
    EVERYTHING,
    PODS,
    Expired,
    Kind,
    Listing,
    Object,
    Selection,
    WatchEvent,
    labels_of,
    name_of,
)
from tessera.errors import Conflict, InvalidInput, Unavailable

__all__ = ["MemoryKube"]

_Key = tuple[str, str]


class MemoryKube:
    """A `Kube` whose objects live in this process."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, dict[_Key, Object]] = {}
        self._history: list[tuple[int, Kind, WatchEvent, Object | None]] = []
        """Version, kind, event, and the object before it."""
        self._versions = itertools.count(1)
        self._version = 0
        self._oldest = 0
        self._changed = asyncio.Event()
        self._broken = 0
        self._outage: Unavailable | None = None

    # Faults on demand

    def forget_history(self) -> None:
        """Compact, as etcd does: whoever watches from an earlier moment is told that it expired."""
        self._oldest = self._version
        self._history.clear()

    def break_watches(self) -> None:
        """End every watch under way, as a restart of the API server does."""
        self._broken += 1
        self._signal()

    def stop(self) -> None:
        """Refuse every call from now on and end every watch, until `start`."""
        self._outage = Unavailable("Kubernetes API in memory", found="stopped", wanted="an answer")
        self.break_watches()

    def start(self) -> None:
        """Answer again."""
        self._outage = None

    # Reading

    async def get(self, kind: Kind, name: str, namespace: str = "") -> Object | None:
        """Return an object; None where there is none."""
        await self._reach()
        return self._kinds.get(kind, {}).get(_key(kind, name, namespace))

    async def list(self, kind: Kind, selection: Selection = EVERYTHING) -> Listing:
        """Return the objects of a kind, sorted by namespace and name."""
        await self._reach()
        objects = self._kinds.get(kind, {})
        chosen = tuple(objects[key] for key in sorted(objects) if _selects(selection, objects[key]))
        return Listing(objects=chosen, resource_version=str(self._version))

    async def watch(self, kind: Kind, since: str, selection: Selection = EVERYTHING) -> AsyncIterator[WatchEvent]:
        """Yield the changes after a moment."""
        await self._reach()
        told, broken = int(since), self._broken
        while True:
            if told < self._oldest:
                raise Expired(f"watch of {kind.plural}", found=f"version {told}", wanted=f"{self._oldest} or later")
            events, told = self._after(told, kind, selection), self._version
            for event in events:
                yield event
            if self._broken != broken:
                raise Unavailable(f"watch of {kind.plural}", found="end of stream", wanted="changes")
            if told == self._version:  # else something changed while the caller had the events
                await self._changed.wait()

    def _after(self, since: int, kind: Kind, selection: Selection) -> tuple[WatchEvent, ...]:
        later = (each for each in self._history if each[0] > since and each[1] == kind)
        seen = (_as_selected(event, before, selection) for _, _, event, before in later)
        return tuple(event for event in seen if event)

    # Changing

    async def create(self, kind: Kind, body: Object) -> Object:
        """Create an object and return it as stored."""
        await self._reach()
        namespace, name = name_of(body)
        if not name and (prefix := (body.get("metadata") or {}).get("generateName")):
            name = f"{prefix}{next(self._versions):05x}"
        if not name or bool(namespace) != kind.namespaced:
            raise InvalidInput(f"{kind.name} to create", found=f"{namespace}/{name}", wanted="namespace and name")
        key = _key(kind, name, namespace)
        if key in self._kinds.get(kind, {}):
            raise Conflict(_subject(kind, key), found="one that exists already", wanted="a new name")
        stored = copy.deepcopy(body) | {"apiVersion": kind.api_version, "kind": kind.name}
        stored["metadata"] |= {"name": name, "uid": f"uid-{next(self._versions)}"}
        return self._put(kind, key, stored)

    async def patch(
        self, kind: Kind, name: str, body: Object, *, namespace: str = "", subresource: Literal["", "status"] = ""
    ) -> Object:
        """Merge a patch into an object and return it as stored."""
        await self._reach()
        key = _key(kind, name, namespace)
        present = self._kinds.get(kind, {}).get(key)
        if present is None:
            raise Conflict(_subject(kind, key), found="no such object", wanted="one to patch")
        wanted = (body.get("metadata") or {}).get("resourceVersion")
        if wanted not in {None, present["metadata"]["resourceVersion"]}:
            raise Conflict(_subject(kind, key), found="a changed object", wanted=f"resourceVersion {wanted}")
        merged = _merged(present, _within(body, subresource))
        if merged == present:
            return present
        return self._put(kind, key, merged)

    async def delete(self, kind: Kind, name: str, *, namespace: str = "", grace_s: int | None = None) -> None:
        """Delete an object at once, whatever the grace: nothing runs here that could use it."""
        del grace_s
        await self._reach()
        key = _key(kind, name, namespace)
        present = self._kinds.get(kind, {}).pop(key, None)
        if present is not None:
            self._record(kind, copy.deepcopy(present), present, gone=True)

    async def evict(self, name: str, namespace: str) -> None:
        """Delete a pod, where every PodDisruptionBudget that selects it allows a disruption by its status."""
        await self._reach()
        pod = self._kinds.get(PODS, {}).get((namespace, name))
        if pod is None:
            return
        for budget in self._kinds.get(DISRUPTION_BUDGETS, {}).values():
            chosen = ((budget.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
            if name_of(budget)[0] == namespace and chosen.items() <= labels_of(pod).items():
                allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
                if allowed < 1:
                    raise _forbidden(name, namespace, name_of(budget)[1])
        await self.delete(PODS, name, namespace=namespace)

    async def close(self) -> None:
        """End every watch under way."""
        self.break_watches()

    # Storage

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self._outage is not None:
            raise self._outage

    def _put(self, kind: Kind, key: _Key, stored: Object) -> Object:
        before = self._kinds.setdefault(kind, {}).get(key)
        self._record(kind, stored, before)
        self._kinds[kind][key] = stored
        return stored

    def _record(self, kind: Kind, stored: Object, before: Object | None, *, gone: bool = False) -> None:
        self._version = next(self._versions)
        stored["metadata"] = stored["metadata"] | {"resourceVersion": str(self._version)}
        self._history.append((self._version, kind, WatchEvent(object=stored, gone=gone), before))
        self._signal()

    def _signal(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _key(kind: Kind, name: str, namespace: str) -> _Key:
    return (namespace if kind.namespaced else "", name)


def _subject(kind: Kind, key: _Key) -> str:
    return f"{kind.name} {'/'.join(part for part in key if part)}"


def _forbidden(name: str, namespace: str, budget: str) -> Unavailable:
    return Unavailable(
        f"eviction of pod {namespace}/{name}",
        found=f"PodDisruptionBudget {budget} without a disruption left",
        wanted="one disruption allowed",
        accepted="trying again later, or more replicas",
    )


def _merged(value: Any, patch: Any) -> Any:
    """Return `value` with a merge patch applied. Source: RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(value) if isinstance(value, dict) else {}
    for key, part in patch.items():
        if part is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), part)
    return merged


def _within(body: Object, subresource: str) -> Object:
    """Return the part of a patch that an endpoint takes: the main one all but the status, the other the status."""
    if subresource == "status":
        return {key: part for key, part in body.items() if key in {"status", "metadata"}}
    return {key: part for key, part in body.items() if key != "status"}


def _selects(selection: Selection, each: Object) -> bool:
    namespace, _ = name_of(each)
    if selection.namespace and selection.namespace != namespace:
        return False
    if not set(selection.labels) <= set(labels_of(each).items()):
        return False
    return all(_at(each, path) == value for path, value in selection.fields)


def _at(each: Object, path: str) -> str:
    value: Any = each
    for step in path.split("."):
        value = value.get(step) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _as_selected(event: WatchEvent, before: Object | None, selection: Selection) -> WatchEvent | None:
    """Return the event as a watcher of a selection sees it: an object that left it is gone."""
    was = before is not None and _selects(selection, before)
    stays = not event.gone and _selects(selection, event.object)
    return WatchEvent(object=event.object, gone=not stays) if was or stays else None
