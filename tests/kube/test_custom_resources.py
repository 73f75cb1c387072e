"""The custom resources on a real API server: what is taken, what is refused and why, what kubectl shows."""

import json
from typing import Any

import pytest

from builders.policyobjects import BAD, GOOD, gpu_policy
from tessera.api.tessera.v1alpha1.environments import read_environment
from tessera.api.tessera.v1alpha1.gpupolicies import GpuPolicySpec, LabelSelector, node_policy, read_gpu_policy
from tessera.api.tessera.v1alpha1.imagewarmups import ImageWarmupSpec, read_image_warmup
from tessera.errors import Unavailable
from testbed.cluster import Cluster
from testbed.deploy import objects
from testbed.processes import until

GPU = "GPU-00000000-0000-0000-0000-00000000000"
PATCH = ("--subresource=status", "--type=merge", "-p")


@pytest.fixture(scope="module")
def plane(control_plane: Cluster) -> Cluster:
    control_plane.install()
    return control_plane


def dry_run(cluster: Cluster, each: dict[str, Any], *options: str) -> dict[str, Any]:
    """Return an object as the API server would store it."""
    said = cluster.kubectl("create", "--dry-run=server", *options, "-o", "json", "-f", "-", input_text=json.dumps(each))
    found: dict[str, Any] = json.loads(said)
    return found


def gpu_node(spec: dict[str, Any], name: str = "node-a") -> dict[str, Any]:
    return {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}, "spec": spec}


def test_the_definitions_are_established(plane: Cluster) -> None:
    ours = {each["metadata"]["name"] for each in objects("crds")}
    assert "environments.tessera.dev" in ours
    for name in ours:
        found = plane.get("crd", name)["status"]["conditions"]
        states = {each["type"]: each["status"] for each in found}
        assert states == {"NamesAccepted": "True", "Established": "True"}


@pytest.mark.parametrize("case", GOOD)
def test_what_is_good_is_taken(plane: Cluster, case: str) -> None:
    stored = dry_run(plane, gpu_policy(GOOD[case]))
    assert read_gpu_policy(stored).spec == read_gpu_policy(gpu_policy(GOOD[case])).spec
    assert node_policy(read_gpu_policy(stored).spec)["kind"] == "NodePolicy"


@pytest.mark.parametrize("case", BAD)
def test_what_is_bad_is_refused_with_what_to_do(plane: Cluster, case: str) -> None:
    spec, want, _ = BAD[case]
    with pytest.raises(Unavailable) as caught:
        dry_run(plane, gpu_policy(spec))
    assert want in caught.value.found


def test_defaults_are_written_for_people_to_see(plane: Cluster) -> None:
    stored = dry_run(plane, {"apiVersion": "tessera.dev/v1alpha1", "kind": "GPUPolicy", "metadata": {"name": "bare"}})
    assert stored["spec"]["repartition"] == {
        "allowed": True,
        "idleSeconds": 1,
        "longestSeconds": 10,
        "keepIdleSeconds": 600,
    }
    assert stored["spec"]["unit"] == "GiB"
    assert not {"packingPolicy", "strategy"} & stored["spec"].keys()  # a default of the one would hide the other
    assert read_gpu_policy(stored).spec == GpuPolicySpec()


def test_unknown_fields_are_refused_by_kubectl_and_pruned_by_the_server(plane: Cluster) -> None:
    wrong = gpu_policy({"gpu": [], "repartition": {"alowed": False}})
    with pytest.raises(Unavailable, match=r'unknown field \\"spec.repartition.alowed\\"|unknown field "spec.gpu"'):
        dry_run(plane, wrong)
    assert dry_run(plane, wrong, "--validate=false")["spec"] == dry_run(plane, gpu_policy({}))["spec"]


GPU_NODES: dict[str, tuple[dict[str, Any], str]] = {
    "a GPU desired twice": ({"desired": [{"gpu": f"{GPU}0"}, {"gpu": f"{GPU}0"}]}, "Duplicate value"),
    "whole and in instances": (
        {"desired": [{"gpu": f"{GPU}0", "whole": True, "instances": [{"profile": "1g.5gb", "start": 0}]}]},
        "a GPU is desired as a whole or as instances, not both",
    ),
    "a claim of nothing": ({"claims": [{"uid": "a", "pod": "x/y", "shares": []}]}, "at least 1 items"),
    "a claim without a pod": ({"claims": [{"uid": "a", "pod": "y", "shares": [{}]}]}, "spec.claims[0].pod"),
}


@pytest.mark.parametrize("case", GPU_NODES)
def test_what_no_server_may_write_is_refused(plane: Cluster, case: str) -> None:
    spec, want = GPU_NODES[case]
    with pytest.raises(Unavailable) as caught:
        dry_run(plane, gpu_node(spec))
    assert want in caught.value.found


