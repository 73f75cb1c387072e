"""Requests of containers as asks for GPUs: in which names and units, and what is refused where."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.manifests import need_of, pods_of
from tessera.api import documents
from tessera.api.fields import Field
from tessera.api.kubernetes import workloads
from tessera.api.kubernetes.podspecs import read_need
from tessera.core.workload.need import DeviceRequest, Form, Isolation
from tessera.errors import InvalidInput

ASKS: dict[str, tuple[str, str, list[DeviceRequest]]] = {
    "no GPU": ("{cpu: 1}", "{}", []),
    "a whole GPU": ("{nvidia.com/gpu: 1}", "{}", [DeviceRequest(resource="nvidia.com/gpu", container="main")]),
    "an amount in quotes": (
        "{nvidia.com/gpu: '2'}",
        "{}",
        [DeviceRequest(resource="nvidia.com/gpu", count=2, container="main")],
    ),
    "zero is no request": ("{nvidia.com/gpu: 0}", "{}", []),
    "zero of an amount beside a request": (
        "{nvidia.com/gpu: 1, tessera.dev/gpu-memory: 0}",
        "{}",
        [DeviceRequest(resource="nvidia.com/gpu", container="main")],
    ),
    "a renamed replica": (
        "{nvidia.com/gpu.shared: 1}",
        "{}",
        [DeviceRequest(resource="nvidia.com/gpu.shared", container="main")],
    ),
    "a grade for an exact request": (
        "{nvidia.com/gpu: 1}",
        "{tessera.dev/isolation: hardware}",
        [DeviceRequest(resource="nvidia.com/gpu", isolation=Isolation.HARDWARE, container="main")],
    ),
    "a MIG slice": (
        "{nvidia.com/mig-1g.10gb: 3}",
        "{}",
        [DeviceRequest(resource="nvidia.com/mig-1g.10gb", count=3, container="main")],
    ),
    "a need, a network card and a cached model": (
        "{tessera.dev/gpu-memory: 6, rdma/hca: 1, models.tessera.dev/llama: 1}",
        "{}",
        [
            DeviceRequest(resource="rdma/hca", container="main"),
            DeviceRequest(
                resource="tessera.dev/gpu-memory",
                form=Form.NEED,
                memory_mib=6144,
                isolation=Isolation.DRIVER,
                container="main",
            ),
        ],
    ),
    "a memory share": (
        "{aliyun.com/gpu-mem: 5}",
        "{}",
        [DeviceRequest(resource="aliyun.com/gpu-mem", form=Form.SHARE, memory_mib=5120, container="main")],
    ),
    "a memory share that must be enforced": (
        "{aliyun.com/gpu-mem: 5}",
        "{tessera.dev/isolation: driver}",
        [
            DeviceRequest(
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
            DeviceRequest(
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
            DeviceRequest(
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
            DeviceRequest(resource="nvidia.com/gpu", container="main"),
            DeviceRequest(resource="nvidia.com/gpumem", count=3000, container="main"),
        ],
    ),
}


@pytest.mark.parametrize(("limits", "annotations", "want"), ASKS.values(), ids=ASKS)
def test_gpu_requests(limits: str, annotations: str, want: list[DeviceRequest]) -> None:
    assert list(need_of(limits, annotations=annotations).requests) == want


def test_shares_in_mib_where_the_cluster_counts_so() -> None:
    container = "{name: m, resources: {limits: {aliyun.com/gpu-mem: 8138}}}"
    text = f"kind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{container}]}}"
    assert pods_of(text, share_unit_mib=1).pods[0].need.requests[0].memory_mib == 8138


def test_a_request_equal_to_its_limit_is_one_request() -> None:
    resources = "{requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: 2}}"
    text = f"kind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: m, resources: {resources}}}]}}"
    assert [request.count for request in pods_of(text).pods[0].need.requests] == [2]


LIMITS = "spec.containers[0].resources.limits"
BAD_NEEDS = {
    "half a GPU": (
        "{nvidia.com/gpu: 0.5}",
        "{}",
        f"line 7: Pod a: {LIMITS}[nvidia.com/gpu]: 0.5 is not a whole",
    ),
    "a negative number": ("{nvidia.com/gpu: -1}", "{}", "-1 is not a quantity of zero or more"),
    "no number": ("{nvidia.com/gpu: many}", "{}", "'many' is not a Kubernetes quantity"),
    "a truth value": ("{nvidia.com/gpu: true}", "{}", "true is not a Kubernetes quantity"),
    "an absurd number of devices": ("{nvidia.com/gpu: 5000}", "{}", "5000"),
    "an absurd quantity": ("{memory: 1e400}", "{}", "'1e400' is not a quantity of at most 2^63 - 1"),
    "negative memory": ("{memory: -1}", "{}", "-1 is not a quantity of zero or more"),
    "memory in bytes": ("{tessera.dev/gpu-memory: 6Gi}", "{}", "'6Gi' is not a number of GiB that some GPU has"),
    "memory beyond any GPU in MiB": (
        "{tessera.dev/gpu-memory: 6Gi}",
        "{tessera.dev/gpu-memory-unit: MiB}",
        "a number of MiB that some GPU has: 6 for 6 MiB; no suffix",
    ),
    "compute above a whole GPU": (
        "{tessera.dev/gpu-memory: 6, tessera.dev/gpu-compute: 101}",
        "{}",
        "101 is not a percentage from 1 to 100",
    ),
    "compute without memory": (
        "{tessera.dev/gpu-compute: 5}",
        "{}",
        "tessera.dev/gpu-memory is not set: set it as well",
    ),
    "no memory": (
        "{tessera.dev/gpu-memory: 0}",
        "{}",
        f"{LIMITS}[tessera.dev/gpu-memory]: 0 is not 1 or more: leave the limit out, in a pod",
    ),
    "no memory of gpushare": ("{aliyun.com/gpu-mem: 0}", "{}", "0 is not 1 or more"),
    "no compute": ("{tessera.dev/gpu-compute: 0}", "{}", "gpu-compute]: 0 is not 1"),
    "no GPUs": ("{tessera.dev/gpu-count: '0'}", "{}", "gpu-count]: '0' is not 1"),
    "a count without memory": (
        "{tessera.dev/gpu-count: 5}",
        "{}",
        "spec.containers[0].resources.limits[tessera.dev/gpu-count]: tessera.dev/gpu-memory is",
    ),
    "too many GPUs": ("{tessera.dev/gpu-memory: 6, tessera.dev/gpu-count: 65}", "{}", "at most 64 GPUs"),
    "a name of ours that is none": (
        "{tessera.dev/gpu-mem: 6}",
        "{}",
        "tessera.dev/gpu-mem is not a resource Tess",
    ),
    "a name without a domain": ("{gpu: 1}", "{}", "'gpu' is not a resource name"),
    "a profile no model has": (
        "{nvidia.com/mig-1g.11gb: 1}",
        "{}",
        "nvidia.com/mig-1g.11gb is not a MIG profile that some GPU model has: `tessera profiles MODEL`",
    ),
    "two forms in a container": (
        "{nvidia.com/gpu: 1, aliyun.com/gpu-mem: 5}",
        "{}",
        "aliyun.com/gpu-mem and nvidia.com/gpu",
    ),
    "another system's name beside a need": (
        "{nvidia.com/gpumem: 3000, tessera.dev/gpu-memory: 5}",
        "{}",
        "nvidia.com/gpumem and tessera.dev/gpu-memory",
    ),
    "several GPUs in the words of nodes": (
        "{aliyun.com/gpu-mem: 5, aliyun.com/gpu-count: 2}",
        "{}",
        (
            "limits[aliyun.com/gpu-count]: aliyun.com/gpu-count is a number of nodes, and aliyun.com/gpu-mem is of one "
            "GPU: leave it out, and request several GPUs by tessera.dev/gpu-memory and tessera.dev/gpu-count"
        ),
    ),
    "a share of hardware grade": (
        "{aliyun.com/gpu-mem: 5}",
        "{tessera.dev/isolation: hardware}",
        "aliyun.com/gpu-mem with isolation hardware",
    ),
    "an unknown grade": (
        "{}",
        "{tessera.dev/isolation: strong}",
        (
            "line 3: Pod a: metadata.annotations[tessera.dev/isolation]: 'strong' is not one of "
            "the words accepted: hardware, driver, none"
        ),
    ),
    "an unknown GPU model": (
        "{}",
        "{tessera.dev/gpu-model: H1000}",
        "metadata.annotations[tessera.dev/gpu-model]: GPU model: 'H1000' is not a GPU model that Tessera knows",
    ),
    "an annotation of ours that is none": (
        "{}",
        "{tessera.dev/isolaton: none}",
        "is not an annotation Tessera knows",
    ),
    "an annotation that is no text": ("{}", "{tessera.dev/isolation: true}", "true is not one of the words"),
}


@pytest.mark.parametrize(("limits", "annotations", "want"), BAD_NEEDS.values(), ids=BAD_NEEDS)
def test_a_bad_request_is_refused_with_its_place(limits: str, annotations: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        need_of(limits, annotations=annotations)
    assert want in str(caught.value)
    assert str(caught.value).startswith("pods.yaml, document 1, line ")


@given(st.text())
def test_any_quantity_is_read_or_refused(text: str) -> None:
    limits: documents.Plain = {"cpu": text, "nvidia.com/gpu": text, "tessera.dev/gpu-memory": text}
    container: documents.Plain = {"name": "m", "resources": {"limits": limits}}
    data: documents.Plain = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}}
    with contextlib.suppress(InvalidInput):
        workloads.read([documents.Document(source="a", number=1, data=data, first_line=1)])


def test_a_share_that_is_bound_runs_on_whatever_its_pod_asks_beside_it() -> None:
    limits: documents.Plain = {"aliyun.com/gpu-mem": "5", "aliyun.com/gpu-count": "2"}
    container: documents.Plain = {"name": "m", "resources": {"limits": limits}}
    data: documents.Plain = {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": [container]}}
    pod = Field(documents.Document(source="a", number=1, data=data, first_line=1), data)
    shares = [request for request in read_need(pod).requests if request.form is Form.SHARE]
    assert [request.memory_mib for request in shares] == [5 * 1024]
