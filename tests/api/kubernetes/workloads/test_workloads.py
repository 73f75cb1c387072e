"""Kubernetes manifests as pods: which, how many, in which order, and what is refused where."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import node
from builders.manifests import pods_of
from tessera.api import documents
from tessera.api.kubernetes import workloads
from tessera.core.cluster.snapshot import Taint
from tessera.core.packing.fit.admission import refusal
from tessera.errors import InvalidInput


def workload(kind: str, name: str = "web", spec: str = "", namespace: str = "") -> str:
    place = f", namespace: {namespace}" if namespace else ""
    template = "template: {spec: {containers: [{name: main}]}}"
    return f"kind: {kind}\nmetadata: {{name: {name}{place}}}\nspec:\n  {template}\n  {spec}\n"


PODS = {
    "a bare pod": ("kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m}]}\n", ["default/a"]),
    "pods whose names are generated": (
        "---\n".join(["kind: Pod\nmetadata: {generateName: run-}\nspec: {containers: [{name: m}]}\n"] * 2),
        ["default/run-0", "default/run-1"],
    ),
    "a finished pod is none": (
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m}]}\nstatus: {phase: Succeeded}\n",
        [],
    ),
    "a Deployment of two": (workload("Deployment", spec="replicas: 2"), ["default/web-0", "default/web-1"]),
    "a Deployment without a number": (workload("Deployment"), ["default/web-0"]),
    "a Deployment scaled to nothing": (workload("Deployment", spec="replicas: 0"), []),
    "a ReplicaSet in a namespace": (workload("ReplicaSet", namespace="team"), ["team/web-0"]),
    "a ReplicationController": (workload("ReplicationController"), ["default/web-0"]),
    "a StatefulSet that counts from 5": (
        workload("StatefulSet", spec="{replicas: 2, ordinals: {start: 5}}".strip("{}") + "}").replace(
            "replicas: 2, ordinals", "replicas: 2\n  ordinals"
        ),
        ["default/web-5", "default/web-6"],
    ),
    "a Job runs as many as its parallelism": (
        workload("Job", spec="parallelism: 2"),
        ["default/web-0", "default/web-1"],
    ),
    "a Job runs no more than its completions": (
        workload("Job", spec="parallelism: 5\n  completions: 1"),
        ["default/web-0"],
    ),
    "a suspended Job": (workload("Job", spec="suspend: true"), []),
    "a CronJob is one run of its Job": (
        (
            "kind: CronJob\nmetadata: {name: nightly}\nspec:\n  jobTemplate:\n    spec:\n      parallelism: 2\n"
            "      template: {spec: {containers: [{name: m}]}}\n"
        ),
        ["default/nightly-0", "default/nightly-1"],
    ),
    "a suspended CronJob": (
        (
            "kind: CronJob\nmetadata: {name: nightly}\nspec:\n  suspend: true\n  jobTemplate:\n    spec:\n"
            "      template: {spec: {containers: [{name: m}]}}\n"
        ),
        [],
    ),
    "a list": (
        (
            "kind: List\nitems:\n- {kind: Pod, metadata: {name: a}, spec: {containers: [{name: m}]}}\n"
            "- {kind: Pod, metadata: {name: b}, spec: {containers: [{name: m}]}}\n"
        ),
        ["default/a", "default/b"],
    ),
    "a typed list": (
        "kind: PodList\nitems:\n- {metadata: {name: a}, spec: {containers: [{name: m}]}}\n",
        ["default/a"],
    ),
    "several documents in order": (
        workload("Job", "b") + "---\n" + workload("Deployment", "a"),
        ["default/b-0", "default/a-0"],
    ),
}


@pytest.mark.parametrize(("text", "want"), PODS.values(), ids=PODS)
def test_pods_that_run_at_once(text: str, want: list[str]) -> None:
    assert [pod.key for pod in pods_of(text).pods] == want


def test_pods_of_one_workload_share_need_and_owner() -> None:
    first, second = pods_of(workload("Deployment", spec="replicas: 2")).pods
    assert first.need is second.need
    assert first.owner == "Deployment/default/web"


def test_the_controller_of_a_pod_is_its_owner() -> None:
    text = """
    kind: Pod
    metadata:
      name: web-1
      ownerReferences:
      - {kind: Other, name: x}
      - {kind: ReplicaSet, name: web, controller: true}
    spec: {containers: [{name: main}]}
    """
    assert pods_of(text).pods[0].owner == "ReplicaSet/default/web"


def test_what_runs_no_pods_is_left_out() -> None:
    got = pods_of(
        "kind: Service\nmetadata: {name: web}\n---\napiVersion: example.com/v1\nkind: Job2\n"
        "metadata: {name: c, namespace: n}\n---\napiVersion: example.com/v1\nkind: '?'\n"
    )
    unknown = "Tessera does not know this kind, and there is no pod in it"
    assert got.pods == ()
    assert [(each.object, each.reason) for each in got.left_out] == [
        ("Service web", "runs no pods"),
        ("Job2 n/c", unknown),
        ("pods.yaml, document 3, line 8", unknown),
    ]


def test_what_another_object_has_made_is_counted_once() -> None:
    """As in `kubectl get deployments,replicasets,pods`; the maker that is elsewhere takes nothing away."""

    def owned(kind: str, name: str) -> str:
        return f"ownerReferences: [{{kind: {kind}, name: {name}, controller: true}}]"

    deployment = workload("Deployment", spec="replicas: 2")
    replica_set = workload("ReplicaSet", "web-1").replace("name: web-1", f"name: web-1, {owned('Deployment', 'web')}")
    pod = (
        f"kind: Pod\nmetadata: {{name: web-1-x, {owned('ReplicaSet', 'web-1')}}}\nspec: {{containers: [{{name: m}}]}}\n"
    )
    got = pods_of(f"{pod}---\n{replica_set}---\n{deployment}")
    assert [each.key for each in got.pods] == ["default/web-0", "default/web-1"]
    assert [(each.object, each.reason) for each in got.left_out] == [
        ("Pod web-1-x", "made by ReplicaSet web-1, which is counted"),
        ("ReplicaSet web-1", "made by Deployment web, which is counted"),
    ]
    assert [each.key for each in pods_of(f"{pod}---\n{replica_set}").pods] == ["default/web-1-0"]
    assert [each.key for each in pods_of(pod).pods] == ["default/web-1-x"]


def test_a_kind_of_another_group_is_another_kind() -> None:
    text = workload("Deployment").replace("kind", "apiVersion: example.com/v1\nkind", 1)
    assert "Tessera does not know this kind; 1 pod counted" in pods_of(text).notes[0]


def test_workloads_of_one_name_and_two_kinds_are_distinguished() -> None:
    text = f"{workload('Job')}---\n{workload('Deployment')}"
    assert [pod.key for pod in pods_of(text).pods] == ["default/web-0", "default/web-deployment-0"]


def test_names_to_be_generated_are_numbered() -> None:
    text = workload("Job").replace("name: web", "generateName: web-")
    assert [pod.key for pod in pods_of(f"{text}---\n{text}").pods] == ["default/web-0-0", "default/web-1-0"]


def test_a_daemon_runs_on_each_node_that_admits_it() -> None:
    """A cordon does not keep it off, a taint does."""
    text = workload("DaemonSet")
    plain, tainted = node("a"), msgspec.structs.replace(node("b"), taints=(Taint(key="t", effect="NoSchedule"),))
    cordoned = msgspec.structs.replace(node("c"), unschedulable=True)
    got = workloads.read(documents.read("pods.yaml", text), nodes=(plain, tainted, cordoned))
    assert [pod.key for pod in got.pods] == ["default/web-a", "default/web-c"]
    for pod, own, other in zip(got.pods, (plain, cordoned), (cordoned, plain), strict=True):
        assert refusal(pod.need, own) is None
        assert refusal(pod.need, other) is not None
    got = workloads.read(documents.read("pods.yaml", text), nodes=(tainted,))
    assert (got.pods, got.notes) == ((), ("DaemonSet web: no node admits its pods, so none is planned",))


def test_constraints_that_are_not_considered_are_noted() -> None:
    text = """
    kind: Pod
    metadata: {name: a}
    spec:
      containers: [{name: main}]
      affinity:
        podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: x}]}
        podAffinity: {preferredDuringSchedulingIgnoredDuringExecution: []}
      topologySpreadConstraints: [{whenUnsatisfiable: ScheduleAnyway}, {whenUnsatisfiable: DoNotSchedule}]
    """
    assert pods_of(text).notes == (
        "Pod a: podAntiAffinity is not considered",
        "Pod a: topologySpreadConstraints is not considered",
    )


def test_a_priority_class_that_is_nowhere_is_noted() -> None:
    text = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m}], priorityClassName: high}\n"
    want = "Pod a: PriorityClass high is not among the documents, so the priority is 0"
    assert pods_of(text).notes == (want,)


PRIORITIES = {
    "none": ("{}", 0),
    "a number": ("{priority: 7}", 7),
    "a class among the documents": ("{priorityClassName: high}", 1000),
    "a number beside a class": ("{priorityClassName: high, priority: 3}", 3),
    "a class of Kubernetes": ("{priorityClassName: system-node-critical}", 2_000_001_000),
    "a class that is nowhere": ("{priorityClassName: other}", 0),
}


@pytest.mark.parametrize(("spec", "want"), PRIORITIES.values(), ids=PRIORITIES)
def test_priority(spec: str, want: int) -> None:
    containers = "containers: [{name: m}]"
    spec = spec.replace("{", f"{{{containers}, ", 1)
    pod = f"kind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n"
    assert pods_of(f"{pod}---\nkind: PriorityClass\nmetadata: {{name: high}}\nvalue: 1000\n").pods[0].priority == want


def test_the_global_default_priority_is_for_pods_without_a_class() -> None:
    text = "kind: PriorityClass\nmetadata: {name: low}\nvalue: -5\nglobalDefault: true\n---\n" + workload("Job")
    assert pods_of(text).pods[0].priority == -5


BAD_DOCUMENTS = {
    "a document that is a list": ("- a\n", "pods.yaml, document 1, line 1: a list is not an object with"),
    "limits outside of resources": (
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m, limits: {nvidia.com/gpu: 1}}]}\n",
        "spec.containers[0].limits: limits is not under resources",
    ),
    "a misspelled field of resources": (
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m, resources: {limit: {nvidia.com/gpu: 1}}}]}\n",
        "resources.limit: it is an unknown field: remove it, or write one of limits, requests, claims",
    ),
    "a placeholder of a template": (
        workload("Deployment", spec="replicas: '{{ .Values.replicas }}'"),
        "a value; what stands there is a template's, so pass what `helm template`",
    ),
    "a list in a list": ("kind: List\nitems:\n- {kind: List, items: []}\n", "line 3: items[0]: it is a list in a"),
    "no name": ("kind: Pod\n", "document 1, line 1: Pod: metadata.name: it is missing: write a"),
    "a name Kubernetes refuses": (
        "kind: Pod\nmetadata: {name: A_b}\n",
        "line 2: Pod A_b: metadata.name: 'A_b' is not a name",
    ),
    "a name with a line break": ('kind: Pod\nmetadata: {name: "a\\nb"}\n', r"line 2: Pod: metadata.name: 'a\nb'"),
    "an annotation where no pod would carry it": (
        workload("Job").replace("{name: web}", "{name: web, annotations: {a: b, tessera.dev/isolation: none}}"),
        "tessera.dev/isolation is on the workload, where it has no effect",
    ),
    "a pod twice": (
        workload("Job") + "---\nkind: Pod\nmetadata: {name: web-0}\nspec: {containers: [{name: m}]}\n",
        "line 7: Pod web-0: pod default/web-0 is there again, after Job web at pods.yaml, document 1, line 1",
    ),
    "replicas below zero": (workload("Deployment", spec="replicas: -1"), "-1 is not an integer from 0 to"),
    "replicas that are text": (workload("Deployment", spec="replicas: '2'"), "'2' is not an integer from 0"),
    "replicas that are true": (workload("Deployment", spec="replicas: true"), "true is not an integer from 0"),
    "an integer without end": (workload("Deployment", spec=f"replicas: 0x{'f' * 100}"), "an integer of 400 bits"),
    "suspend that is text": (workload("Job", spec="suspend: 'yes'"), "spec.suspend: 'yes' is not true or false"),
    "absurdly many pods": (
        workload("Job", spec="parallelism: 2000000000"),
        "2000000000 more pods are more than 1000000",
    ),
}


@pytest.mark.parametrize(("text", "want"), BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_a_bad_document_is_refused_with_its_place(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        workloads.read(documents.read("pods.yaml", text))
    assert want in str(caught.value)


_WORDS = st.sampled_from(
    ["Pod", "Job", "List", "a", "1", "-1", "1Gi", "true", "main", "nvidia.com/gpu", "tessera.dev/gpu-memory", "driver"]
)
_KEYS = st.sampled_from(
    (
        *("kind", "metadata", "name", "namespace", "annotations", "tessera.dev/isolation", "spec", "template"),
        *("containers", "initContainers", "resources", "limits", "requests", "cpu", "nvidia.com/gpu", "items"),
        *("tessera.dev/gpu-memory", "tolerations", "affinity", "nodeAffinity", "nodeSelector", "priority"),
        *("replicas", "overhead", "resourceClaims"),
    )
)
_VALUES: st.SearchStrategy[documents.Plain] = st.recursive(
    _WORDS | st.integers() | st.booleans() | st.none() | st.decimals(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=30,
)


@given(st.sampled_from(["Pod", "Deployment", "Job", "CronJob", "StatefulSet", "PriorityClass"]), _VALUES, _VALUES)
def test_any_object_is_read_or_refused(kind: str, metadata: documents.Plain, spec: documents.Plain) -> None:
    data: documents.Plain = {"kind": kind, "metadata": metadata, "spec": spec}
    document = documents.Document(source="a", number=1, data=data, first_line=1)
    with contextlib.suppress(InvalidInput):
        workloads.read([document])
