"""The kinds that Tessera reads pods from: where in an object its pods are described, and how many there are.

A row has API group and kind, its parts, and the words for docs/workloads.md. Versions of one kind agree in
these fields. Sources: the API types of the projects named at each row.
"""

import msgspec

from tessera.api.kubernetes.workloads.counting import (
    Enabled,
    Factor,
    KnativeScale,
    Parallel,
    ReplicaFactor,
    ReplicaGroup,
    Unless,
)
from tessera.api.kubernetes.workloads.shapes import (
    Shape,
    bare_spec,
    dynamo_service,
    engine_worker,
    knative_revision,
    nim,
    predictor,
    rollout,
    spark,
    template,
    trainer,
    trainer_nodes,
    vllm_runtime,
    workflow_step,
)

__all__ = ["KINDS", "NO_PODS", "TEMPLATES", "PodPart", "WorkloadKind", "runs_no_pods"]


class PodPart(msgspec.Struct, frozen=True, kw_only=True):
    """Equal pods of an object."""

    at: str
    """The path to their description."""
    shape: Shape = template
    times: tuple[Factor, ...] = ()
    word: str = ""
    """Their suffix to the object's name, besides that of wildcards."""
    annotations: str = ""
    """The path to the annotations that the pods get, where the part has none of its own."""
    required: bool = False
    """Whether an object without this part is refused."""


class WorkloadKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of workload."""

    group: str
    names: tuple[str, ...]
    parts: tuple[PodPart, ...]
    counted: str
    """How many pods it stands for, in words."""
    first: str = ""
    """The path to the number of the first pod."""
    daemon: bool = False
    """Whether a pod runs on each node that admits it."""
    note: str = ""
    """A note on its count that always applies."""


def _one(at: str, *times: Factor, word: str = "") -> PodPart:
    return PodPart(at=at, times=times, word=word, required=not word)


def _group(
    at: str, replicas: str, *times: Factor, leader: str = "leaderTemplate", word: str = ""
) -> tuple[PodPart, ...]:
    """Return the parts of groups of a leader and workers. Source: kubernetes-sigs/lws `api/leaderworkerset/v1`."""
    number = ReplicaFactor(path=replicas)
    return (
        PodPart(at=f"{at}.{leader}", times=(number, *times), word=f"{word}leader"),
        PodPart(
            at=f"{at}.workerTemplate",
            times=(number, *times, ReplicaGroup(path=f"{at}.size", leader=f"{at}.{leader}")),
            word=f"{word}worker",
        ),
    )


def _ray(at: str, *times: Factor) -> tuple[PodPart, ...]:
    """Return the parts of a Ray cluster. Source: ray-project/kuberay `GetWorkerGroupDesiredReplicas`."""
    each = f"{at}.workerGroupSpecs[]"
    replicas = ReplicaFactor(
        path=f"{each}.replicas",
        default=0,
        least=f"{each}.minReplicas",
        most=f"{each}.maxReplicas",
        scaled=f"{at}.enableInTreeAutoscaling",
    )
    running: tuple[Factor, ...] = (*times, Unless(path=f"{at}.suspend"))
    return (
        PodPart(at=f"{at}.headGroupSpec.template", times=running, word="head"),
        PodPart(
            at=f"{each}.template",
            times=(*running, Unless(path=f"{each}.suspend"), replicas, ReplicaGroup(path=f"{each}.numOfHosts")),
        ),
    )


def _replica_specs(kind: str, field: str) -> WorkloadKind:
    """Return a kind of Kubeflow's training operator. Source: kubeflow/training-operator `pkg/apis/kubeflow.org/v1`."""
    each = f"spec.{field}{{}}"
    times = (
        Unless(path="spec.runPolicy.suspend"),
        ReplicaFactor(path=f"{each}.replicas"),
    )
    return WorkloadKind(
        group="kubeflow.org",
        names=(kind,),
        parts=(PodPart(at=f"{each}.template", times=times),),
        counted=f"`{field}.*.replicas`",
    )


