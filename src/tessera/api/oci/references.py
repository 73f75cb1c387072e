"""Names of images, as people write them and in full."""

import re

from tessera.core.storage.images.layers import Reference
from tessera.errors import InvalidInput, shown

__all__ = ["is_digest", "read_reference"]

_DOCKER = "docker.io"
_OFFICIAL = "library/"
_LATEST = "latest"
_LONGEST = 255
"""Characters of registry and repository together. Source: distribution/reference `reference.go`."""
_HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?|\[[0-9A-Fa-f:]+\](:[0-9]{1,5})?")
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


def is_digest(text: str) -> bool:
    """Return whether a text is a supported digest."""
    return _DIGEST.fullmatch(text) is not None


def read_reference(text: str) -> Reference:
    """Return the full name of an image: `busybox` is `docker.io/library/busybox:latest`.

    Source: distribution/reference `normalize.go`, `regexp.go`.

    Raises:
        InvalidInput: the text is not the name of an image.

    """
    name, at, digest = text.partition("@")
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        path, tag = name, ""
    registry, slash, repository = path.partition("/")
    if not slash or not (set(registry) & {".", ":"} or registry == "localhost" or registry.lower() != registry):
        registry, repository = _DOCKER, path
    if registry == "index.docker.io":
        registry = _DOCKER
    if registry == _DOCKER and "/" not in repository:
        repository = f"{_OFFICIAL}{repository}"
    sound = (
        len(path) <= _LONGEST
        and _HOST.fullmatch(registry)
        and _REPOSITORY.fullmatch(repository)
        and (bool(_TAG.fullmatch(tag)) if colon and path != name else not tag)
        and (is_digest(digest) if at else True)
    )
    if not sound:
        raise InvalidInput(
            f"image {shown(text)}",
            found="it is not the name of an image",
            hint="write [REGISTRY/]REPOSITORY[:TAG][@DIGEST], as registry.example/team/server:1.2",
        )
    if not tag and not digest:
        tag = _LATEST
    return Reference(registry=registry, repository=repository, tag=tag, digest=digest)
