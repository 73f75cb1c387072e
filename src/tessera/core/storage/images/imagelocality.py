"""Which nodes have the images of a pod: of nodes that are as good for its GPUs, one that pulls least is chosen."""

from collections.abc import Iterable, Mapping

__all__ = ["ImageLocality"]


class ImageLocality:
    """The images that nodes report, by image."""

    def __init__(self, nodes: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self._images: dict[str, Mapping[str, int]] = {}
        self._bytes: dict[str, dict[str, int]] = {}
        for node, images in (nodes or {}).items():
            self.put(node, images)

    def put(self, node: str, images: Mapping[str, int]) -> None:
        """Set a node's images: bytes by the full name of each image."""
        if self._images.get(node, {}) == images:
            return
        self.drop(node)
        self._images[node] = images
        for image, size in images.items():
            self._bytes.setdefault(image, {})[node] = size

    def drop(self, node: str) -> None:
        """Forget a node."""
        for image in self._images.pop(node, {}):
            holders = self._bytes[image]
            del holders[node]
            if not holders:
                del self._bytes[image]

    def bytes_present(self, images: Iterable[str]) -> Mapping[str, int]:
        """Return the bytes of these images that each node has; nodes without any are left out."""
        found: dict[str, int] = {}
        for image in dict.fromkeys(images):
            for node, size in self._bytes.get(image, {}).items():
                found[node] = found.get(node, 0) + size
        return found
