"""An ASGI middleware for vLLM that lets clients spread over new replicas.

Its source is part of the program that starts vLLM, so it imports nothing of Tessera.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

__all__ = ["RenewedConnections"]

_Message = MutableMapping[str, Any]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[Any, Any, _Send], Awaitable[None]]


class RenewedConnections:
    """Closes the connection after every 31st answer: its client connects again, and may reach another replica.

    The number is a prime, so that clients that take turns are all closed some time.
    """

    ANSWERS: Final = 31

    def __init__(self, app: _App) -> None:
        self._app = app
        self._answers = 0

    async def __call__(self, scope: Any, receive: Any, send: _Send) -> None:
        """Serve a request."""

        async def closing(message: _Message) -> None:
            if message["type"] == "http.response.start":
                self._answers += 1
                if self._answers % self.ANSWERS == 0:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, closing if scope["type"] == "http" else send)
