"""Who asks, and whether they may: kube-apiserver as a proxy by its certificate, others by token; the API server says.

Source: Kubernetes documentation, Configure the Aggregation Layer.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from tessera.api.kubernetes.frontproxy import CONFIG_MAP, NAMESPACE, FrontProxy, read_front_proxy
from tessera.api.kubernetes.reviews import Attributes, User
from tessera.clients.kube import CONFIG_MAPS, Kube
from tessera.errors import Unavailable
from tessera.server.reviews import Reviews

__all__ = ["Access"]

_KEPT_S = 10.0
"""An answer of the API server counts for so long. Source: k8s.io/apiserver `pkg/server/options/authorization.go`."""
_BEARER = "Bearer "
_ANONYMOUS = "system:anonymous"
_AUTHENTICATED, _UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"


class Access:
    """Authentication and authorization, both delegated to the API server.

    Args:
        kube: the API server.
        clock_s: a clock that does not go back.

    """

    def __init__(self, kube: Kube, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._kube = kube
        self._reviews = Reviews(kube, _KEPT_S, clock_s)
        self.known = asyncio.Event()
        """Set when it is known who the proxy is."""
        self._proxy: FrontProxy | None = None

    async def read_proxy(self, trust: Callable[[str], None]) -> None:
        """Learn who the proxy is.

        Args:
            trust: given its authority where that is new.

        Raises:
            TesseraError: the ConfigMap cannot be read, or does not have the form.

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

    async def user(self, peer: Mapping[str, Any] | None, headers: Iterable[tuple[str, str]]) -> User | None:
        """Return who asks; None for nobody that is known.

        Args:
            peer: the client's certificate, verified against the authorities that were trusted.
            headers: names in lower case, and values.

        Raises:
            Unavailable: the API server does not say whose token it is.

        """
        given = [*headers]
        if self._proxy is not None and peer is not None and self._proxy.admits(_common_name(peer)):
            found = self._proxy.identity(given)
            if found is not None:
                name, uid, groups, extra = found
                merged: dict[str, tuple[str, ...]] = {}
                for key, value in extra:
                    merged[unquote(key)] = (*merged.get(unquote(key), ()), value)
                return User(username=name, uid=uid, groups=_with_authenticated(name, groups), extra=merged)
        token = next((value for key, value in given if key == "authorization"), "")
        if not token.startswith(_BEARER):
            return None
        return await self._reviews.user(token.removeprefix(_BEARER).strip())

    async def refusal(self, user: User, attributes: Attributes) -> str | None:
        """Return why somebody may not ask this; None where they may.

        Raises:
            Unavailable: the API server does not say.

        """
        return await self._reviews.refusal(user, attributes)


def _with_authenticated(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the groups with that of everybody who is known: kube-apiserver reads discovery as a user without any.

    Source: k8s.io/apiserver `pkg/authentication/group/authenticated_group_adder.go`.
    """
    known = name == _ANONYMOUS or {_AUTHENTICATED, _UNAUTHENTICATED} & {*groups}
    return groups if known else (*groups, _AUTHENTICATED)


def _common_name(peer: Mapping[str, Any]) -> str:
    """Return the common name of a certificate, as `ssl.SSLSocket.getpeercert` describes it."""
    return next((str(value) for part in peer.get("subject", ()) for key, value in part if key == "commonName"), "")
