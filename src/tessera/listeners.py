"""Sockets that strangers may reach: however many connect, so many connections at most are open at once."""

import socket
from collections import Counter

__all__ = ["BoundedListener"]


class BoundedListener(socket.socket):
    """A listening socket, for an event loop, that ends a connection for each one too many.

    Of the address that has the most open connections it ends the oldest: who opens many ends their own, and others are
    answered as ever. A connection that is ended is shut down, and closed by whoever was given it.

    Args:
        listener: a listening socket, which this one takes the place of.
        most: connections that may be open at once.

    """

    def __init__(self, listener: socket.socket, most: int) -> None:
        super().__init__(listener.family, listener.type, listener.proto, listener.detach())
        self._most = most
        self._open: list[tuple[str, socket.socket]] = []
        """The addresses and connections, oldest first."""
        self._waits = False
        """Whether a connection was ended just now, and is to be closed before the next is accepted."""

    @property
    def connections(self) -> int:
        """How many connections are open."""
        self._open = [each for each in self._open if each[1].fileno() != -1]
        return len(self._open)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection and where it comes from.

        Raises:
            BlockingIOError: there is none, or the loop must close one first: all of a burst at once would be too many
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
            return  # the other end was faster
