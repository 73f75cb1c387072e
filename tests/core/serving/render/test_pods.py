"""The pod of a model server: its model, its request, its memory, and the restricted standard."""

from typing import Any

import pytest

from builders.rendered import pod_template

NEED = {"memoryGiB": 20}


ALONE = {"memoryGiB": 20, "isolation": "hardware"}


SHARED_MEMORY: dict[str, tuple[dict[str, Any], bool, str | None]] = {
    "an exact instance": ({"resource": "nvidia.com/mig-1g.10gb"}, True, "hardware"),
    "a shared one": ({"resource": "nvidia.com/mig-1g.10gb.shared"}, False, None),
    "a GPU that may be shared": ({"resource": "nvidia.com/gpu", "isolation": "none"}, False, "none"),
    "a need": (NEED, False, None),
    "a need for oneself": (ALONE, True, "hardware"),
}


@pytest.mark.parametrize("case", SHARED_MEMORY)
def test_shared_memory_is_the_pods_own_only_where_mps_cannot_serve(case: str) -> None:
    """A client of MPS that has /dev/shm of its own does not reach the daemon."""
    gpu, want, isolation = SHARED_MEMORY[case]
    found = pod_template({"gpu": gpu})
    assert (
        {"name": "shared-memory", "mountPath": "/dev/shm"} in found["spec"]["containers"][0]["volumeMounts"]
    ) is want
    assert ("shared-memory" in {each["name"] for each in found["spec"]["volumes"]}) is want
    assert found["metadata"].get("annotations", {}).get("tessera.dev/isolation") == isolation


MODELS = {
    "a cache": ({"cache": "llama"}, None, "/models/llama"),
    "a claim": (
        {"claim": "c", "name": "m"},
        {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
        "/models/m",
    ),
    "NFS": (
        {"nfs": {"server": "nfs", "path": "/a"}},
        {"nfs": {"server": "nfs", "path": "/a", "readOnly": True}},
        "/models/ranker",
    ),
    "the host": ({"hostPath": "/mnt"}, {"hostPath": {"path": "/mnt", "type": "Directory"}}, "/models/ranker"),
}


@pytest.mark.parametrize("case", MODELS)
def test_the_model_is_mounted_read_only_at_the_path_of_the_engine(case: str) -> None:
    model, want, path = MODELS[case]
    found = pod_template({"model": model})["spec"]
    volumes = {each.pop("name"): each for each in found["volumes"]}
    (one,) = found["containers"]
    mounts = [each for each in one["volumeMounts"] if each["name"] == "model"]
    assert volumes.get("model") == want
    assert mounts == ([{"name": "model", "mountPath": path, "readOnly": True}] if want else [])
    assert one["args"][0] == f"--model-repository={path}"
    assert one["resources"]["limits"].get("models.tessera.dev/llama") == (None if want else "1")


def test_a_need_is_requested_by_tesseras_resources() -> None:
    gpu = {"memoryGiB": 20, "compute": 30, "models": ["A100-40GB", "H100-80GB"]}
    found = pod_template({"gpu": gpu})
    limits = found["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"memory": "8Gi", "tessera.dev/gpu-memory": "20", "tessera.dev/gpu-compute": "30"}
    assert found["metadata"]["annotations"] == {"tessera.dev/gpu-model": "A100-40GB, H100-80GB"}


def test_a_need_names_the_scheduler_that_serves_it_and_a_device_by_name_any() -> None:
    """Where nothing routes pods, another scheduler would place them, and their Deployment make them for ever."""
    assert pod_template({"gpu": NEED})["spec"]["schedulerName"] == "tessera-scheduler"
    assert "schedulerName" not in pod_template({"gpu": {"resource": "nvidia.com/mig-1g.10gb"}})["spec"]


def test_a_pod_has_what_the_restricted_standard_asks_and_no_token() -> None:
    found = pod_template()["spec"]
    (one,) = found["containers"]
    assert found["automountServiceAccountToken"] is False
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod_template({"runAsUser": 0})["spec"]["securityContext"]["runAsNonRoot"] is False


def test_the_users_words_for_the_pod_are_in_it() -> None:
    spec: dict[str, Any] = {
        "env": [
            {"name": "HOME", "value": "/h"},
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}},
            {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "M", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b", "optional": True}}},
        ],
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}],
        "imagePullSecrets": ["registry"],
    }
    found = pod_template(spec)["spec"]
    assert found["containers"][0]["env"] == [
        {"name": "USER", "value": "server"},
        {"name": "HOME", "value": "/h"},
        *spec["env"][1:],
    ]
    assert found["nodeSelector"] == {"pool": "gpu"}
    assert found["tolerations"] == [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 5}]
    assert found["imagePullSecrets"] == [{"name": "registry"}]


def test_probes_are_as_the_spec_says_and_the_start_has_its_time_whatever_they_are() -> None:
    given = {"periodSeconds": 7, "timeoutSeconds": 20, "readinessFailures": 2, "livenessFailures": 9}
    for probes, want in (({}, (10, 5, 3, 6)), (given, (7, 20, 2, 9))):
        found = pod_template({"startupSeconds": 600, "probes": probes})["spec"]["containers"][0]
        startup, readiness, liveness = (found[f"{each}Probe"] for each in ("startup", "readiness", "liveness"))
        assert {(each["periodSeconds"], each["timeoutSeconds"]) for each in (readiness, liveness)} == {want[:2]}
        assert (readiness["failureThreshold"], liveness["failureThreshold"]) == want[2:]
        assert (startup["periodSeconds"], startup["timeoutSeconds"]) == (10, want[1])
        assert readiness["httpGet"]["path"] == "/v2/health/ready"
        assert liveness["httpGet"]["path"] == "/v2/health/live"


@pytest.mark.parametrize("startup_s", [30, 300, 601, 1800])
@pytest.mark.parametrize("period_s", [1, 60, 300])
def test_a_replica_has_its_time_to_load_whatever_the_probes_are(startup_s: int, period_s: int) -> None:
    """The kubelet probes at once or up to a period later, and the last of so many failures restarts the container."""
    found = pod_template({"startupSeconds": startup_s, "probes": {"periodSeconds": period_s}})["spec"]["containers"][0]
    startup = found["startupProbe"]
    assert (
        startup_s <= (startup["failureThreshold"] - 1) * startup["periodSeconds"] < startup_s + startup["periodSeconds"]
    )
