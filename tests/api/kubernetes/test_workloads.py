"""Kubernetes manifests as pods: which, how many, what they need, and what is refused where."""

import contextlib
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api import documents
from tessera.api.kubernetes import workloads
from tessera.core.workload.need import Ask, Form, Isolation, Need, Requirement, SelectorTerm, Toleration
from tessera.errors import InvalidInput


def pods_of(text: str, *, share_unit_mib: int = 1024) -> workloads.Workloads:
    return workloads.read(documents.read("pods.yaml", textwrap.dedent(text)), share_unit_mib=share_unit_mib)


def need(limits: str, *, annotations: str = "{}", more: str = "") -> Need:
    text = f"""
kind: Pod
metadata: {{name: a, annotations: {annotations}}}
spec:
  containers:
  - name: main
    resources: {{limits: {limits}}}
{textwrap.indent(textwrap.dedent(more), "  ")}
"""
    return workloads.read(documents.read("pods.yaml", text)).pods[0].need


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


def test_other_kinds_are_named_as_skipped() -> None:
    got = pods_of(
        "kind: Service\nmetadata: {name: web}\n---\nkind: Job2\nmetadata: {name: c, namespace: n}\n---\nkind: '?'\n"
    )
    assert (got.pods, got.skipped) == ((), ("Service web", "Job2 n/c", "pods.yaml, document 3, line 7"))


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


ASKS: dict[str, tuple[str, str, list[Ask]]] = {
    "no GPU": ("{cpu: 1}", "{}", []),
    "a whole GPU": ("{nvidia.com/gpu: 1}", "{}", [Ask(resource="nvidia.com/gpu", container="main")]),
    "an amount in quotes": ("{nvidia.com/gpu: '2'}", "{}", [Ask(resource="nvidia.com/gpu", count=2, container="main")]),
    "zero is no ask": ("{nvidia.com/gpu: 0}", "{}", []),
    "a renamed replica": (
        "{nvidia.com/gpu.shared: 1}",
        "{}",
        [Ask(resource="nvidia.com/gpu.shared", container="main")],
    ),
    "a grade for an exact ask": (
        "{nvidia.com/gpu: 1}",
        "{tessera.dev/isolation: hardware}",
        [Ask(resource="nvidia.com/gpu", isolation=Isolation.HARDWARE, container="main")],
    ),
    "a MIG slice": (
        "{nvidia.com/mig-1g.10gb: 3}",
        "{}",
        [Ask(resource="nvidia.com/mig-1g.10gb", count=3, container="main")],
    ),
    "a memory share": (
        "{aliyun.com/gpu-mem: 5}",
        "{}",
        [Ask(resource="aliyun.com/gpu-mem", form=Form.SHARE, memory_mib=5120, container="main")],
    ),
    "a memory share that must be enforced": (
        "{aliyun.com/gpu-mem: 5}",
        "{tessera.dev/isolation: driver}",
        [
            Ask(
                resource="aliyun.com/gpu-mem",
                form=Form.SHARE,
                memory_mib=5120,
                isolation=Isolation.DRIVER,
                container="main",
            )
        ],
    ),
    "a need is enforced by the driver unless it says otherwise": (
        "{tessera.dev/gpu-memory: 6}",
        "{}",
        [
            Ask(
                resource="tessera.dev/gpu-memory",
                form=Form.NEED,
                memory_mib=6144,
                isolation=Isolation.DRIVER,
                container="main",
            )
        ],
    ),
    "a need with everything": (
        "{tessera.dev/gpu-memory: 6500, tessera.dev/gpu-compute: 30, tessera.dev/gpu-count: 2}",
        "{tessera.dev/isolation: hardware, tessera.dev/gpu-memory-unit: MiB}",
        [
            Ask(
                resource="tessera.dev/gpu-memory",
                form=Form.NEED,
                count=2,
                memory_mib=6500,
                compute_percent=30,
                isolation=Isolation.HARDWARE,
                container="main",
            )
        ],
    ),
    "names Tessera does not speak are kept": (
        "{nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, storage: 1, hugepages-2Mi: 4Mi, x.kubernetes.io/y: 1}",
        "{}",
        [
            Ask(resource="nvidia.com/gpu", container="main"),
            Ask(resource="nvidia.com/gpumem", count=3000, container="main"),
        ],
    ),
}