def apply_as(cluster: Cluster, owner: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Apply what one field manager wants of the object."""
    text = json.dumps(gpu_node(spec))
    said = cluster.kubectl(
        *("apply", "--server-side", f"--field-manager={owner}", "-o", "json", "-f", "-"), input_text=text
    )
    found: dict[str, Any] = json.loads(said)["spec"]
    return found


def test_server_side_apply_merges_what_is_desired_by_gpu_and_leaves_claims_alone(plane: Cluster) -> None:
    share = {"gpu": 0, "mode": "whole", "memoryMiB": 1, "computePercent": 100, "isolation": "hardware", "resource": "x"}
    claims = [{"uid": name, "pod": f"ns/{name}", "shares": [share]} for name in ("a", "b")]
    apply_as(plane, "controller", {"desired": [{"gpu": f"{GPU}0", "whole": True}], "policy": {"name": "p"}})
    plane.kubectl("patch", "gpunode", "node-a", "--type=merge", "-p", json.dumps({"spec": {"claims": claims}}))
    both = apply_as(plane, "second", {"desired": [{"gpu": f"{GPU}1"}]})
    assert [each["gpu"] for each in both["desired"]] == [f"{GPU}0", f"{GPU}1"]
    left = apply_as(plane, "controller", {"policy": {"name": "p"}})
    assert [each["gpu"] for each in left["desired"]] == [f"{GPU}1"]
    assert (left["claims"], left["policy"]) == (claims, {"name": "p"})
    plane.kubectl("delete", "gpunode", "node-a")


def test_a_node_policy_is_kept_as_it_was_written(plane: Cluster) -> None:
    document = node_policy(read_gpu_policy(gpu_policy(GOOD["devices, then models, then all"])).spec)
    stored = dry_run(plane, gpu_node({"policy": {"name": "p", "document": document}}))
    assert stored["spec"]["policy"]["document"] == document


def test_the_status_is_written_apart_from_the_spec(plane: Cluster) -> None:
    plane.apply(gpu_policy({}, "apart"))
    plane.kubectl("patch", "gpupolicy", "apart", "--type=merge", "-p", '{"status":{"nodes":3}}')
    assert "status" not in plane.get("gpupolicy", "apart")
    plane.kubectl("patch", "gpupolicy", "apart", *PATCH, '{"status":{"nodes":3}}')
    assert plane.get("gpupolicy", "apart")["status"] == {"nodes": 3}
    plane.kubectl("delete", "gpupolicy", "apart")


def test_kubectl_shows_columns(plane: Cluster) -> None:
    ready = {"lastTransitionTime": "2026-11-21T12:00:00Z", "reason": "Applied", "message": ""}
    conditions = [{"type": name, "status": "True", **ready} for name in ("Accepted", "Ready")]
    status = {
        "nodes": 2,
        "gpus": 16,
        "desiredSlices": 5,
        "pendingPods": 1,
        "decision": "cut 3",
        "conditions": conditions,
    }
    plane.apply(gpu_policy({"priority": 7}, "shown"), gpu_node({"policy": {"name": "shown"}}, "shown"))
    plane.kubectl("patch", "gpol", "shown", *PATCH, json.dumps({"status": status}))
    gpu = {"index": 0, "uuid": f"{GPU}0", "model": "A100-40GB", "memoryMiB": 40320, "sharing": {"modes": ["whole"]}}
    summary = {"ready": "7/8", "models": "A100-40GB", "sharing": "6 auto, 2 mig", "instances": "4 3g.20gb"}
    told = {"driver": "580.65.06", "unitMiB": 1024, "gpus": [gpu], "summary": summary}
    plane.kubectl("patch", "gn", "shown", *PATCH, json.dumps({"status": told}))

    def columns(kind: str) -> dict[str, str]:
        head, line = plane.kubectl("get", kind, "shown", "-o", "wide").splitlines()
        return {name: line[head.index(name) :].split("  ")[0].strip() for name in head.split()}

    until("columns", lambda: columns("gpol")["NODES"] == "2", timeout_s=60)
    policy, node = columns("gpupolicy"), columns("gpunode")
    del policy["AGE"], node["AGE"]
    want = {"PRIORITY": "7", "NODES": "2", "GPUS": "16", "DESIRED": "5", "PENDING": "1", "ACCEPTED": "True"}
    assert policy == {"NAME": "shown", **want, "READY": "True", "DECISION": "cut 3"}
    shown = {"READY": "7/8", "MODEL": "A100-40GB", "SHARING": "6 auto, 2 mig", "INSTANCES": "4 3g.20gb"}
    assert node == {"NAME": "shown", **shown, "POLICY": "shown", "DRIVER": "580.65.06", "UNIT": "1024"}
    plane.kubectl("delete", "gpol/shown", "gn/shown")


def image_warmup(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "tessera.dev/v1alpha1",
        "kind": "ImageWarmup",
        "metadata": {"name": "servers"},
        "spec": spec,
    }


def test_an_image_warmup_is_taken_with_defaults_and_refused_without_images(plane: Cluster) -> None:
    stored = dry_run(plane, image_warmup({"images": ["busybox"]}))
    assert (stored["spec"]["pinned"], stored["spec"]["maxDiskPercent"]) == (True, 80)
    assert read_image_warmup(stored)[0].spec == ImageWarmupSpec(images=("busybox",))
    by_name = dry_run(plane, image_warmup({"environments": {}}))
    assert read_image_warmup(by_name)[0].spec.environments == LabelSelector()
    bad: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "name images or select environments"),
        ({"images": []}, "name images or select environments"),
    )
    for spec, want in bad:
        with pytest.raises(Unavailable, match=want):
            dry_run(plane, image_warmup(spec))


def test_an_environment_is_stored_as_it_is_read_and_one_without_an_image_is_refused(plane: Cluster) -> None:
    body: dict[str, Any] = {
        "apiVersion": "tessera.dev/v1alpha1",
        "kind": "Environment",
        "metadata": {"name": "pytorch"},
        "spec": {"image": "pytorch/pytorch:2.9", "tools": ["pytorch 2.9"]},
    }
    found = read_environment(dry_run(plane, body))
    assert (found.name, found.image, found.tools, found.notebook) == (
        "pytorch",
        "pytorch/pytorch:2.9",
        ("pytorch 2.9",),
        False,
    )
    with pytest.raises(Unavailable, match=r"spec\.image"):
        dry_run(plane, {**body, "spec": {"notebook": True}})
