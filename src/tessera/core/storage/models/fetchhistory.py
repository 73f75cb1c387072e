"""What came of a model's fetches on a node, and of the room that other models made for it.

A model's *room* is one of these:

- `Needed`: its last fetch did not fit, and no plan has decided on it yet.
- `Made`: a plan made room for it, and no fetch has ended there since.
- `Refused`: the last plan found too little room. What is fetched of it so far makes room for any other model until its
  own fetch begins again: it would lie there for ever. It begins as soon as the disk has enough free bytes.
- empty: none of these.

A fetch that fails in room made for it without further bytes pauses that: nothing makes room for the model for an
hour, then two, up to a day. All of this is forgotten when something else is to be fetched; other credentials in the
model's Secret end the pause alone.
"""

from typing import Literal

import msgspec

from tessera.core.storage.models.nodemodels import ObservedModel
from tessera.core.storage.retries import has_passed

__all__ = ["FetchHistory", "RoomBackoff", "fetch_history", "resumed_history"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 3600.0, 86400.0
"""The first pause of a back-off; each further one is twice as long."""


class RoomBackoff(msgspec.Struct, frozen=True):
    """Why nothing makes room for a model for a while: fetches for which room was made failed without further bytes.

    Args:
        count: how many such fetches in a row.
        failed_s: when the last one failed, in seconds since 1970.
        reason: why.

    """

    count: int
    failed_s: float
    reason: str = ""

    @property
    def pause_s(self) -> float:
        """How long nothing makes room since the last failure."""
        return min(_FIRST_PAUSE_S * (1 << min(self.count - 1, 9)), _LONGEST_PAUSE_S)

    @property
    def until_s(self) -> float:
        """When others may make room again, in seconds since 1970."""
        return self.failed_s + self.pause_s


class FetchHistory(msgspec.Struct, frozen=True):
    """What came of a model's fetches on a node; `fetch_history` returns that of a model without any.

    Args:
        report: how its last fetch ended, also that of an agent that has ended.
        identity: that of the model to which the rest belongs.
        room: as above.
        missing_bytes: that the last fetch lacked, where room is needed.
        enough_bytes: so many free bytes, above the reserve, would be enough for it, beside what others make room by.
        most_bytes: that a failed fetch had.
        backoff: the last back-off from making room, also a past one, which the next one follows.
        credentials: the digest of those by which the source was opened last; empty for none.

    """

    report: ObservedModel
    identity: str = ""
    room: Literal["", "Needed", "Made", "Refused"] = ""
    missing_bytes: int = 0
    enough_bytes: int = 0
    most_bytes: int = 0
    backoff: RoomBackoff | None = None
    credentials: str = ""

    def of(self, identity: str) -> "FetchHistory":
        """Return the history of a model of this identity: only the report is left where that was another."""
        return self if identity == self.identity else FetchHistory(self.report, identity)

    def room_backoff(self, now_s: float) -> RoomBackoff | None:
        """Return the back-off for which nothing makes room now; None where others may."""
        last = self.backoff
        return None if last is None or has_passed(last.failed_s, last.pause_s, now_s) else last

    def begun(self) -> "FetchHistory":
        """A fetch has begun, which uses what is there of an earlier one."""
        return msgspec.structs.replace(self, room="" if self.room == "Refused" else self.room)

    def opened(self, credentials: str) -> "FetchHistory":
        """Its source was opened: a corrected Secret may end what the back-off is for."""
        backoff = self.backoff if credentials == self.credentials else None
        return msgspec.structs.replace(self, credentials=credentials, backoff=backoff)

    def lacked_room(self, missing_bytes: int, free_bytes: int) -> "FetchHistory":
        """The fetch did not fit, by so many bytes beside the free ones."""
        enough_bytes = free_bytes + missing_bytes
        return msgspec.structs.replace(self, room="Needed", missing_bytes=missing_bytes, enough_bytes=enough_bytes)

    def room_made(self, reason: str = "") -> "FetchHistory":
        """A plan makes room: at once, or as the reason says."""
        report = msgspec.structs.replace(self.report, state="Missing", reason=reason) if reason else self.report
        return msgspec.structs.replace(self, room="Made", missing_bytes=0, report=report)

    def refused(self, reason: str, now_s: float, missing_bytes: int) -> "FetchHistory":
        """A plan found too little room, by so many bytes: the fetch is tried again later, or when these are free."""
        enough_bytes = self.enough_bytes - self.missing_bytes + missing_bytes
        return msgspec.structs.replace(self.put_off(reason, now_s), room="Refused", enough_bytes=enough_bytes)

    def has_room(self, free_bytes: int) -> bool:
        """Return whether there is room for it by now, which others have made or the disk has: it waits no longer."""
        return self.room == "Made" or (self.room == "Refused" and free_bytes >= self.enough_bytes)

    def put_off(self, reason: str, now_s: float) -> "FetchHistory":
        """The fetch is tried again later, without room: the pause doubles with each time in a row."""
        failures = self.report.failures if self.report.identity == self.identity else 0
        report = msgspec.structs.replace(
            self.report, state="Failed", identity=self.identity, failed_s=now_s, failures=failures + 1, reason=reason
        )
        return msgspec.structs.replace(self, room="", missing_bytes=0, report=report)

    def failed(self, reason: str, now_s: float, done_bytes: int) -> "FetchHistory":
        """The fetch has failed, with so many bytes by then, those of earlier fetches included."""
        ended = self.put_off(reason, now_s)
        if done_bytes > self.most_bytes:
            return msgspec.structs.replace(ended, most_bytes=done_bytes, backoff=None)
        if self.room != "Made":
            return ended
        count = self.backoff.count if self.backoff is not None else 0
        return msgspec.structs.replace(ended, backoff=RoomBackoff(count + 1, now_s, reason))

    def fetched(self, now_s: float) -> "FetchHistory":
        """The model is there."""
        report = msgspec.structs.replace(
            self.report,
            state="Ready",
            identity=self.identity,
            checked_s=now_s,
            failed_s=0.0,
            failures=0,
            reason="",
        )
        return FetchHistory(report, self.identity)


def fetch_history(name: str) -> FetchHistory:
    """Return the history of a model that was never fetched."""
    return FetchHistory(ObservedModel(name=name))


def resumed_history(report: ObservedModel) -> FetchHistory:
    """Return the history of a model from the report of an agent that has ended.

    What else kept the model from being ready then, such as an error of the disk, is no part of it.
    """
    if report.state == "Fetching":
        return FetchHistory(msgspec.structs.replace(report, state="Missing"))
    if report.failures:
        return FetchHistory(report)
    state = report.state if report.state != "Failed" else "Ready" if report.checked_s else "Missing"
    return FetchHistory(msgspec.structs.replace(report, state=state, reason=""))
