"""Addresses inside a testbed's network, which has no way out: the same numbers serve every testbed."""

from collections.abc import Iterator

__all__ = [
    "API_PORT",
    "API_SERVICE",
    "CONTROL_PLANE",
    "MOST_NODES",
    "SERVICES",
    "connect_node",
    "node_address",
    "pod_network",
    "prepare_bridge",
]

CONTROL_PLANE = "192.168.77.2"
API_PORT = 6443
SERVICES = "10.96.0.0/24"
API_SERVICE = "10.96.0.1"
"""Address of the Service `kubernetes`: the first of `SERVICES`."""
MOST_NODES = 99
_FIRST_NODE = 100
"""Added to a node's number for the last part of its address, and for the third part of its pods' network."""


def node_address(number: int) -> str:
    """Return the address of a node; numbers begin at 1."""
    return f"192.168.77.{_FIRST_NODE + number}"


def pod_network(number: int) -> str:
    """Return the network of a node's pods."""
    return f"192.168.{_FIRST_NODE + number}.0/24"


def prepare_bridge() -> Iterator[tuple[str, ...]]:
    """Give the commands that make the network of the control plane, to run inside the outer namespaces, once."""
    yield ("ip", "link", "set", "lo", "up")
    yield ("ip", "link", "add", "br0", "type", "bridge")
    yield ("ip", "address", "add", f"{CONTROL_PLANE}/24", "dev", "br0")
    yield ("ip", "link", "set", "br0", "up")
    yield _FORWARD
    yield _RESERVE


_RESERVE = ("sh", "-c", "echo 39990-39999 > /proc/sys/net/ipv4/ip_local_reserved_ports")
"""Ports on which servers listen lie among those that the kernel gives to connections, which must not come first."""
_FORWARD = ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")


_TO_API_SERVER = (
    *("-d", API_SERVICE, "-p", "tcp", "--dport", "443"),
    *("-j", "DNAT", "--to-destination", f"{CONTROL_PLANE}:{API_PORT}"),
)


def connect_node(number: int, pid: int) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """Return the commands that join a node to the bridge: those to run at the bridge, then those to run on the node.

    Args:
        number: of the node.
        pid: of a process in the node's network, as those at the bridge number it.

    """
    link = f"node{number}"
    bridge = (
        ("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid)),
        ("ip", "link", "set", link, "master", "br0", "up"),
        ("ip", "route", "replace", pod_network(number), "via", node_address(number)),
    )
    node = (
        ("ip", "address", "add", f"{node_address(number)}/24", "dev", "eth0"),
        ("ip", "link", "set", "eth0", "up"),
        _FORWARD,
        # Pods of other nodes, by way of the control plane's address, which knows where each is. Nothing leads further.
        ("ip", "route", "replace", "192.168.0.0/16", "via", CONTROL_PLANE),
        # The one Service there is, without a kube-proxy: Kubernetes' own, by which pods find the API server.
        *(("iptables", "-t", "nat", "-A", chain, *_TO_API_SERVER) for chain in ("PREROUTING", "OUTPUT")),
    )
    return bridge, node
