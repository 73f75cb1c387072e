"""Sockets that strangers may reach: how many connections are open, and whose are ended."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tessera.listeners import BoundedListener

Pair = tuple[socket.socket, socket.socket]


class Line:
    """A listener of at most three connections, and its clients."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.listener = stack.enter_context(BoundedListener(socket.create_server(("127.0.0.1", 0)), most=3))

    def client(self, address: str = "127.0.0.1") -> Pair:
        """Return both ends of a new connection from an address."""
        to = self.listener.getsockname()
        mine = self._stack.enter_context(socket.create_connection(to, timeout=10, source_address=(address, 0)))
        try:
            theirs, _ = self.listener.accept()
        except BlockingIOError:  # the loop has its turn
            theirs, _ = self.listener.accept()
        return mine, self._stack.enter_context(theirs)


@pytest.fixture
def line() -> Iterator[Line]:
    with ExitStack() as stack:
        yield Line(stack)


def ended(one: socket.socket) -> bool:
    """Return whether the other end of an idle connection was shut down."""
    one.settimeout(0)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False


def test_for_one_too_many_the_oldest_is_ended(line: Line) -> None:
    pairs = [line.client() for _ in range(5)]
    assert [ended(mine) for mine, _ in pairs] == [True, True, False, False, False]
    assert line.listener.connections == 3


def test_the_loop_closes_what_was_ended_before_the_next_is_accepted(line: Line) -> None:
    for _ in range(4):
        line.client()
    with pytest.raises(BlockingIOError):
        line.listener.accept()
    line.client()


def test_who_opens_many_ends_its_own(line: Line) -> None:
    honest = line.client("127.0.0.2")
    pairs = [line.client() for _ in range(20)]
    assert not ended(honest[0])
    assert [ended(mine) for mine, _ in pairs] == [True] * 18 + [False] * 2


def test_a_connection_that_was_closed_makes_room(line: Line) -> None:
    pairs = [line.client() for _ in range(3)]
    pairs[0][1].close()
    assert line.listener.connections == 2
    pairs.append(line.client())
    assert [ended(mine) for mine, _ in pairs[1:]] == [False] * 3


def test_one_that_its_own_client_ended_meanwhile_is_let_go(line: Line) -> None:
    pairs = [line.client() for _ in range(3)]
    pairs[0][1].shutdown(socket.SHUT_RDWR)
    pairs[0][0].close()
    pairs.append(line.client())
    assert line.listener.connections == 3
    assert [ended(mine) for mine, _ in pairs[1:]] == [False] * 3
