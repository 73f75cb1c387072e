"""The agent on a real node: eight H100s in slices under the name nvidia.com/gpu."""

from typing import Any

from kube.gpunode import GpuNode
from kube.pods import busybox
from testbed.processes import until

GPUS = ("8xH100-80GB",)
POLICY = {"apiVersion": "tessera.dev/v1alpha1", "kind": "NodePolicy", "gpus": [{"sharing": "auto"}]}
"""A policy that is in force and says nothing about the MIG strategy."""
PODS = 60
AT_ONCE = 56
"""Seven 1g.10gb on each of eight GPUs."""


def job(gate: str) -> dict[str, Any]:
    """Return a Job whose pods run until a file of the node appears."""
    one = busybox("ignored", command="while [ ! -e /gate/open ]; do sleep 1; done", limits={"nvidia.com/gpu": 1})[
        "spec"
    ]
    one["containers"][0]["volumeMounts"] = [{"name": "gate", "mountPath": "/gate"}]
    one |= {"restartPolicy": "Never", "volumes": [{"name": "gate", "hostPath": {"path": gate, "type": "Directory"}}]}
    spec = {
        "completions": PODS,
        "parallelism": PODS,
        "template": {"metadata": {"labels": {"made-by": "test"}}, "spec": one},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sixty"}, "spec": spec}


def test_a_job_of_sixty_runs_fifty_six_at_a_time_and_completes(gpu_node: GpuNode) -> None:
    cluster = gpu_node.cluster
    gate = gpu_node.node.folder / "var-lib" / "gate"
    gate.mkdir(exist_ok=True)
    gpu_node.start_agent("--strategy=single", policy=POLICY)
    gpu_node.ask_layout("all-1g.10gb")
    gpu_node.until_offered(("nvidia.com/gpu", AT_ONCE))
    cluster.apply(job("/var/lib/gate"))

    def phases() -> list[str]:
        return sorted(one["status"]["phase"] for one in cluster.get("pods", "-l", "made-by=test")["items"])

    want = ["Pending"] * (PODS - AT_ONCE) + ["Running"] * AT_ONCE
    until("56 pods run and 4 wait", lambda: phases() == want, timeout_s=300, found=lambda: str(phases()))
    (gate / "open").touch()
    cluster.kubectl("wait", "--for=condition=Complete", "job/sixty", "--timeout=300s")
    assert cluster.get("job", "sixty")["status"]["succeeded"] == PODS
    cluster.kubectl("delete", "job", "sixty", "--timeout=120s")
