"""A part of an object as a Pod: from a pod template, a bare pod spec, a container or mere `resources`.

A shape returns None if the part makes no pod. Its result is composed of the document's own fields, so that
errors keep their positions.
"""

import itertools
from collections.abc import Callable, Iterable

from tessera.api.fields import Field, composed
from tessera.api.kubernetes.workloads.counting import CountedPart
from tessera.core.gpu.sharing import GPU_RESOURCE

__all__ = [
    "Shape",
    "bare_spec",
    "dynamo_service",
    "engine_worker",
    "knative_revision",
    "nim",
    "predictor",
    "rollout",
    "spark",
    "template",
    "trainer",
    "trainer_nodes",
    "vllm_runtime",
    "with_names",
    "workflow_step",
]

Shape = Callable[[CountedPart, Field], Field | None]
"""Takes a part and the annotations of its pods, which are missing if the part has its own."""

_FRAMEWORKS = (
    *("model", "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm"),
    *("paddle", "art", "alibi"),
)
"""Source: kserve/kserve `pkg/apis/serving/v1beta1/predictor.go`, `explainer.go`."""
_SELECTION = ("nodeSelector", "affinity", "tolerations", "nodeName", "priorityClassName", "topologySpreadConstraints")


def template(place: CountedPart, annotations: Field) -> Field | None:
    """Read a pod template."""
    del annotations
    return place.field if place.field.present else None


def rollout(place: CountedPart, annotations: Field) -> Field | None:
    """Read the pod template of a Rollout: its own, or that of the workload among the manifests that it names.

    Source: argoproj/argo-rollouts `pkg/apis/rollouts/v1alpha1/types.go` (`ObjectRef`).
    """
    reference = place.root.get("spec", "workloadRef")
    if place.field.present or not reference.present:
        return template(place, annotations)
    kind, name = reference.get("kind").text("Deployment"), reference.get("name").text()
    if (kind, name) not in place.others:
        place.notes.append(f"its pods are those of {kind} {name}, which is not among the manifests")
        return None
    found = place.others[kind, name]
    return found.get("template") if kind == "PodTemplate" else found.get("spec", "template")


def knative_revision(place: CountedPart, annotations: Field) -> Field | None:
    """Read the template of a Knative Service, whose containers need no names.

    Source: knative/serving `pkg/apis/serving/v1/revision_defaults.go`.
    """
    found = template(place, annotations)
    return None if found is None else with_names(found, "user-container")


def with_names(pod: Field, name: str) -> Field:
    """Return a pod whose containers have names: made up where the kind's controller does so: NAME, NAME-1, ..."""
    spec = pod.get("spec")
    containers = list(spec.get("containers").elements())
    named = _with_names(containers, name)
    if named == containers:
        return pod
    spec = composed(spec, {**dict(spec.members()), "containers": composed(spec.get("containers"), named)})
    return composed(pod, {**dict(pod.members()), "spec": spec})


def _with_names(containers: Iterable[Field], name: str) -> list[Field]:
    names = (f"{name}-{index}" if index else name for index in itertools.count())
    return [
        each if each.get("name").present or not isinstance(each.value, dict) else _named(each, each, made_up)
        for each, made_up in zip(containers, names, strict=False)
    ]


def bare_spec(place: CountedPart, annotations: Field) -> Field | None:
    """Read a pod spec that stands without metadata."""
    return _pod(place.field, annotations) if place.field.present else None


def predictor(place: CountedPart, annotations: Field) -> Field | None:
    """Read a component of a KServe InferenceService: its containers, and one for the framework it names.

    The first container needs no name. In a service of several nodes the GPUs that a container leaves out are those of
    `tensorParallelSize`. Source: kserve/kserve `pkg/apis/serving/v1beta1/predictor_custom.go`,
    `pkg/controller/v1beta1/inferenceservice/components/predictor.go` (`computeRayNodeAndGPUs`).
    """
    field = place.field
    if not field.present:
        return None
    own = list(field.get("containers").elements())
    containers = [*_with_names(own[:1], "kserve-container"), *own[1:]]
    for name in _FRAMEWORKS:
        if field.get(name).present:
            resources = field.get(name, "resources")
            resources = resources if resources.present else _runtime_resources(place, field.get(name))
            if field.get("workerSpec").present:
                resources = _with_gpus(resources, field.get("workerSpec"))
            containers.append(_container(field.get(name), resources, name))
    return _of_containers(field, containers, field, annotations) if containers else None


