"""Credentials for registries: Docker's configuration and its credential helpers."""

import asyncio
import contextlib
import os
import re
from pathlib import Path

import msgspec

from tessera.api.oci.dockerconfig import DockerConfig, RegistryCredential, credential, read_docker_config
from tessera.core.storage.images.layers import Reference
from tessera.errors import UNDECODABLE, InvalidInput, Unavailable, shown

__all__ = ["Keychain"]

_HELPER_S = 30.0
_HELPER = re.compile(r"[A-Za-z0-9._-]+")
_NO_USER = "<token>"
"""Source: docker/docker-credential-helpers `credentials/credentials.go`."""
_HUB = "https://index.docker.io/v1/"


class _Answer(msgspec.Struct, frozen=True, rename="pascal"):
    username: str = ""
    secret: str = ""


class Keychain:
    """Credentials for images.

    Args:
        configs: in the order of precedence.

    """

    def __init__(self, *configs: DockerConfig) -> None:
        self._configs = configs

    @classmethod
    def of_this_user(cls, path: Path | None = None) -> "Keychain":
        """Return the keychain in a file; without one that in DOCKER_CONFIG or ~/.docker, if it exists.

        Raises:
            InvalidInput: the file cannot be read.

        """
        folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
        found = path or folder / "config.json"
        if path is None and not found.is_file():
            return cls()
        return cls(read_docker_config(found.read_bytes(), str(found)))

    async def find(self, image: Reference) -> RegistryCredential | None:
        """Return the credentials for an image; None where there are none.

        Raises:
            Unavailable: the credential helper fails.

        """
        for config in self._configs:
            host = _HUB if image.registry == "docker.io" else image.registry
            helper = config.cred_helpers.get(image.registry) or config.cred_helpers.get(host) or config.creds_store
            if helper and (found := await _ask(helper, host)):
                return found
        return credential(self._configs, image)


async def _ask(helper: str, host: str) -> RegistryCredential | None:
    """Return a credential helper's answer for a registry; None if it has none."""
    subject = f"program docker-credential-{helper}"
    if not _HELPER.fullmatch(helper):
        raise InvalidInput(
            "Docker's config.json",
            found=f"its helper {shown(helper)} is not the end of a name",
            hint="write `pass` for docker-credential-pass",
        )
    try:
        process = await asyncio.create_subprocess_exec(
            f"docker-credential-{helper}", "get", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        raise Unavailable(subject, found=error.strerror or str(error), hint="install it on PATH") from error
    try:
        async with asyncio.timeout(_HELPER_S):
            output, _ = await process.communicate(host.encode())
            if process.stdin:
                with contextlib.suppress(OSError):  # it may answer without reading; unasked, asyncio logs this as lost
                    await process.stdin.wait_closed()
    except TimeoutError as error:
        raise Unavailable(subject, found=f"no answer within {_HELPER_S:g} s", hint="run it by hand and see") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        return None  # it reports in its own words: no credentials for this registry
    try:
        found = msgspec.json.decode(output, type=_Answer)
    except UNDECODABLE as error:
        raise Unavailable(
            subject, found="its answer is not JSON", hint="update it: it must print Username and Secret"
        ) from error
    if found.username == _NO_USER:
        return RegistryCredential(identity_token=found.secret)
    return RegistryCredential(username=found.username, password=found.secret)