@pytest.mark.parametrize(("limits", "annotations", "want"), ASKS.values(), ids=ASKS)
def test_gpu_asks(limits: str, annotations: str, want: list[Ask]) -> None:
    assert list(need(limits, annotations=annotations).asks) == want


def test_shares_in_mib_where_the_cluster_counts_so() -> None:
    container = "{name: m, resources: {limits: {aliyun.com/gpu-mem: 8138}}}"
    text = f"kind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{container}]}}"
    assert pods_of(text, share_unit_mib=1).pods[0].need.asks[0].memory_mib == 8138


def test_a_request_equal_to_its_limit_is_one_ask() -> None:
    resources = "{requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: 2}}"
    text = f"kind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: m, resources: {resources}}}]}}"
    assert [ask.count for ask in pods_of(text).pods[0].need.asks] == [2]


def test_claims_are_asks_nobody_offers_yet() -> None:
    more = """
    resourceClaims:
    - {name: gpu, resourceClaimTemplateName: half-gpu}
    - {name: nic, resourceClaimName: fast}
    - {name: odd}
    """
    got = need("{}", more=more).asks
    assert [ask.resource for ask in got] == [f"resource.k8s.io/{name}" for name in ("half-gpu", "fast", "odd")]


AMOUNTS = {
    "limits stand in for requests": ("- {name: a, resources: {limits: {cpu: 2, memory: 1Gi}}}", "", (2000, 1024)),
    "requests win": (
        "- {name: a, resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 100m, memory: 1Mi}}}",
        "",
        (100, 1),
    ),
    "nothing": ("- {name: a}", "", (0, 0)),
    "sums are rounded once": ("- {name: a, resources: {requests: {cpu: 0.1m, memory: 1}}}\n" * 2, "", (1, 1)),
    "init containers and sidecars": (
        "- {name: a, resources: {requests: {cpu: 1}}}",
        (
            "initContainers:\n"
            "- {name: s, restartPolicy: Always, resources: {requests: {cpu: 1}}}\n"
            "- {name: i, resources: {requests: {cpu: 3}}}"
        ),
        (4000, 0),
    ),
    "overhead is added": (
        "- {name: a, resources: {requests: {cpu: 1}}}",
        "overhead: {cpu: 250m, memory: 120Mi}",
        (1250, 120),
    ),
    "the pod's own request wins": (
        "- {name: a, resources: {requests: {cpu: 1, memory: 1Gi}}}",
        "resources: {requests: {cpu: 3}, limits: {memory: 4Gi}}",
        (3000, 1024),
    ),
    "the pod's own limit stands in where no container asks": (
        "- {name: a}",
        "resources: {limits: {cpu: 2}}",
        (2000, 0),
    ),
}


@pytest.mark.parametrize(("containers", "more", "want"), AMOUNTS.values(), ids=AMOUNTS)
def test_cpu_and_memory(containers: str, more: str, want: tuple[int, int]) -> None:
    names = iter("abcdefgh")
    containers = "\n".join(line.replace("name: a", f"name: {next(names)}") for line in containers.split("\n") if line)
    spec = f"containers:\n{containers}\n{more}"
    got = pods_of("kind: Pod\nmetadata: {name: a}\nspec:\n" + textwrap.indent(spec, "  ")).pods[0].need
    assert (got.cpu_milli, got.memory_mib) == want


@pytest.mark.parametrize(
    ("limits", "annotations", "want"),
    [
        pytest.param("{}", "{gpu-memory: '2000'}", ["gpu-memory"], id="memory"),
        pytest.param("{cpu: 1}", "{gpu-fraction: '0.5'}", ["gpu-fraction"], id="a fraction"),
        pytest.param("{nvidia.com/gpu: 1}", "{gpu-memory: '80 GB'}", ["nvidia.com/gpu"], id="a remark beside a limit"),
    ],
)
def test_a_part_of_a_gpu_asked_by_annotation_is_an_ask(limits: str, annotations: str, want: list[str]) -> None:
    """KAI reads the amount from the pod, so a pod without any limit asks for a GPU all the same."""
    assert [ask.resource for ask in need(limits, annotations=annotations).asks] == want


