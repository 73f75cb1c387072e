"""How devices are handed to a container, in the words of NVIDIA's device plugin: the strategies of its device list.

By CDI where the node can, because no pod can ask for other devices there than it was allocated; docs/security.md.

Source: NVIDIA/k8s-device-plugin `internal/plugin/server.go`, and its page on CDI.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

import msgspec

from tessera.core.edits import Mount, ShareEdits
from tessera.core.grant import DeviceNode, Grant
from tessera.core.nodesharing import ListStrategy

__all__ = [
    "GPU_KIND",
    "MAKE_DRIVER_SPEC",
    "SHARE_KIND",
    "CdiSupport",
    "Handover",
    "ListStrategies",
    "by_cdi",
    "grant",
    "list_strategies",
    "share_name",
]

GPU_KIND = "tessera.dev/gpu"
"""CDI kind of whole GPUs and MIG instances; a device's name is its UUID."""
SHARE_KIND = "tessera.dev/share"
"""CDI kind of what pods get by assignment; a device's name comes from the device ids."""
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_LIST_FOLDER = "/var/run/nvidia-container-devices"
_CDI: frozenset[ListStrategy] = frozenset({"cdi-annotations", "cdi-cri"})
_NAME_CHARACTERS = 16
MAKE_DRIVER_SPEC = "run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_CONTAINERD, _CRIO = "containerd", "cri-o"
_CDI_BY_DEFAULT = {_CONTAINERD: (2, 0), _CRIO: (1, 23)}
"""First versions with CDI on. Source: containerd `docs/cri/config.md`; container-device-interface README."""
_LEAST_CONTAINERD = (1, 7)
"""From which `enable_cdi` is there. Source: as above."""
_LEAST_KUBELET = (1, 29)
"""From which the kubelet passes on a device plugin's CDI names unless told otherwise (DevicePluginCDIDevices, beta;
stable in 1.31). Source: KEP-4009 `kep.yaml`."""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """How this node hands devices over."""

    strategies: tuple[ListStrategy, ...] = ("envvar",)
    pass_device_specs: bool = False
    annotation_prefix: str = "cdi.k8s.io/"
    dev_root: str = "/"
    """Folder of the host under which the driver's `/dev` lies."""

    @property
    def cdi(self) -> bool:
        """Whether the runtime gets CDI names."""
        return not _CDI.isdisjoint(self.strategies)

    @property
    def fixed_at_allocate(self) -> bool:
        """Whether `Allocate` says which GPU it is, so that nothing can be changed when the pod is known."""
        return not _CDI.issuperset(self.strategies)


class CdiSupport(msgspec.Struct, frozen=True, kw_only=True):
    """What tells whether containers of a node can get their devices by CDI."""

    runtime: str = ""
    """`containerRuntimeVersion` of the Node's `nodeInfo`: `containerd://2.4.2`."""
    kubelet: str = ""
    """`kubeletVersion` of the same: `v1.36.3`."""
    enabled: bool | None = None
    """Whether containerd's configuration switches CDI on; None where it does not say, or cannot be read."""
    driver_spec: bool = False
    """Whether there is the CDI specification that brings the driver's libraries, which `nvidia-ctk` makes."""


class ListStrategies(msgspec.Struct, frozen=True, kw_only=True):
    """How a node hands devices over, and why not by CDI."""

    strategies: tuple[ListStrategy, ...]
    fallback: str = ""
    """What the node lacks for `cdi-cri`; empty where nothing, or where the strategies are configured."""
    advice: str = ""
    """What to do about it."""


def list_strategies(configured: tuple[ListStrategy, ...], node: CdiSupport) -> ListStrategies:
    """Return the strategies of a node: those configured, else `cdi-cri` where everything has it, else `envvar`."""
    if configured:
        return ListStrategies(strategies=configured)
    lacking, advice = _lacking(node)
    return ListStrategies(strategies=("envvar",) if lacking else ("cdi-cri",), fallback=lacking, advice=advice)


def _lacking(node: CdiSupport) -> tuple[str, str]:
    """Return what is lacking for CDI, and what to do about it; nothing where all is there."""
    if not node.runtime or not node.kubelet:
        return "the Node object does not say which container runtime and kubelet it has", "is the kubelet running?"
    lacking, advice = _runtime_lacking(node)
    if lacking:
        return lacking, advice
    if _version(node.kubelet) < _LEAST_KUBELET:
        return f"kubelet {node.kubelet} passes no CDI devices on", "upgrade it to 1.29 or later"
    if not node.driver_spec:
        return "there is no CDI specification of the driver", MAKE_DRIVER_SPEC
    return "", ""


def _runtime_lacking(node: CdiSupport) -> tuple[str, str]:
    name, _, number = node.runtime.partition("://")
    if name not in _CDI_BY_DEFAULT:
        return f"{node.runtime} takes no CDI devices", "use containerd 2.0 or later, or CRI-O"
    switch = node.enabled if name == _CONTAINERD else None
    if switch is False:
        return "containerd's configuration switches CDI off", "set enable_cdi = true and restart containerd"
    least = _LEAST_CONTAINERD if switch else _CDI_BY_DEFAULT[name]
    if _version(number) < least:
        advice = f"upgrade to {'.'.join(map(str, least))} or later, or switch it on and configure cdi-cri"
        return f"{node.runtime} has CDI off by default", advice
    return "", ""


def _version(text: str) -> tuple[int, int]:
    """Return major and minor of a version, `v1.31.2-gke.1`; zeros where there are none."""
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def share_name(resource: str, ids: Iterable[str]) -> str:
    """Return the CDI name for device ids: the same for the same ids in any order, and safe as a file's name."""
    text = "\0".join((resource, *sorted(ids)))
    return hashlib.sha256(text.encode()).hexdigest()[:_NAME_CHARACTERS]


def by_cdi(handover: Handover, kind: str, names: Sequence[str]) -> Grant:
    """Return the answer that names CDI devices; empty where no CDI strategy is chosen."""
    full = tuple(f"{kind}={name}" for name in names)
    annotations: tuple[tuple[str, str], ...] = ()
    if "cdi-annotations" in handover.strategies:
        key = f"{handover.annotation_prefix}tessera_{share_name(kind, names)}"
        annotations = ((key, ",".join(full)),)
    return Grant(annotations=annotations, cdi_devices=full if "cdi-cri" in handover.strategies else ())


def grant(handover: Handover, cdi: Grant, visible: Sequence[str], edits: ShareEdits) -> Grant:
    """Return the whole answer for one container.

    Args:
        handover: how this node hands devices over.
        cdi: what `by_cdi` gave.
        visible: what the container sees, as UUIDs or indices, each once.
        edits: what its shares add. Device nodes are handed over only with `pass_device_specs`: the runtime makes them.

    """
    env: list[tuple[str, str]] = []
    mounts: list[Mount] = []
    if "volume-mounts" in handover.strategies:
        env = [(VISIBLE, _LIST_FOLDER)]
        mounts = [Mount(host_path="/dev/null", container_path=f"{_LIST_FOLDER}/{name}") for name in visible]
    if "envvar" in handover.strategies:
        env = [(VISIBLE, ",".join(visible))]
    nodes = edits.device_nodes if handover.pass_device_specs else ()
    return Grant(
        env=(*env, *edits.env),
        mounts=(*mounts, *edits.mounts),
        device_nodes=tuple(
            DeviceNode(host_path=f"{handover.dev_root.rstrip('/')}{path}", container_path=path) for path in nodes
        ),
        annotations=cdi.annotations,
        cdi_devices=cdi.cdi_devices,
    )
