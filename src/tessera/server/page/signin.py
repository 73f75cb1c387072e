"""The namespaces that a viewer may see, by reviews of their token at the API server."""

import asyncio
from collections.abc import Callable, Iterable

import msgspec

from tessera.api.kubernetes.reviews import Attributes, ReviewedUser
from tessera.clients.kube import Kube
from tessera.core.explain.fleetscope import EVERYTHING, Scope
from tessera.server.reviews import Reviews

__all__ = ["SignIn", "Viewer"]

_TRUSTED_S = 30.0
"""How long an answer of the API server is cached."""


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """A viewer of the page."""

    name: str
    scope: Scope
    welcome: bool
    """Whether they may see the page at all: list nodes, or the pods of a namespace that uses GPUs."""


class SignIn:
    """Authenticates and authorizes viewers at the API server.

    Args:
        kube: the Kubernetes API.
        clock_s: a monotonic clock.

    """

    def __init__(self, kube: Kube, clock_s: Callable[[], float]) -> None:
        self._reviews = Reviews(kube, _TRUSTED_S, clock_s)

    async def viewer(self, token: str, namespaces: Iterable[str]) -> Viewer | None:
        """Return the user of a token and the namespaces that they may see; None for an invalid token.

        Raises:
            TesseraError: the API server does not answer.

        """
        user = await self._reviews.user(token)
        if user is None:
            return None
        nodes, everywhere = await asyncio.gather(self._may_list(user, "nodes"), self._may_list(user, "pods"))
        if nodes and everywhere:
            return Viewer(name=user.username, scope=EVERYTHING, welcome=True)
        requested = sorted(namespaces)
        if everywhere:
            shown = frozenset(requested)
        else:
            allowed = await asyncio.gather(*(self._may_list(user, "pods", each) for each in requested))
            shown = frozenset(name for name, may in zip(requested, allowed, strict=True) if may)
        return Viewer(name=user.username, scope=Scope(namespaces=shown), welcome=nodes or everywhere or bool(shown))

    async def _may_list(self, user: ReviewedUser, resource: str, namespace: str = "") -> bool:
        requested = Attributes(verb="list", resource=resource, namespace=namespace)
        return await self._reviews.refusal(user, requested) is None
