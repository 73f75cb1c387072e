"""ImageWarmup and NodeImages objects (tessera.dev/v1alpha1): images that nodes pull before pods need them.

An ImageWarmup selects nodes and lists their desired images, and its status summarizes them. Each of these nodes has a
NodeImages object, with the desired images and current pulls from the controller, and the node's images from the agent;
see docs/image-warmup.md.
"""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec

from tessera.api.fields import in_place, refused_form
from tessera.api.kubernetes.conditions import Conditions, updated_conditions
from tessera.api.kubernetes.times import read_time, time_text
from tessera.api.oci.references import is_digest, read_reference
from tessera.api.tessera.v1alpha1.environments import Environment
from tessera.api.tessera.v1alpha1.gpupolicies import LabelSelector, ValidationRule, selector_term
from tessera.api.tessera.v1alpha1.objects import (
    API_VERSION,
    Metadata,
    Reason,
    Tally,
    coverage,
    object_of_node,
    of_this_version,
    read_object,
    reason_text,
    subject_of,
)
from tessera.core.packing.fit.admission import matches
from tessera.core.storage.images import warmup as core
from tessera.core.workload.objectnames import ObjectName
from tessera.errors import InvalidInput

__all__ = [
    "API_VERSION",
    "IMAGE_WARMUP",
    "NODE_IMAGES",
    "RULES",
    "ImageWarmup",
    "ImageWarmupSpec",
    "ImageWarmupStatus",
    "NodeImagesSpec",
    "NodeImagesStatus",
    "new_node_images",
    "node_spec",
    "node_status",
    "read_image_warmup",
    "read_node_images",
    "readable_status",
    "unanswered_status",
    "warmup_status",
]

IMAGE_WARMUP, NODE_IMAGES = "ImageWarmup", "NodeImages"
_MOST_IMAGES, _MOST_OF_NODE = 64, core.MOST_OF_NODE

_Image = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
_Digest = Annotated[str, msgspec.Meta(max_length=136)]


