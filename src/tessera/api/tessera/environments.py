"""Environment objects (tessera.dev/v1alpha1): images by names that people know, for `tessera run` and `notebook`."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from tessera.api.tessera.gpupolicies import API_VERSION
from tessera.errors import InvalidInput, shown

__all__ = ["KIND", "Environment", "Spec", "read_environment"]

KIND: Final = "Environment"


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """What work in the environment finds."""

    image: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    """As in a pod."""
    description: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """For whom it is, in a sentence."""
    tools: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=64)], ...], msgspec.Meta(max_length=32)] = ()
    """What is in it, with versions: `pytorch 2.9`, `cuda 13.0`."""
    notebook: bool = False
    """Whether it has JupyterLab 4, so that `tessera notebook` can use it."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment with its name."""

    name: str
    image: str
    description: str
    tools: tuple[str, ...]
    notebook: bool


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: Spec


def read_environment(each: Mapping[str, Any]) -> Environment:
    """Return an Environment.

    Raises:
        InvalidInput: an unknown field, or a value of a wrong type or length.

    """
    try:
        found = msgspec.convert(each, _Object)
    except msgspec.ValidationError as error:
        metadata = each.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        subject = f"{KIND} {shown(name)[1:-1]}"
        raise InvalidInput(subject, found=str(error), hint=f"see an object of {API_VERSION} in docs/run.md") from error
    spec = found.spec
    return Environment(
        name=found.metadata.name,
        image=spec.image,
        description=spec.description,
        tools=spec.tools,
        notebook=spec.notebook,
    )
