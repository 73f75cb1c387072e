"""The node agent on a testbed's node: its rights in the cluster, and how it is started."""

from typing import Any

__all__ = ["ACCOUNT", "NAMESPACE", "access"]

NAMESPACE = "tessera-system"
ACCOUNT = "tessera-agent"

RULES: tuple[dict[str, list[str]], ...] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "create", "patch"]},
)
"""All that the agent may do in the cluster; a test that needs more fails."""


def access() -> tuple[dict[str, Any], ...]:
    """Return the objects that give the agent its account and its rights."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}},
        {**role, "metadata": {"name": ACCOUNT}, "rules": list(RULES)},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ACCOUNT},
            "roleRef": reference,
            "subjects": [subject],
        },
    )
