"""Cluster, user and credentials: kubeconfig files and service accounts, by lightkube."""

import asyncio
import os
import ssl
from pathlib import Path

import httpx2
from lightkube import ConfigError, KubeConfig
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SingleConfig
from lightkube.config.models import User

from tessera.api import documents
from tessera.api.fields import Field
from tessera.clients.connections import ServerAddress, reached
from tessera.errors import InvalidInput, Unavailable, shown

__all__ = ["ClusterAccess", "Credentials", "find_access"]

_UNAUTHORIZED = 401


class Credentials:
    """The user's `Authorization` header; it changes when a token is renewed.

    Args:
        auth: lightkube's implementation; None for a certificate or no user.

    """

    def __init__(self, auth: httpx2.Auth | None) -> None:
        self._auth = auth
        self._header: str | None = None
        self._lock = asyncio.Lock()

    async def header(self) -> str:
        """Return the value of the header `Authorization`; empty where none is needed.

        Raises:
            Unavailable: the token's file or program fails.

        """
        if self._header is None:
            self._header = await self._obtained()
        return self._header

    async def renew(self, refused: str) -> bool:
        """Get another header than the rejected one; return whether there is one.

        Raises:
            Unavailable: the token's file or program fails.

        """
        async with self._lock:
            if self._header == refused:
                self._header = await self._obtained(refused=True)
        return self._header != refused

    async def _obtained(self, *, refused: bool = False) -> str:
        """Return lightkube's value for a request, and for the retry after a rejection."""
        if self._auth is None:
            return ""
        flow = self._auth.async_auth_flow(httpx2.Request("GET", "https://server"))
        try:
            request = await anext(flow)
            if refused:
                request = await flow.asend(httpx2.Response(_UNAUTHORIZED, request=request))
        except StopAsyncIteration:
            return self._header or ""
        except (ConfigError, OSError, ValueError, KeyError) as error:
            raise Unavailable("credentials of the user", found=shown(error), hint="sign in again") from error
        finally:
            await flow.aclose()
        return str(request.headers.get("Authorization", ""))


class ClusterAccess:
    """A server and a user.

    Args:
        server: its address.
        tls: CA and client certificate, if any.
        credentials: of the user.
        namespace: the default one.

    """

    def __init__(
        self, server: ServerAddress, tls: ssl.SSLContext | None, credentials: Credentials, *, namespace: str = "default"
    ) -> None:
        self.server = server
        self.tls = tls
        self.credentials = credentials
        self.namespace = namespace


def find_access(kubeconfig: Path | None = None, context: str | None = None) -> ClusterAccess:
    """Return the access of a kubeconfig file; without one that of KUBECONFIG, the service account, or ~/.kube/config.

    Raises:
        InvalidInput: there is no such configuration, or it cannot be read.

    """
    subject = f"kubeconfig {kubeconfig or os.environ.get('KUBECONFIG') or '~/.kube/config'}"
    try:
        kubeconfig = kubeconfig or _of_several(context)
        _check(kubeconfig or Path(os.environ.get("KUBECONFIG", "")))
        config, user = _config(kubeconfig, context)
        url = str(config.cluster.server)
        tls = verify_cluster(config.cluster, user, config.abs_file) if url.startswith("https:") else None
        credentials = Credentials(user_auth(user))
    except (ConfigError, OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        found = f"it has no {error.args[0]}" if isinstance(error, KeyError) else shown(error)
        if isinstance(error, ConfigError) and str(error).startswith("Configuration file"):
            found = "there is no such file"
        raise InvalidInput(subject, found=found, hint="pass --kubeconfig, or set KUBECONFIG") from error
    return ClusterAccess(reached(url), tls, credentials, namespace=config.namespace)


def _of_several(context: str | None) -> Path | None:
    """Return the first file in KUBECONFIG with the context; None if there is at most one file."""
    named = os.environ.get("KUBECONFIG", "")
    if os.pathsep not in named:
        return None
    files = [Path(each) for each in named.split(os.pathsep) if each]
    if len(files) == 1:
        return files[0]
    for each in filter(Path.is_file, files):
        _check(each)
        found = KubeConfig.from_file(each)
        if (context or found.current_context) in found.contexts:
            return each
    raise ConfigError("no file in KUBECONFIG has the context")


def _check(path: Path) -> None:
    """Report what is wrong with an invalid kubeconfig, with the line: lightkube does not validate it.

    Raises:
        InvalidInput: it is no YAML, or has not the form of a kubeconfig.

    """
    if not path.is_file():
        return
    found = documents.read(str(path), path.read_bytes())
    if not found:
        raise InvalidInput(str(path), found="it has nothing in it", hint="name a kubeconfig")
    for document in found:
        root = Field(document, document.data)
        if not isinstance(root.value, dict):
            raise root.refuse("a kubeconfig: a mapping with clusters, contexts and users")
        for part in ("cluster", "context", "user"):
            for entry in root.get(f"{part}s").elements():
                entry.get("name").text()
                entry.get(part).mapping()


def _config(kubeconfig: Path | None, context: str | None) -> tuple[SingleConfig, User]:
    config = (KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()).get(context)
    if config is None or config.user is None:
        raise ConfigError("no such context, or one without a user")
    return config, config.user
