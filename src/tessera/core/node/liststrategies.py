"""How a node hands devices to containers: the strategies of its device list, and what it lacks for CDI.

By CDI where the node can, because no pod can ask for other devices there than it was allocated; docs/security.md.

Source: NVIDIA/k8s-device-plugin `internal/plugin/server.go`, and its page on CDI.
"""

import re
from typing import get_args

import msgspec

from tessera.core.node.nodesharing import ListStrategy

__all__ = ["MAKE_DRIVER_SPEC", "CdiSupport", "DeviceInjection", "ListStrategies", "list_strategies", "read_strategies"]

_CDI: frozenset[ListStrategy] = frozenset({"cdi-annotations", "cdi-cri"})
MAKE_DRIVER_SPEC = "run nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_CONTAINERD, _CRIO = "containerd", "cri-o"
_CDI_BY_DEFAULT = {_CONTAINERD: (2, 0), _CRIO: (1, 23)}
"""First versions with CDI on. Source: containerd `docs/cri/config.md`; container-device-interface README."""
_LEAST_CONTAINERD = (1, 7)
"""From which `enable_cdi` is there. Source: as above."""
_LEAST_KUBELET = (1, 29)
"""From which the kubelet passes on a device plugin's CDI names by default (DevicePluginCDIDevices, beta;
stable in 1.31). Source: KEP-4009 `kep.yaml`."""


_UNKNOWN = "Unknown"
"""What a kubelet says whose runtime does not answer. Source: kubernetes `pkg/kubelet/nodestatus/setters.go`."""


class DeviceInjection(msgspec.Struct, frozen=True, kw_only=True):
    """How this node hands devices over."""

    strategies: tuple[ListStrategy, ...] = ("envvar",)
    pass_device_specs: bool = False
    annotation_prefix: str = "cdi.k8s.io/"
    dev_root: str = "/"
    """Folder of the host under which the driver's `/dev` lies."""
    driver_folder: str = ""
    """Folder of the host with the driver's libraries, for nodes where neither a runtime nor a CDI specification brings
    them; empty elsewhere."""

    @property
    def cdi(self) -> bool:
        """Whether the runtime gets CDI names."""
        return not _CDI.isdisjoint(self.strategies)

    @property
    def fixed_at_allocate(self) -> bool:
        """Whether `Allocate` says which GPU it is, so that nothing can be changed when the pod is known."""
        return not _CDI.issuperset(self.strategies)


class CdiSupport(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide whether containers of a node can get their devices by CDI."""

    runtime: str = ""
    """`containerRuntimeVersion` of the Node's `nodeInfo`: `containerd://2.4.2`."""
    kubelet: str = ""
    """`kubeletVersion` of the same: `v1.36.3`."""
    enabled: bool | None = None
    """Whether containerd's configuration switches CDI on; None where it does not say, or cannot be read."""
    driver_spec: bool = False
    """Whether the driver's libraries are known: by the CDI specification that `nvidia-ctk` makes, or as a folder."""


class ListStrategies(msgspec.Struct, frozen=True, kw_only=True):
    """How a node hands devices over, and why not by CDI."""

    strategies: tuple[ListStrategy, ...]
    fallback: str = ""
    """What the node lacks for `cdi-cri`; empty where nothing, or where the strategies are configured."""
    advice: str = ""
    """What to do about it."""


def read_strategies(text: str) -> tuple[ListStrategy, ...]:
    """Return strategies written with commas between them; those that there are not are left out."""
    known = text.split(",")
    return tuple(each for each in get_args(ListStrategy) if each in known)


def list_strategies(
    configured: tuple[ListStrategy, ...], node: CdiSupport, former: tuple[ListStrategy, ...] = ()
) -> ListStrategies:
    """Return the strategies of a node: those configured, else `cdi-cri` where everything has it, else `envvar`.

    Args:
        configured: by the administrator.
        node: what the node has for CDI.
        former: those in force. They stay while the node does not say which runtime it has, as when containerd has
            ended, and CDI stays while the driver's specification is being written anew: neither opens the node.

    """
    if configured:
        return ListStrategies(strategies=configured)
    if former and (not node.kubelet or node.runtime.rpartition("://")[2] in ("", _UNKNOWN)):
        return ListStrategies(strategies=former)
    if not _CDI.isdisjoint(former):
        node = msgspec.structs.replace(node, driver_spec=True)
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
