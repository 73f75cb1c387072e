"""The kubelet's device checkpoint, read from the folder of device plugins."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from tessera.api.kubernetes.devicecheckpoint import DEVICE_CHECKPOINT, known_resources, read_checkpoint, read_responses
from tessera.clients.kubelet.responses import response_of
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.containerresponse import ContainerResponse
from tessera.errors import InvalidInput, Unavailable

__all__ = ["DeviceCheckpoint"]

_LARGEST = 64 << 20
"""Largest file; 110 pods with a thousand units each take 5 MiB."""


class DeviceCheckpoint:
    """The kubelet's allocations; the file is read again only when it was written.

    Args:
        folder: the kubelet's folder of device plugins.

    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / DEVICE_CHECKPOINT
        self._socket = folder / "kubelet.sock"
        self._known: tuple[object, tuple[KubeletAllocation, ...]] = (None, ())

    def read(self) -> tuple[KubeletAllocation, ...]:
        """Return the recorded allocations; nothing if the kubelet has not allocated anything yet.

        Raises:
            Unavailable: the file cannot be read, or has an unknown form.

        """
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                version = stat.st_ino, stat.st_mtime_ns, stat.st_size
                if self._known[0] != version:
                    content = file.read(_LARGEST)
                    self._known = version, read_checkpoint(str(self._path), content) if content else ()
        except FileNotFoundError:
            self._known = None, ()
        except (OSError, InvalidInput) as error:
            raise Unavailable(
                f"kubelet's checkpoint {self._path}",
                found=str(error),
                hint="mount the kubelet's folder of device plugins into the agent",
            ) from error
        return self._known[1]

    def lacks(self, uid: str, container: str, resource: str) -> bool:
        """Return whether the kubelet's allocations are known, and this is not one of them."""
        if not self.is_readable():
            return False
        return (uid, container, resource) not in {each.container_key for each in self._known[1]}

    def is_readable(self) -> bool:
        """Return whether the kubelet's allocations are known: the file is there, and can be read."""
        try:
            self.read()
        except Unavailable:
            return False
        return self._known[0] is not None

    def kubelet_started_ns(self) -> int | None:
        """Return when the kubelet started that listens beside the file, in nanoseconds since 1970; None if none does.

        It makes its socket anew at each start.
        """
        try:
            return self._socket.stat().st_mtime_ns
        except OSError:
            return None

    def responses(self) -> Mapping[tuple[str, str, str], ContainerResponse]:
        """Return what plugins answered for containers, by UID of the pod, container and resource.

        Nothing of a file that cannot be read, and of answers that are not of the device plugin API.
        """
        found = {key: response_of(data) for key, data in read_responses(self._content()).items()}
        return {key: response for key, response in found.items() if response is not None}

    def resources(self) -> frozenset[str]:
        """Return the resources that the kubelet admits no pod without; none if the file cannot be read."""
        return known_resources(self._content())

    def _content(self) -> bytes:
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            return file.read(_LARGEST)
        return b""
