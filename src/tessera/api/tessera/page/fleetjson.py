"""The dashboard page's wire format: JSON of `GET /api/fleet`, and the events of `GET /api/events` (docs/page.md).

Fields that are empty, false or unknown are left out.
"""

from typing import Literal

import msgspec

from tessera.api.tessera.usage.usagejson import RecommendationFields
from tessera.core.explain.fleetview import FleetChange, FleetView, PartState

__all__ = [
    "PageChangeFields",
    "PageContentionFields",
    "PageFleetFields",
    "PageGpuFields",
    "PageImageFields",
    "PageModelFields",
    "PageModelServerFields",
    "PageNodeFields",
    "PagePartFields",
    "PagePendingFields",
    "PagePodFields",
    "PageRecommendationFields",
    "PageScalePointFields",
    "PageViewerFields",
    "write_change",
    "write_event",
    "write_fleet",
    "write_viewer",
]


class PageScalePointFields(msgspec.Struct, frozen=True, array_like=True):
    """A model server at one moment, as a list; as `ScalePoint`."""

    at_s: float
    desired: int
    ready: int
    in_flight: float


class PageModelServerFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A model server over time, as `ModelServerHistory`."""

    namespace: str
    name: str
    points: tuple[PageScalePointFields, ...]


class PagePodFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod on a device, as `PodView`."""

    namespace: str = ""
    pod: str = ""
    workload: str = ""
    phase: str = ""
    ending: bool = False
    unrecorded: bool = False
    isolation: str = ""
    memory_mib: int = 0


class PageContentionFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What slows down the pods on a GPU, as `ContentionView`."""

    cause: str
    caused_by: tuple[PagePodFields, ...] = ()
    nobody: bool = False
    scope: Literal["gpu", "node"] = "gpu"
    evenly: tuple[PagePodFields, ...] = ()
    ended: bool = False


class PagePartFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a GPU, as `GpuPart`."""

    start: int
    size: int
    label: str = ""
    state: PartState
    exists: bool = True
    idle: bool = False
    pods: tuple[PagePodFields, ...] = ()


class PageGpuFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A GPU, as `GpuView`."""

    index: int
    uuid: str = ""
    model: str
    memory_mib: int
    width: int
    mode: str
    health: str
    parts: tuple[PagePartFields, ...]
    allocated_mib: int = 0
    used_mib: int | None = None
    problems: tuple[str, ...] = ()
    contention: tuple[PageContentionFields, ...] = ()
    throttled: tuple[str, ...] = ()


class PageImageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An image of a node, as `ImageView`."""

    image: str
    state: str
    bytes: int = 0


class PageModelFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A model of a node, as `ModelView`."""

    model: str
    state: str
    revision: str = ""
    bytes: int = 0
    containers: int = 0
    fetched_percent: int | None = None


class PageNodeFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A node, as `NodeView`."""

    name: str
    ready: bool = True
    driver: str = ""
    policy: str = ""
    problem: str = ""
    gpus: tuple[PageGpuFields, ...] = ()
    unplaced: tuple[PagePodFields, ...] = ()
    images: tuple[PageImageFields, ...] = ()
    models: tuple[PageModelFields, ...] = ()


class PagePendingFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pending pod, as `PendingView`."""

    namespace: str
    pod: str
    workload: str = ""
    need: str
    reason: str = ""
    created_on: tuple[str, ...] = ()


class PageRecommendationFields(RecommendationFields, frozen=True, kw_only=True, omit_defaults=True):
    """A recommendation for a container, as `WorkloadRecommendation`."""

    workload: str = ""


class PageFleetFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The page at one moment, as `FleetView`."""

    nodes: tuple[PageNodeFields, ...]
    pending: tuple[PagePendingFields, ...] = ()
    pending_elsewhere: int = 0
    model_servers: tuple[PageModelServerFields, ...] = ()
    recommendations: tuple[PageRecommendationFields, ...] = ()
    activity: dict[str, int] = {}
    memory_mib: dict[str, dict[str, int]] = {}
    namespaces: tuple[str, ...] = ()
    partial: bool = False
    notes: tuple[str, ...] = ()


class PageChangeFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What changed, as `FleetChange`."""

    nodes: tuple[PageNodeFields, ...] = ()
    gone: tuple[str, ...] = ()
    activity: dict[str, int | None] = {}
    memory_mib: dict[str, dict[str, int | None] | None] = {}
    rest: PageFleetFields | None = None


class PageViewerFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who reads the page."""

    name: str
    signed_in: bool
    version: str
    """Of the page's files: a page that has others cannot read what follows."""


def write_fleet(view: FleetView) -> bytes:
    """Return a view as JSON."""
    return msgspec.json.encode(msgspec.convert(view, PageFleetFields, from_attributes=True))


def write_change(change: FleetChange) -> bytes:
    """Return a change as JSON."""
    return msgspec.json.encode(msgspec.convert(change, PageChangeFields, from_attributes=True))


def write_viewer(name: str, *, signed_in: bool, version: str) -> bytes:
    """Return who reads the page as JSON, with the version of the page's files."""
    return msgspec.json.encode(PageViewerFields(name=name, signed_in=signed_in, version=version))


def write_event(kind: str, data: bytes, event_id: str = "") -> bytes:
    """Return a server-sent event; JSON has no line breaks. Source: WHATWG HTML, "Server-sent events"."""
    numbered = f"id: {event_id}\n" if event_id else ""
    return f"event: {kind}\n{numbered}data: ".encode() + data + b"\n\n"
