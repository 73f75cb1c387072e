"""What images have in common: shared layers, what a node would pull, and the base that would save most.

Layers are compressed, as in registries and transfers. A layer that several images have is pulled once by a node.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

__all__ = ["Analysis", "Base", "Image", "ImageUse", "Layer", "NodePull", "Reference", "SharedLayer", "analyze"]


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """An image by its full name."""

    registry: str
    """Host, and port where it is not the default one: `docker.io`, `registry.example:5000`."""
    repository: str
    tag: str = ""
    """Empty if only the digest names the image."""
    digest: str = ""

    @property
    def name(self) -> str:
        """The name as containerd and the kubelet write it."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    def at(self, digest: str) -> str:
        """Return the name of the content that the digest says: `REGISTRY/REPOSITORY@DIGEST`."""
        return f"{self.registry}/{self.repository}@{digest}"


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of an image."""

    digest: str
    bytes: int
    """Compressed."""
    step: str = ""
    """The build step that made it; equal texts mean the same step; empty where the text is not specific enough."""

    def same_step(self, other: "Layer") -> bool:
        """Return whether both come from the same build step, built once or twice."""
        return self.digest == other.digest or (self.step != "" and self.step == other.step)


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """An image for one platform."""

    name: str
    digest: str
    """Digest of its name in the registry, for all platforms."""
    repository: str
    """Registry and repository."""
    platform: str
    """As `linux/amd64`."""
    layers: tuple[Layer, ...]
    """The lowest first."""

    @property
    def bytes(self) -> int:
        """Compressed size; a repeated layer counts once."""
        return sum(_sizes((self,)).values())


class ImageUse(msgspec.Struct, frozen=True, kw_only=True):
    """The size of an image alone and beside the others."""

    name: str
    digest: str
    platform: str
    layers: int
    bytes: int
    shared_bytes: int
    """Of layers that another of the images has too."""


class SharedLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A layer of several images."""

    digest: str
    bytes: int
    images: tuple[str, ...]


class NodePull(msgspec.Struct, frozen=True, kw_only=True):
    """What one node would pull to have all images."""

    node: str
    missing: tuple[str, ...]
    """The missing images."""
    bytes: int
    """Of layers that none of its images has."""


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The lowest layers of an image, on which others could be built."""

    image: str
    """The image that has them."""
    layers: int
    """How many."""
    rebuilt: tuple[str, ...]
    """Images with the same lowest build steps and other layers: rebuild them on this base."""
    saved_bytes: int
    """What a node without any of the images would pull less."""


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """What images have in common."""

    images: tuple[ImageUse, ...]
    shared: tuple[SharedLayer, ...]
    """The largest first."""
    bytes: int
    """What a node without any of the images pulls for all of them."""
    bytes_without_sharing: int
    """The sizes of all images added up."""
    nodes: tuple[NodePull, ...]
    base: Base | None
    """The base that would save most; None where none would save anything."""


def analyze(images: Sequence[Image], images_by_node: Mapping[str, Collection[str]]) -> Analysis:
    """Return what images of one platform have in common.

    Args:
        images: each name once.
        images_by_node: what each node has, by the names `REGISTRY/REPOSITORY@DIGEST` that the kubelet reports.

    """
    users: dict[str, list[str]] = {}
    for image in images:
        for digest in _sizes((image,)):
            users.setdefault(digest, []).append(image.name)
    sizes = _sizes(images)
    several = {digest for digest, names in users.items() if len(names) > 1}
    shared = [SharedLayer(digest=each, bytes=sizes[each], images=tuple(users[each])) for each in several]
    return Analysis(
        images=tuple(_use(each, several) for each in images),
        shared=tuple(sorted(shared, key=lambda each: (-each.bytes, each.digest))),
        bytes=sum(sizes.values()),
        bytes_without_sharing=sum(each.bytes for each in images),
        nodes=tuple(_pull(node, images, names) for node, names in sorted(images_by_node.items())),
        base=_best_base(images),
    )


def _sizes(images: Sequence[Image]) -> dict[str, int]:
    return {layer.digest: layer.bytes for image in images for layer in image.layers}


def _use(image: Image, several: Collection[str]) -> ImageUse:
    sizes = _sizes((image,))
    return ImageUse(
        name=image.name,
        digest=image.digest,
        platform=image.platform,
        layers=len(image.layers),
        bytes=image.bytes,
        shared_bytes=sum(size for digest, size in sizes.items() if digest in several),
    )


def _pull(node: str, images: Sequence[Image], names: Collection[str]) -> NodePull:
    there = [each for each in images if f"{each.repository}@{each.digest}" in names]
    missing = [each for each in images if each not in there]
    present = _sizes(there)
    return NodePull(
        node=node,
        missing=tuple(each.name for each in missing),
        bytes=sum(size for digest, size in _sizes(missing).items() if digest not in present),
    )


def _best_base(images: Sequence[Image]) -> Base | None:
    """Return the base that saves most; of equals that of the first image, with the fewest layers."""
    now = sum(_sizes(images).values())
    best: Base | None = None
    for owner in images:
        for count in range(1, len(owner.layers) + 1):
            base = owner.layers[:count]
            rebuilt = [each for each in images if _is_rebuilt(each.layers, base)]
            if not rebuilt:
                continue
            after = [
                msgspec.structs.replace(each, layers=(*base, *each.layers[count:])) if each in rebuilt else each
                for each in images
            ]
            saved = now - sum(_sizes(after).values())
            if saved > (best.saved_bytes if best else 0):
                names = tuple(each.name for each in rebuilt)
                best = Base(image=owner.name, layers=count, rebuilt=names, saved_bytes=saved)
    return best


def _is_rebuilt(layers: Sequence[Layer], base: Sequence[Layer]) -> bool:
    """Return whether layers begin with the steps of a base, built another time."""
    lowest = layers[: len(base)]
    if len(lowest) < len(base) or lowest == base:
        return False
    return all(one.same_step(other) for one, other in zip(lowest, base, strict=True))