def _runtime_resources(place: CountedPart, model: Field) -> Field:
    """Return the resources of the ServingRuntime that a model names; a note says where it is not at hand."""
    runtime = model.get("runtime").text("")
    for kind in ("ServingRuntime", "ClusterServingRuntime"):
        if (kind, runtime) in place.others:
            containers = place.others[kind, runtime].get("spec", "containers").elements()
            return next((each.get("resources") for each in containers), model.get("resources"))
    which = f"the runtime {runtime}, which is not among the manifests" if runtime else "the runtime that KServe chooses"
    place.notes.append(f"its resources are those of {which}, so GPUs of it are not counted")
    return model.get("resources")


def engine_worker(place: CountedPart, annotations: Field) -> Field | None:
    """Read the `workerSpec` of a KServe InferenceService."""
    field = place.field
    if not field.present:
        return None
    containers = [
        composed(each, {**dict(each.members()), "resources": _with_gpus(each.get("resources"), field)})
        for each in field.get("containers").elements()
    ]
    return _of_containers(
        field,
        containers or [_container(field, _with_gpus(field.get("resources"), field), "worker")],
        field,
        annotations,
    )


def _with_gpus(resources: Field, sizes: Field) -> Field:
    """Return resources with the GPUs of tensor parallelism, where they name none."""
    if any("/" in name for name, _ in resources.get("limits").members()):
        return resources
    size = sizes.get("tensorParallelSize")
    gpus = size if size.present else Field(sizes.document, 1, sizes.path, root=sizes.root, label=sizes.label)
    limits = composed(resources, {**dict(resources.get("limits").members()), GPU_RESOURCE: gpus})
    return composed(resources, {"requests": resources.get("requests"), "limits": limits})


def nim(place: CountedPart, annotations: Field) -> Field | None:
    """Read the spec of a NIMService: one container, and sidecars."""
    spec = place.field
    claims = [_named(each, each, "nim") for each in spec.get("draResources").elements()]
    containers = [_container(spec, spec.get("resources"), "main"), *spec.get("sidecarContainers").elements()]
    return _of_containers(spec, containers, spec, annotations, {"resourceClaims": composed(spec, claims)})


def trainer(place: CountedPart, annotations: Field) -> Field | None:
    """Read the trainer of a TrainJob: one container a node, as it says or else as its runtime does."""
    field = place.field
    if field.get("resourcesPerNode").present:
        return _of_containers(field, [_container(field, field.get("resourcesPerNode"), "node")], field, annotations)
    runtime = _training_runtime(place)
    if runtime is None:
        name = place.root.get("spec", "runtimeRef", "name").text("")
        place.notes.append(f"its pods are those of the runtime {name}, which is not among the manifests")
        return None
    jobs = [*runtime.get("spec", "template", "spec", "replicatedJobs").elements()]
    node = next((each for each in jobs if each.get("name").value == "node"), None)
    return node.get("template", "spec", "template") if node else None


def trainer_nodes(place: CountedPart) -> int:
    """Return the nodes of a TrainJob, its own number or else its runtime's."""
    number, runtime = place.at("spec.trainer.numNodes"), _training_runtime(place)
    if runtime is not None and not number.present:
        number = runtime.get("spec", "mlPolicy", "numNodes")
    return number.integer(1)


def _training_runtime(place: CountedPart) -> Field | None:
    """Source: kubeflow/trainer `pkg/apis/trainer/v1alpha1/trainjob_types.go` (`RuntimeRef`)."""
    reference = place.root.get("spec", "runtimeRef")
    return place.others.get((reference.get("kind").text("ClusterTrainingRuntime"), reference.get("name").text("")))


