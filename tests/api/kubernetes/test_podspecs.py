"""Pod specifications as needs: cpu and memory, where a pod may run, and what is refused where."""

import textwrap

import pytest

from builders.manifests import need_of, pods_of
from tessera.core.workload.need import Need, Requirement, SelectorTerm, Toleration
from tessera.errors import InvalidInput


def test_claims_are_requests_nobody_offers_yet() -> None:
    more = """
    resourceClaims:
    - {name: gpu, resourceClaimTemplateName: half-gpu}
    - {name: nic, resourceClaimName: fast}
    - {name: odd}
    """
    got = need_of("{}", more=more).requests
    assert [request.resource for request in got] == [f"resource.k8s.io/{name}" for name in ("half-gpu", "fast", "odd")]


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
def test_a_part_of_a_gpu_asked_by_annotation_is_a_request(limits: str, annotations: str, want: list[str]) -> None:
    """KAI reads the amount from the pod, so a pod without any limit requests a GPU all the same."""
    assert [request.resource for request in need_of(limits, annotations=annotations).requests] == want


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
    got = need_of("{}", annotations="{tessera.dev/gpu-model: ' NVIDIA-H100-80GB-HBM3, A100-80GB,'}", more=more)
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


BAD_PODS = {
    "a request above its limit": (
        "containers: [{name: a, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]",
        "resources.requests.cpu: 2",
    ),
    "a GPU request without a limit": (
        "containers: [{name: a, resources: {requests: {nvidia.com/gpu: 1}}}]",
        "1 is not a limit of nvidia.com/gpu, as every extended resource needs",
    ),
    "a GPU request below its limit": (
        "containers: [{name: a, resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}}]",
        "1 is not the same amount as the limit, 2",
    ),
    "no containers": ("containers: []", "spec.containers: a list is not at least one container"),
    "containers that are no list": ("containers: {a: 1}", "spec.containers: a mapping is not a list"),
    "a container that is no mapping": ("containers: [5]", "spec.containers[0]: 5 is not a mapping"),
    "a container without a name": ("containers: [{image: a}]", "spec.containers[0].name: it is missing: write a"),
    "two containers of one name": (
        "containers: [{name: a}, {name: a}]",
        "a name no other container of the pod",
    ),
    "too many containers": (
        f"containers: [{', '.join(['{name: a}'] * 251)}]",
        "251 containers",
    ),
    "negative overhead": (
        "containers: [{name: a}]\n  overhead: {cpu: -1}",
        "spec.overhead.cpu: -1 is not a quant",
    ),
    "affinity without terms": (
        "containers: [{name: a}]\n  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {}}}",
        "nodeSelectorTerms: it is missing: write at least one",
    ),
    "a toleration without key": (
        "containers: [{name: a}]\n  tolerations: [{value: x}]",
        "spec.tolerations[0]: it has operator Equal and no key: write operator Exists",
    ),
    "a toleration that exists with a value": (
        "containers: [{name: a}]\n  tolerations: [{key: a, operator: Exists, value: x}]",
        "spec.tolerations[0].value: operator Exists has a value",
    ),
    "an unknown effect": (
        "containers: [{name: a}]\n  tolerations: [{key: a, effect: NoRun}]",
        "effect: 'NoRun' is not one of the words accepted",
    ),
    "a selector that is no text": (
        "containers: [{name: a}]\n  nodeSelector: {gpu: true}",
        "text: the value in quotes",
    ),
}


@pytest.mark.parametrize(("spec", "want"), BAD_PODS.values(), ids=BAD_PODS)
def test_a_bad_pod_is_refused_with_its_place(spec: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        pods_of(f"kind: Pod\nmetadata: {{name: a}}\nspec:\n  {spec}\n")
    assert want in str(caught.value)
    assert str(caught.value).startswith("pods.yaml, document 1, line ")


BAD_TERMS = {
    "In without values": (
        "{key: a, operator: In}",
        "values: it is missing: write at least one value for In",
    ),
    "Exists with values": ("{key: a, operator: Exists, values: [x]}", "no value for Exists"),
    "Gt without a number": ("{key: a, operator: Gt, values: [x]}", "one integer in quotes for Gt"),
    "an unknown operator": ("{key: a, operator: Equals}", "'Equals' is not one of the words accepted"),
}


@pytest.mark.parametrize(("expression", "want"), BAD_TERMS.values(), ids=BAD_TERMS)
def test_a_bad_expression_is_refused(expression: str, want: str) -> None:
    _refused_term(f"matchExpressions: [{expression}]", want)


BAD_FIELDS = {
    "another field": ("{key: spec.x, operator: In, values: [x]}", "metadata.name, the one field"),
    "another operator": ("{key: metadata.name, operator: Exists}", "supported: write In or NotIn with one name"),
    "two names": ("{key: metadata.name, operator: In, values: [x, y]}", "In or NotIn with one name"),
}


@pytest.mark.parametrize(("expression", "want"), BAD_FIELDS.values(), ids=BAD_FIELDS)
def test_a_bad_field_expression_is_refused(expression: str, want: str) -> None:
    _refused_term(f"matchFields: [{expression}]", want)


def _refused_term(term: str, want: str) -> None:
    required = f"{{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{{{term}}}]}}}}"
    with pytest.raises(InvalidInput) as caught:
        need_of("{}", more=f"affinity: {{nodeAffinity: {required}}}")
    assert want in str(caught.value)
