"""The pods of this node with the assignments written on them, also before the API server shows what was written."""

import operator
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import msgspec

from tessera.api.dues import corrected, read_dues
from tessera.clients.kube import Object, annotations_of, name_of
from tessera.core.matching import Correction, Due

__all__ = ["AssignedPods"]


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """A pod after a change of ours."""

    before: Object
    """What the API server showed then."""
    after: Object
    stored: bool
    """Whether `after` is what the API server answered, with its version."""


class AssignedPods:
    """Pods as they are watched, and changes of their annotations.

    A watch is late: until it shows a change of ours or a later one, the changed pod stands in its place. Otherwise what
    was given to one pod would look free and be given to another.

    Args:
        watched: the Pod objects of this node, as they are known at the moment.
        write: sets annotations of a pod and returns it as stored, or None where that is not known.

    """

    def __init__(
        self,
        watched: Callable[[], Iterable[Object]],
        write: Callable[[str, str, Mapping[str, str]], Awaitable[Object | None]],
    ) -> None:
        self._share_unit_mib = 1024
        self._watched = watched
        self._write = write
        self._written: dict[tuple[str, str], _Written] = {}
        self._read: dict[tuple[str, str], tuple[Object, tuple[Due, ...]]] = {}
        """What each Pod object says; objects are never changed in place, so the same object says the same."""
        self._objects: tuple[Object, ...] = ()
        self._dues: tuple[Due, ...] = ()

    def count_in(self, share_unit_mib: int) -> None:
        """Read `aliyun.com/gpu-mem` in units of so many MiB."""
        if share_unit_mib != self._share_unit_mib:
            self._share_unit_mib = share_unit_mib
            self._read, self._objects, self._dues = {}, (), ()

    def objects(self) -> Iterator[Object]:
        """Yield the pods as they are after all changes of ours."""
        if not self._written:
            yield from self._watched()
            return
        for pod in self._watched():
            name = name_of(pod)
            written = self._written.get(name)
            if written is not None and _shows(pod, written):
                del self._written[name]
                written = None
            yield pod if written is None else written.after

    def dues(self) -> tuple[Due, ...]:
        """Return what the pods were assigned."""
        objects = tuple(self.objects())
        if len(objects) == len(self._objects) and all(map(operator.is_, objects, self._objects)):
            return self._dues
        read: dict[tuple[str, str], tuple[Object, tuple[Due, ...]]] = {}
        for pod in objects:
            name = name_of(pod)
            known = self._read.get(name)
            if known is None or known[0] is not pod:
                known = pod, read_dues((pod,), share_unit_mib=self._share_unit_mib).dues
            read[name] = known
        self._read, self._objects = read, objects
        self._dues = tuple(due for _, own in read.values() for due in own)
        return self._dues

    async def correct(self, correction: Correction) -> None:
        """Write the assignment that a correction tells on its pod, where it does not say so and the pod is there.

        Raises:
            TesseraError: the API server cannot be told.

        """
        name = (correction.due.key.namespace, correction.due.key.pod)
        before = next((pod for pod in self._watched() if name_of(pod) == name), None)
        pod = next((pod for pod in self.objects() if name_of(pod) == name), None)
        if pod is None or before is None:
            return
        annotations = corrected(pod, correction, share_unit_mib=self._share_unit_mib)
        present = annotations_of(pod)
        if all(present.get(key) == text for key, text in annotations.items()):
            return
        stored = await self._write(*name, annotations)
        after = stored or {**pod, "metadata": {**pod["metadata"], "annotations": {**present, **annotations}}}
        self._written[name] = _Written(before=before, after=after, stored=stored is not None)


def _shows(pod: Object, written: _Written) -> bool:
    """Return whether a pod that is watched has a change of ours; a later version than ours has it or outdates it."""
    if pod is written.before:
        return False
    versions = [each["metadata"].get("resourceVersion") or "" for each in (pod, written.after)]
    if not written.stored or not all(version.isdecimal() for version in versions):
        return True
    return int(versions[0]) >= int(versions[1])
