"""The agent's files on its node's disk: `allocations.json`, a list of entries, and `shares.json`.

```json
[{"version": 1, "resource": "nvidia.com/mig-1g.5gb", "ids": ["MIG-..."], "uid": "...", "pod": "ns/name",
  "container": "c", "uses": [{"gpu": "GPU-...", "placement": {"start": 0, "size": 1, "profile": "1g.5gb"},
                              "sharer": "exclusive"}]}]
```

Each entry has its version, so that an unreadable one affects no other, and an older agent reads the rest. Entries
without a version are read as version 1.
"""

import contextlib
import enum
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Self

import msgspec

from tessera.api.fields import error_phrase, refused_form
from tessera.api.tessera.node.instancefields import InstanceFields
from tessera.api.tessera.shares import UnversionedShareFields
from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, AllocatedDevice
from tessera.core.deviceplugin.allocations.matching import Answer, Correction
from tessera.core.deviceplugin.allocations.unreadableentries import UnreadableEntry
from tessera.errors import UNDECODABLE

__all__ = ["Answers", "read_allocations", "read_answers", "unreadable_entries", "write_allocations", "write_answers"]


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """State that must survive a restart of the agent: between two calls, and between two writes of one exchange."""

    answers: tuple[Answer, ...] = ()
    exchanges: tuple[Correction, ...] = ()


class _Sharer(enum.StrEnum):
    EXCLUSIVE = "exclusive"
    REPLICA = "replica"
    MEMORY = "memory"

    @classmethod
    def _missing_(cls, value: object) -> "_Sharer | None":
        """Read the words of the first version."""
        return _FORMER_SHARERS.get(value)


_FORMER_SHARERS: dict[object, _Sharer] = {
    "nobody": _Sharer.EXCLUSIVE,
    "clients": _Sharer.REPLICA,
    "amounts": _Sharer.MEMORY,
}


class _UseFields(msgspec.Struct, frozen=True, kw_only=True):
    gpu: str
    placement: InstanceFields | None = None
    exclusivity: _Sharer = msgspec.field(name="sharer", default=_Sharer.EXCLUSIVE)
    memory_mib: int = 0
    mps: bool | None = None
    clients: int = 0
    absent: bool = False

    @classmethod
    def of(cls, use: AllocatedDevice) -> Self:
        """Return the record of a container's device."""
        place = use.device.placement
        return cls(
            gpu=use.device.gpu,
            placement=None if place is None else InstanceFields(place.start, place.size, place.profile),
            exclusivity=_Sharer(use.exclusivity),
            memory_mib=use.memory_mib,
            mps=use.mps,
            clients=use.clients,
            absent=use.absent,
        )

    @property
    def device(self) -> tuple[str, InstanceFields | None]:
        """The fields of the device."""
        return self.gpu, self.placement


