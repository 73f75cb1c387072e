"""An ASGI middleware for vLLM that lets clients spread over new replicas.

Its source is part of the program that starts vLLM, so it imports nothing of Tessera.
"""

import random
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeAlias

__all__ = ["RenewedConnections"]

_Message: TypeAlias = MutableMapping[str, Any]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]
_App: TypeAlias = Callable[[Any, Any, _Send], Awaitable[None]]


class RenewedConnections:
    """Closes the connection after one answer of 31, by chance: its client connects again, maybe to another replica.

    Were answers counted, clients that take turns could have one that is never closed.
    """

    ANSWERS: Final = 31

    def __init__(self, app: _App, chance: random.Random) -> None:
        self._app = app
        self._chance = chance

    async def __call__(self, scope: Any, receive: Any, send: _Send) -> None:
        """Serve a request."""

        async def closing(message: _Message) -> None:
            if message["type"] == "http.response.start" and self._chance.randrange(self.ANSWERS) == 0:
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, closing if scope["type"] == "http" else send)