def vllm_runtime(place: CountedPart, annotations: Field) -> Field | None:
    """Read `deploymentConfig` of a VLLMRuntime.

    Source: vllm-project/production-stack `operator/internal/controller/vllmruntime_controller.go`.
    """
    field = place.field
    resources = field.get("resources")
    container = _container(field, _limits(resources, resources.get("gpuType").text(GPU_RESOURCE)), "vllm")
    return _of_containers(field, [container], field, annotations, {"tolerations": field.get("toleration")})


def dynamo_service(place: CountedPart, annotations: Field) -> Field | None:
    """Read a service of a DynamoGraphDeployment: `resources` with `gpu`, and pod fields in `extraPodSpec`."""
    field, extra = place.field, place.field.get("extraPodSpec")
    resources = field.get("resources")
    limits = _limits(resources.get("limits"), resources.get("limits", "gpuType").text(GPU_RESOURCE))
    own = (
        composed(resources, {"limits": limits.get("limits")})
        if resources.present
        else extra.get("mainContainer", "resources")
    )
    containers = [_container(field, own, "main"), *extra.get("containers").elements()]
    return _of_containers(field, containers, extra, annotations)


def spark(place: CountedPart, annotations: Field) -> Field | None:
    """Read the driver or executor of a SparkApplication: `gpu` with `name` and `quantity`, and `cores`.

    Memory is in Spark's words, with an overhead of Spark's, and is not read.
    """
    field = place.field
    if not field.present:
        return None
    limits = {"cpu": field.get("cores")}
    if field.get("gpu").present:
        limits[field.get("gpu", "name").text()] = field.get("gpu", "quantity")
    resources = composed(field, {"limits": composed(field, limits)})
    return _of_containers(field, [_container(field, resources, "main")], field, annotations)


def workflow_step(place: CountedPart, annotations: Field) -> Field | None:
    """Read a template of an Argo Workflow, where it is a pod and not a list of steps."""
    field, spec = place.field, place.root.get("spec")
    main = [field.get(name) for name in ("container", "script") if field.get(name).present]
    main = [composed(each, {**dict(each.members()), "name": _text(each, "main")}) for each in main]
    containers = [*main, *field.get("containerSet", "containers").elements()]
    if not containers:
        return None
    selection = {name: field.get(name) if field.get(name).present else spec.get(name) for name in _SELECTION}
    more = {"initContainers": field.get("initContainers")}
    return _of_containers(field, containers, composed(field, selection), annotations, more)


def _limits(amounts: Field, gpu_name: str) -> Field:
    """Return `resources` from amounts by the short names `cpu`, `memory` and `gpu`."""
    limits = {"cpu": amounts.get("cpu"), "memory": amounts.get("memory"), gpu_name: amounts.get("gpu")}
    limits |= {name: amount for name, amount in amounts.members() if "/" in name}
    return composed(amounts, {"limits": composed(amounts, limits)})


def _pod(spec: Field, annotations: Field) -> Field:
    return composed(spec, {"metadata": composed(spec, {"annotations": annotations}), "spec": spec})


def _of_containers(
    base: Field, containers: list[Field], selection: Field, annotations: Field, more: dict[str, Field] | None = None
) -> Field:
    kept: Iterable[str] = (*_SELECTION, "initContainers", "resourceClaims", "overhead")
    spec = {name: selection.get(name) for name in kept} | (more or {})
    return _pod(composed(base, {**spec, "containers": composed(base, containers)}), annotations)


def _container(base: Field, resources: Field, name: str) -> Field:
    return _named(base, composed(base, {"resources": resources}), name)


def _named(base: Field, field: Field, name: str) -> Field:
    return composed(base, {**dict(field.members()), "name": _text(base, name)})


def _text(base: Field, text: str) -> Field:
    return Field(base.document, text, base.path, root=base.root, label=base.label)
