"""What the accounts of Tessera's parts may do, asked of a real API server."""

import json

import pytest

from builders.policyobjects import gpu_policy
from tessera.errors import Unavailable
from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE

KEYS = f"configmaps/tessera-assignment-keys -n {NAMESPACE}"
SECRET = f"secrets/tessera-assignment-key -n {NAMESPACE}"
MAY = {
    "agent": (
        "patch nodes",
        "patch nodes/status",
        "patch pods",
        "create pods/eviction",
        "create gpunodes.tessera.dev",
        "patch gpunodes.tessera.dev/status",
        "create nodeimages.tessera.dev",
        "patch nodeimages.tessera.dev/status",
        "create nodemodels.tessera.dev",
        "patch nodemodels.tessera.dev/status",
        f"watch {KEYS}",
    ),
    "server": (
        "watch pods",
        "create pods/binding",
        "create gpunodes.tessera.dev",
        "patch gpunodes.tessera.dev",
        *(f"{verb} {SECRET}" for verb in ("get", "create", "patch")),
        *(f"{verb} {KEYS}" for verb in ("get", "watch", "create", "patch")),
    ),
    "controller": (
        f"watch {KEYS}",
        "patch gpupolicies.tessera.dev/status",
        "patch gpunodes.tessera.dev",
        "watch environments.tessera.dev",
        "patch environments.tessera.dev/status",
        "watch imagewarmups.tessera.dev",
        "patch imagewarmups.tessera.dev/status",
        "watch modelservers.tessera.dev",
        "patch modelservers.tessera.dev/status",
        "patch nodeimages.tessera.dev",
        "watch modelcaches.tessera.dev",
        "patch modelcaches.tessera.dev/status",
        "patch nodemodels.tessera.dev",
        f"update leases.coordination.k8s.io/tessera-controller -n {NAMESPACE}",
    ),
    "scheduler": (
        "create pods/binding",
        "patch pods/status",
        "watch nodes",
        f"update leases.coordination.k8s.io/tessera-scheduler -n {NAMESPACE}",
        "get configmaps/extension-apiserver-authentication -n kube-system",
    ),
}
MAY_NOT = {
    "agent": (
        "create pods",
        "delete pods",
        "delete nodes",
        "patch gpunodes.tessera.dev",
        "patch gpupolicies.tessera.dev",
        "patch nodeimages.tessera.dev",
        "get imagewarmups.tessera.dev",
        "patch nodemodels.tessera.dev",
        "get modelcaches.tessera.dev",
        "get secrets",
        f"get secrets/other -n {NAMESPACE}",
        f"get {SECRET}",
        f"patch {KEYS}",
        f"get configmaps -n {NAMESPACE}",
    ),
    "server": (
        "patch pods",
        "delete pods",
        "patch nodes",
        "patch gpunodes.tessera.dev/status",
        "get secrets",
        f"get secrets -n {NAMESPACE}",
        f"create secrets -n {NAMESPACE}",
        f"list {SECRET}",
        f"delete {SECRET}",
        f"get secrets/other -n {NAMESPACE}",
        f"create configmaps -n {NAMESPACE}",
    ),
    "controller": (
        "delete pods",
        "create pods/eviction",
        "patch pods",
        "patch gpupolicies.tessera.dev",
        "patch gpunodes.tessera.dev/status",
        "patch environments.tessera.dev",
        "patch imagewarmups.tessera.dev",
        "patch modelservers.tessera.dev",
        "create deployments.apps",
        "create services",
        "create nodeimages.tessera.dev",
        "patch nodeimages.tessera.dev/status",
        "patch modelcaches.tessera.dev",
        "create nodemodels.tessera.dev",
        "patch nodemodels.tessera.dev/status",
        "update leases.coordination.k8s.io/other",
        "get secrets",
        f"get {SECRET}",
        f"patch {KEYS}",
    ),
    "scheduler": ("get secrets", "patch nodes", "patch gpunodes.tessera.dev"),
}


def answers(cluster: Cluster, account: str, asked: tuple[str, ...]) -> dict[str, bool]:
    """Return for each thing whether the account may do it."""
    user = f"--as=system:serviceaccount:{NAMESPACE}:tessera-{account}"
    found = {}
    for each in asked:
        verb, what, *options = each.split()
        resource, _, part = what.partition("/")
        if part in {"status", "binding", "eviction"}:
            what, options = resource, [*options, f"--subresource={part}"]
        try:
            found[each] = cluster.kubectl("auth", "can-i", verb, what, *options, user).strip() == "yes"
        except Unavailable:  # "no" has an exit status of its own
            found[each] = False
    return found


def test_a_viewer_sees_who_holds_what_and_changes_nothing(control_plane: Cluster) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "test-viewer"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tessera-viewer"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "somebody"}],
    }
    control_plane.apply(binding)
    sees = json.loads(control_plane.kubectl("get", "nodes,pods,gpunodes,gpupolicies", "-A", "-o=json", "--as=somebody"))
    assert sees["kind"] == "List"
    with pytest.raises(Unavailable, match="forbidden"):
        control_plane.kubectl("create", "-f", "-", "--as=somebody", input_text=json.dumps(gpu_policy({})))
    control_plane.kubectl("delete", "clusterrolebinding", "test-viewer")


@pytest.mark.parametrize("account", MAY)
def test_an_account_may_do_what_its_part_does(control_plane: Cluster, account: str) -> None:
    assert [each for each, may in answers(control_plane, account, MAY[account]).items() if not may] == []


@pytest.mark.parametrize("account", MAY_NOT)
def test_an_account_may_do_nothing_else(control_plane: Cluster, account: str) -> None:
    assert [each for each, may in answers(control_plane, account, MAY_NOT[account]).items() if may] == []
