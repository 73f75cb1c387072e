"""Names of Kubernetes itself on nodes and pods that are read and written here."""

from typing import Final

__all__ = ["HOSTNAME", "MIRROR"]

HOSTNAME: Final = "kubernetes.io/hostname"
"""Label of every node, by default its name; a local volume refers to its node by it."""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a static pod's mirror pod, with the UID that the kubelet gives the pod itself."""
