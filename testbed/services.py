"""Services on a testbed: kube-proxy on its nodes, for walk-throughs that reach pods as everybody does."""

import json
from pathlib import Path

from testbed.addresses import CONTROL_PLANE, SERVICES
from testbed.node import Node

__all__ = ["start_proxy"]


def start_proxy(node: Node, kubeconfig: Path, program: Path) -> None:
    """Start kube-proxy on a node, where it does not run; it ends with the node.

    Args:
        node: that gets it.
        kubeconfig: of who may read Services, Nodes and EndpointSlices, as processes of nodes reach the API server.
        program: kube-proxy itself.

    """
    configuration = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": "192.168.0.0/16",
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
    path = node.folder / "kube-proxy.json"
    path.write_text(json.dumps(configuration))
    # What kube-proxy leads to a pod must have a way before: the node's own programs have none out of the network.
    node.run("ip", "route", "replace", SERVICES, "via", CONTROL_PLANE)
    if node.process("kube-proxy") is None:
        node.start_process("kube-proxy", (str(program), f"--config={path}"))