def test_where_a_pod_may_run() -> None:
    more = """
    nodeName: node-3
    nodeSelector: {b: "2", a: "1"}
    tolerations:
    - {operator: Exists}
    - {key: nvidia.com/gpu, value: present, effect: NoSchedule}
    affinity:
      nodeAffinity:
        preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1}]
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms:
          - matchExpressions:
            - {key: zone, operator: In, values: [a, b]}
            - {key: gen, operator: Gt, values: ["-3"]}
          - matchFields: [{key: metadata.name, operator: NotIn, values: [node-1]}]
    """
    got = need("{}", annotations="{tessera.dev/gpu-model: ' NVIDIA-H100-80GB-HBM3, A100-80GB,'}", more=more)
    assert got == Need(
        node_name="node-3",
        models=("A100-80GB", "H100-80GB"),
        node_selector=(("a", "1"), ("b", "2")),
        tolerations=(
            Toleration(operator="Exists"),
            Toleration(key="nvidia.com/gpu", value="present", effect="NoSchedule"),
        ),
        affinity=(
            SelectorTerm(
                expressions=(
                    Requirement(key="zone", operator="In", values=("a", "b")),
                    Requirement(key="gen", operator="Gt", values=("-3",)),
                )
            ),
            SelectorTerm(fields=(Requirement(key="metadata.name", operator="NotIn", values=("node-1",)),)),
        ),
    )


LIMITS = "spec.containers[0].resources.limits"
BAD_NEEDS = {
    "half a GPU": (
        "{nvidia.com/gpu: 0.5}",
        "{}",
        f"line 7: Pod a: {LIMITS}[nvidia.com/gpu]: found 0.5, wanted a whole",
    ),
    "a negative number": ("{nvidia.com/gpu: -1}", "{}", "found -1, wanted a quantity of zero or more"),
    "no number": ("{nvidia.com/gpu: many}", "{}", "found 'many', wanted a Kubernetes quantity"),
    "a truth value": ("{nvidia.com/gpu: true}", "{}", "found true, wanted a Kubernetes quantity"),
    "an absurd number of devices": ("{nvidia.com/gpu: 5000}", "{}", "found 5000, wanted at most 4096 devices"),
    "an absurd quantity": ("{memory: 1e400}", "{}", "found '1e400', wanted a quantity of at most 2^63 - 1"),
    "negative memory": ("{memory: -1}", "{}", "found -1, wanted a quantity of zero or more"),
    "memory in bytes": ("{tessera.dev/gpu-memory: 6Gi}", "{}", "found '6Gi', wanted a number of GiB that some GPU has"),
    "memory beyond any GPU in MiB": (
        "{tessera.dev/gpu-memory: 6Gi}",
        "{tessera.dev/gpu-memory-unit: MiB}",
        "wanted a number of MiB that some GPU has; accepted: 6 for 6 MiB; no suffix",
    ),
    "compute above a whole GPU": (
        "{tessera.dev/gpu-memory: 6, tessera.dev/gpu-compute: 101}",
        "{}",
        "found 101, wanted a percentage from 1 to 100",
    ),
    "compute without memory": ("{tessera.dev/gpu-compute: 5}", "{}", "wanted tessera.dev/gpu-memory beside it"),
    "a count without memory": ("{tessera.dev/gpu-count: 5}", "{}", "found tessera.dev/gpu-count, wanted"),
    "too many GPUs": ("{tessera.dev/gpu-memory: 6, tessera.dev/gpu-count: 65}", "{}", "wanted at most 64 GPUs"),
    "a name of ours that is none": (
        "{tessera.dev/gpu-mem: 6}",
        "{}",
        "found tessera.dev/gpu-mem, wanted a resource Tess",
    ),
    "a name without a domain": ("{gpu: 1}", "{}", "found 'gpu', wanted a resource name"),
    "a profile no model has": (
        "{nvidia.com/mig-1g.11gb: 1}",
        "{}",
        "found nvidia.com/mig-1g.11gb, wanted a MIG profile that some GPU model has; accepted: those that `tessera pro",
    ),
    "two forms in a container": (
        "{nvidia.com/gpu: 1, aliyun.com/gpu-mem: 5}",
        "{}",
        "found aliyun.com/gpu-mem and nvidia.com/gpu, wanted one form of GPU request in a container",
    ),
    "a share of hardware grade": (
        "{aliyun.com/gpu-mem: 5}",
        "{tessera.dev/isolation: hardware}",
        "found aliyun.com/gpu-mem with isolation hardware, wanted a grade that a share can have",
    ),
    "an unknown grade": (
        "{}",
        "{tessera.dev/isolation: strong}",
        (
            "line 3: Pod a: metadata.annotations[tessera.dev/isolation]: found 'strong', wanted one of "
            "the words accepted; accepted: hardware, driver, none"
        ),
    ),
    "an unknown GPU model": (
        "{}",
        "{tessera.dev/gpu-model: H1000}",
        "metadata.annotations[tessera.dev/gpu-model]: GPU model: found 'H1000', wanted a GPU model that Tessera knows",
    ),
    "an annotation of ours that is none": ("{}", "{tessera.dev/isolaton: none}", "wanted an annotation Tessera knows"),
    "an annotation that is no text": ("{}", "{tessera.dev/isolation: true}", "found true, wanted one of the words"),
}


