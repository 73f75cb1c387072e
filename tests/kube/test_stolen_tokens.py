"""What the token of each of Tessera's parts is good for, as the API server lists it, against docs/security.md."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from builders.modelservers import model_servers_binding
from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE, objects

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
ROW = re.compile(r"^\| (\w[\w ]*) \| `([\w./-]+)`(?: named `([\w.-]+)`)? \| ([a-z, ]+) \| (.*?) \|$", re.MULTILINE)
WEBHOOK = "with the webhook"
Right = tuple[str, str, str]
"""Resource with its group, name of the one object or "", verb."""


def documented(account: str, *where: str) -> set[Right]:
    """Return the rights that the page gives an account and everybody: everywhere, and in further places named."""
    accounts, places = {account, "all who log in"}, {"all", *where}
    rows = [row for row in ROW.findall(PAGE.read_text()) if row[0] in accounts and row[4] in places]
    return {(resource, name, verb) for _, resource, name, verbs, _ in rows for verb in verbs.split(", ")}


def rules(cluster: Cluster, account: str, namespace: str) -> list[dict[str, Any]]:
    """Return what a new token of an account may do in a namespace, beyond what everybody may."""
    token = cluster.kubectl("create", "token", f"tessera-{account}", f"--namespace={NAMESPACE}").strip()
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    content = json.loads(cluster.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path = cluster.folder / "stolen.kubeconfig"
    path.write_text(json.dumps(content))
    words = ("create", "--validate=false", f"--kubeconfig={path}", "-o", "json", "-f", "-")
    status = json.loads(cluster.kubectl(*words, input_text=json.dumps(review)))["status"]
    assert not status["incomplete"]
    assert all(set(each["verbs"]) == {"get"} for each in status["nonResourceRules"]), "versions and health"
    found: list[dict[str, Any]] = status["resourceRules"]
    return [each for each in found if not set(each["apiGroups"]) <= EVERYBODYS]


EVERYBODYS = {"authorization.k8s.io", "authentication.k8s.io"}
"""Groups of the reviews by which anybody asks who they are and what they may do."""


def rights(cluster: Cluster, account: str, namespace: str) -> set[Right]:
    found = set()
    for rule in rules(cluster, account, namespace):
        for group in rule["apiGroups"]:
            for each in rule["resources"]:
                kind, slash, part = each.partition("/")
                resource = f"{kind}.{group}{slash}{part}" if group else each
                found |= {
                    (resource, name, verb) for name in rule.get("resourceNames") or [""] for verb in rule["verbs"]
                }
    return found


@pytest.mark.parametrize("account", ["agent", "server", "controller", "metrics"])
def test_a_stolen_token_may_do_what_the_page_lists_and_nothing_else(control_plane: Cluster, account: str) -> None:
    for namespace in ("default", "kube-system", NAMESPACE):
        assert rights(control_plane, account, namespace) == documented(account, f"in `{namespace}`"), namespace


def test_the_disk_agents_token_may_do_what_the_page_lists_and_nothing_else(control_plane: Cluster) -> None:
    made = objects("rbac/disks.yaml", values={"disks": {"enabled": True}})
    control_plane.apply(*made)
    try:
        for namespace in ("default", NAMESPACE):
            assert rights(control_plane, "disks", namespace) == documented("disks"), namespace
    finally:
        for each in made:
            control_plane.kubectl("delete", each["kind"], each["metadata"]["name"], f"--namespace={NAMESPACE}")


def test_the_webhook_gives_the_server_its_certificate_and_itself_and_nothing_else(control_plane: Cluster) -> None:
    made = objects("admission/scheduler-name-webhook.yaml", values={"admission": {"routing": "webhook"}})
    roles = [each for each in made if each["apiVersion"].startswith("rbac.")]
    control_plane.apply(*roles)
    try:
        want = documented("server", f"in `{NAMESPACE}`", WEBHOOK, f"{WEBHOOK}, in `{NAMESPACE}`")
        assert rights(control_plane, "server", NAMESPACE) == want
        assert rights(control_plane, "server", "default") == documented("server", WEBHOOK)
    finally:
        for each in roles:
            control_plane.kubectl("delete", each["kind"], each["metadata"]["name"], f"--namespace={NAMESPACE}")


def test_model_servers_give_the_controller_their_objects_in_their_namespace_and_nothing_else(
    control_plane: Cluster,
) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "serving"}}
    control_plane.apply(namespace, model_servers_binding("serving"))
    try:
        want = documented("controller", "where `tessera-model-servers` is bound")
        assert rights(control_plane, "controller", "serving") == want
        assert rights(control_plane, "controller", "default") == documented("controller") != want
    finally:
        control_plane.kubectl("delete", "namespace", "serving")


def test_the_second_scheduler_may_do_what_kube_scheduler_may(control_plane: Cluster) -> None:
    want = set()
    for role in ("system:kube-scheduler", "system:volume-scheduler"):
        for rule in control_plane.get("clusterrole", role)["rules"]:
            for group, each, verb in (
                (g, r, v) for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]
            ):
                kind, slash, part = each.partition("/")
                name = rule.get("resourceNames", [""])[0]
                want.add((f"{kind}.{group}{slash}{part}" if group else each, name, verb))
    reviews = {right for right in want if right[0].rpartition(".")[2] == "io" and right[0].endswith(tuple(EVERYBODYS))}
    lease = "leases.coordination.k8s.io"
    own = {(lease, "", "create"), *((lease, "tessera-scheduler", verb) for verb in ("get", "patch", "update"))}
    assert rights(control_plane, "scheduler", "default") == want - reviews | documented("scheduler")
    assert rights(control_plane, "scheduler", NAMESPACE) == want - reviews | own | documented("scheduler")


GROWING = {"escalate", "bind", "impersonate", "approve", "sign", "*"}
"""Verbs by which an account gives itself more."""
OTHERS = {"serviceaccounts/token", "pods/exec", "pods/attach", "pods/portforward", "nodes/proxy", "*"}
"""Resources by which it becomes somebody else."""


@pytest.mark.parametrize("account", ["agent", "server", "controller", "metrics", "scheduler"])
@pytest.mark.parametrize("namespace", [NAMESPACE, "kube-system", "default"])
def test_no_token_leads_to_more(control_plane: Cluster, account: str, namespace: str) -> None:
    found = rights(control_plane, account, namespace)
    assert found
    assert not [each for each in found if each[2] in GROWING or each[0] in OTHERS]
    assert not [each for each in found if "rbac.authorization" in each[0] or "certificatesigning" in each[0]]
    assert not [each for each in found if each[0] == "secrets" and not each[1]], "no Secret of a tenant"
    assert ("pods", "", "create") not in found
