"""Every kind of the table: how many pods an object stands for, what each asks, and the notes on the count."""

import re
from pathlib import Path

import pytest

from builders.manifests import pods_of
from tessera.api.kubernetes.workloads.kinds import KINDS, NO_PODS, TEMPLATES
from tessera.errors import InvalidInput

GPU = "{containers: [{name: m, resources: {limits: {nvidia.com/gpu: 2}}}]}"
CPU = "{containers: [{name: m}]}"


def made(text: str) -> list[str]:
    """Return the pods with what each asks for: `web-0 nvidia.com/gpu=2`."""
    return [
        " ".join(
            (
                pod.key.removeprefix("default/"),
                *(f"{request.resource}={request.count}" for request in pod.need.requests),
            )
        )
        for pod in pods_of(text).pods
    ]


def manifest(version: str, kind: str, spec: str, more: str = "") -> str:
    """Return an object named `a`; `spec` is in flow style, or a block that begins with a line break."""
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a{more}}}\nspec: {spec}\n"


def cluster(at: str, workers: str, more: str = "") -> str:
    return f"{{{at}: {{headGroupSpec: {{template: {{spec: {CPU}}}}}, workerGroupSpecs: [{workers}]{more}}}}}"


def worker(fields: str) -> str:
    return f"{{groupName: w, {fields}template: {{spec: {GPU}}}}}"


def ray(workers: str, more: str = "") -> str:
    spec = f"{{headGroupSpec: {{template: {{spec: {CPU}}}}}, workerGroupSpecs: [{workers}]{more}}}"
    return manifest("ray.io/v1", "RayCluster", spec)


def pytorch(kind: str, field: str, more: str = "") -> str:
    roles = f"{{Master: {{template: {{spec: {CPU}}}}}, Worker: {{replicas: 2, template: {{spec: {GPU}}}}}}}"
    return manifest("kubeflow.org/v1", kind, f"{{{field}: {roles}{more}}}")


ROLES = ["a-master-0", "a-worker-0 nvidia.com/gpu=2", "a-worker-1 nvidia.com/gpu=2"]
W = "nvidia.com/gpu=2"
LWS = "leaderworkerset.x-k8s.io/v1"
KSERVE = "serving.kserve.io/v1beta1"
RESOURCES = "resources: {limits: {nvidia.com/gpu: 2}}"
NIM = "apps.nvidia.com/v1alpha1"
VLLM = "production-stack.vllm.ai/v1alpha1"
DYNAMO = "nvidia.com/v1alpha1"
KUEUE = ", labels: {kueue.x-k8s.io/queue-name: q}"

