"""How kube-apiserver, as a proxy in front of an extension server, identifies the requesting user.

Source: Kubernetes documentation, Configure the Aggregation Layer; k8s.io/apiserver
`pkg/authentication/request/headerrequest/requestheader.go`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.errors import InvalidInput, shown

__all__ = ["CONFIG_MAP", "NAMESPACE", "FrontProxy", "read_front_proxy"]

CONFIG_MAP, NAMESPACE = "extension-apiserver-authentication", "kube-system"


class FrontProxy(msgspec.Struct, frozen=True, kw_only=True):
    """The proxy's client certificate, and the headers with the user."""

    authority: str
    """Certificates in PEM that sign the proxy's."""
    names: tuple[str, ...] = ()
    """Common names of the proxy; empty for any."""
    user_headers: tuple[str, ...] = ("x-remote-user",)
    group_headers: tuple[str, ...] = ("x-remote-group",)
    uid_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ("x-remote-extra-",)

    def admits(self, common_name: str) -> bool:
        """Return whether a client with a certificate of the CA is the proxy."""
        return not self.names or common_name in self.names

    def identity(
        self, headers: Iterable[tuple[str, str]]
    ) -> tuple[str, str, tuple[str, ...], tuple[tuple[str, str], ...]] | None:
        """Return name, UID, groups and extra fields of the user in the headers, these with their original keys.

        None if there is no user.

        Args:
            headers: lower-case names, and values, in their order.

        """
        given = [*headers]
        name = _first(given, self.user_headers)
        if not name:
            return None
        groups = tuple(value for key, value in given if key in self.group_headers)
        extra = tuple(
            (key.removeprefix(prefix), value)
            for prefix in self.extra_prefixes
            for key, value in given
            if key.startswith(prefix)
        )
        return name, _first(given, self.uid_headers), groups, extra


def _first(headers: Sequence[tuple[str, str]], names: tuple[str, ...]) -> str:
    return next((value for name in names for key, value in headers if key == name and value), "")


def read_front_proxy(config_map: Mapping[str, Any]) -> FrontProxy:
    """Return the content of the ConfigMap that kube-apiserver publishes for extension servers.

    Raises:
        InvalidInput: it is malformed, or the cluster has no proxy: its aggregation layer is off.

    """
    data = config_map.get("data") or {}
    authority = data.get("requestheader-client-ca-file")
    if not authority:
        raise InvalidInput(
            f"ConfigMap {NAMESPACE}/{CONFIG_MAP}",
            found="it has no requestheader-client-ca-file, the authority of kube-apiserver's proxy certificate",
            hint="enable the aggregation layer: --requestheader-client-ca-file of kube-apiserver",
        )
    return FrontProxy(
        authority=authority,
        names=_names(data, "requestheader-allowed-names"),
        user_headers=_lower(_names(data, "requestheader-username-headers")),
        group_headers=_lower(_names(data, "requestheader-group-headers")),
        uid_headers=_lower(_names(data, "requestheader-uid-headers")),
        extra_prefixes=_lower(_names(data, "requestheader-extra-headers-prefix")),
    )


def _names(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = data.get(key, "[]")
    try:
        return msgspec.convert(json.loads(text), tuple[str, ...])
    except (ValueError, RecursionError) as error:  # msgspec.ValidationError is one
        raise InvalidInput(
            f"ConfigMap {NAMESPACE}/{CONFIG_MAP}, key {key}", found=shown(text), expected="a JSON list of names"
        ) from error


def _lower(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each.lower() for each in names)
