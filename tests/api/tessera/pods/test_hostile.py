"""Whatever tenants write on their pods, who reads them goes on, and counts what a GPU may have.

The pods are as an API server stores them: their fields have the right form, and annotations have any text.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.fleets import A100, T4, gpu, node
from builders.kubeobjects import mig_share
from builders.signed import keys, signed
from tessera.api.kubernetes.containerlimits import holds_devices, lasting_containers, limits_of
from tessera.api.kubernetes.podspecs import read_need
from tessera.api.tessera.cluster.fleets import close_gpus
from tessera.api.tessera.pods.assignedrequests import corrected, read_assigned_requests, unshown
from tessera.api.tessera.pods.clusterpods import object_field, read_live_pod
from tessera.api.tessera.pods.recordedpods import (
    allocated,
    awaits_memory,
    honored,
    recorded_assignment,
    requests_by_name,
)
from tessera.api.tessera.pods.runningpods import read_pods
from tessera.api.tessera.pods.signatures import Keys, is_signed
from tessera.api.tessera.shares import AssignmentFields, UnversionedShareFields
from tessera.core.cluster.snapshot import Share, Snapshot
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import Correction
from tessera.core.deviceplugin.allocations.registerednode import RegisteredNode
from tessera.core.gpu.sharing import Mode
from tessera.core.packing.fit import Fleet
from tessera.core.workload.need import Isolation, Need
from tessera.errors import InvalidInput

Object = dict[str, Any]

MOST = 2**53
"""Integers up to it are exact in every JSON, and sums of all that is on a node stay within 64 bits."""
MOST_CHARACTERS = 2000
RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-1g.5gb",
    "tessera.dev/gpu-memory",
    "tessera.dev/gpu-count",
    "tessera.dev/gpu-compute",
    "aliyun.com/gpu-mem",
    "example.com/fpga",
    "cpu",
    "memory",
    "ephemeral-storage",
    "hugepages-2Mi",
)
NUMBERS = st.integers() | st.sampled_from([0, 1, 2, 7, 4096, -1, 2**31, 2**53, 2**63, 2**64, 10**25, 10**400])
HOSTILE = (
    "",
    "null",
    "true",
    "-0",
    "-1",
    "1.5",
    "1e3",
    "1e400",
    "1E9999999",
    "NaN",
    "Infinity",
    "0x10",
    "1_0",
    " 1",
    "1\n",
    "٣",
    "²",
    "9" * 19,
    "9" * 300,
    "9" * 5000,
    str(10**25),
    "[" * 3000 + "]" * 3000,
    '{"0":' * 3000 + "1" + "}" * 3000,
    '[{"more":' + "[" * 3000 + "]" * 3000 + "}]",
    "[]",
    "{}",
    "[{}]",
    '"text"',
    "\0",
    "\ud800",
)

_JSON = st.recursive(
    NUMBERS | st.floats() | st.text(max_size=5) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


_DEVICES = st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "tessera.dev/gpu-memory", "aliyun.com/gpu-mem"])


def _shares(numbers: st.SearchStrategy[int], least: int = 0) -> st.SearchStrategy[str]:
    """Return texts of assignments with these numbers in them."""
    fields = {
        "gpu": numbers,
        "mode": st.sampled_from([*Mode]),
        "memory_mib": numbers,
        "compute_percent": numbers,
        "isolation": st.sampled_from([*Isolation]),
        "resource": st.sampled_from(RESOURCES) | st.text(max_size=3),
    }
    more = {"profile": st.sampled_from(["1g.5gb", "9g.9gb", ""]) | st.none(), "start": numbers | st.none()}
    return st.lists(st.fixed_dictionaries(fields, optional=more), min_size=least, max_size=3).map(json.dumps)


_ALLOCATION = st.dictionaries(
    st.sampled_from(["0", "1", "main", "٣"]),
    st.dictionaries(st.sampled_from(["0", "1", "7", "٣", "-1", "1\n", "1_0", "9" * 30]), NUMBERS, max_size=3),
    max_size=3,
).map(json.dumps)
_WORDS = st.sampled_from(
    [
        "GiB",
        "MiB",
        *(each.value for each in Isolation),
        "A100-40GB",
        "T4, A100-40GB",
        ",",
        "true",
        "false",
        "0",
        "1",
        "77",
    ]
)
_SIGNATURE = st.sampled_from(["v1", "v2", "v1..", "v1.a.b", f"v1.{next(iter(keys().public))}.AAAA", "." * 500])


def _versioned(text: str) -> str:
    """Return the text of an assignment without a version in the form that has one."""
    renamed = text.replace('"memory_mib"', '"memoryMiB"').replace('"compute_percent"', '"computePercent"')
    return f'{{"version": 1, "shares": {renamed}}}'


TEXTS = (
    st.one_of(st.sampled_from(HOSTILE), _WORDS, st.text(max_size=8), _JSON.map(json.dumps), _ALLOCATION, _SIGNATURE)
    | _shares(NUMBERS)
    | _shares(st.integers(0, 2))
    | _shares(NUMBERS).map(_versioned)
    | _shares(st.integers(0, 2)).map(_versioned)
)
ANNOTATIONS = (
    "tessera.dev/assignment",
    "tessera.dev/assignment-signature",
    "tessera.dev/isolation",
    "tessera.dev/gpu-model",
    "tessera.dev/gpu-memory-unit",
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "ALIYUN_COM_GPU_MEM_ASSUME_TIME",
    "scheduler.framework.gpushare.allocation",
    "gpu-memory",
    "gpu-fraction",
)

QUANTITIES = st.sampled_from(
    (
        *("0", "1", "2", "4", "15", "1k", "2Ki", "1e3", "1000m", "1500m", "1e30", "1E", "1Ei", "8Ei", "100n", "0.5"),
        *(".5", "5.", "+3", "-1", "-0", "1e-9", "1e99999", str(10**30), "9" * 40, str(2**63 - 1), str(2**63)),
    )
) | st.integers(0, 40).map(str)
_SMALL = st.integers(1, 9).map(str)
TIMES = st.sampled_from(
    ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59Z"]
) | st.datetimes().map(lambda each: f"{each:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + "Z")
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


@st.composite
def containers(draw: st.DrawFn, prefix: str) -> list[Object]:
    found = []
    for number in range(draw(st.integers(0 if prefix == "i" else 1, 2))):
        limits = draw(st.dictionaries(st.sampled_from(RESOURCES), QUANTITIES | _SMALL, max_size=2))
        made: Object = {"name": f"{prefix}{number}", "resources": {"limits": limits}}
        if draw(st.booleans()):
            made["resources"]["requests"] = dict(limits)
        if prefix == "i" and draw(st.booleans()):
            made["restartPolicy"] = "Always"
        found.append(made)
    return found


@st.composite
def pods(draw: st.DrawFn, name: str = "p") -> Object:
    """Draw a Pod object as the API server has it."""
    texts = st.dictionaries(st.sampled_from(ANNOTATIONS), TEXTS, max_size=4)
    metadata: Object = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "annotations": draw(texts)}
    metadata["creationTimestamp"] = draw(TIMES)
    if draw(st.booleans()):
        metadata["deletionTimestamp"] = draw(TIMES)
    spec: Object = {"containers": draw(containers("c")), "initContainers": draw(containers("i"))}
    if draw(st.booleans()):
        spec["overhead"] = {"cpu": draw(QUANTITIES), "memory": draw(QUANTITIES)}
    if draw(st.booleans()):
        spec["priority"] = draw(st.integers(-(2**31), 2**31 - 1))
    if draw(st.integers(0, 3)):
        spec["nodeName"] = "n"
    if draw(st.booleans()):  # one plain request, and as many shares
        spec["containers"] = [{"name": "c0", "resources": {"limits": {draw(_DEVICES): "1"}}}]
        metadata["annotations"]["tessera.dev/assignment"] = draw(_shares(NUMBERS, least=1))
    found = {"metadata": metadata, "spec": spec, "status": {"phase": draw(st.sampled_from(PHASES))}}
    return signed(found) if draw(st.booleans()) else found


AUTHORITIES = st.sampled_from(
    [
        None,
        keys(),
        keys(unsigned="counts"),
        keys(unsigned="gpushare"),
        keys(unsigned="gpushare", gpus=frozenset({0, 1})),
    ]
)
UNITS = st.sampled_from([1, 1024])
DEVICES = {f"d{number}": mig_share(number % 2, "1g.5gb", number) for number in range(4)}
NODES = {"n": node("n", gpu(0, A100), gpu(1, T4))}


def allocations_of(pod: Object) -> tuple[KubeletAllocation, ...]:
    """Return the record of a kubelet that gave each container of a pod something of all that it asks."""
    return tuple(
        KubeletAllocation(
            namespace="ns", pod=pod["metadata"]["name"], container=name, resource=resource, device_ids=("d0",)
        )
        for name, resource, _ in limits_of(pod)
    )


def check_shares(shares: Iterable[Share]) -> None:
    found = tuple(shares)
    assert all(0 <= share.gpu <= MOST and share.memory_mib >= 0 for share in found)
    assert all(0 <= share.compute_percent <= 100 and 0 <= (share.start or 0) <= MOST for share in found)
    assert sum(share.memory_mib for share in found) <= MOST


def check_need(need: Need) -> None:
    assert all(request.count >= 0 and 0 <= request.memory_mib * request.count <= MOST for request in need.requests)
    assert 0 <= need.cpu_milli <= MOST
    assert 0 <= need.memory_mib <= MOST


def check_text(text: str | None) -> None:
    """An assignment that an agent writes and signs is one that is read."""
    if text is not None:
        found = msgspec.json.decode(text, type=AssignmentFields | tuple[UnversionedShareFields, ...])
        written = found.shares if isinstance(found, AssignmentFields) else found
        check_shares(msgspec.convert(written, tuple[Share, ...], from_attributes=True))


def check_readers(pod: Object, trusted: Keys | None, unit_mib: int) -> None:
    """Read a pod in every way; what raises something else than `InvalidInput` fails the test."""
    live = read_live_pod(pod, share_unit_mib=unit_mib, keys=trusted)
    check_shares(live.shares)
    check_need(live.need)
    unshown((pod,), (), RESOURCES)
    assert lasting_containers(pod)
    assert isinstance(holds_devices(pod, RegisteredNode()), bool)
    assert {resource for _, resource, _ in limits_of(pod)} <= {*RESOURCES}
    check_need(read(read_need, object_field("Pod", pod), share_unit_mib=unit_mib) or Need())
    for each in read_assigned_requests((pod,), share_unit_mib=unit_mib, keys=trusted).requests:
        check_shares(each.shares)
        assert 0 <= each.units <= MOST
        assert -(2**63) <= each.since_ns < 2**64
        found = read(
            corrected, pod, Correction(request=each, shares=each.shares), share_unit_mib=unit_mib, keys=trusted
        )
        check_text((found or {}).get("tessera.dev/assignment"))
    record = allocations_of(pod)
    read(requests_by_name, pod)
    read(awaits_memory, pod)
    read(allocated, pod, record, now_ns=1)
    check_text(read(recorded_assignment, pod, record, DEVICES, share_unit_mib=unit_mib, keys=trusted))
    check_text(read(honored, pod, record, trusted or keys(), share_unit_mib=unit_mib))
    if trusted is not None:
        is_signed(pod, trusted)


def read(reader: Callable[..., Any], *parts: Any, **more: Any) -> Any:
    """Return what a reader returns that may raise `InvalidInput`; None where it does, with words that fit a log."""
    try:
        return reader(*parts, **more)
    except InvalidInput as error:
        if len(str(error)) > MOST_CHARACTERS:
            raise
        return None


def check_cluster(found: Iterable[Object], trusted: Keys | None, unit_mib: int) -> None:
    """Read the pods of a cluster: what they hold is what their node can have given them together."""
    authority = {} if trusted is None else {"n": trusted}
    fields = [object_field("Pod", pod) for pod in found]
    observed = read_pods(fields, NODES, share_unit_mib=unit_mib, keys=authority)
    for shares in (*(each.assignment.shares for each in observed.running), *observed.recorded.values()):
        check_shares(shares)
    Fleet.of(Snapshot(nodes=close_gpus(NODES, {}, observed), running=observed.running))


@given(pods(), AUTHORITIES, UNITS)
def test_whoever_reads_such_a_pod_goes_on(pod: Object, trusted: Keys | None, unit_mib: int) -> None:
    check_readers(pod, trusted, unit_mib)


@given(st.tuples(pods("a"), pods("b"), pods("c")), AUTHORITIES, UNITS)
def test_a_cluster_with_such_pods_is_read_whole(found: tuple[Object, ...], trusted: Keys | None, unit_mib: int) -> None:
    check_cluster(found, trusted, unit_mib)


def text_of(**instead: Any) -> str:
    share = {"gpu": 0, "mode": "memory-share", "memory_mib": 1024, "compute_percent": 0, "isolation": "none"}
    return json.dumps([share | {"resource": "aliyun.com/gpu-mem"} | instead])


# by sentence, the annotations of a pod
KNOWN: dict[str, dict[str, str]] = {
    "a moment without end": {
        "tessera.dev/assignment": text_of(),
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "9" * 5000,
    },
    "an amount beyond 64 bits": {"tessera.dev/assignment": text_of(memory_mib=10**25)},
    "a whole GPU beyond 53 bits": {"tessera.dev/assignment": text_of(memory_mib=2**53, mode="whole")},
    "a GPU beyond 64 bits": {"tessera.dev/assignment": text_of(gpu=10**25)},
    "a memory slice before the first": {"tessera.dev/assignment": text_of(start=-1, profile="1g.5gb", mode="mig")},
    "a memory slice beyond 64 bits": {"tessera.dev/assignment": text_of(start=10**25, profile="1g.5gb", mode="mig")},
    "nesting without end": {"tessera.dev/assignment": '[{"more":' + "[" * 3000 + "]" * 3000 + "}]"},
    "gpushare's amount below zero": {"scheduler.framework.gpushare.allocation": '{"0": {"0": -5}}'},
    "gpushare's amount beyond 64 bits": {"scheduler.framework.gpushare.allocation": f'{{"0": {{"0": {10**25}}}}}'},
    "gpushare's GPU below zero": {"scheduler.framework.gpushare.allocation": '{"0": {"-1": 1}}'},
    "an index without end": {"ALIYUN_COM_GPU_MEM_IDX": "9" * 5000},
    "an index of another script": {"ALIYUN_COM_GPU_MEM_IDX": "٣"},
}


@pytest.mark.parametrize("trusted", [None, keys(unsigned="counts"), keys(unsigned="gpushare")])
@pytest.mark.parametrize("case", KNOWN)
def test_what_was_once_believed_or_ended_a_reader(case: str, trusted: Keys | None) -> None:
    for resources in ({"aliyun.com/gpu-mem": "1"}, {"nvidia.com/gpu": "1", "example.com/fpga": "1"}, {}):
        pod: Object = {
            "metadata": {"namespace": "ns", "name": "p", "uid": "uid-p", "annotations": KNOWN[case]},
            "spec": {"nodeName": "n", "containers": [{"name": "c0", "resources": {"limits": resources}}]},
            "status": {"phase": "Running"},
        }
        check_readers(pod, trusted, 1024)
        check_cluster((pod,), trusted, 1024)
