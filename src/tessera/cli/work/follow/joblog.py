"""The log of a Job's command: all of it once, however often its stream ends."""

import re
from collections.abc import AsyncIterator

from tessera.api.kubernetes.jobstates import JobState
from tessera.clients.kube import Kube

__all__ = ["JobLog", "NewParts"]

_PARTS = re.compile(rb"[^\n]*\n|[^\n]+")
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\S+")
_FRACTION = re.compile(r"\.\d+")


class JobLog:
    """What a command writes, read again from where the last reading ended.

    A stream of a log ends where a kubelet or an API server is restarted, or a load balancer limits connections. The
    time of each line says which are known; of the last one the part that was read may be known.

    Args:
        kube: the cluster.
        state: of the Job; the log is its pod's.

    """

    def __init__(self, kube: Kube, state: JobState) -> None:
        self._kube, self._state = kube, state
        self._time = b""
        """Of the last line that was read."""
        self._lines = 0
        """How many of that time were read."""
        self._bytes = 0
        """How many of the last of them."""

    async def read(self) -> AsyncIterator[bytes]:
        """Yield what was not read yet, in pieces, until the stream ends.

        Raises:
            TesseraError: it broke off.

        """
        since, new = _FRACTION.sub("", self._time.decode(), count=1), NewParts(self._time, self._lines, self._bytes)
        pieces = self._kube.logs(
            self._state.pod, self._state.namespace, container=self._state.container, follow=True, since=since
        )
        async for piece in pieces:
            found = new.of(piece)
            self._time, self._lines, self._bytes = new.time, new.lines, new.bytes
            if found:
                yield found


class NewParts:
    """The parts of a stream with times that are not known, without the times.

    Args:
        time: of the last line that is known.
        lines: known ones of that time.
        size: known bytes of the last of them.

    """

    def __init__(self, time: bytes, lines: int, size: int) -> None:
        self.time, self.lines, self.bytes = time, lines, size
        self._known = (time, lines, size)
        self._head, self._in_text = b"", False
        self._met = 0
        """Lines of the last known time in this stream."""
        self._left_out: int | None = 0
        """Bytes of this line that are known; None for all."""

    def of(self, piece: bytes) -> bytes:
        """Return the new parts of the next piece."""
        found = b""
        for each in _PARTS.findall(piece):
            part = each
            if not self._in_text:
                self._head += part
                if b" " not in self._head and not self._head.endswith(b"\n"):
                    continue  # the rest of its time is to come
                part, self._head = self._begin(self._head), b""
            if self._left_out is None:
                part = b""
            else:
                known = min(self._left_out, len(part))
                part, self._left_out = part[known:], self._left_out - known
            self.bytes += len(part)
            found += part
            self._in_text = not each.endswith(b"\n")
        return found

    def _begin(self, head: bytes) -> bytes:
        """Return the text of a new line, and note how much of it is known."""
        time, _, text = head.partition(b" ")
        if not _TIME.fullmatch(time):  # what the kubelet itself says has none
            self._left_out = 0
            return head
        known_time, known_lines, known_bytes = self._known
        self._met += time == known_time
        if time < known_time or (time == known_time and self._met < known_lines):
            self._left_out = None
        elif time == known_time and self._met == known_lines:
            self._left_out = known_bytes
        else:
            self._left_out = 0
            self.lines = self.lines + 1 if time == self.time else 1
            self.time, self.bytes = time, 0
        return text
