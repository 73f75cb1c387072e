"""A node's device list strategies, and what it lacks for CDI.

CDI where the node supports it, because there no pod can use other devices than it was allocated; docs/security.md.

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
"""First versions with CDI enabled. Source: containerd `docs/cri/config.md`; container-device-interface README."""
_LEAST_CONTAINERD = (1, 7)
"""First version with `enable_cdi`. Source: as above."""
_LEAST_KUBELET = (1, 29)
"""From which the kubelet passes on a device plugin's CDI names by default (DevicePluginCDIDevices, beta;
stable in 1.31). Source: KEP-4009 `kep.yaml`."""


_UNKNOWN = "Unknown"
"""The kubelet's message when its runtime does not answer. Source: kubernetes `pkg/kubelet/nodestatus/setters.go`."""


class DeviceInjection(msgspec.Struct, frozen=True, kw_only=True):
    """How this node injects devices."""

    strategies: tuple[ListStrategy, ...] = ("envvar",)
    pass_device_specs: bool = False
    by_index: bool = False
    """Whether `deviceIDStrategy` is `index`."""
    annotation_prefix: str = "cdi.k8s.io/"
    dev_root: str = "/"
    """Host folder that contains the driver's `/dev`."""
    driver_folder: str = ""
    """Host folder with the driver's libraries, for nodes where neither a runtime nor a CDI specification provides
    them; empty elsewhere."""

    @property
    def cdi(self) -> bool:
        """Whether the runtime gets CDI names."""
        return not _CDI.isdisjoint(self.strategies)

    @property
    def names_by_index(self) -> bool:
        """Whether `Allocate` names whole devices by the driver's index, not by UUID.

        Not beside CDI, which names UUIDs: with two names a container may start only while both are of its devices.
        """
        return self.by_index and not self.cdi

    @property
    def fixed_at_allocate(self) -> bool:
        """Whether `Allocate` names the GPU, so that it cannot be changed once the pod is known."""
        return not _CDI.issuperset(self.strategies)


class CdiSupport(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide whether a node's containers can get their devices by CDI."""

    runtime: str = ""
    """`containerRuntimeVersion` of the Node's `nodeInfo`: `containerd://2.4.2`."""
    kubelet: str = ""
    """`kubeletVersion` of the same: `v1.36.3`."""
    enabled: bool | None = None
    """Whether containerd's configuration enables CDI; None where it does not set it, or cannot be read."""
    driver_spec: bool = False
    """Whether the driver's libraries are known: by `nvidia-ctk`'s CDI specification, or as a folder."""


class ListStrategies(msgspec.Struct, frozen=True, kw_only=True):
    """A node's strategies, and why not CDI."""

    strategies: tuple[ListStrategy, ...]
    fallback: str = ""
    """What the node lacks for `cdi-cri`; empty for nothing, or where the strategies are configured."""
    advice: str = ""
    """The fix."""


def read_strategies(text: str) -> tuple[ListStrategy, ...]:
    """Return strategies separated by commas; unknown ones are left out."""
    known = text.split(",")
    return tuple(each for each in get_args(ListStrategy) if each in known)


def list_strategies(
    configured: tuple[ListStrategy, ...], node: CdiSupport, former: tuple[ListStrategy, ...] = ()
) -> ListStrategies:
    """Return the strategies of a node: the configured ones, else `cdi-cri` if everything supports it, else `envvar`.

    Args:
        configured: by the administrator.
        node: its facts about CDI.
        former: those in force. They stay while the node does not report its runtime, as when containerd has
            ended, and CDI stays while the driver's specification is being rewritten: neither weakens the node.

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
    """Return what is missing for CDI, and the fix; nothing where all is present."""
    if not node.runtime or not node.kubelet:
        return (
            "the Node object does not say which container runtime and kubelet it has",
            "start the kubelet, which reports both",
        )
    lacking, advice = _runtime_lacking(node)
    if lacking:
        return lacking, advice
    if _version(node.kubelet) < _LEAST_KUBELET:
        return f"kubelet {node.kubelet} does not pass CDI devices", "upgrade it to 1.29 or later"
    if not node.driver_spec:
        return "there is no CDI specification of the driver", MAKE_DRIVER_SPEC
    return "", ""


def _runtime_lacking(node: CdiSupport) -> tuple[str, str]:
    name, _, number = node.runtime.partition("://")
    if name not in _CDI_BY_DEFAULT:
        return f"{node.runtime} does not support CDI devices", "use containerd 2.0 or later, or CRI-O"
    switch = node.enabled if name == _CONTAINERD else None
    if switch is False:
        return "containerd's configuration switches CDI off", "set enable_cdi = true and restart containerd"
    least = _LEAST_CONTAINERD if switch else _CDI_BY_DEFAULT[name]
    if _version(number) < least:
        advice = f"upgrade to {'.'.join(map(str, least))} or later, or switch it on and configure cdi-cri"
        return f"{node.runtime} has CDI off by default", advice
    return "", ""


def _version(text: str) -> tuple[int, int]:
    """Return major and minor of a version, `v1.31.2-gke.1`; zeros for none."""
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
