"""Environment objects (tessera.dev/v1alpha1): images under familiar names, for `tessera run` and `notebook`."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from tessera.api.fields import in_place
from tessera.api.oci.references import read_reference
from tessera.api.tessera.v1alpha1.objects import Metadata, read_object, subject_of

__all__ = ["KIND", "Environment", "EnvironmentSpec", "EnvironmentStatus", "read_environment"]

KIND: Final = "Environment"


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


class _Object(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: EnvironmentSpec
    status: EnvironmentStatus = EnvironmentStatus()


def read_environment(each: Mapping[str, Any]) -> Environment:
    """Return an Environment.

    Raises:
        InvalidInput: an unknown field, a value of a wrong type or length, or an invalid name of an image.

    """
    found = read_object(KIND, each, _Object)
    spec = found.spec
    in_place(f"{subject_of(KIND, each)}: spec.image", partial(read_reference, spec.image))
    return Environment(
        name=found.metadata.name,
        image=spec.image,
        description=spec.description,
        tools=spec.tools,
        notebook=spec.notebook,
        labels=found.metadata.labels,
        status=found.status,
    )