def _component(at: str, *, word: str) -> tuple[PodPart, ...]:
    """Return the parts of a component of a KServe InferenceService."""
    number = ReplicaFactor(path=f"{at}.minReplicas", most=f"{at}.maxReplicas", from_zero=True)
    return (
        PodPart(at=at, shape=predictor, times=(number,), word=word, annotations="metadata.annotations"),
        PodPart(
            at=f"{at}.workerSpec",
            shape=engine_worker,
            times=(number, ReplicaGroup(path=f"{at}.workerSpec.pipelineParallelSize", leader=at)),
            word=f"{word}-worker",
            annotations="metadata.annotations",
        ),
    )


def _llm(at: str, word: str) -> tuple[PodPart, ...]:
    """Return the parts of a workload of an LLMInferenceService.

    Source: kserve/kserve `pkg/apis/serving/v1alpha2/llm_inference_service_types_func.go` (`GetSize`).
    """
    number = ReplicaFactor(
        path=f"{at}.replicas", least=f"{at}.scaling.minReplicas", most=f"{at}.scaling.maxReplicas", lowest=1
    )
    size = ReplicaGroup(
        path=f"{at}.parallelism.data",
        over=f"{at}.parallelism.dataLocal",
        otherwise=f"{at}.parallelism.pipeline",
        leader=f"{at}.template",
    )
    annotations = f"{at}.annotations"
    return (
        PodPart(at=f"{at}.template", shape=bare_spec, times=(number,), word=word, annotations=annotations),
        PodPart(
            at=f"{at}.worker", shape=bare_spec, times=(number, size), word=f"{word}-worker", annotations=annotations
        ),
    )


def _nim(at: str, *times: Factor) -> PodPart:
    """Return the pods of a NIMService. Source: NVIDIA/k8s-nim-operator `api/apps/v1alpha1/nimservice_types.go`."""
    number = ReplicaFactor(
        path=f"{at}.replicas",
        least=f"{at}.scale.hpa.minReplicas",
        most=f"{at}.scale.hpa.maxReplicas",
        lowest=1,
        bounded=f"{at}.scale.enabled",
    )
    size = ReplicaGroup(path=f"{at}.multiNode.parallelism.pipeline")
    return PodPart(at=at, shape=nim, times=(*times, number, size), annotations=f"{at}.annotations")


_SPEC_REPLICAS = ReplicaFactor(path="spec.replicas")
_TEMPLATE = _one("spec.template", _SPEC_REPLICAS)

