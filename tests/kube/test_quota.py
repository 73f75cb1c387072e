"""Quotas on a real API server: needs are counted, and no other name gets around them."""

import json
from collections.abc import Iterator

import pytest

from kube import pods
from tessera.api.kubernetes.quota import read_resource_quota
from tessera.errors import Unavailable
from testbed.cluster import Cluster
from testbed.deploy import objects
from testbed.processes import until

TEAM = "team-a"
HARD = {"requests.tessera.dev/gpu-memory": "12", "requests.tessera.dev/gpu-compute": "50"}
NEED = {"tessera.dev/gpu-memory": 6, "tessera.dev/gpu-compute": 20}


@pytest.fixture(scope="module")
def plane(control_plane: Cluster) -> Iterator[Cluster]:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": HARD}}
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}})
    for each in (quota, *objects("quota/needs-only.yaml")):
        control_plane.apply({**each, "metadata": {**each["metadata"], "namespace": TEAM}})

    def counted() -> bool:
        found = control_plane.get("resourcequotas", "-n", TEAM)["items"]
        return all(each.get("status", {}).get("hard") == each["spec"]["hard"] for each in found)

    def account() -> bool:
        return bool(control_plane.get("serviceaccounts", "-n", TEAM)["items"])

    until("quotas and the account of the namespace", lambda: counted() and account(), timeout_s=60)
    yield control_plane
    control_plane.kubectl("delete", "namespace", TEAM, "--wait=false")


def create(cluster: Cluster, name: str, limits: dict[str, int]) -> None:
    cluster.kubectl("create", "-n", TEAM, "-f", "-", input_text=json.dumps(pods.busybox(name, limits=limits)))


def test_needs_are_counted_whatever_will_serve_them(plane: Cluster) -> None:
    create(plane, "first", NEED)
    create(plane, "second", NEED)
    with pytest.raises(Unavailable, match=r"exceeded quota: gpus.*gpu-memory=6, used: .*gpu-memory=12, limited: .*=12"):
        create(plane, "third", {"tessera.dev/gpu-memory": 6})
    found = plane.get("resourcequota", "gpus", "-n", TEAM)
    assert found["status"]["used"] == {
        "requests.tessera.dev/gpu-memory": "12",
        "requests.tessera.dev/gpu-compute": "40",
    }
    shown = {each.resource: (each.guaranteed, each.used) for each in read_resource_quota(found)}
    assert shown == {"tessera.dev/gpu-memory": (12, 12), "tessera.dev/gpu-compute": (50, 40)}, "as metrics show it"


@pytest.mark.parametrize(
    "name", ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.40gb.shared", "aliyun.com/gpu-mem"]
)
def test_no_other_name_gets_around_them(plane: Cluster, name: str) -> None:
    with pytest.raises(Unavailable, match="exceeded quota: gpu-needs-only"):
        create(plane, "around", {name: 1})


def test_pods_without_gpus_are_not_asked(plane: Cluster) -> None:
    create(plane, "plain", {})