@pytest.mark.parametrize(("limits", "annotations", "want"), BAD_NEEDS.values(), ids=BAD_NEEDS)
def test_a_bad_ask_is_refused_with_its_place(limits: str, annotations: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        need(limits, annotations=annotations)
    assert want in str(caught.value)
    assert str(caught.value).startswith("pods.yaml, document 1, line ")


BAD_PODS = {
    "a request above its limit": (
        "containers: [{name: a, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]",
        "resources.requests.cpu: found 2, wanted at most the limit of 1",
    ),
    "a GPU request without a limit": (
        "containers: [{name: a, resources: {requests: {nvidia.com/gpu: 1}}}]",
        "found 1, wanted a limit of nvidia.com/gpu, as every extended resource needs",
    ),
    "a GPU request below its limit": (
        "containers: [{name: a, resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}}]",
        "found 1, wanted the same amount as the limit, 2",
    ),
    "no containers": ("containers: []", "spec.containers: found a list, wanted at least one container"),
    "containers that are no list": ("containers: {a: 1}", "spec.containers: found a mapping, wanted a list"),
    "a container that is no mapping": ("containers: [5]", "spec.containers[0]: found 5, wanted a mapping"),
    "a container without a name": ("containers: [{image: a}]", "spec.containers[0].name: found nothing, wanted a text"),
    "two containers of one name": ("containers: [{name: a}, {name: a}]", "wanted a name no other container of the pod"),
    "too many containers": (
        f"containers: [{', '.join(['{name: a}'] * 251)}]",
        "found 251 containers, wanted at most 250",
    ),
    "negative overhead": (
        "containers: [{name: a}]\n  overhead: {cpu: -1}",
        "spec.overhead.cpu: found -1, wanted a quant",
    ),
    "affinity without terms": (
        "containers: [{name: a}]\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {}}}",
        "nodeSelectorTerms: found nothing, wanted at least one term",
    ),
    "a toleration without key": (
        "containers: [{name: a}]\n  tolerations: [{value: x}]",
        "spec.tolerations[0]: found operator Equal, wanted operator Exists where there is no key",
    ),
    "a toleration that exists with a value": (
        "containers: [{name: a}]\n  tolerations: [{key: a, operator: Exists, value: x}]",
        "spec.tolerations[0].value: found 'x', wanted no value for Exists",
    ),
    "an unknown effect": (
        "containers: [{name: a}]\n  tolerations: [{key: a, effect: NoRun}]",
        "effect: found 'NoRun', wanted one of the words accepted",
    ),
    "a selector that is no text": (
        "containers: [{name: a}]\n  nodeSelector: {gpu: true}",
        "accepted: the value in quotes",
    ),
}


@pytest.mark.parametrize(("spec", "want"), BAD_PODS.values(), ids=BAD_PODS)
def test_a_bad_pod_is_refused_with_its_place(spec: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pods_of(f"kind: Pod\nmetadata: {{name: a}}\nspec:\n  {spec}\n")
    assert want in str(caught.value)
    assert str(caught.value).startswith("pods.yaml, document 1, line ")


BAD_TERMS = {
    "In without values": ("{key: a, operator: In}", "values: found nothing, wanted at least one value for In"),
    "Exists with values": ("{key: a, operator: Exists, values: [x]}", "wanted no value for Exists"),
    "Gt without a number": ("{key: a, operator: Gt, values: [x]}", "wanted one integer in quotes for Gt"),
    "an unknown operator": ("{key: a, operator: Equals}", "found 'Equals', wanted one of the words accepted"),
}


@pytest.mark.parametrize(("expression", "want"), BAD_TERMS.values(), ids=BAD_TERMS)
def test_a_bad_expression_is_refused(expression: str, want: str) -> None:
    _refused_term(f"matchExpressions: [{expression}]", want)


BAD_FIELDS = {
    "another field": ("{key: spec.x, operator: In, values: [x]}", "wanted metadata.name, the one field"),
    "another operator": ("{key: metadata.name, operator: Exists}", "found Exists, wanted In or NotIn with one name"),
    "two names": ("{key: metadata.name, operator: In, values: [x, y]}", "wanted In or NotIn with one name"),
}


@pytest.mark.parametrize(("expression", "want"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_a_bad_field_expression_is_refused(expression: str, want: str) -> None:
    _refused_term(f"matchFields: [{expression}]", want)


def _refused_term(term: str, want: str) -> None:
    required = f"{{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{{term}}}]}}}}"
    with pytest.raises(InvalidInput) as caught:
        need("{}", more=f"affinity: {{nodeAffinity: {required}}}")
    assert want in str(caught.value)


BAD_DOCUMENTS = {
    "a document that is a list": ("- a\n", "pods.yaml, document 1, line 1: found a list, wanted an object with"),
    "an object without kind": ("a: 1\n", "pods.yaml, document 1, line 1: kind: found nothing, wanted a text"),
    "a list in a list": ("kind: List\nitems:\n- {kind: List, items: []}\n", "line 3: items[0]: found a list in a list"),
    "no name": ("kind: Pod\n", "document 1, line 1: Pod: metadata.name: found nothing, wanted a text"),
    "a name Kubernetes refuses": (
        "kind: Pod\nmetadata: {name: A_b}\n",
        "line 2: Pod A_b: metadata.name: found 'A_b', wanted",
    ),
    "a name with a line break": ('kind: Pod\nmetadata: {name: "a\\nb"}\n', r"line 2: Pod: metadata.name: found 'a\nb'"),
    "an annotation where no pod would carry it": (
        workload("Job").replace("{name: web}", "{name: web, annotations: {a: b, tessera.dev/isolation: none}}"),
        "found tessera.dev/isolation on the workload, wanted the annotation on the pods",
    ),
    "a pod twice": (
        workload("Job") + "---\nkind: Pod\nmetadata: {name: web-0}\nspec: {containers: [{name: m}]}\n",
        "document 2, line 7: Pod web-0: found pod default/web-0 again, after Job web at pods.yaml, document 1, line 1",
    ),
    "replicas below zero": (workload("Deployment", spec="replicas: -1"), "found -1, wanted an integer from 0 to"),
    "replicas that are text": (workload("Deployment", spec="replicas: '2'"), "found '2', wanted an integer from 0"),
    "replicas that are true": (workload("Deployment", spec="replicas: true"), "found true, wanted an integer from 0"),
    "an integer without end": (workload("Deployment", spec=f"replicas: 0x{'f' * 100}"), "found an integer of 400 bits"),
    "suspend that is text": (workload("Job", spec="suspend: 'yes'"), "spec.suspend: found 'yes', wanted true or false"),
    "absurdly many pods": (
        workload("Job", spec="parallelism: 2000000000"),
        "found 2000000000 more pods, wanted at most",
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


@given(st.text())
def test_any_quantity_is_read_or_refused(text: str) -> None:
    limits: documents.Plain = {"cpu": text, "nvidia.com/gpu": text, "tessera.dev/gpu-memory": text}
    container: documents.Plain = {"name": "m", "resources": {"limits": limits}}
    data: documents.Plain = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}}
    with contextlib.suppress(InvalidInput):
        workloads.read([documents.Document(source="a", number=1, data=data, first_line=1)])