KINDS = (
    WorkloadKind(group="apps", names=("Deployment", "ReplicaSet"), parts=(_TEMPLATE,), counted="`replicas`"),
    WorkloadKind(group="", names=("ReplicationController",), parts=(_TEMPLATE,), counted="`replicas`"),
    WorkloadKind(
        group="apps",
        names=("StatefulSet",),
        parts=(_TEMPLATE,),
        counted="`replicas`, numbered from `ordinals.start`",
        first="spec.ordinals.start",
    ),
    WorkloadKind(
        group="apps",
        names=("DaemonSet",),
        parts=(_one("spec.template"),),
        counted="one on each node of the fleet that admits it",
        daemon=True,
    ),
    WorkloadKind(
        group="batch",
        names=("Job",),
        parts=(_one("spec.template", Parallel(path="spec")),),
        counted="`parallelism`, at most `completions`",
    ),
    WorkloadKind(
        group="batch",
        names=("CronJob",),
        parts=(
            _one("spec.jobTemplate.spec.template", Unless(path="spec.suspend"), Parallel(path="spec.jobTemplate.spec")),
        ),
        counted="those of one run",
    ),
    WorkloadKind(
        group="jobset.x-k8s.io",
        names=("JobSet",),
        parts=(
            PodPart(
                at="spec.replicatedJobs[].template.spec.template",
                times=(
                    Unless(path="spec.suspend"),
                    ReplicaFactor(path="spec.replicatedJobs[].replicas"),
                    Parallel(path="spec.replicatedJobs[].template.spec"),
                ),
            ),
        ),
        counted="of each of `replicatedJobs`, `replicas` times the pods of its Job",
    ),
    WorkloadKind(
        group="leaderworkerset.x-k8s.io",
        names=("LeaderWorkerSet",),
        parts=_group("spec.leaderWorkerTemplate", "spec.replicas"),
        counted="`replicas` groups of `size`, one of them the leader",
    ),
    WorkloadKind(
        group="ray.io",
        names=("RayCluster",),
        parts=_ray("spec"),
        counted="the head, and of each worker group "
        "`replicas` (from `minReplicas` to `maxReplicas`) times `numOfHosts`",
    ),
    WorkloadKind(
        group="ray.io",
        names=("RayJob",),
        parts=(
            *_ray("spec.rayClusterSpec", Unless(path="spec.suspend")),
            PodPart(at="spec.submitterPodTemplate", times=(Unless(path="spec.suspend"),), word="submitter"),
        ),
        counted="those of `rayClusterSpec`, and the submitter that it describes",
    ),
    WorkloadKind(
        group="ray.io",
        names=("RayService",),
        parts=_ray("spec.rayClusterConfig", Unless(path="spec.suspend")),
        counted="those of `rayClusterConfig`; an upgrade needs them twice",
    ),
    WorkloadKind(
        group="ray.io",
        names=("RayCronJob",),
        parts=_ray("spec.jobTemplate.rayClusterSpec", Unless(path="spec.suspend")),
        counted="those of one run",
    ),
    WorkloadKind(
        group="serving.kserve.io",
        names=("InferenceService",),
        parts=(
            *_component("spec.predictor", word="predictor"),
            *_component("spec.transformer", word="transformer"),
            *_component("spec.explainer", word="explainer"),
        ),
        counted="`minReplicas` of predictor, transformer and explainer, at least one; with `workerSpec` "
        "`pipelineParallelSize` nodes each",
    ),
    WorkloadKind(
        group="serving.kserve.io",
        names=("LLMInferenceService",),
        parts=(*_llm("spec", "main"), *_llm("spec.prefill", "prefill")),
        counted="`replicas` of the main workload and of `prefill`; with `worker` groups of `data` / `dataLocal` "
        "or `pipeline`",
    ),
    WorkloadKind(
        group="serving.knative.dev",
        names=("Service", "Configuration"),
        parts=(PodPart(at="spec.template", shape=knative_revision, times=(KnativeScale(path="spec.template"),)),),
        counted="`min-scale` or `initial-scale`, at least one",
    ),
    _replica_specs("PyTorchJob", "pytorchReplicaSpecs"),
    _replica_specs("TFJob", "tfReplicaSpecs"),
    _replica_specs("MPIJob", "mpiReplicaSpecs"),
    _replica_specs("XGBoostJob", "xgbReplicaSpecs"),
    _replica_specs("PaddleJob", "paddleReplicaSpecs"),
    _replica_specs("JAXJob", "jaxReplicaSpecs"),
    _replica_specs("MXJob", "mxReplicaSpecs"),
    WorkloadKind(group="kubeflow.org", names=("Notebook",), parts=(_one("spec.template"),), counted="one"),
    WorkloadKind(
        group="trainer.kubeflow.org",
        names=("TrainJob",),
        parts=(PodPart(at="spec.trainer", shape=trainer, times=(Unless(path="spec.suspend"), trainer_nodes)),),
        counted="`trainer.numNodes` with `resourcesPerNode`, or as the runtime among the manifests says",
    ),
    WorkloadKind(
        group="batch.volcano.sh",
        names=("Job",),
        parts=(PodPart(at="spec.tasks[].template", times=(ReplicaFactor(path="spec.tasks[].replicas"),)),),
        counted="`tasks[].replicas`",
    ),
    WorkloadKind(
        group="apps.nvidia.com",
        names=("NIMService",),
        parts=(_nim("spec"),),
        counted="`replicas`, or `scale.hpa.minReplicas`, times `multiNode.parallelism.pipeline`",
    ),
    WorkloadKind(
        group="apps.nvidia.com",
        names=("NIMPipeline",),
        parts=(_nim("spec.services[].spec", Enabled(path="spec.services[].enabled")),),
        counted="those of each NIMService in `services` that is `enabled`",
    ),
    WorkloadKind(
        group="nvidia.com",
        names=("DynamoGraphDeployment",),
        parts=(
            PodPart(
                at="spec.services{}",
                shape=dynamo_service,
                times=(
                    ReplicaFactor(path="spec.services{}.replicas"),
                    ReplicaGroup(path="spec.services{}.multinode.nodeCount"),
                ),
                annotations="spec.services{}.annotations",
            ),
            PodPart(
                at="spec.components[].podTemplate",
                times=(
                    ReplicaFactor(path="spec.components[].replicas"),
                    ReplicaGroup(path="spec.components[].multinode.nodeCount"),
                ),
            ),
        ),
        counted="of each service or component `replicas` times `multinode.nodeCount`",
    ),
    WorkloadKind(
        group="production-stack.vllm.ai",
        names=("VLLMRuntime",),
        parts=(
            PodPart(
                at="spec.deploymentConfig",
                shape=vllm_runtime,
                times=(
                    ReplicaFactor(
                        path="spec.deploymentConfig.replicas",
                        least="spec.autoscalingConfig.minReplicas",
                        most="spec.autoscalingConfig.maxReplicas",
                        lowest=1,
                        bounded="spec.autoscalingConfig.enabled",
                        from_zero=True,
                    ),
                ),
                annotations="spec.deploymentConfig.podAnnotations",
            ),
        ),
        counted="`deploymentConfig.replicas`, between the bounds of `autoscalingConfig`",
    ),
    WorkloadKind(
        group="argoproj.io",
        names=("Rollout",),
        parts=(PodPart(at="spec.template", shape=rollout, times=(_SPEC_REPLICAS,)),),
        counted="`replicas` of its template or of that of its `workloadRef`; a rollout in progress may run more",
    ),
    WorkloadKind(
        group="argoproj.io",
        names=("Workflow",),
        parts=(PodPart(at="spec.templates[]", shape=workflow_step, times=(Unless(path="spec.suspend"),)),),
        counted="one for each template that is a container or script",
        note="each template is one pod; steps that run at once or several times are not distinguished",
    ),
    WorkloadKind(
        group="keda.sh",
        names=("ScaledJob",),
        parts=(_one("spec.jobTargetRef.template", Parallel(path="spec.jobTargetRef")),),
        counted="those of one Job",
        note="one Job is planned; KEDA starts up to `maxReplicaCount`",
    ),
    WorkloadKind(
        group="orchestration.aibrix.ai",
        names=("StormService",),
        parts=(
            PodPart(
                at="spec.template.spec.roles[].template",
                times=(
                    _SPEC_REPLICAS,
                    ReplicaFactor(path="spec.template.spec.roles[].replicas"),
                    ReplicaGroup(path="spec.template.spec.roles[].podGroupSize"),
                ),
            ),
        ),
        counted="`replicas` times `roles[].replicas` times `podGroupSize`",
    ),
    WorkloadKind(
        group="orchestration.aibrix.ai",
        names=("RayClusterFleet",),
        parts=_ray("spec.template.spec", _SPEC_REPLICAS),
        counted="`replicas` times the pods of a RayCluster",
    ),
    WorkloadKind(
        group="inference.llmaz.io",
        names=("Service",),
        parts=_group("spec.workloadTemplate", "spec.replicas"),
        counted="`replicas` groups of `workloadTemplate.size`",
    ),
    WorkloadKind(
        group="sagemaker.amazonaws.com",
        names=("HyperPodPyTorchJob",),
        parts=(
            PodPart(at="spec.replicaSpecs[].template", times=(ReplicaFactor(path="spec.replicaSpecs[].replicas"),)),
        ),
        counted="`replicaSpecs[].replicas`",
    ),
    WorkloadKind(
        group="sparkoperator.k8s.io",
        names=("SparkApplication",),
        parts=(
            PodPart(at="spec.driver", shape=spark, word="driver", annotations="spec.driver.annotations"),
            PodPart(
                at="spec.executor",
                shape=spark,
                times=(
                    ReplicaFactor(
                        path="spec.executor.instances",
                        least="spec.dynamicAllocation.minExecutors",
                        most="spec.dynamicAllocation.maxExecutors",
                        bounded="spec.dynamicAllocation.enabled",
                    ),
                ),
                word="executor",
                annotations="spec.executor.annotations",
            ),
        ),
        counted="the driver and `executor.instances`, between the bounds of `dynamicAllocation`; memory is not read",
    ),
    WorkloadKind(
        group="kaito.sh",
        names=("Workspace",),
        parts=(PodPart(at="inference.template", times=(ReplicaFactor(path="resource.count"),)),),
        counted="`resource.count` with `inference.template`; a preset names no GPUs",
    ),
    WorkloadKind(
        # `_planning.with_pods` writes the template of the controller's Deployment into it.
        group="tessera.dev",
        names=("ModelServer",),
        parts=(
            PodPart(
                at="spec.template",
                times=(ReplicaFactor(path="spec.replicas.min", most="spec.replicas.max", from_zero=True),),
            ),
        ),
        counted="`replicas.min`, at least one where it scales, as the controller would create them",
    ),
)
"""One row for each kind, in the order in which docs/workloads.md shows them."""

