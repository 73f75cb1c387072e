"""Objects of a cluster as `kubectl get` gives them, asked of the API server by this process.

A process of kubectl takes a tenth of a second of a processor, which whoever polls would take all the time.
"""

import argparse
import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from tessera.errors import Unavailable

__all__ = ["Lookups"]

_TIMEOUT_S = 60
_TRIES = 10
"""A server that has just begun to serve a kind answers `try again in a second`; kubectl asks as often."""
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class _Resource(msgspec.Struct, frozen=True):
    path: str
    """Of its version: `/apis/apps/v1`."""
    plural: str
    kind: str
    namespaced: bool


class Lookups:
    """The objects of the cluster of a kubeconfig with a certificate for its user, as `Pki` writes it.

    Args:
        kubeconfig: read anew for each question, because the port of a cluster that is started again is another one.

    """

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._resources: dict[str, _Resource] = {}

    def get(self, *arguments: str) -> Any:
        """Return an object, or `items`, by arguments of `kubectl get`: kinds with commas, a name, and these options.

        `-n NAMESPACE`, `-A`, `-l SELECTOR` and `--field-selector SELECTOR`, also in their long forms.

        Raises:
            Unavailable: there is none, or the API server does not answer; tells what kubectl would.

        """
        asked = _parser().parse_intermixed_args(arguments)
        if "," in asked.kinds:
            lists = (self.get(kind, *arguments[1:]) for kind in asked.kinds.split(","))
            return {"items": [each for found in lists for each in found["items"]]}
        subject = f"kubectl get {' '.join(arguments)}"
        resource = self._resource(subject, asked.kinds)
        place = f"/namespaces/{asked.namespace}" if resource.namespaced and not asked.all_namespaces else ""
        selectors = {"labelSelector": asked.selector, "fieldSelector": asked.field_selector}
        query = urlencode({key: value for key, value in selectors.items() if value})
        path = f"{resource.path}{place}/{resource.plural}{asked.name and '/'}{asked.name}{query and '?'}{query}"
        found = json.loads(self._read(subject, path))
        # In a list only its own kind is given.
        typed = {"apiVersion": resource.path.removeprefix("/apis/").removeprefix("/api/"), "kind": resource.kind}
        if asked.name:
            return _shown(found)
        return {**found, "items": [{**typed, **_shown(each)} for each in found["items"]]}

    def answers(self, path: str, *, timeout_s: float = _TIMEOUT_S) -> bool:
        """Return whether the API server answers a path, such as `/readyz`, with success."""
        try:
            self._read(path, path, timeout_s=timeout_s)
        except Unavailable:
            return False
        return True

    def _resource(self, subject: str, name: str) -> _Resource:
        if name not in self._resources:
            for root in ("/api", "/apis"):
                groups = json.loads(self._read(subject, root, _DISCOVERY))["items"]
                for known, resource in _resources(root, groups):
                    self._resources.setdefault(known, resource)
        if name not in self._resources:
            found = f'error: the server doesn\'t have a resource type "{name}"'
            raise Unavailable(subject, found=found, hint="install its kind")
        return self._resources[name]

    def _read(
        self, subject: str, path: str, accept: str = "application/json", *, timeout_s: float = _TIMEOUT_S
    ) -> bytes:
        status, content, again_s = self._ask(subject, path, accept, timeout_s)
        for _ in range(_TRIES - 1):
            if status != http.HTTPStatus.TOO_MANY_REQUESTS:
                break
            time.sleep(again_s)
            status, content, again_s = self._ask(subject, path, accept, timeout_s)
        if status != http.HTTPStatus.OK:
            message = content.decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(content)
                message = f"Error from server ({found['reason']}): {found['message']}"
            raise Unavailable(subject, found=message, hint="see what the API server says")
        return content

    def _ask(self, subject: str, path: str, accept: str, timeout_s: float) -> tuple[int, bytes, float]:
        """Return the status of an answer, what it says, and after how many seconds to ask again."""
        try:
            with contextlib.closing(self._connection(timeout_s)) as connection:
                connection.request("GET", path, headers={"Accept": accept})
                response = connection.getresponse()
                return response.status, response.read(), float(response.headers.get("Retry-After", 1))
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Unavailable(subject, found=f"no answer: {error!r}", hint="see the log of the API server") from error

    def _connection(self, timeout_s: float) -> http.client.HTTPSConnection:
        config = json.loads(self._kubeconfig.read_bytes())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        context.load_cert_chain(user["client-certificate"], user["client-key"])
        address = urlsplit(cluster["server"])
        return http.client.HTTPSConnection(address.netloc, timeout=timeout_s, context=context)


def _shown(found: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what kubectl leaves out: who wrote which of its fields."""
    shown = {name: value for name, value in found["metadata"].items() if name != "managedFields"}
    return {**found, "metadata": shown}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("get", add_help=False)
    parser.add_argument("kinds")
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--namespace", "-n", default="default")
    parser.add_argument("--all-namespaces", "-A", action="store_true")
    parser.add_argument("--selector", "-l")
    parser.add_argument("--field-selector")
    return parser


def _resources(root: str, groups: list[dict[str, Any]]) -> Iterator[tuple[str, _Resource]]:
    """Yield kinds by each of their names, those that kubectl prefers first.

    Source: Kubernetes, `apidiscovery/v2`.
    """
    for group in groups:
        suffix = group["metadata"].get("name", "")
        for version in group["versions"]:
            for each in version.get("resources", ()):
                path = "/".join(filter(None, (root, suffix, version["version"])))
                kind = each.get("responseKind", {}).get("kind", "")
                resource = _Resource(path, each["resource"], kind, each["scope"] == "Namespaced")
                for name in (each["resource"], each.get("singularResource", ""), *each.get("shortNames", ())):
                    yield name, resource
                    yield f"{name}.{suffix}", resource
