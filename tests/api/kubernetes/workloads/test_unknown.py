"""Kinds that Tessera has no row for: pods found by their specs, GPUs named elsewhere, and laws over any tree."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.manifests import pods_of
from tessera.api.documents import Document, Plain
from tessera.api.kubernetes import workloads
from tessera.api.kubernetes.workloads import ReadWorkloads
from tessera.api.kubernetes.workloads.kinds import KINDS
from tessera.errors import InvalidInput

GPU = "{containers: [{name: m, resources: {limits: {nvidia.com/gpu: 1}}}]}"
NEW = "apiVersion: example.com/v1\nkind: New\nmetadata: {name: a}\n"

FOUND = {
    "a template": (f"spec: {{replicas: 2, template: {{spec: {GPU}}}}}", ["a-0", "a-1"]),
    "a bare spec": (f"spec: {{role: {{replicas: 2, {GPU[1:-1]}}}}}", ["a-0", "a-1"]),
    "roles in a list": (f"spec: {{roles: [{{name: r, replicas: 2, template: {{spec: {GPU}}}}}]}}", ["a-r-0", "a-r-1"]),
    "replicas of replicas": (f"spec: {{replicas: 2, sets: [{{minReplicas: 1, t: {{spec: {GPU}}}}}]}}", ["a-0", "a-1"]),
    "something that scales from zero": (f"spec: {{minReplicas: 0, template: {{spec: {GPU}}}}}", ["a-0"]),
    "several hosts": (f"spec: {{numOfHosts: 2, template: {{spec: {GPU}}}}}", ["a-0", "a-1"]),
    "a suspended one": (f"spec: {{suspend: true, template: {{spec: {GPU}}}}}", []),
    "resources alone": ("spec: {replicas: 2, resources: {limits: {nvidia.com/gpu: 1}}}", ["a-0", "a-1"]),
    "replicas that are a mapping": (f"spec: {{replicas: {{min: 1}}, template: {{spec: {GPU}}}}}", ["a-0"]),
    "containers without names": (
        "spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}}, {image: b}]}",
        ["a-0"],
    ),
    "two parts": (f"spec: {{a: {{spec: {GPU}}}, b: {{spec: {GPU}}}}}", ["a-0", "a-1-0"]),
    "a template with more beside it": (f"spec: {{t: {{spec: {GPU}, more: {{spec: {GPU}}}}}}}", ["a-0", "a-1-0"]),
}


@pytest.mark.parametrize(("text", "want"), FOUND.values(), ids=FOUND)
def test_pods_are_found_by_what_describes_them(text: str, want: list[str]) -> None:
    got = pods_of(NEW + text)
    assert [pod.key.removeprefix("default/") for pod in got.pods] == want
    pods = f"{len(want)} pods" if len(want) != 1 else "1 pod"
    note = f"New a: Tessera does not know this kind; {pods} counted by the pods it describes and their replicas"
    assert (got.notes, got.left_out) == ((note,), ())


TOLD = {
    "a limit that is no pod's": ("spec: {flavors: [{limits: {nvidia.com/gpu: 1}}]}", ("nvidia.com/gpu",)),
    "a name with a quantity": ("spec: {gpu: {name: nvidia.com/gpu, quantity: 1}}", ("nvidia.com/gpu",)),
    "a quota": ("spec: {hard: {requests.nvidia.com/gpu: 1}}", ("nvidia.com/gpu",)),
    "MIG, HAMi and AMD": (
        "spec: {nvidia.com/mig-1g.10gb: 1, nvidia.com/gpumem: 1, amd.com/gpu: 1}",
        ("nvidia.com/mig-1g.10gb", "nvidia.com/gpumem", "amd.com/gpu"),
    ),
    "labels are no GPUs": ("spec: {nodeSelector: {nvidia.com/gpu: x}, more: {labels: {nvidia.com/gpu: x}}}", ()),
    "nor is a status": ("status: {nvidia.com/gpu: x}", ()),
    "a manifest in a manifest": (
        'spec: {manifest: "limits: {nvidia.com/mig-1g.10gb: 1, rdma/ib: 1}"}',
        ("nvidia.com/mig-1g.10gb",),
    ),
    "nothing of it": ("spec: {image: x, limits: [1]}", ()),
    "zero GPUs, where no pod is": ("spec: {flavors: [{limits: {nvidia.com/gpu: 0}}]}", ()),
    "zero GPUs under resources": ("spec: {resources: {limits: {nvidia.com/gpu: 0, nvidia.com/mig-1g.10gb: '0'}}}", ()),
}


@pytest.mark.parametrize(("text", "want"), TOLD.values(), ids=TOLD)
def test_gpus_where_no_pod_is_read_are_reported(text: str, want: tuple[str, ...]) -> None:
    got = pods_of(NEW + text)
    assert (got.pods, [each.resources for each in got.left_out]) == ((), [want])


def test_gpus_beside_a_pod_are_reported() -> None:
    text = f"{NEW}spec: {{template: {{spec: {GPU}}}, other: {{nvidia.com/mig-1g.10gb: 1}}}}"
    got = pods_of(text)
    assert len(got.pods) == 1
    assert [each.resources for each in got.left_out] == [("nvidia.com/mig-1g.10gb",)]


def test_helm_values_are_left_out_and_say_what_to_do() -> None:
    (left,) = pods_of("resources: {limits: {nvidia.com/gpu: 1}}\n").left_out
    assert left.object == "pods.yaml, document 1, line 1"
    assert "pass what `helm template` prints" in left.reason
    assert left.resources == ("nvidia.com/gpu",)


@pytest.mark.parametrize("number", ["-1", "1000000000000", "'2'", "true", "1.5", "2147483647"])
def test_absurd_numbers_are_refused_with_their_line(number: str) -> None:
    with pytest.raises(InvalidInput, match=r"line [15]: New a"):
        pods_of(f"{NEW}spec:\n  replicas: {number}\n  template: {{spec: {GPU}}}\n")


# Laws

_Counted = tuple[Plain, int]
"""A tree, and how many GPUs the pods in it ask for."""


def _pod(gpus: int, *, template: bool) -> _Counted:
    spec: Plain = {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": gpus}}}]}
    return ({"spec": spec} if template else spec), gpus


def _around(parts: list[_Counted], replicas: int | None, *, listed: bool) -> _Counted:
    inside: dict[str, Plain] = {} if replicas is None else {"replicas": replicas}
    if listed:
        inside["parts"] = [tree for tree, _ in parts]
    else:
        inside |= {f"part{index}": tree for index, (tree, _) in enumerate(parts)}
    return inside, sum(gpus for _, gpus in parts) * (1 if replicas is None else replicas)


_PODS = st.builds(_pod, st.integers(1, 3), template=st.booleans())
_TREES: st.SearchStrategy[_Counted] = st.recursive(
    _PODS,
    lambda inner: st.builds(
        _around, st.lists(inner, min_size=1, max_size=3), st.none() | st.integers(0, 3), listed=st.booleans()
    ),
    max_leaves=8,
)


def _read(version: str, kind: str, rest: dict[str, Plain]) -> ReadWorkloads:
    data: dict[str, Plain] = {"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, **rest}
    return workloads.read([Document(source="a", number=1, data=data, first_line=1)])


def _gpus(read: ReadWorkloads) -> int:
    return sum(request.count for pod in read.pods for request in pod.need.requests)


@given(_TREES)
def test_every_pod_of_an_unknown_kind_is_counted_by_the_replicas_around_it(tree: _Counted) -> None:
    assert _gpus(_read("example.com/v1", "New", {"spec": tree[0]})) == tree[1]


_CUSTOM = [(row.group, name) for row in KINDS for name in row.names if row.group not in {"", "apps", "batch"}]


@given(st.sampled_from(_CUSTOM), _TREES)
def test_no_gpu_of_a_known_kind_is_lost_in_silence(kind: tuple[str, str], tree: _Counted) -> None:
    """The tree stands where the kind knows nothing, so that its GPUs are reported, even if none would run."""
    with contextlib.suppress(InvalidInput):
        read = _read(f"{kind[0]}/v1", kind[1], {"spec": {"elsewhere": tree[0]}})
        assert _gpus(read) == 0
        assert "nvidia.com/gpu" in read.left_out[0].resources


_WORDS = st.sampled_from(["a", "1", "-1", "true", "main", "nvidia.com/gpu", "nvidia.com/gpumem", "{{ .Values.x }}"])
_KEYS = st.sampled_from(
    (
        *("kind", "metadata", "name", "namespace", "annotations", "spec", "template", "containers", "resources"),
        *("limits", "requests", "nvidia.com/gpu", "replicas", "minReplicas", "maxReplicas", "suspend", "predictor"),
        *("model", "workerSpec", "workerGroupSpecs", "headGroupSpec", "rayClusterSpec", "services", "multinode"),
        *("replicatedJobs", "leaderWorkerTemplate", "workerTemplate", "size", "tasks", "scaleTargetRef", "trainer"),
        *("deploymentConfig", "parallelism", "data", "dataLocal", "worker", "prefill", "scale", "hpa", "enabled"),
    )
)
_VALUES: st.SearchStrategy[Plain] = st.recursive(
    _WORDS | st.integers() | st.booleans() | st.none() | st.decimals(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=40,
)
_ANY = [*((row.group, name) for row in KINDS for name in row.names), ("keda.sh", "ScaledObject"), ("", "Pod")]


@given(st.sampled_from([*_ANY, ("autoscaling", "HorizontalPodAutoscaler"), ("example.com", "New")]), _VALUES, _VALUES)
def test_any_tree_is_read_or_refused(kind: tuple[str, str], metadata: Plain, spec: Plain) -> None:
    data: Plain = {
        "apiVersion": f"{kind[0]}/v1" if kind[0] else "v1",
        "kind": kind[1],
        "metadata": metadata,
        "spec": spec,
    }
    with contextlib.suppress(InvalidInput):
        workloads.read([Document(source="a", number=1, data=data, first_line=1)])