class Parallelism(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """How much is pulled at once; of several ImageWarmups the lowest numbers apply."""

    per_node: Annotated[int, msgspec.Meta(ge=1, le=16)] = 1
    """Concurrent pulls of a node."""
    per_registry: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    """Concurrent pulls from one registry, by all nodes together."""


class ImageWarmupSpec(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True
):
    """The images, and the nodes that should have them."""

    images: Annotated[tuple[_Image, ...], msgspec.Meta(max_length=_MOST_IMAGES)] = ()
    """Names as in a pod. They are pulled in this order, those of pending pods first. A tag is resolved once, by the
    first node that pulls it; the others get the same digest."""
    environments: LabelSelector | None = None
    """The Environments whose images are pulled after these, by their labels: `{}` selects all. None by default."""
    node_selector: LabelSelector = LabelSelector()
    """The nodes; those without Tessera's agent never count."""
    parallelism: Parallelism = Parallelism()
    max_disk_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 80
    """A node whose image disk is at least this full pulls nothing. The kubelet deletes images from 85 % on, down to
    80 %, by default; 100 for no limit but the disk's own."""
    pinned: bool = True
    """Whether the listed images are protected from the kubelet's garbage collection; only with containerd."""
    pull_secrets: Annotated[tuple[ObjectName, ...], msgspec.Meta(max_length=8)] = ()
    """Secrets of tessera-system with credentials for the registries, of type kubernetes.io/dockerconfigjson. The agent
    may read those that the chart's value `agent.pullSecrets` names."""


RULES: Final[Mapping[type[msgspec.Struct], tuple[ValidationRule, ...]]] = {
    ImageWarmupSpec: (
        ValidationRule(
            "has(self.environments) || has(self.images) && self.images.size() > 0",
            "name images or select environments",
            lambda each: each.environments is not None or bool(each.images),
        ),
    )
}


class ImageStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One image on all nodes."""

    image: _Image
    digest: _Digest = ""
    """The resolved digest."""
    nodes: Tally = 0
    """Nodes that have it."""
    pending_pods: Tally = 0
    """Pending pods that need it."""


class ImageProblemFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why a node does not have an image."""

    node: Annotated[str, msgspec.Meta(max_length=253)]
    image: Annotated[str, msgspec.Meta(max_length=512)] = ""
    """Left out if it concerns all images."""
    reason: Reason


class ImageWarmupStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of the nodes."""

    observed_generation: Tally = 0
    """Generation of the spec that this status is for."""
    nodes: Tally = 0
    """Nodes that are selected and run Tessera's agent."""
    ready: Tally = 0
    """Nodes that have all images."""
    pulling: Tally = 0
    """Nodes that are pulling one of them."""
    pinned: Tally = 0
    """Nodes that have all of them pinned."""
    images: Annotated[tuple[ImageStatus, ...], msgspec.Meta(max_length=_MOST_IMAGES)] = ()
    problems: Annotated[tuple[ImageProblemFields, ...], msgspec.Meta(max_length=16)] = ()
    """The first of them."""
    conditions: Conditions = ()
    """`Accepted`: it is valid; `Ready`: all of its nodes have all images."""


class ImageWarmup(msgspec.Struct, frozen=True):
    """An ImageWarmup object."""

    metadata: Metadata
    spec: ImageWarmupSpec
    status: ImageWarmupStatus = ImageWarmupStatus()


class DesiredImageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An image that the node should have."""

    image: _Image
    digest: _Digest = ""
    """The resolved digest, on the node that pulled it first."""
    pinned: bool = False
    secrets: Annotated[tuple[ObjectName, ...], msgspec.Meta(max_length=64)] = ()
    """Secrets of tessera-system with credentials."""
    attempt: Tally = 0
    """Number of the pull in its present or last turn."""


class NodeImagesSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The desired images of the node, by the controller."""

    images: Annotated[tuple[DesiredImageFields, ...], msgspec.Meta(max_length=_MOST_OF_NODE)] = ()


class ObservedImageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The state of an image on the node."""

    image: _Image
    state: Literal["Missing", "Pulling", "Present", "Failed"]
    digest: _Digest = ""
    bytes: Tally = 0
    """On disk."""
    pinned: bool = False
    attempt: Tally = 0
    """Number of the last pull that was started."""
    failures: Tally = 0
    """Pulls that failed since the last one that did not."""
    failed_at: Annotated[str, msgspec.Meta(max_length=32)] = ""
    """When it failed, RFC 3339 in UTC."""
    reason: Reason = ""


class NodeImagesStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The images of the node, as its agent reports them."""

    images: Annotated[tuple[ObservedImageFields, ...], msgspec.Meta(max_length=_MOST_OF_NODE)] = ()
    disk_percent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """How full the disk with the images is."""
    runtime: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """Name and version of the container runtime."""
    reason: Reason = ""
    """Why the container runtime does not answer; the other fields are from its last answer. Empty while it answers."""


class _NodeSpec(msgspec.Struct, frozen=True):
    images: tuple[dict[str, Any], ...] = ()
    """As any version writes them; each is read alone."""


class _NodeStatus(msgspec.Struct, frozen=True, rename="camel"):
    images: tuple[dict[str, Any], ...] = ()
    disk_percent: int = 0
    reason: str = ""


class _NodeObject(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


def read_image_warmup(
    obj: Mapping[str, Any], nodes: frozenset[str] = frozenset(), environments: Sequence[Environment] = ()
) -> tuple[ImageWarmup, core.Warmup]:
    """Return an ImageWarmup, parsed.

    Args:
        obj: the object; a status that this version cannot read counts as none.
        nodes: the nodes that it selects.
        environments: those of the cluster.

    Raises:
        InvalidInput: an unknown field, a wrong type, an invalid name of an image, an image twice, too many or none.

    """
    status = readable_status(obj) or ImageWarmupStatus()
    found, subject = read_object(IMAGE_WARMUP, {**obj, "status": status}, ImageWarmup), subject_of(IMAGE_WARMUP, obj)
    for rule in RULES[ImageWarmupSpec]:
        if not rule.holds(found.spec):
            raise InvalidInput(f"{subject}: spec", found="it has no images", hint=rule.message)
    names = tuple(
        in_place(f"{subject}: spec.images[{index}]", partial(read_reference, text)).name
        for index, text in enumerate(found.spec.images)
    )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{subject}: spec.images", found=f"{twice} is there twice", hint="name each image once")
    spec = found.spec
    if spec.environments is not None:
        term = selector_term(spec.environments)
        selected = [one for one in environments if term is None or matches(term, one.labels, one.name)]
        names = tuple(dict.fromkeys((*names, *(one.full_image for one in selected))))
        if len(names) > _MOST_IMAGES:
            excess = f"{len(names)} images are more than {_MOST_IMAGES}"
            raise InvalidInput(f"{subject}: spec.environments", found=excess, hint="select fewer environments")
    return found, core.Warmup(
        name=found.metadata.name,
        images=names,
        nodes=nodes,
        per_node=spec.parallelism.per_node,
        per_registry=spec.parallelism.per_registry,
        disk_percent=spec.max_disk_percent,
        pinned=spec.pinned,
        secrets=spec.pull_secrets,
        digests=tuple((one.image, one.digest) for one in found.status.images if is_digest(one.digest)),
    )


def readable_status(obj: Mapping[str, Any]) -> ImageWarmupStatus | None:
    """Return the status of an ImageWarmup, which may be invalid; None if this version cannot read it."""
    try:
        return msgspec.convert(obj.get("status") or {}, ImageWarmupStatus)
    except msgspec.ValidationError:
        return None


def read_node_images(obj: Mapping[str, Any], *, ready: bool = True) -> core.NodeImages:
    """Return the desired images of a node and its report; of what another version wrote otherwise, why it is unread.

    Raises:
        InvalidInput: the object is malformed.

    """
    with of_this_version(NODE_IMAGES, obj):
        found = msgspec.convert(obj, _NodeObject)
        desired = tuple(map(_desired, found.spec.images))
        observed = tuple(map(_observed, found.status.images))
    return core.NodeImages(
        name=found.metadata.name,
        ready=ready,
        desired=desired,
        observed=observed,
        disk_percent=found.status.disk_percent,
        reason=found.status.reason,
    )


def _desired(row: dict[str, Any]) -> core.DesiredImage:
    try:
        return msgspec.convert(msgspec.convert(row, DesiredImageFields), core.DesiredImage, from_attributes=True)
    except ValueError as error:
        image, attempt = _image_and_attempt(row)
        fix = "upgrade Tessera, or take the value out of the ImageWarmup"
        unread = str(refused_form(error, row, f"image {image}", fix))
        return core.DesiredImage(image=image, attempt=attempt, pinned=True, unread=unread)


def _observed(row: dict[str, Any]) -> core.ObservedImage:
    try:
        fields = msgspec.structs.asdict(msgspec.convert(row, ObservedImageFields))
        moment = fields.pop("failed_at")
        return core.ObservedImage(**fields, failed_s=read_time(moment) if moment else 0.0)
    except ValueError as error:
        image, attempt = _image_and_attempt(row)
        reason = str(refused_form(error, row, f"report of image {image}", "upgrade Tessera"))
        return core.ObservedImage(image=image, state="Failed", attempt=attempt, reason=reason, unread=True)


def _image_and_attempt(row: dict[str, Any]) -> tuple[str, int]:
    """Return which image another version wrote of, and the number of its pull; 0 for an unknown one.

    Raises:
        ValueError: it has no image that this version knows.

    """
    image = msgspec.convert(row.get("image"), _Image)
    try:
        return image, msgspec.convert(row.get("attempt", 0), Tally)
    except ValueError:
        return image, 0


def new_node_images(node: str, uid: str) -> dict[str, Any]:
    """Return a new object for a node, owned by the Node."""
    return object_of_node(NODE_IMAGES, node, uid)


def node_spec(desired: Iterable[core.DesiredImage]) -> dict[str, Any]:
    """Return the spec of a NodeImages."""
    fields = [msgspec.convert(each, DesiredImageFields, from_attributes=True) for each in desired]
    return {"images": msgspec.to_builtins(fields)}


def node_status(observed: Iterable[core.ObservedImage], *, disk_percent: int, runtime: str) -> dict[str, Any]:
    """Return the status of a NodeImages."""
    fields = [
        ObservedImageFields(
            image=each.image,
            state=each.state,
            digest=each.digest,
            bytes=each.bytes,
            pinned=each.pinned,
            attempt=each.attempt,
            failures=each.failures,
            failed_at=time_text(each.failed_s) if each.failed_s else "",
            reason=reason_text(each.reason),
        )
        for each in observed
    ]
    return {"images": msgspec.to_builtins(fields), "diskPercent": disk_percent, "runtime": runtime[:128]}


def unanswered_status(status: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return the status of a NodeImages whose container runtime does not answer: the last one, with the reason."""
    return {**status, "reason": reason_text(reason)}


def warmup_status(warmup: ImageWarmup, summary: core.WarmupSummary, now: dt.datetime) -> ImageWarmupStatus:
    """Return the status of a warmup; the same summary gives the same status."""
    generation = warmup.metadata.generation
    return ImageWarmupStatus(
        observed_generation=generation,
        nodes=summary.nodes,
        ready=summary.ready,
        pulling=summary.pulling,
        pinned=summary.pinned,
        images=tuple(msgspec.convert(one, ImageStatus, from_attributes=True) for one in summary.images),
        problems=tuple(
            ImageProblemFields(node=one.node, image=one.image, reason=reason_text(one.reason))
            for one in summary.problems
        ),
        conditions=updated_conditions(
            warmup.status.conditions,
            coverage(summary.nodes, summary.ready, ("Pulling", "an image", "all images")),
            now,
            generation=generation,
        ),
    )