TEMPLATES = {
    ("", "PodTemplate"): "ProvisioningRequests and others that name it",
    ("serving.kserve.io", "ServingRuntime"): "InferenceServices",
    ("serving.kserve.io", "ClusterServingRuntime"): "InferenceServices",
    ("serving.kserve.io", "LLMInferenceServiceConfig"): "LLMInferenceServices",
    ("ome.io", "ServingRuntime"): "InferenceServices",
    ("ome.io", "ClusterServingRuntime"): "InferenceServices",
    ("trainer.kubeflow.org", "TrainingRuntime"): "TrainJobs",
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): "TrainJobs",
    ("inference.llmaz.io", "BackendRuntime"): "Playgrounds",
    ("llmaz.io", "OpenModel"): "Playgrounds",
    ("argoproj.io", "WorkflowTemplate"): "Workflows",
    ("argoproj.io", "ClusterWorkflowTemplate"): "Workflows",
    ("flow.volcano.sh", "JobTemplate"): "JobFlows",
    ("operators.coreos.com", "ClusterServiceVersion"): "the Operator Lifecycle Manager",
    ("template.openshift.io", "Template"): "what `oc process` prints",
    ("apps.nvidia.com", "NIMCache"): "NIMServices",
}
"""Kinds with pod descriptions that other kinds run, and these."""

NO_PODS = frozenset(
    {
        *("", "apps", "batch", "autoscaling", "policy", "networking.k8s.io", "rbac.authorization.k8s.io"),
        *("scheduling.k8s.io", "storage.k8s.io", "apiextensions.k8s.io", "admissionregistration.k8s.io"),
        *("resource.k8s.io", "node.k8s.io", "coordination.k8s.io", "kueue.x-k8s.io", "karpenter.sh"),
        *("karpenter.k8s.aws", "karpenter.azure.com", "cloud.google.com", "gateway.networking.k8s.io"),
        *("monitoring.coreos.com", "tessera.dev", "resource.nvidia.com", "kind.x-k8s.io", "autoscaling.x-k8s.io"),
        *(
            "scheduling.volcano.sh",
            "scheduling.run.ai",
            "kustomize.config.k8s.io",
            "keda.sh",
            "inference.networking.x-k8s.io",
        ),
        "inference.networking.k8s.io",
    }
)
"""API groups whose other kinds run no pods."""


def runs_no_pods(group: str, kind: str) -> bool:
    """Return whether objects of a kind are known to run no pods."""
    return group in NO_PODS and (group, kind) != ("", "")
