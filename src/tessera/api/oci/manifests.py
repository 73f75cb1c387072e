"""Manifests, indexes and configurations of images. Everything from a registry is verified.

Source: OCI image specification 1.1 (`manifest.md`, `image-index.md`, `config.md`); Docker's schema 2 says the same
under other media types.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, TypeVar

import msgspec

from tessera.api.fields import error_phrase
from tessera.api.oci.references import is_digest
from tessera.core.storage.images.layers import Image, Layer, Reference
from tessera.errors import UNDECODABLE, InvalidInput, Unavailable, Unsupported, shown

__all__ = [
    "ACCEPTED",
    "INDEX",
    "MANIFEST",
    "BuildStep",
    "Config",
    "Descriptor",
    "ImageManifest",
    "Index",
    "Platform",
    "RunConfig",
    "checked",
    "choose",
    "digest_of",
    "image",
    "read_config",
    "read_manifest",
    "read_platform",
]

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (INDEX, MANIFEST, _DOCKER_INDEX, _DOCKER_MANIFEST)
"""Supported media types; not the first version of Docker's manifests, which registries dropped in 2024."""

_CONTENT = ("COPY", "ADD", "#(nop) COPY", "#(nop) ADD")
"""Build steps whose text does not tell their content."""
_SHELL = re.compile(r"^(/bin/sh -c\s+|RUN\s+)")
_BUILT_AT = re.compile(r"'@\d+'")
"""Build time of Debian's base, in the text of its step."""

_Record = TypeVar("_Record")


class Platform(msgspec.Struct, frozen=True, omit_defaults=True):
    """The platform of an image."""

    os: str
    architecture: str
    variant: str = ""

    @property
    def name(self) -> str:
        """As `linux/arm64/v8`."""
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))

    def serves(self, desired: "Platform") -> bool:
        """Return whether an image for this platform is one for the desired one, which may leave the variant open."""
        same = (self.os, self.architecture) == (desired.os, desired.architecture)
        return same and desired.variant in ("", self.variant)


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Content by its digest."""

    digest: Annotated[str, msgspec.Meta(max_length=256)]
    size: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
    media_type: str = ""
    platform: Platform | None = None


class Index(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The manifests of an image, one for each platform."""

    manifests: Annotated[tuple[Descriptor, ...], msgspec.Meta(max_length=1024)]
    media_type: str = INDEX


class ImageManifest(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An image for one platform."""

    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], msgspec.Meta(max_length=1024)]
    media_type: str = MANIFEST


class BuildStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A build step."""

    created_by: str = ""
    empty_layer: bool = False


class RunConfig(msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True):
    """The part of how an image runs that is read here."""

    labels: dict[str, str] | None = None


class Config(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an image was built."""

    architecture: str = ""
    os: str = ""
    variant: str = ""
    history: Annotated[tuple[BuildStep, ...], msgspec.Meta(max_length=4096)] | None = None
    config: RunConfig | None = None

    @property
    def platform(self) -> Platform:
        """What the image runs on."""
        return Platform(os=self.os, architecture=self.architecture, variant=self.variant)


def digest_of(content: bytes, algorithm: str = "sha256") -> str:
    """Return the digest of content."""
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def checked(content: bytes, digest: str, subject: str) -> bytes:
    """Return content after verifying its digest.

    Raises:
        Unavailable: the digest differs, or is of an unknown kind.

    """
    found = digest_of(content, digest.partition(":")[0]) if is_digest(digest) else shown(digest)
    if found != digest:
        hint = "try again, then contact the administrator of the registry or of a proxy before it"
        raise Unavailable(subject, found=f"the content has digest {found}, not {digest}", hint=hint)
    return content


def read_platform(text: str) -> Platform:
    """Return a platform by its name, as `linux/amd64`.

    Raises:
        InvalidInput: it is not a platform.

    """
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise InvalidInput(
            "platform", found=shown(text), expected="a platform", hint="write OS/ARCHITECTURE, such as linux/amd64"
        )
    return Platform(*parts)


def read_manifest(content: bytes, media_type: str, subject: str) -> Index | ImageManifest:
    """Return a registry's manifest or index for the name of an image.

    Raises:
        Unsupported: it is of another media type, or not an image.
        Unavailable: it does not match its type.

    """
    kind = media_type.partition(";")[0].strip()
    if kind not in ACCEPTED:
        raise Unsupported(subject, found=f"media type {shown(kind)}", expected="an image manifest or index")
    if kind in (INDEX, _DOCKER_INDEX):
        index = _decoded(content, Index, "index", subject)
        _check_digests(index.manifests, subject)
        return index
    manifest = _decoded(content, ImageManifest, "manifest", subject)
    _check_digests((manifest.config, *manifest.layers), subject)
    return manifest


def _check_digests(described: Iterable[Descriptor], subject: str) -> None:
    for each in described:
        if not is_digest(each.digest):
            raise Unavailable(
                subject,
                found=f"it names content {shown(each.digest)}, which is not a digest",
                hint="push the image again",
            )


def read_config(content: bytes, subject: str) -> Config:
    """Return how an image was built.

    Raises:
        Unavailable: the content is not a configuration of an image.

    """
    return _decoded(content, Config, "configuration", subject)


def _decoded(content: bytes, kind: type[_Record], name: str, subject: str) -> _Record:
    try:
        return msgspec.json.decode(content, type=kind)
    except UNDECODABLE as error:
        raise Unavailable(
            subject, found=f"it is not a JSON {name} of an image ({error_phrase(error, content)})"
        ) from error


def choose(index: Index, desired: Platform, subject: str) -> Descriptor:
    """Return the manifest of an index for a platform; the first that matches.

    Raises:
        Unsupported: none does.

    """
    offered = [each for each in index.manifests if each.platform is not None]
    for each in offered:
        if each.platform is not None and each.platform.serves(desired):
            return each
    names = sorted({each.platform.name for each in offered if each.platform is not None} - {"unknown/unknown"})
    found = f"no image for {desired.name}"
    raise Unsupported(
        subject,
        found=found,
        hint=f"choose an image for it; this one is for {', '.join(shown(each)[1:-1] for each in names[:16])}",
    )


def image(reference: Reference, digest: str, manifest: ImageManifest, config: Config) -> Image:
    """Return an image for analysis.

    Args:
        reference: its name.
        digest: of the name in the registry.
        manifest: of its platform.
        config: of its platform.

    """
    built = [each.created_by for each in config.history or () if not each.empty_layer]
    steps = [_step(text) for text in built] if len(built) == len(manifest.layers) else [""] * len(manifest.layers)
    if steps and not steps[0]:
        steps[0] = _system(config)
    layers = zip(manifest.layers, steps, strict=True)
    return Image(
        name=reference.name,
        digest=digest,
        repository=f"{reference.registry}/{reference.repository}",
        platform=config.platform.name,
        layers=tuple(Layer(digest=each.digest, bytes=each.size, step=step) for each, step in layers),
    )


def _step(created_by: str) -> str:
    """Return the text of a build step if it tells what the step does; empty for one that copies files in."""
    text = _SHELL.sub("", created_by.strip())
    return "" if text.startswith(_CONTENT) else _BUILT_AT.sub("", text)


def _system(config: Config) -> str:
    """Return the operating system in the lowest layer, from labels such as Ubuntu's; empty for none."""
    labels = (config.config.labels if config.config else None) or {}
    name = labels.get("org.opencontainers.image.ref.name", "")
    version = labels.get("org.opencontainers.image.version", "")
    return f"{name} {version}" if name and version else ""
