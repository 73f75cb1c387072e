"""Credentials for registries in Docker's format: `config.json`, and Secrets of type kubernetes.io/dockerconfigjson."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from tessera.core.storage.images.layers import Reference
from tessera.errors import UNDECODABLE, InvalidInput, shown

__all__ = ["DockerConfig", "RegistryCredential", "credential", "read_docker_config", "read_pull_secret"]


class RegistryCredential(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials for a registry."""

    username: str = ""
    password: str = ""
    identity_token: str = ""
    """To get a token with, instead of a password."""


class _Entry(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class DockerConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The content of the file."""

    auths: dict[str, _Entry] = {}
    """By registry: `registry.example`, `https://index.docker.io/v1/`, `*.registry.example/team`."""
    cred_helpers: dict[str, str] = {}
    """The credential helper `docker-credential-NAME` of each registry."""
    creds_store: str = ""
    """The credential helper of all others."""


def read_docker_config(content: bytes, subject: str) -> DockerConfig:
    """Return a configuration; no part of it is repeated in errors.

    Raises:
        InvalidInput: it cannot be read.

    """
    try:
        found = msgspec.json.decode(content, type=DockerConfig)
    except UNDECODABLE as error:
        hint = "use what `docker login` writes, or a Secret made by `kubectl create secret docker-registry`"
        raise InvalidInput(subject, found="it does not have the form of Docker's config.json", hint=hint) from error
    for name, entry in found.auths.items():
        _credential(entry, f"{subject}: credentials for {shown(name)}")
    return found


def read_pull_secret(secret: Mapping[str, Any]) -> DockerConfig:
    """Return the configuration in a Secret for registries; its credential helpers are ignored: none is ever run.

    Raises:
        InvalidInput: it is of another type, or cannot be read.

    """
    metadata = secret.get("metadata") or {}
    subject = f"Secret {metadata.get('namespace')}/{metadata.get('name')}"
    encoded = (secret.get("data") or {}).get(".dockerconfigjson")
    if not isinstance(encoded, str):
        raise InvalidInput(
            subject, found="it has no .dockerconfigjson", hint="create it with type kubernetes.io/dockerconfigjson"
        )
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(
            subject, found="its data is not base64", hint="create it again with `kubectl create secret docker-registry`"
        ) from error
    return DockerConfig(auths=read_docker_config(content, subject).auths)


def credential(configs: Sequence[DockerConfig], image: Reference) -> RegistryCredential | None:
    """Return the credentials for an image: those of the longest name that matches, of the first configuration.

    Source: kubernetes `pkg/credentialprovider/keyring.go`: host by host part with `*`, then path by prefix.
    """
    found = [
        (len(host) + len(path), -number, entry)
        for number, config in enumerate(configs)
        for name, entry in config.auths.items()
        for host, path in (_place(name),)
        if _matches(host, path, image)
    ]
    if not found:
        return None
    return _credential(max(found, key=lambda each: each[:2])[2], "")


def _place(name: str) -> tuple[str, str]:
    """Return host and path that an entry is for; Docker Hub's has an old address."""
    host, _, path = name.removeprefix("https://").removeprefix("http://").rstrip("/").partition("/")
    if path in ("v1", "v2"):
        path = ""
    return ("docker.io" if host in ("index.docker.io", "registry-1.docker.io") else host), path


def _matches(host: str, path: str, image: Reference) -> bool:
    parts, desired = host.split("."), image.registry.split(".")
    same = len(parts) == len(desired) and all(map(fnmatchcase, desired, parts))
    return same and (not path or f"{image.repository}/".startswith(f"{path}/"))


def _credential(entry: _Entry, subject: str) -> RegistryCredential:
    username, password = entry.username, entry.password
    if entry.auth:
        try:
            username, _, password = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, ValueError) as error:
            raise InvalidInput(
                subject, found="its auth is not base64", hint="write USER:PASSWORD in base64, as `docker login` does"
            ) from error
    return RegistryCredential(username=username, password=password, identity_token=entry.identitytoken)
