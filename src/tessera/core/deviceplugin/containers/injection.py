"""How devices are injected into a container, by the node's device list strategies (`core.node.liststrategies`).

Source: NVIDIA/k8s-device-plugin `internal/plugin/server.go`, and its page on CDI.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from tessera.core.deviceplugin.allocations.agentallocations import AgentAllocation, latest
from tessera.core.deviceplugin.containerresponse import (
    LIST_FOLDER,
    VISIBLE,
    ContainerMount,
    ContainerResponse,
    DeviceNode,
)
from tessera.core.deviceplugin.containers.edits import ShareEdits
from tessera.core.node.liststrategies import DeviceInjection

__all__ = [
    "GPU_KIND",
    "SHARE_KIND",
    "VOID",
    "answered",
    "by_cdi",
    "container_response",
    "driver_mount",
    "share_name",
]


GPU_KIND = "tessera.dev/gpu"
"""CDI kind of whole GPUs and MIG instances; a device's name is its UUID."""
SHARE_KIND = "tessera.dev/share"
"""CDI kind of assigned shares; a device's name is derived from the device ids."""
VOID = ((VISIBLE, "void"),)
"""Environment of a CDI device: NVIDIA's runtime, which may be installed as well, injects nothing more."""
_NAME_CHARACTERS = 16
_DRIVER_FOLDER = "/usr/local/nvidia"
"""Where containers on GKE find the driver. Source: GoogleCloudPlatform/container-engine-accelerators
`cmd/nvidia_gpu/nvidia_gpu.go`, `-container-path`; NVIDIA's CUDA images have its `lib64` in LD_LIBRARY_PATH."""


def share_name(resource: str, ids: Iterable[str]) -> str:
    """Return the CDI name for device ids: the same for the same ids in any order, and safe as a file name."""
    text = "\0".join((resource, *sorted(ids)))
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_CHARACTERS]


def by_cdi(injection: DeviceInjection, kind: str, names: Sequence[str]) -> ContainerResponse:
    """Return the answer that names CDI devices; empty without a CDI strategy."""
    full = tuple(f"{kind}={name}" for name in names)
    annotations: tuple[tuple[str, str], ...] = ()
    if "cdi-annotations" in injection.strategies:
        key = f"{injection.annotation_prefix}tessera_{share_name(kind, names)}"
        annotations = ((key, ",".join(full)),)
    return ContainerResponse(annotations=annotations, cdi_devices=full if "cdi-cri" in injection.strategies else ())


def answered(
    record: Iterable[AgentAllocation], holder: AgentAllocation, present: DeviceInjection, *, named_at_allocate: bool
) -> DeviceInjection:
    """Return how `Allocate` answered for a container: as recorded, or as devices are handed over now.

    The kubelet hands that answer to the runtime at each start, whatever the strategies are by then.

    Args:
        record: the allocations.
        holder: the container.
        present: this node's strategies now.
        named_at_allocate: whether an answer that named the devices is kept for it.

    """
    own = latest(record, holder)
    found = present
    if own is not None:
        found = msgspec.structs.replace(present, strategies=own.strategies or present.strategies)
        # An answer by CDI alone is recorded without devices, so this one named them.
        named_at_allocate = named_at_allocate or (own.presumed and bool(own.uses))
    return (
        found
        if found.fixed_at_allocate or not named_at_allocate
        else msgspec.structs.replace(present, strategies=("envvar",))
    )


def driver_mount(folder: str) -> ContainerMount:
    """Return the edits that mount a host folder with the driver's libraries."""
    return ContainerMount(host_path=folder, container_path=_DRIVER_FOLDER, read_only=True)


def container_response(
    injection: DeviceInjection, cdi: ContainerResponse, visible: Sequence[str], edits: ShareEdits
) -> ContainerResponse:
    """Return the whole answer for one container.

    Args:
        injection: this node's strategies.
        cdi: the result of `by_cdi`.
        visible: the visible devices, as UUIDs or indices, each once.
        edits: of its shares. Device nodes are injected only with `pass_device_specs`, or without
            NVIDIA's runtime.

    """
    env: list[tuple[str, str]] = []
    mounts: list[ContainerMount] = []
    if "volume-mounts" in injection.strategies:
        env = [(VISIBLE, LIST_FOLDER)]
        mounts = [ContainerMount(host_path="/dev/null", container_path=f"{LIST_FOLDER}/{name}") for name in visible]
    if "envvar" in injection.strategies:
        env = [(VISIBLE, ",".join(visible))]
    bare = bool(injection.driver_folder) and not injection.cdi
    if bare:
        mounts.append(driver_mount(injection.driver_folder))
    nodes = edits.device_nodes if injection.pass_device_specs or bare else ()
    return ContainerResponse(
        env=(*env, *edits.env),
        mounts=(*mounts, *edits.mounts),
        device_nodes=tuple(
            DeviceNode(host_path=f"{injection.dev_root.rstrip('/')}{path}", container_path=path) for path in nodes
        ),
        annotations=cdi.annotations,
        cdi_devices=cdi.cdi_devices,
    )
