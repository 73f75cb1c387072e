"""Logs and ports of pods in memory."""

import asyncio
import re

from tessera.clients.kube.protocol import Object, name_of
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["LocalSocket", "TimedLines", "check_started"]


def check_started(subject: str, pod: Object, container: str) -> None:
    """Reject a log that is not there yet, as kubelets do. Source: Kubernetes, `validateContainerLogStatus`."""
    states = (pod.get("status") or {}).get("containerStatuses") or ()
    state = next((each.get("state") or {} for each in states if each["name"] == container), {})
    if not {"running", "terminated"} & state.keys():
        reason = (state.get("waiting") or {}).get("reason", "no logs yet")
        found = f'container "{container}" in pod "{name_of(pod)[1]}" is waiting to start: {reason}'
        raise InvalidInput(subject, found=found, hint="try again when it has started")


class TimedLines:
    """The lines of a log with their times, without those before a second."""

    def __init__(self, since: str) -> None:
        self._since, self._number, self._rest = since, 0, False

    def of(self, piece: bytes) -> bytes:
        """Return the next piece of the log with times."""
        found = b""
        for part in re.findall(rb"[^\n]*\n|[^\n]+", piece):
            seconds, tenths = divmod((self._number - self._rest) // 2, 10)
            time = f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}.{tenths}00000000Z"
            if time >= self._since[:-1]:
                found += part if self._rest else f"{time} ".encode() + part
            self._number += not self._rest
            self._rest = not part.endswith(b"\n")
        return found


class LocalSocket:
    """A `Tunnel` to a socket of this machine."""

    def __init__(self, subject: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._subject = subject
        self._reader = reader
        self._writer = writer

    async def send(self, content: bytes) -> None:
        """Send bytes to the pod."""
        try:
            self._writer.write(content)
            await self._writer.drain()
        except OSError as error:
            raise Unavailable(self._subject, found=shown(error), hint="connect again") from error

    async def receive(self) -> bytes:
        """Return the next bytes of the pod; empty when it has ended the connection."""
        try:
            return await self._reader.read(65_536)
        except OSError as error:
            raise Unavailable(self._subject, found=shown(error), hint="connect again") from error
