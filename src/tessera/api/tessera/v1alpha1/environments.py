"""Environment objects (tessera.dev/v1alpha1): images under familiar names, for `tessera run` and `notebook`."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from tessera.api.fields import in_place
from tessera.api.oci.references import read_reference
from tessera.api.tessera.v1alpha1.objects import Metadata, read_object, subject_of
from tessera.errors import InvalidInput

__all__ = [
    "KIND",
    "NO_ENVIRONMENT",
    "Catalog",
    "Environment",
    "EnvironmentSpec",
    "EnvironmentStatus",
    "choose_environment",
    "last_valid_environment",
    "read_catalog",
    "read_environment",
]

KIND: Final = "Environment"
NO_ENVIRONMENT: Final = "apply an Environment of tessera.dev/v1alpha1, or name an image by --image"
"""What to do in a cluster without any."""


class EnvironmentSpec(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """What work in the environment gets."""

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """As in a pod."""
    description: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Its purpose, in a sentence."""
    tools: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=32)] = ()
    """Its content, with versions: `pytorch 2.9`, `cuda 13.0`."""
    notebook: bool = False
    """Whether it has JupyterLab 4, so that `tessera notebook` can use it."""


class EnvironmentStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where its image is pulled before pods need it."""

    nodes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Nodes for which an ImageWarmup lists its image or selects it; 0 without one."""
    ready: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Those of them that have the image."""
    image: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """That of the last valid spec: nodes keep and pull it while the spec is invalid."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment with its name."""

    name: str
    image: str
    description: str
    tools: tuple[str, ...]
    notebook: bool
    labels: Mapping[str, str] = {}
    status: EnvironmentStatus = EnvironmentStatus()

    @property
    def full_image(self) -> str:
        """The name of its image with registry and tag."""
        return read_reference(self.image).name


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The environments of a cluster."""

    known: tuple[Environment, ...] = ()
    """In order of their names."""
    broken: Mapping[str, InvalidInput] = {}
    """Why some cannot be read, by name."""


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: EnvironmentSpec
    status: EnvironmentStatus = EnvironmentStatus()


class _InvalidObject(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: EnvironmentStatus = EnvironmentStatus()


def read_environment(obj: Mapping[str, Any]) -> Environment:
    """Return an Environment.

    Raises:
        InvalidInput: an unknown field, a value of a wrong type or length, or an invalid name of an image.

    """
    found = read_object(KIND, obj, _Object)
    spec = found.spec
    in_place(f"{subject_of(KIND, obj)}: spec.image", partial(read_reference, spec.image))
    return Environment(
        name=found.metadata.name,
        image=spec.image,
        description=spec.description,
        tools=spec.tools,
        notebook=spec.notebook,
        labels=found.metadata.labels,
        status=found.status,
    )


def last_valid_environment(obj: Mapping[str, Any]) -> Environment | None:
    """Return an invalid Environment with its last valid image and its labels; None if its status has no such image."""
    try:
        found = msgspec.convert(obj, _InvalidObject)
        read_reference(found.status.image)
    except (msgspec.ValidationError, InvalidInput):
        return None
    return Environment(
        name=found.metadata.name,
        image=found.status.image,
        description="",
        tools=(),
        notebook=False,
        labels=found.metadata.labels,
        status=found.status,
    )


def read_catalog(listed: Iterable[Mapping[str, Any]]) -> Catalog:
    """Return the environments of a cluster; an unreadable one hides no other."""
    known, broken = list[Environment](), dict[str, InvalidInput]()
    for each in listed:
        try:
            known.append(read_environment(each))
        except InvalidInput as error:
            broken[each["metadata"]["name"]] = error
    return Catalog(known=tuple(sorted(known, key=lambda each: each.name)), broken=broken)


def choose_environment(catalog: Catalog, name: str, *, notebook: bool) -> Environment:
    """Return the environment of this name.

    Args:
        catalog: the existing ones.
        name: as `tessera environments` lists it.
        notebook: whether it must have JupyterLab.

    Raises:
        InvalidInput: it does not exist, cannot be read, or has no JupyterLab; the error lists usable ones.

    """
    if name in catalog.broken:
        raise catalog.broken[name]
    fit = ", ".join(each.name for each in catalog.known if each.notebook or not notebook)
    fix = f"choose one of {fit}, or name an image by --image" if fit else NO_ENVIRONMENT
    found = next((each for each in catalog.known if each.name == name), None)
    if found is None:
        raise InvalidInput(f"--environment {name}", found="there is no such environment", hint=fix)
    if notebook and not found.notebook:
        raise InvalidInput(f"--environment {name}", found="it has no JupyterLab", hint=fix)
    return found
