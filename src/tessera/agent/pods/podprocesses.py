"""The processes of a node's pods, by the host's process table and their control groups."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tessera.api.kubernetes.podstates import container_ids, runtime_of
from tessera.clients.kube import Object
from tessera.core.deviceplugin.allocations.podprocesses import PodProcess, running_containers
from tessera.core.usage.cgroups import owner_of

__all__ = ["ProcessTable", "sees_other_containers"]

_FIRST_NAMESPACE = "pid:[4026531836]"
"""The PID namespace of the machine. Source: Linux `include/linux/proc_ns.h`, PROC_PID_INIT_INO."""
_THREADS = 16
"""Index of the number of threads (field 20) among the fields after the state."""
_START = 18
"""Index of the start time (field 22) among the fields after the state."""
_LEAST_UID = 4
"""Length of a UID searched among control groups; every real one has 36 characters."""


class ProcessTable:
    """The processes of this node's pods.

    Args:
        proc: the host's process table.

    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._sees = False

    def running(self, uids: Iterable[str], pods: Mapping[str, Object]) -> frozenset[str]:
        """Return those of these pods that have running processes.

        The control groups of a pod carry its UID, in every version and with every cgroup driver. A container may give
        groups below its own the names of other pods: it is in its own pod nevertheless. A `blind` table has none.

        Args:
            uids: of the pods.
            pods: those of this node, by UID.

        """
        return frozenset(uid for uid, _, _ in self._found(uids, pods))

    def running_containers(
        self, containers: Iterable[tuple[str, str]], pods: Mapping[str, Object], node: Object
    ) -> frozenset[tuple[str, str]]:
        """Return those of these containers that may have running processes.

        A process's container is known by its control group, and the id in the pod's status.

        Args:
            containers: UID of the pod and name.
            pods: those of this node, by UID.
            node: its Node object; empty if there is none.

        """
        named: dict[str, set[str]] = {}
        for uid, container in containers:
            named.setdefault(uid, set()).add(container)
        found: dict[str, list[tuple[str, Path]]] = {}
        for uid, container, process in self._found(named, pods):
            found.setdefault(uid, []).append((container, process))
        return frozenset(
            (uid, container)
            for uid, processes in found.items()
            for container in running_containers(
                named[uid], _described(processes), runtime_of(pods.get(uid) or {}, node)
            )
        )

    def _found(self, uids: Iterable[str], pods: Mapping[str, Object]) -> Iterator[tuple[str, str, Path]]:
        """Yield the processes of these pods: UID, name of the container if its id is known, folder in the table."""
        desired = {uid: (f"pod{uid}", f"pod{uid.replace('-', '_')}") for uid in uids if len(uid) >= _LEAST_UID}
        known = {*pods, *desired} if desired else set[str]()
        containers = {name: own for uid in desired for name, own in container_ids(pods.get(uid, {}))}
        for process, text in _cgroups(self._proc) if desired else ():
            named = {uid for uid, names in desired.items() if any(name in text for name in names)}
            # The outermost may be no pod of this cluster: its nodes may be pods of another.
            owner = owner_of(text, containers, known) if named else None
            if owner is None or owner.uid not in known:
                yield from ((uid, "", process) for uid in named)
            elif owner.uid in named:
                yield owner.uid, owner.container, process

    def pods_of(self, pids: Iterable[int], uids: Iterable[str]) -> Mapping[int, str]:
        """Return the UID of each process's pod, of those that run in one; a table that is `blind` has none.

        A process that has ended, and whose parent has not asked for it yet, runs no more.

        Args:
            pids: the processes.
            uids: of this node's pods.

        """
        if self.blind:
            return {}
        known = tuple(uids)
        found = {pid: owner_of(_text(self._proc / str(pid) / "cgroup"), {}, known) for pid in pids}
        return {
            pid: owner.uid
            for pid, owner in found.items()
            if owner is not None and not _is_zombie(_text(self._proc / str(pid) / "stat"))
        }

    @property
    def blind(self) -> bool:
        """Whether the processes of other pods cannot be observed, as without `hostPID`, and never could."""
        self._sees = self._sees or sees_other_containers(self._proc)
        return not self._sees


def sees_other_containers(proc: Path) -> bool:
    """Return whether a process table shows those of other containers.

    It does in the machine's own PID namespace, whose number is known, and if there is more than one control group.
    """
    return _link(proc / "self/ns/pid") == _FIRST_NAMESPACE or len({text for _, text in _cgroups(proc)}) > 1


def _cgroups(proc: Path) -> Iterator[tuple[Path, str]]:
    for process in proc.iterdir() if proc.is_dir() else ():
        if process.name.isdecimal():
            yield process, _text(process / "cgroup")


def _described(processes: Iterable[tuple[str, Path]]) -> tuple[PodProcess, ...]:
    return tuple(
        PodProcess(container, _text(process / "comm").strip(), _started(process)) for container, process in processes
    )


def _is_zombie(stat: str) -> bool:
    """Return whether a process has ended, by its `/proc/PID/stat`; not if only its first thread has.

    Source: proc_pid_stat(5), fields 3 (state) and 20 (num_threads), behind the name, which may contain anything.
    """
    state, *fields = stat.rpartition(")")[2].split() or ("",)
    return state in {"Z", "X"} and fields[_THREADS : _THREADS + 1] in (["0"], ["1"])


def _started(process: Path) -> int:
    """Return when a process started, in ticks of the clock; 0 if it has ended. Source: proc_pid_stat(5), field 22."""
    fields = _text(process / "stat").rpartition(")")[2].split()[1:]
    return int(fields[_START]) if len(fields) > _START else 0


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # it has ended meanwhile