PODS = {
    "a DaemonSet without nodes": (manifest("apps/v1", "DaemonSet", f"{{template: {{spec: {GPU}}}}}"), []),
    "a JobSet": (
        manifest(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            "{replicatedJobs: [{name: w, replicas: 2, template: {spec: {parallelism: 1, template: "
            f"{{spec: {GPU}}}}}}}}}]}}",
        ),
        [f"a-w-0 {W}", f"a-w-1 {W}"],
    ),
    "a suspended JobSet": (
        manifest(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            f"{{suspend: true, replicatedJobs: [{{name: w, template: {{spec: {{template: {{spec: {GPU}}}}}}}}}]}}",
        ),
        [],
    ),
    "groups of a leader and two workers": (
        manifest(
            LWS,
            "LeaderWorkerSet",
            f"{{replicas: 2, leaderWorkerTemplate: {{size: 2, leaderTemplate: {{spec: {CPU}}}, "
            f"workerTemplate: {{spec: {GPU}}}}}}}",
        ),
        ["a-leader-0", "a-leader-1", f"a-worker-0 {W}", f"a-worker-1 {W}"],
    ),
    "groups whose leader is as the workers": (
        manifest(LWS, "LeaderWorkerSet", f"{{leaderWorkerTemplate: {{size: 2, workerTemplate: {{spec: {GPU}}}}}}}"),
        [f"a-worker-0 {W}", f"a-worker-1 {W}"],
    ),
    "a group of one": (
        manifest(LWS, "LeaderWorkerSet", f"{{leaderWorkerTemplate: {{workerTemplate: {{spec: {GPU}}}}}}}"),
        [f"a-worker-0 {W}"],
    ),
    "a RayCluster": (ray(worker("replicas: 1, ")), ["a-head-0", f"a-w-0 {W}"]),
    "a Ray group without replicas has its least": (
        ray(worker("minReplicas: 2, maxReplicas: 4, ")),
        ["a-head-0", f"a-w-0 {W}", f"a-w-1 {W}"],
    ),
    "a Ray group above its most": (ray(worker("replicas: 3, maxReplicas: 1, ")), ["a-head-0", f"a-w-0 {W}"]),
    "a Ray group below its least": (
        ray(worker("replicas: 0, minReplicas: 1, maxReplicas: 4, ")),
        ["a-head-0", f"a-w-0 {W}"],
    ),
    "a Ray group of several hosts": (
        ray(worker("replicas: 1, numOfHosts: 2, ")),
        ["a-head-0", f"a-w-0 {W}", f"a-w-1 {W}"],
    ),
    "a suspended Ray group": (ray(worker("replicas: 1, suspend: true, ")), ["a-head-0"]),
    "a suspended RayCluster": (ray(worker("replicas: 1, "), ", suspend: true"), []),
    "two Ray groups of one name": (
        ray(f"{worker('replicas: 1, ')}, {worker('replicas: 1, ')}"),
        ["a-head-0", f"a-w-0 {W}", f"a-w-1-0 {W}"],
    ),
    "a Ray group whose name no pod could have": (
        ray(worker("replicas: 1, ").replace("groupName: w", "groupName: _")),
        ["a-head-0", f"a-0 {W}"],
    ),
    "a RayJob with a submitter": (
        manifest(
            "ray.io/v1",
            "RayJob",
            cluster("rayClusterSpec", worker("replicas: 1, "))[:-1] + f", submitterPodTemplate: {{spec: {CPU}}}}}",
        ),
        ["a-head-0", f"a-w-0 {W}", "a-submitter-0"],
    ),
    "a suspended RayJob": (
        manifest("ray.io/v1", "RayJob", "{suspend: true, " + cluster("rayClusterSpec", worker("replicas: 1, "))[1:]),
        [],
    ),
    "a RayService": (
        manifest("ray.io/v1", "RayService", cluster("rayClusterConfig", worker("replicas: 1, "))),
        ["a-head-0", f"a-w-0 {W}"],
    ),
    "a RayCronJob": (
        manifest("ray.io/v1", "RayCronJob", f"{{jobTemplate: {cluster('rayClusterSpec', worker('replicas: 1, '))}}}"),
        ["a-head-0", f"a-w-0 {W}"],
    ),
    "a predictor of a framework": (
        manifest(KSERVE, "InferenceService", f"{{predictor: {{minReplicas: 2, pytorch: {{{RESOURCES}}}}}}}"),
        [f"a-predictor-0 {W}", f"a-predictor-1 {W}"],
    ),
    "a predictor of containers, and a transformer": (
        manifest(KSERVE, "InferenceService", f"{{predictor: {GPU}, transformer: {CPU}}}"),
        [f"a-predictor-0 {W}", "a-transformer-0"],
    ),
    "a predictor that scales to zero is planned once": (
        manifest(KSERVE, "InferenceService", f"{{predictor: {{minReplicas: 0, model: {{{RESOURCES}}}}}}}"),
        [f"a-predictor-0 {W}"],
    ),
    "a predictor on several nodes": (
        manifest(
            KSERVE,
            "InferenceService",
            "{predictor: {model: {modelFormat: {name: huggingface}}, "
            "workerSpec: {pipelineParallelSize: 2, tensorParallelSize: 4}}}",
        ),
        ["a-predictor-0 nvidia.com/gpu=4", "a-predictor-worker-0 nvidia.com/gpu=4"],
    ),
    "a predictor whose workers say what they take": (
        manifest(
            KSERVE,
            "InferenceService",
            f"{{predictor: {{model: {{{RESOURCES}}}, workerSpec: {{pipelineParallelSize: 2, "
            f"containers: [{{name: w, {RESOURCES}}}]}}}}}}",
        ),
        [f"a-predictor-0 {W}", f"a-predictor-worker-0 {W}"],
    ),
    "a predictor on nodes of one GPU": (
        manifest(KSERVE, "InferenceService", "{predictor: {model: {}, workerSpec: {}}}"),
        ["a-predictor-0 nvidia.com/gpu=1"],
    ),
    "an LLM service": (
        manifest("serving.kserve.io/v1alpha2", "LLMInferenceService", f"{{replicas: 2, template: {GPU}}}"),
        [f"a-main-0 {W}", f"a-main-1 {W}"],
    ),
    "an LLM service of no replicas": (
        manifest("serving.kserve.io/v1alpha2", "LLMInferenceService", f"{{replicas: 0, template: {GPU}}}"),
        [],
    ),
    "an LLM service that prefills apart": (
        manifest(
            "serving.kserve.io/v1alpha2",
            "LLMInferenceService",
            f"{{template: {GPU}, prefill: {{replicas: 1, template: {CPU}}}}}",
        ),
        [f"a-main-0 {W}", "a-prefill-0"],
    ),
    "an LLM service of data parallel nodes": (
        manifest(
            "serving.kserve.io/v1alpha2",
            "LLMInferenceService",
            f"{{parallelism: {{data: 16, dataLocal: 8}}, template: {GPU}, worker: {GPU}}}",
        ),
        [f"a-main-0 {W}", f"a-main-worker-0 {W}"],
    ),
    "an LLM service of pipeline parallel nodes": (
        manifest(
            "serving.kserve.io/v1alpha2",
            "LLMInferenceService",
            f"{{parallelism: {{pipeline: 2}}, template: {GPU}, worker: {GPU}}}",
        ),
        [f"a-main-0 {W}", f"a-main-worker-0 {W}"],
    ),
    "an LLM service of workers alone": (
        manifest("serving.kserve.io/v1alpha2", "LLMInferenceService", f"{{worker: {GPU}}}"),
        [f"a-main-worker-0 {W}"],
    ),
    "a container of KServe without a name, which KServe gives it": (
        manifest(KSERVE, "InferenceService", "{predictor: {containers: [{resources: {limits: {nvidia.com/gpu: 2}}}]}}"),
        [f"a-predictor-0 {W}"],
    ),
    "a Knative Service": (
        manifest("serving.knative.dev/v1", "Service", f"{{template: {{spec: {GPU}}}}}"),
        [f"a-0 {W}"],
    ),
    "a Knative Service whose containers have no names, as its documentation writes them": (
        manifest(
            "serving.knative.dev/v1",
            "Service",
            "{template: {spec: {containers: [{image: a, resources: {limits: {nvidia.com/gpu: 2}}}, {image: b}]}}}",
        ),
        [f"a-0 {W}"],
    ),
    "a Knative Service with a least scale": (
        manifest(
            "serving.knative.dev/v1",
            "Service",
            "{template: {metadata: {annotations: {autoscaling.knative.dev/min-scale: '2'}}, " + f"spec: {GPU}}}}}",
        ),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a PyTorchJob": (pytorch("PyTorchJob", "pytorchReplicaSpecs"), ROLES),
    "a TFJob": (pytorch("TFJob", "tfReplicaSpecs"), ROLES),
    "an MPIJob": (pytorch("MPIJob", "mpiReplicaSpecs"), ROLES),
    "an XGBoostJob": (pytorch("XGBoostJob", "xgbReplicaSpecs"), ROLES),
    "a PaddleJob": (pytorch("PaddleJob", "paddleReplicaSpecs"), ROLES),
    "a JAXJob": (pytorch("JAXJob", "jaxReplicaSpecs"), ROLES),
    "an MXJob": (pytorch("MXJob", "mxReplicaSpecs"), ROLES),
    "a suspended PyTorchJob": (
        pytorch("PyTorchJob", "pytorchReplicaSpecs", ", runPolicy: {suspend: true}"),
        [],
    ),
    "a Notebook": (manifest("kubeflow.org/v1", "Notebook", f"{{template: {{spec: {GPU}}}}}"), [f"a-0 {W}"]),
    "a TrainJob": (
        manifest(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            "{trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 2}}}}",
        ),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a Volcano Job": (
        manifest(
            "batch.volcano.sh/v1alpha1", "Job", f"{{tasks: [{{name: t, replicas: 2, template: {{spec: {GPU}}}}}]}}"
        ),
        [f"a-t-0 {W}", f"a-t-1 {W}"],
    ),
    "a NIMService": (manifest(NIM, "NIMService", f"{{replicas: 2, {RESOURCES}}}"), [f"a-0 {W}", f"a-1 {W}"]),
    "a NIMService that scales": (
        manifest(
            NIM, "NIMService", f"{{scale: {{enabled: true, hpa: {{minReplicas: 2, maxReplicas: 3}}}}, {RESOURCES}}}"
        ),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a NIMService that could scale": (
        manifest(NIM, "NIMService", f"{{scale: {{enabled: false, hpa: {{minReplicas: 2}}}}, {RESOURCES}}}"),
        [f"a-0 {W}"],
    ),
    "a NIMService on several nodes": (
        manifest(NIM, "NIMService", f"{{multiNode: {{parallelism: {{pipeline: 2, tensor: 8}}}}, {RESOURCES}}}"),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a NIMService with a claim": (
        manifest(NIM, "NIMService", "{draResources: [{resourceClaimTemplateName: c}, {claimCreationSpec: {}}]}"),
        ["a-0 resource.k8s.io/c=1 resource.k8s.io/nim=1"],
    ),
    "a NIMPipeline": (
        manifest(NIM, "NIMPipeline", f"{{services: [{{name: s, enabled: true, spec: {{replicas: 1, {RESOURCES}}}}}]}}"),
        [f"a-s-0 {W}"],
    ),
    "services of Dynamo": (
        manifest(
            DYNAMO,
            "DynamoGraphDeployment",
            "{services: {Frontend: {}, decode: {replicas: 1, multinode: {nodeCount: 2}, "
            "resources: {limits: {gpu: '2'}}}}}",
        ),
        ["a-frontend-0", f"a-decode-0 {W}", f"a-decode-1 {W}"],
    ),
    "components of Dynamo": (
        manifest(
            "nvidia.com/v1beta1",
            "DynamoGraphDeployment",
            f"{{components: [{{name: decode, replicas: 1, podTemplate: {{spec: {GPU}}}}}]}}",
        ),
        [f"a-decode-0 {W}"],
    ),
    "a VLLMRuntime": (
        manifest(VLLM, "VLLMRuntime", "{deploymentConfig: {replicas: 2, resources: {cpu: '4', gpu: '2'}}}"),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a VLLMRuntime of another resource": (
        manifest(VLLM, "VLLMRuntime", "{deploymentConfig: {resources: {gpu: 1, gpuType: nvidia.com/mig-1g.10gb}}}"),
        ["a-0 nvidia.com/mig-1g.10gb=1"],
    ),
    "a Rollout": (
        manifest("argoproj.io/v1alpha1", "Rollout", f"{{replicas: 2, template: {{spec: {GPU}}}}}"),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a Rollout of a Deployment's template": (
        manifest(
            "argoproj.io/v1alpha1",
            "Rollout",
            "{replicas: 2, workloadRef: {apiVersion: apps/v1, kind: Deployment, name: a}}",
        )
        + "---\n"
        + manifest("apps/v1", "Deployment", f"{{replicas: 0, template: {{spec: {GPU}}}}}"),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a Rollout of a PodTemplate": (
        manifest("argoproj.io/v1alpha1", "Rollout", "{workloadRef: {kind: PodTemplate, name: a}}")
        + f"---\napiVersion: v1\nkind: PodTemplate\nmetadata: {{name: a}}\ntemplate: {{spec: {GPU}}}\n",
        [f"a-0 {W}"],
    ),
    "a Workflow": (
        manifest(
            "argoproj.io/v1alpha1",
            "Workflow",
            f"{{templates: [{{name: train, container: {{{RESOURCES}}}}}, {{name: all, steps: []}}, "
            f"{{name: s, nodeSelector: {{a: b}}, script: {{image: x}}}}, "
            f"{{name: set, containerSet: {{containers: [{{name: m, {RESOURCES}}}]}}}}]}}",
        ),
        [f"a-train-0 {W}", "a-s-0", f"a-set-0 {W}"],
    ),
    "a ScaledJob": (
        manifest(
            "keda.sh/v1alpha1", "ScaledJob", f"{{maxReplicaCount: 9, jobTargetRef: {{template: {{spec: {GPU}}}}}}}"
        ),
        [f"a-0 {W}"],
    ),
    "a StormService": (
        manifest(
            "orchestration.aibrix.ai/v1alpha1",
            "StormService",
            f"{{replicas: 1, template: {{spec: {{roles: [{{name: r, replicas: 2, template: {{spec: {GPU}}}}}]}}}}}}",
        ),
        [f"a-r-0 {W}", f"a-r-1 {W}"],
    ),
    "a fleet of RayClusters": (
        manifest(
            "orchestration.aibrix.ai/v1alpha1",
            "RayClusterFleet",
            "{replicas: 2, template: " + cluster("spec", worker("replicas: 1, ")) + "}",
        ),
        ["a-head-0", "a-head-1", f"a-w-0 {W}", f"a-w-1 {W}"],
    ),
    "a Service of llmaz": (
        manifest(
            "inference.llmaz.io/v1alpha1",
            "Service",
            f"{{replicas: 1, workloadTemplate: {{size: 2, workerTemplate: {{spec: {GPU}}}}}}}",
        ),
        [f"a-worker-0 {W}", f"a-worker-1 {W}"],
    ),
    "a HyperPodPyTorchJob": (
        manifest(
            "sagemaker.amazonaws.com/v1",
            "HyperPodPyTorchJob",
            f"{{replicaSpecs: [{{name: p, replicas: 2, template: {{spec: {GPU}}}}}]}}",
        ),
        [f"a-p-0 {W}", f"a-p-1 {W}"],
    ),
    "a SparkApplication": (
        manifest(
            "sparkoperator.k8s.io/v1beta2",
            "SparkApplication",
            "{driver: {cores: 1}, executor: {instances: 2, cores: 4, gpu: {name: nvidia.com/gpu, quantity: 2}}}",
        ),
        ["a-driver-0", f"a-executor-0 {W}", f"a-executor-1 {W}"],
    ),
    "a SparkApplication that scales": (
        manifest(
            "sparkoperator.k8s.io/v1beta2",
            "SparkApplication",
            "{dynamicAllocation: {enabled: true, minExecutors: 2, maxExecutors: 4}, executor: {instances: 1}}",
        ),
        ["a-executor-0", "a-executor-1"],
    ),
    "a Workspace": (
        (
            "apiVersion: kaito.sh/v1beta1\nkind: Workspace\nmetadata: {name: a}\nresource: {count: 2}\n"
            f"inference: {{template: {{spec: {GPU}}}}}\n"
        ),
        [f"a-0 {W}", f"a-1 {W}"],
    ),
    "a ModelServer with its pods": (
        manifest("tessera.dev/v1alpha1", "ModelServer", f"{{replicas: {{min: 0, max: 4}}, template: {{spec: {GPU}}}}}"),
        [f"a-0 {W}"],
    ),
}


@pytest.mark.parametrize(("text", "want"), PODS.values(), ids=PODS)
def test_pods_of_a_kind(text: str, want: list[str]) -> None:
    assert made(text) == want


def test_every_kind_has_an_example() -> None:
    built_in = {"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Job", "CronJob"}
    shown = {kind for text, _ in PODS.values() for kind in re.findall(r"^kind: (\w+)$", text, re.MULTILINE)}
    assert {name for row in KINDS for name in row.names} - shown - built_in == {"Configuration"}


def test_the_page_has_the_table() -> None:
    """docs/workloads.md shows the rows as they are, in their order, and every kind of which others run the pods."""
    page = (Path(__file__).parents[4] / "docs" / "workloads.md").read_text()
    rows = [
        f"| {', '.join(row.names)} | {f'`{row.group}`' if row.group else 'core'} | {row.counted} |" for row in KINDS
    ]
    assert [line for line in page.splitlines() if line in rows] == rows
    assert [kind for _, kind in TEMPLATES if f"{kind}" not in page] == []


def test_a_group_is_not_both_known_and_without_pods() -> None:
    builtin = {"", "apps", "batch", "keda.sh", "tessera.dev"}
    assert {row.group for row in KINDS} & NO_PODS <= builtin


NOTES = {
    "a Ray group that scales": (
        ray(worker("replicas: 1, minReplicas: 0, maxReplicas: 4, "), ", enableInTreeAutoscaling: true"),
        "RayCluster a: planned with 1 replica; it scales from 0 to 4",
    ),
    "a predictor that scales to zero": (
        manifest(KSERVE, "InferenceService", "{predictor: {minReplicas: 0, maxReplicas: 3, model: {resources: {}}}}"),
        "InferenceService a: planned with 1 replica; it scales from 0 to 3",
    ),
    "a Knative Service that scales": (
        manifest(
            "serving.knative.dev/v1",
            "Service",
            "{template: {metadata: {annotations: {autoscaling.knative.dev/maxScale: '3', "
            "autoscaling.knative.dev/initial-scale: '2'}}, " + f"spec: {GPU}}}}}",
        ),
        "Service a: planned with 2 replicas; it scales from 0 to 3",
    ),
    "a Job that Kueue starts": (
        manifest("batch/v1", "Job", f"{{suspend: true, template: {{spec: {GPU}}}}}", KUEUE),
        "Job a: suspended until Kueue admits it; planned as admitted",
    ),
    "a service of a NIMPipeline that is not enabled": (
        manifest(NIM, "NIMPipeline", f"{{services: [{{name: s, spec: {{{RESOURCES}}}}}]}}"),
        "NIMPipeline a: s is not enabled, so no pod is planned",
    ),
    "a VLLMRuntime that scales": (
        manifest(VLLM, "VLLMRuntime", "{deploymentConfig: {}, autoscalingConfig: {enabled: true, maxReplicas: 2}}"),
        "VLLMRuntime a: planned with 1 replica; it scales from 1 to 2",
    ),
    "a suspended group of a RayCluster": (
        manifest(
            "ray.io/v1",
            "RayCluster",
            f"{{headGroupSpec: {{template: {{spec: {CPU}}}}}, workerGroupSpecs: "
            f"[{{groupName: g, suspend: true, template: {{spec: {GPU}}}}}]}}",
        ),
        "RayCluster a: g is suspended (suspend: true), so no pod of it is planned",
    ),
    "a suspended Job": (
        manifest("batch/v1", "Job", f"{{suspend: true, template: {{spec: {GPU}}}}}"),
        "Job a: suspended (suspend: true), so no pod is planned",
    ),
    "a Workflow": (
        manifest("argoproj.io/v1alpha1", "Workflow", "{templates: [{name: t, container: {}}]}"),
        "Workflow a: each template is one pod; steps that run at once or several times are not distinguished",
    ),
}


@pytest.mark.parametrize(("text", "want"), NOTES.values(), ids=NOTES)
def test_what_was_decided_about_a_count_is_reported(text: str, want: str) -> None:
    assert pods_of(text).notes == (want,)


LEFT_OUT = {
    "a RayJob on a cluster of others": manifest("ray.io/v1", "RayJob", "{clusterSelector: {a: b}}"),
    "a predictor without a framework": manifest(KSERVE, "InferenceService", "{predictor: {minReplicas: 1}}"),
}


@pytest.mark.parametrize("text", LEFT_OUT.values(), ids=LEFT_OUT)
def test_an_object_that_describes_no_pods_is_left_out(text: str) -> None:
    got = pods_of(text)
    assert (got.pods, [each.reason for each in got.left_out]) == ((), ["describes no pods here"])


def test_a_rollout_of_what_is_not_among_the_manifests_says_so() -> None:
    got = pods_of(manifest("argoproj.io/v1alpha1", "Rollout", "{workloadRef: {kind: Deployment, name: web}}"))
    want = "its pods are those of Deployment web, which is not among the manifests"
    assert (got.pods, [each.reason for each in got.left_out]) == ((), [want])


RUNTIME = (
    "---\napiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime\nmetadata: {name: r}\n"
    f"spec: {{mlPolicy: {{numNodes: 2}}, template: {{spec: {{replicatedJobs: [{{name: node, template: "
    f"{{spec: {{template: {{spec: {GPU}}}}}}}}}]}}}}}}\n"
)
TRAIN = "{runtimeRef: {name: r}, trainer: {image: x}}"


def test_a_train_job_is_as_its_runtime_says() -> None:
    job = manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", TRAIN)
    assert made(job + RUNTIME) == [f"a-0 {W}", f"a-1 {W}"]
    assert made(job + RUNTIME.replace("name: node", "name: other")) == []
    (left,) = pods_of(job).left_out
    assert left.reason == "its pods are those of the runtime r, which is not among the manifests"


SERVING = (
    "---\napiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nmetadata: {name: r}\n"
    f"spec: {GPU}\n---\napiVersion: serving.kserve.io/v1alpha1\nkind: ServingRuntime\nspec: {{}}\n"
)


def test_a_predictor_has_the_resources_of_its_runtime() -> None:
    service = manifest(KSERVE, "InferenceService", "{predictor: {model: {runtime: r}}}")
    assert made(service + SERVING) == [f"a-predictor-0 {W}"]
    assert made(service + SERVING.replace(GPU, "{}")) == ["a-predictor-0"]
    assert pods_of(service).notes == (
        (
            "InferenceService a: its resources are those of the runtime r, which is not among the manifests, "
            "so GPUs of it are not counted"
        ),
    )
    chosen = manifest(KSERVE, "InferenceService", "{predictor: {model: {}}}")
    assert "the runtime that KServe chooses" in pods_of(chosen).notes[0]


def test_gpus_of_a_known_kind_where_no_pod_is_read_are_reported() -> None:
    text = manifest("ray.io/v1", "RayJob", cluster("rayClusterSpec", "")[:-1] + f", other: {{{RESOURCES}}}}}")
    (left,) = pods_of(text).left_out
    assert left.resources == ("nvidia.com/gpu",)


@pytest.mark.parametrize(("group", "kind"), TEMPLATES)
def test_templates_of_others_are_left_out_with_their_gpus(group: str, kind: str) -> None:
    version = f"{group}/v1" if group else "v1"
    got = pods_of(manifest(version, kind, GPU))
    assert got.pods == ()
    assert "runs no pods itself" in got.left_out[0].reason
    assert got.left_out[0].resources == ("nvidia.com/gpu",)


REFUSED = {
    "replicas beyond Kubernetes": (
        ray(worker("replicas: 1000000000000, ")),
        "workerGroupSpecs[0].replicas: 1000",
    ),
    "replicas in words": (ray(worker("replicas: two, ")), "line 4: RayCluster a: spec.workerGroupSpecs[0].replicas"),
    "more at least than at most": (
        ray(worker("minReplicas: 3, maxReplicas: 2, ")),
        "maxReplicas: 2 is not at least the minReplicas, 3",
    ),
    "a placeholder": (ray(worker("replicas: $NODES, ")), "a template's, so pass what `helm template`"),
    "a scale in words": (
        manifest(
            "serving.knative.dev/v1",
            "Service",
            "{template: {metadata: {annotations: {autoscaling.knative.dev/min-scale: few}}, " + f"spec: {CPU}}}}}",
        ),
        "'few' is not a number of pods in quotes",
    ),
    "GPUs that are no number": (
        manifest(NIM, "NIMService", "{resources: {limits: {nvidia.com/gpu: many}}}"),
        "line 4: NIMService a: spec.resources.limits[nvidia.com/gpu]: 'many'",
    ),
    "a request without a limit": (
        manifest(NIM, "NIMService", "{resources: {requests: {nvidia.com/gpu: 1}}}"),
        "1 is not a limit of nvidia.com/gpu, as every extended resource needs",
    ),
    "a misspelled field of resources": (
        manifest(NIM, "NIMService", "{resources: {limit: {nvidia.com/gpu: 1}}}"),
        "spec.resources.limit: it is an unknown field: remove it, or write one of limits, requests, claims",
    ),
    "a second container of KServe without a name": (
        manifest(KSERVE, "InferenceService", "{predictor: {containers: [{image: x}, {image: y}]}}"),
        "spec.predictor.containers[1].name: it is missing",
    ),
}


@pytest.mark.parametrize(("text", "want"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_named_with_its_place(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pods_of(text)
    assert want in str(caught.value)


def test_annotations_of_the_kind_reach_the_pods() -> None:
    text = manifest(
        KSERVE, "InferenceService", "{predictor: {model: {resources: {limits: {nvidia.com/gpu: 1}}}}}"
    ).replace("name: a", "name: a, annotations: {tessera.dev/isolation: hardware}")
    assert pods_of(text).pods[0].need.requests[0].isolation == "hardware"


def test_node_selection_beside_resources_is_read() -> None:
    text = manifest(NIM, "NIMService", f"{{nodeSelector: {{pool: a}}, {RESOURCES}}}")
    assert pods_of(text).pods[0].need.node_selector == (("pool", "a"),)
