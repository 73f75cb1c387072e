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
    admitted: bool
    """Whether they may see the page at all: list nodes, or the pods of a namespace that uses GPUs."""


class SignIn:
    """Authenticates and authorizes viewers at the API server.

    Args:
        kube: the Kubernetes API.
        clock_s: a monotonic clock.

    """

    def __init__(self, kube: Kube, clock_s: Callable[[], float]) -> None:
        self._reviews = Reviews(kube, _TRUSTED_S, clock_s)

    async def user(self, token: str) -> ReviewedUser | None:
        """Return the user of a token; None for an invalid token.

        Raises:
            TesseraError: the API server does not answer.

        """
        return await self._reviews.user(token)

    async def viewer(self, user: ReviewedUser, namespaces: Iterable[str]) -> Viewer:
        """Return a user as a viewer, with those of these namespaces that they may see.

        Raises:
            TesseraError: the API server does not answer.

        """
        nodes, everywhere = await asyncio.gather(self._may_list(user, "nodes"), self._may_list(user, "pods"))
        if nodes and everywhere:
            return Viewer(name=user.username, scope=EVERYTHING, admitted=True)
        requested = sorted(namespaces)
        if everywhere:
            shown = frozenset(requested)
        else:
            allowed = await asyncio.gather(*(self._may_list(user, "pods", each) for each in requested))
            shown = frozenset(name for name, may in zip(requested, allowed, strict=True) if may)
        return Viewer(name=user.username, scope=Scope(namespaces=shown), admitted=nodes or everywhere or bool(shown))

    async def _may_list(self, user: ReviewedUser, resource: str, namespace: str = "") -> bool:
        requested = Attributes(verb="list", resource=resource, namespace=namespace)
        return await self._reviews.refusal(user, requested) is None
