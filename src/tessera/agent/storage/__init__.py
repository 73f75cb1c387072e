"""What is on the node before a pod starts: images."""

from tessera.agent.storage.images import ImageWarmer

__all__ = ["ImageWarmer"]
