"""Authenticates and authorizes requests: kube-apiserver as a proxy by its certificate, other clients by token.

Source: Kubernetes documentation, Configure the Aggregation Layer.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from tessera.api.kubernetes.frontproxy import CONFIG_MAP, NAMESPACE, FrontProxy, read_front_proxy
from tessera.api.kubernetes.reviews import Attributes, ReviewedUser
from tessera.clients.kube import CONFIG_MAPS, Kube
from tessera.errors import Unavailable
from tessera.server.reviews import Reviews

__all__ = ["MetricsAccess"]

_KEPT_S = 10.0
"""How long an answer of the API server is cached. Source: k8s.io/apiserver `pkg/server/options/authorization.go`."""
_BEARER = "Bearer "
_ANONYMOUS = "system:anonymous"
_AUTHENTICATED, _UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"


class MetricsAccess:
    """Authentication and authorization, both delegated to the API server.

    Args:
        kube: the API server.
        clock_s: a monotonic clock.

    """

    def __init__(self, kube: Kube, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._reviews = Reviews(kube, _KEPT_S, clock_s)
        self.known = asyncio.Event()
        """Set when the proxy's CA is known."""
        self._proxy: FrontProxy | None = None

    async def read_proxy(self, trust: Callable[[str], None]) -> None:
        """Read the CA and names of kube-apiserver's front proxy.

        Args:
            trust: called with the CA when it is new.

        Raises:
            TesseraError: the ConfigMap cannot be read, or is malformed.

        """
        found = await self._kube.get(CONFIG_MAPS, CONFIG_MAP, NAMESPACE)
        if found is None:
            raise Unavailable(
                f"ConfigMap {NAMESPACE}/{CONFIG_MAP}",
                found="it does not exist, so kube-apiserver's proxy certificate cannot be verified",
                hint="enable the aggregation layer",
            )
        proxy = read_front_proxy(found)
        if self._proxy is None or proxy.authority != self._proxy.authority:
            trust(proxy.authority)
        self._proxy = proxy
        self.known.set()

    async def user(self, peer: Mapping[str, Any] | None, headers: Iterable[tuple[str, str]]) -> ReviewedUser | None:
        """Return the user of a request; None if it is not authenticated.

        Args:
            peer: the client's certificate, verified against the trusted CAs.
            headers: lower-case names, and values.

        Raises:
            Unavailable: the API server does not review the token.

        """
        given = [*headers]
        if self._proxy is not None and peer is not None and self._proxy.admits(_common_name(peer)):
            found = self._proxy.identity(given)
            if found is not None:
                name, uid, groups, extra = found
                merged: dict[str, tuple[str, ...]] = {}
                for key, value in extra:
                    merged[unquote(key)] = (*merged.get(unquote(key), ()), value)
                return ReviewedUser(username=name, uid=uid, groups=_with_authenticated(name, groups), extra=merged)
        token = next((value for key, value in given if key == "authorization"), "")
        if not token.startswith(_BEARER):
            return None
        return await self._reviews.user(token.removeprefix(_BEARER).strip())

    async def refusal(self, user: ReviewedUser, attributes: Attributes) -> str | None:
        """Return why a user may not read this; None where they may.

        Raises:
            Unavailable: the API server does not answer.

        """
        return await self._reviews.refusal(user, attributes)


def _with_authenticated(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the groups with `system:authenticated`: kube-apiserver reads discovery as a user without any.

    Source: k8s.io/apiserver `pkg/authentication/group/authenticated_group_adder.go`.
    """
    known = name == _ANONYMOUS or {_AUTHENTICATED, _UNAUTHENTICATED} & {*groups}
    return groups if known else (*groups, _AUTHENTICATED)


def _common_name(peer: Mapping[str, Any]) -> str:
    """Return the common name of a certificate, as `ssl.SSLSocket.getpeercert` describes it."""
    return next((str(value) for part in peer.get("subject", ()) for key, value in part if key == "commonName"), "")
