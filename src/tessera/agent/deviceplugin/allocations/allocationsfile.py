"""The record of allocations on the node's disk, `allocations.json`, read after a restart.

Unreadable data is never overwritten: a damaged file is kept beside the new one, and each readable entry
counts, whatever is wrong with the others.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tessera.agent.nodefiles import require_room, write_through
from tessera.api.tessera.node import agentfiles
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation
from tessera.core.deviceplugin.allocations.unreadableentries import UnreadableEntry, still_unrecorded
from tessera.errors import Unavailable
from tessera.log import Logger

__all__ = ["ReadAllocations", "read_allocations", "require_room_for_more", "write_allocations"]

_ROOM_BYTES = 64 << 10
"""More than the entries of a pod take."""

_MOST_BAD = 10
"""How many damaged files are kept."""


class ReadAllocations(NamedTuple):
    """What was read of the record."""

    entries: tuple[AgentAllocation, ...]
    unreadable: frozenset[UnreadableEntry] = frozenset()
    """Unreadable entries, here or in files kept before: it is not known what their pods use."""
    lost: bool = False
    """Whether the file is missing, or an entry of it is unreadable; else it has all that the agent ever answered."""


def read_allocations(path: Path, log: Logger) -> ReadAllocations:
    """Return the recorded entries; none where there is no file.

    Raises:
        Unavailable: the file exists and cannot be read; nothing may be allocated without it.

    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ReadAllocations((), _unreadable_in_kept(path), lost=True)
    except OSError as error:
        raise Unavailable(
            f"record of allocations {path}",
            found=error.strerror or str(error),
            hint="give a --state-dir that the agent may read; no device is offered before",
        ) from error
    found, problem = agentfiles.read_allocations(content)
    if problem:
        aside = _keep_aside(path, content)
        log.warning("allocations_unreadable", reason=f"{path}: {problem}", left=len(found), kept=str(aside))
    return ReadAllocations(found, still_unrecorded(_unreadable_in_kept(path), found), lost=bool(problem))


def _unreadable_in_kept(path: Path) -> frozenset[UnreadableEntry]:
    """Return the unreadable entries of damaged files, this one and those of agents before: their pods may still run."""
    unreadable = frozenset[UnreadableEntry]()
    for each in path.parent.glob(f"{path.name}.*.bad"):
        with contextlib.suppress(OSError):
            unreadable |= agentfiles.unreadable_entries(each.read_bytes())
    return unreadable


def write_allocations(path: Path, record: tuple[AgentAllocation, ...]) -> None:
    """Replace the record, and sync it to disk.

    Raises:
        Unavailable: it cannot be written; the former one stays.

    """
    _write(path, agentfiles.write_allocations(record))


def require_room_for_more(path: Path) -> None:
    """Check that a record with some more entries can be written beside the present one.

    Raises:
        Unavailable: it cannot.

    """
    with _unavailable_if_failing(path):
        require_room(path.parent, path.stat().st_size + _ROOM_BYTES)


def _keep_aside(path: Path, content: bytes) -> Path:
    """Keep a damaged file beside the new one, and the newest of those before it."""
    aside = path.with_name(f"{path.name}.{hashlib.sha256(content).hexdigest()[:10]}.bad")
    _write(aside, content)
    kept = sorted(path.parent.glob(f"{path.name}.*.bad"), key=lambda each: (each != aside, -each.lstat().st_mtime_ns))
    for each in kept[_MOST_BAD:]:
        with contextlib.suppress(OSError):
            each.unlink()
    return aside


def _write(path: Path, content: bytes) -> None:
    with _unavailable_if_failing(path):
        write_through(path, content)


@contextlib.contextmanager
def _unavailable_if_failing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"record of allocations {path}",
            found=error.strerror or str(error),
            hint="give a --state-dir that the agent may write to, with room on its disk; no device is allocated before",
        ) from error
