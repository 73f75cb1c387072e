"""Sockets with a limit on open connections, for ports that untrusted clients reach."""

import socket
from collections import Counter

__all__ = ["BoundedListener"]


class BoundedListener(socket.socket):
    """A listening socket for an event loop that closes a connection for each one above the limit.

    It closes the oldest connection of the address with the most: a client with many closes its own, and others are
    not affected. A closed connection is shut down here, and released by its owner.

    Args:
        listener: a listening socket, which this one replaces.
        most: open connections.

    """

    def __init__(self, listener: socket.socket, most: int) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self._most = most
        self._open: list[tuple[str, socket.socket]] = []
        """The addresses and connections, oldest first."""
        self._waits = False
        """Whether a connection was closed just now, and must be released before the next is accepted."""

    @property
    def connections(self) -> int:
        """Number of open connections."""
        self._open = [each for each in self._open if each[1].fileno() != -1]
        return len(self._open)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection and its address.

        Raises:
            BlockingIOError: there is none, or the loop must release one first: a burst at once would be too many
                open files.

        """
        if self._waits:
            self._waits = False
            raise BlockingIOError
        connection, address = super().accept()
        if self.connections >= self._most:
            self._waits = True
            self._end_one()
        self._open.append((address[0], connection))
        return connection, address

    def _end_one(self) -> None:
        count = Counter(host for host, _ in self._open)
        most = max(count.values())
        place = next(place for place, (host, _) in enumerate(self._open) if count[host] == most)
        _, oldest = self._open.pop(place)
        try:
            oldest.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end closed it first
