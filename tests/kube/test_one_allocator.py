"""Slices asked for by name and slices given to needs at the same time: no container gets what another has."""

import json

from judges.deviceuse import Container, judged, uses_of
from kube import pods
from kube.gpunode import GpuNode
from kube.observing import containers_of, living, used_node
from tessera.api.tessera.node.nodereports import REVISION
from testbed.cluster import Cluster
from testbed.processes import until

GPUS = ("2xA100-40GB",)
SLICE, NEED = "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory"
POLICY = {
    "gpus": [
        {"devices": ["1"], "sharing": {"mode": "mig", "layout": {"configuration": "all-1g.5gb"}}},
        {"sharing": {"mode": "auto"}},
    ]
}


def test_three_by_name_and_three_needs_share_no_instance(whole_cluster: Cluster) -> None:
    """GPU 1 is fixed by policy, GPU 0 is Tessera's: the kubelet offers instances while the server gives to needs."""
    cluster, node = whole_cluster, GpuNode(whole_cluster, whole_cluster.nodes[0])
    cluster.kubectl("patch", "gpupolicy", "testbed", "--type=merge", f"--patch={json.dumps({'spec': POLICY})}")
    node.until_offered((SLICE, 7))
    until("units of memory", lambda: pods.allocatable(cluster, "node1", NEED) > 0, timeout_s=60, found=node.agent_log)
    by_name = [pods.busybox(f"name-{each}", limits={SLICE: 1}) for each in range(3)]
    needs = [pods.busybox(f"need-{each}", limits={NEED: 4}, schedulerName="tessera-scheduler") for each in range(3)]
    for each in needs:
        each["metadata"]["annotations"] = {"tessera.dev/isolation": "hardware"}
    pods.run(cluster, *by_name, *needs)
    there = containers_of(
        living(cluster.cgroup), lambda each, environment: Container(each.node, environment["HOSTNAME"], each.id)
    )
    found, driver = list(there), used_node(node.node)
    assert judged(driver, found) == []
    got = {each.pod: [use.device for use in uses_of(each, driver)] for each in found}
    assert {name: len(uuids) for name, uuids in got.items()} == dict.fromkeys(got, 1), got
    assert len(got) == 6


def test_a_share_finds_the_gpus_that_slices_by_name_have_left(whole_cluster: Cluster) -> None:
    """The share comes while the slices are still the kubelet's, so that it has to be tried again when they are not."""
    cluster, node = whole_cluster, GpuNode(whole_cluster, whole_cluster.nodes[0])
    policy = {
        "gpus": [{"sharing": {"mode": "auto"}}],
        "repartition": {"idleSeconds": 1, "keepIdleSeconds": 4},
        "disruption": {"budget": "100%"},
    }
    cluster.kubectl("patch", "gpupolicy", "testbed", "--type=merge", f"--patch={json.dumps({'spec': policy})}")
    cluster.kubectl("delete", "pods", "-l", "made-by=test", "--grace-period=1", "--ignore-not-found")
    slices = [pods.busybox(f"slice-{each}", limits={"nvidia.com/mig-2g.10gb": 1}) for each in range(6)]
    pods.run(cluster, *slices)
    revision = node.labels()[REVISION]
    cluster.kubectl("delete", "pods", "-l", "made-by=test", "--grace-period=1", "--ignore-not-found")
    pods.run(
        cluster,
        pods.busybox("share", limits={"aliyun.com/gpu-mem": 3}, schedulerName="tessera-scheduler"),
        timeout_s=45,
    )
    assert node.labels()[REVISION] != revision
