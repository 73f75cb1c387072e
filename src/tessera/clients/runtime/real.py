"""The container runtime behind the kubelet's socket: CRI for images, containerd's own API for names and pins.

CRI cannot pin. containerd can: an image with the label `io.cri-containerd.pinned` is reported as pinned by CRI, and
the kubelet's garbage collection keeps it. With other runtimes images are pulled and not pinned.

Source: containerd `internal/cri/labels/labels.go`, `core/metadata/images.go`; kubernetes
`pkg/kubelet/images/image_gc_manager.go`.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from tessera.api.oci.dockerconfig import RegistryCredential
from tessera.clients.kubelet import sockets
from tessera.clients.runtime.protocol import LocalImage
from tessera.clients.runtime.wire import containerd_images_v1_pb2 as containerd
from tessera.clients.runtime.wire import cri_v1_pb2 as cri
from tessera.core.storage.images.layers import Reference
from tessera.errors import Unavailable, Unsupported

__all__ = ["CONTAINERD", "CriRuntime"]

CONTAINERD = Path("/run/containerd/containerd.sock")
"""Where containerd answers, unless it was configured otherwise."""
_IMAGES, _RUNTIME, _NAMES = (
    "/runtime.v1.ImageService",
    "/runtime.v1.RuntimeService",
    "/containerd.services.images.v1.Images",
)
_NAMESPACE = (("containerd-namespace", "k8s.io"),)
_PINNED, _MANAGED = "io.cri-containerd.pinned", "io.cri-containerd.image"
_OURS = "tessera.dev/pinned"
"""Label of an image in containerd: the name by which it was pinned. Set by the agent; read by the agent."""
_ANSWER_S, _PULL_S = 30.0, 3600.0
_READS, _PAUSE_S = 200, 0.05


class CriRuntime:
    """The container runtime of this node.

    Args:
        socket: of the runtime.
        root: the node's root folder in this process.

    """

    def __init__(self, socket: Path = CONTAINERD, *, root: Path = Path("/")) -> None:
        self._socket = socket
        self._root = root
        self._channel: grpc.aio.Channel | None = None
        self._containerd: bool | None = None

    async def version(self) -> str:
        """Return its name and version."""
        response = await self._ask(f"{_RUNTIME}/Version", cri.VersionRequest(), cri.VersionResponse)
        self._containerd = response.runtime_name == "containerd"
        return f"{response.runtime_name} {response.runtime_version}"

    async def image(self, reference: Reference) -> LocalImage | None:
        """Return an image by the name that pods use."""
        response = await self._status(reference)
        if not response.HasField("image"):
            return None
        digest, pinned = "", response.image.pinned
        if await self._is_containerd() and (named := await self._named(reference.name)):
            # CRI calls an image pinned as soon as one of its names is; each name has a pin of its own.
            digest, pinned = named.target.digest, pinned and _PINNED in named.labels
        prefix = f"{reference.registry}/{reference.repository}@"
        known = [each.removeprefix(prefix) for each in response.image.repo_digests if each.startswith(prefix)]
        return LocalImage(
            digest=digest or reference.digest or next(iter(known), ""),
            bytes=response.image.size,
            pinned=pinned,
        )

    async def pull(self, reference: Reference, digest: str, credential: RegistryCredential | None) -> None:
        """Pull an image, and give it its name."""
        by_digest = bool(digest) and await self._is_containerd()
        request = cri.PullImageRequest(image=cri.ImageSpec(image=reference.at(digest) if by_digest else reference.name))
        if credential is not None:
            request.auth.CopyFrom(
                cri.AuthConfig(
                    username=credential.username,
                    password=credential.password,
                    identity_token=credential.identity_token,
                )
            )
        await self._ask(f"{_IMAGES}/PullImage", request, cri.PullImageResponse, deadline_s=_PULL_S)
        if by_digest and reference.tag:
            await self._name(reference, digest)
            await self._wait_until_shown(reference, lambda response: response.HasField("image"))

    async def pin(self, reference: Reference) -> None:
        """Pin an image against the kubelet's garbage collection."""
        if not await self._is_containerd():
            raise Unsupported(
                "the container runtime",
                found="it cannot pin an image while it runs; containerd can",
                hint="list it in the runtime's own configuration: `pinned_images` of CRI-O",
            )
        named = await self._named(reference.name)
        if named is None:
            raise Unavailable(f"image {reference.name}", found="this node has none", hint="pull it first")
        for name in (reference.name, reference.at(named.target.digest)):
            found = await self._named(name)
            if found is not None and (_PINNED not in found.labels or _OURS in found.labels):
                await self._label(found, {_PINNED: "pinned", _OURS: reference.name})
        await self._wait_until_shown(reference, lambda response: response.image.pinned)

    async def unpin(self, name: str) -> None:
        """Undo `pin` for the image of this name."""
        for each in await self._ours():
            if each.labels[_OURS] == name:
                await self._label(each, {_PINNED: "", _OURS: ""})

    async def pinned(self) -> frozenset[str]:
        """Return the names of the images that `pin` pinned, by whatever process."""
        return frozenset(each.labels[_OURS] for each in await self._ours())

    async def disk_percent(self) -> int:
        """Return how full the disk is on which images lie."""
        response = await self._ask(f"{_IMAGES}/ImageFsInfo", cri.ImageFsInfoRequest(), cri.ImageFsInfoResponse)
        folders = [each.fs_id.mountpoint for each in response.image_filesystems]
        try:
            found = await asyncio.to_thread(lambda: [os.statvfs(self._root / folder.lstrip("/")) for folder in folders])
        except OSError as error:
            raise Unavailable(
                f"images in {', '.join(folders)}", found=str(error), hint="name a folder that can be read"
            ) from error
        return max((100 - 100 * each.f_bavail // max(each.f_blocks, 1) for each in found), default=0)

    async def close(self) -> None:
        """Disconnect."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _status(self, reference: Reference) -> Any:
        request = cri.ImageStatusRequest(image=cri.ImageSpec(image=reference.name))
        return await self._ask(f"{_IMAGES}/ImageStatus", request, cri.ImageStatusResponse)

    async def _wait_until_shown(self, reference: Reference, shows: Callable[[Any], bool]) -> None:
        """Wait until CRI shows a write to containerd, of which it is notified by an event."""
        for _ in range(_READS):
            if shows(await self._status(reference)):
                return
            await asyncio.sleep(_PAUSE_S)

    async def _is_containerd(self) -> bool:
        if self._containerd is None:
            await self.version()
        return bool(self._containerd)

    async def _ours(self) -> tuple[containerd.Image, ...]:
        if not await self._is_containerd():
            return ()
        request = containerd.ListImagesRequest(filters=[f'labels."{_OURS}"'])
        response = await self._ask(f"{_NAMES}/List", request, containerd.ListImagesResponse)
        return tuple(response.images)

    async def _named(self, name: str) -> containerd.Image | None:
        """Return the image of a name in containerd; None for none."""
        request = containerd.ListImagesRequest(filters=[f'name=="{name}"'])
        response = await self._ask(f"{_NAMES}/List", request, containerd.ListImagesResponse)
        return next(iter(response.images), None)

    async def _name(self, reference: Reference, digest: str) -> None:
        """Set a name for an image pulled by its digest, as a pull of the name does."""
        found, former = await self._named(reference.at(digest)), await self._named(reference.name)
        if found is None or (former is not None and former.target.digest == digest):
            return
        image = containerd.Image(name=reference.name, target=found.target, labels={_MANAGED: "managed"})
        if former is None:
            await self._ask(
                f"{_NAMES}/Create", containerd.CreateImageRequest(image=image), containerd.CreateImageResponse
            )
        else:
            request = containerd.UpdateImageRequest(image=image)
            request.update_mask.paths.append("target")
            await self._ask(f"{_NAMES}/Update", request, containerd.UpdateImageResponse)

    async def _label(self, stored: containerd.Image, labels: Mapping[str, str]) -> None:
        """Set labels of a name in containerd; an empty value removes one."""
        # With its target, though the mask leaves it out: containerd 2.4.2 crashes on a request without one.
        image = containerd.Image(name=stored.name, target=stored.target, labels=labels)
        request = containerd.UpdateImageRequest(image=image)
        request.update_mask.paths.extend(f"labels.{each}" for each in labels)
        await self._ask(f"{_NAMES}/Update", request, containerd.UpdateImageResponse)

    async def _ask(self, method: str, request: Any, answer: Any, *, deadline_s: float = _ANSWER_S) -> Any:
        if self._channel is None:
            self._channel = sockets.channel(self._socket)
        call = self._channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        try:
            return await call(request, timeout=deadline_s, metadata=_NAMESPACE)
        except grpc.aio.AioRpcError as error:
            found = f"{error.code().name}: {error.details()}"
            subject = f"container runtime at {self._socket}"
            raise Unavailable(
                subject, found=f"{method.rpartition('/')[2]}: {found}", hint="see whether the container runtime runs"
            ) from error