class _AllocationFields(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    resource: str
    ids: tuple[str, ...]
    uses: tuple[_UseFields, ...] = ()
    uid: str = ""
    pod: str = ""
    container: str = ""
    initial: bool = False
    order: int = -1
    at_ns: int = 0
    presumed: bool = msgspec.field(default=False, name="guessed")
    started: bool = False
    assignment: str = ""
    key: str = ""
    signature: str = ""
    strategies: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    answer_known: bool = False


class _KeyFields(NamedTuple):
    namespace: str
    pod: str
    container: str
    resource: str


class _AnswerFields(msgspec.Struct, frozen=True, kw_only=True):
    ids: frozenset[str]
    key: _KeyFields
    specification: str
    shares: tuple[UnversionedShareFields, ...]
    fixed: bool = True


class _RequestFields(msgspec.Struct, frozen=True, kw_only=True):
    key: _KeyFields
    uid: str = ""
    units: int
    shares: tuple[UnversionedShareFields, ...]
    at: int = 0
    since_ns: int = 0
    ending: bool = False
    running: bool = False
    initial: bool = False
    request_text: str = msgspec.field(default="", name="ask")
    memory_mib: int = 0
    models: tuple[str, ...] = ()
    bound: str = ""


class _CorrectionFields(msgspec.Struct, frozen=True, kw_only=True):
    request: _RequestFields = msgspec.field(name="due")
    shares: tuple[UnversionedShareFields, ...]


class _AnswersFields(msgspec.Struct, frozen=True, kw_only=True):
    version: Literal[1] = 1
    answers: tuple[_AnswerFields, ...] = ()
    exchanges: tuple[_CorrectionFields, ...] = ()


class _FormerCorrectionFields(msgspec.Struct, frozen=True, kw_only=True):
    request: _RequestFields = msgspec.field(name="claim")
    shares: tuple[UnversionedShareFields, ...]


class _FormerAnswersFields(_AnswersFields, frozen=True, kw_only=True):
    """As the first version wrote them."""

    exchanges: tuple[_FormerCorrectionFields, ...] = ()  # type: ignore[assignment]


_NAMED = {name: re.compile(rb'"%s": ?"([^"]+)"' % name.encode()) for name in ("uid", "container", "resource")}
_ENTRIES = msgspec.json.Decoder(tuple[msgspec.Raw, ...])
_ENTRY = msgspec.json.Decoder(_AllocationFields)
_ANSWERS = msgspec.json.Decoder(_AnswersFields)
_FORMER_ANSWERS = msgspec.json.Decoder(_FormerAnswersFields)


def write_allocations(record: Iterable[AgentAllocation]) -> bytes:
    """Return the content of `allocations.json`."""
    return msgspec.json.encode([_entry(each) for each in record])


@lru_cache(maxsize=1024)  # the record is written as a whole with each allocation, and most of it is as before
def _entry(allocation: AgentAllocation) -> msgspec.Raw:
    found = msgspec.convert(msgspec.structs.replace(allocation, uses=()), _AllocationFields, from_attributes=True)
    uses = tuple(map(_UseFields.of, allocation.uses))
    return msgspec.Raw(msgspec.json.encode(msgspec.structs.replace(found, uses=uses)))


def read_allocations(content: bytes) -> tuple[tuple[AgentAllocation, ...], str]:
    """Return the readable entries, and why others are not; empty if all are."""
    found, problem = [], ""
    try:
        entries = _ENTRIES.decode(content)
    except UNDECODABLE as error:
        return (), error_phrase(error, content)
    for each in entries:
        try:
            found.append(msgspec.convert(_ENTRY.decode(each), AgentAllocation, from_attributes=True))
        except UNDECODABLE as error:
            problem = error_phrase(error, bytes(each))
    return tuple(found), problem


def unreadable_entries(content: bytes) -> frozenset[UnreadableEntry]:
    """Return what is left of the unreadable entries of pods in an `allocations.json`, however damaged it is."""
    try:
        entries = _ENTRIES.decode(content)
    except UNDECODABLE:
        return frozenset(UnreadableEntry(uid) for uid in _named("uid", content))
    return frozenset(each for entry in entries for each in _unreadable(bytes(entry)))


def _unreadable(entry: bytes) -> Iterator[UnreadableEntry]:
    try:
        msgspec.convert(_ENTRY.decode(entry), AgentAllocation, from_attributes=True)
    except UNDECODABLE:
        for uid in _named("uid", entry):
            container, resource = ("".join(_named(name, entry)[:1]) for name in ("container", "resource"))
            yield UnreadableEntry(uid, container, resource)


def _named(name: str, content: bytes) -> list[str]:
    return [each.decode(errors="replace") for each in _NAMED[name].findall(content)]


def write_answers(answers: Answers) -> bytes:
    """Return the content of `shares.json`."""
    return msgspec.json.encode(msgspec.convert(answers, _AnswersFields, from_attributes=True))


def read_answers(content: bytes, source: str) -> Answers:
    """Return the content of `shares.json`.

    Raises:
        InvalidInput: it is not such a file, or is of a later version.

    """
    try:
        return _answers(_ANSWERS, content)
    except UNDECODABLE as error:
        with contextlib.suppress(*UNDECODABLE):
            return _answers(_FORMER_ANSWERS, content)
        raise refused_form(
            error, content, source, "only answers that an agent of this version keeps are read"
        ) from error


def _answers(decoder: msgspec.json.Decoder[Any], content: bytes) -> Answers:
    return msgspec.convert(decoder.decode(content), Answers, from_attributes=True)
