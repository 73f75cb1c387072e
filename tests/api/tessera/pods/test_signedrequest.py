"""What a pod asked is signed with what it gets: what its other annotations say later judges nothing."""

from collections.abc import Mapping

import pytest

from builders.kubeobjects import Object, amount, gpu, gpunode, mig_share, node, pod, share
from builders.signed import SERVER, STRANGER, authority, keys, signed
from tessera.api.kubernetes.podspecs import read_need
from tessera.api.tessera.cluster.clusters import as_fields, read_cluster
from tessera.api.tessera.pods.assignedrequests import corrected, read_assigned_requests
from tessera.api.tessera.pods.assignments import read_shares, serves, signed_request, write_shares
from tessera.api.tessera.pods.clusterpods import object_field, read_live_pod
from tessera.api.tessera.pods.recordedpods import honored, recorded_assignment
from tessera.api.tessera.pods.signatures import InvalidAssignment
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.allocations.kubeletallocations import KubeletAllocation
from tessera.core.deviceplugin.allocations.matching import Correction, reconcile
from tessera.core.gpu.sharing import Mode
from tessera.core.workload.need import DeviceRequest, Form, Isolation, Need

UNITS = "tessera.dev/gpu-memory"
LIMITS, SHARES = {UNITS: 4}, "aliyun.com/gpu-mem"


def assigned(
    name: str, *shares: Share, limits: Mapping[str, str | int] | None = None, **said: str
) -> tuple[Object, Need]:
    """Return a pod as a server binds it that reads these annotations on it, and what it asks."""
    annotations = {f"tessera.dev/{key.replace('_', '-')}": text for key, text in said.items()}
    each = pod(name, limits or LIMITS, annotations=annotations)
    need = read_live_pod(each).need
    each["metadata"]["annotations"]["tessera.dev/assignment"] = write_shares(shares, need)
    return signed(each), need


def annotated(each: Object, **annotations: str | None) -> Object:
    """Return a pod whose tenant has written these annotations on it, or removed those that are None."""
    changed = each["metadata"]["annotations"] | {
        f"tessera.dev/{key.replace('_', '-')}": text for key, text in annotations.items()
    }
    kept = {key: text for key, text in changed.items() if text is not None}
    return {**each, "metadata": {**each["metadata"], "annotations": kept}}


CHANGES: dict[str, dict[str, str | None]] = {
    "another unit": {"gpu_memory_unit": "MiB"},
    "another isolation": {"isolation": "hardware"},
    "an isolation that is none": {"isolation": "x"},
    "another model": {"gpu_model": "H100-80GB"},
    "a model that is none": {"gpu_model": "x"},
    "an annotation that Tessera does not know": {"x": "y"},
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_is_written_on_a_pod_after_its_request_was_signed_judges_nothing(case: str) -> None:
    each, need = assigned("p", amount(0))
    changed = annotated(each, **CHANGES[case])
    for_agent = read_assigned_requests((each,), keys=keys())
    assert read_assigned_requests((changed,), keys=keys()) == for_agent
    assert [request.shares for request in for_agent.requests] == [(amount(0),)]
    live = read_live_pod(changed, keys=keys())
    assert (live.shares, live.need, live.wrong, live.unread) == ((amount(0),), need, "", "")
    seen = read_cluster(as_fields((node(), gpunode("a", gpu(0)), changed)), authority=authority())
    assert [(each.pod.need.requests, each.pod.need.unit_mib) for each in seen.snapshot.running] == [
        (need.requests, 1024)
    ]
    assert [each.assignment.shares for each in seen.snapshot.running] == [(amount(0),)]


@pytest.mark.parametrize(("unit", "mib"), [("GiB", 1024), ("MiB", 1)])
def test_the_unit_in_which_a_pod_counts_follows_from_what_was_signed(unit: str, mib: int) -> None:
    each, need = assigned("p", amount(0, memory_mib=4 * mib), gpu_memory_unit=unit)
    field = object_field("Pod", annotated(each, gpu_memory_unit=None))
    signed_now = read_need(field, requested=signed_request(field, keys()))
    assert (signed_now.requests, signed_now.unit_mib) == (need.requests, mib)


@pytest.mark.parametrize("case", CHANGES)
def test_it_is_read_as_the_pod_says_where_no_request_was_signed(case: str) -> None:
    each = signed(pod("p", LIMITS, amount(0)))
    changed = annotated(each, **CHANGES[case])
    assert read_live_pod(each, keys=keys()).shares == (amount(0),)
    assert read_live_pod(changed, keys=keys()).need == read_live_pod(changed).need != read_live_pod(each).need


def test_more_than_was_asked_when_it_was_signed_does_not_count_whatever_is_asked_now() -> None:
    each, _ = assigned("p", amount(0, memory_mib=4096), gpu_memory_unit="MiB")
    with pytest.raises(InvalidAssignment, match="than the 4 MiB requested"):
        read_shares(object_field("Pod", annotated(each, gpu_memory_unit=None)), None, keys=keys())


def test_a_share_is_of_what_was_signed_and_not_of_a_larger_unit() -> None:
    each, _ = assigned("p", share(0, 4096, resource=SHARES), limits={SHARES: 4})
    assert read_live_pod(each, share_unit_mib=1, keys=keys()).need.requests[0].memory_mib == 4096
    more, _ = assigned("p", share(0, 8192, resource=SHARES), limits={SHARES: 4})
    assert "than the 4096 MiB requested" in read_live_pod(more, share_unit_mib=1, keys=keys()).unread


def test_a_request_that_nobody_signed_says_nothing() -> None:
    each, need = assigned("p", amount(0), gpu_memory_unit="MiB")
    field = object_field("Pod", each)
    assert signed_request(field, keys()) == need
    assert signed_request(field, None) is None
    for strange in (signed(each, STRANGER), signed(each, uid="another"), signed(each, node="another"), pod("p")):
        assert signed_request(object_field("Pod", strange), keys()) is None
    text = {**each["metadata"]["annotations"], "tessera.dev/assignment": "{}"}
    sealed = SERVER.sealed(text, uid="uid-p", node="a")
    broken = {**each, "metadata": {**each["metadata"], "annotations": sealed}}
    assert signed_request(object_field("Pod", broken), keys()) is None


def test_a_request_is_written_and_read_as_it_was() -> None:
    requests = (
        DeviceRequest(resource=UNITS, form=Form.NEED, count=2, memory_mib=4096, compute_percent=30, container="main"),
        DeviceRequest(resource="nvidia.com/gpu", isolation=Isolation.HARDWARE),
    )
    need = Need(requests=requests, models=("A100-40GB",))
    text = write_shares((amount(0),), Need(cpu_milli=5, requests=requests, models=("A100-40GB",)))
    each = pod("p", LIMITS, annotations={"tessera.dev/assignment": text})
    assert signed_request(object_field("Pod", signed(each)), keys()) == need


# sentence: (limits, annotations, shares, whether they give what is asked)
GIVEN: dict[str, tuple[dict[str, int], dict[str, str], tuple[Share, ...], bool]] = {
    "as much": (LIMITS, {"isolation": "none"}, (amount(0),), True),
    "less": (LIMITS, {"isolation": "none"}, (amount(0, memory_mib=4095),), False),
    "more": (LIMITS, {"isolation": "none"}, (amount(0, memory_mib=4097),), False),
    "more by a MIG instance": (LIMITS, {"isolation": "hardware"}, (mig_share(0, "1g.5gb", 0),), True),
    "a weaker isolation": (LIMITS, {"isolation": "driver"}, (amount(0),), False),
    "less compute": (LIMITS | {"tessera.dev/gpu-compute": 30}, {"isolation": "none"}, (amount(0),), False),
    "one of two": (LIMITS | {"tessera.dev/gpu-count": 2}, {"isolation": "none"}, (amount(0),), False),
    "both of two": (LIMITS | {"tessera.dev/gpu-count": 2}, {"isolation": "none"}, (amount(0), amount(1)), True),
    "gpushare's memory": ({SHARES: 4}, {}, (share(0, 4096, resource=SHARES),), True),
    "less of gpushare's": ({SHARES: 4}, {}, (share(0, 4095, resource=SHARES),), False),
    "a device by name": ({"nvidia.com/gpu": 1}, {}, (share(0, 1, Mode.WHOLE),), True),
}


@pytest.mark.parametrize("case", GIVEN)
def test_whether_shares_give_what_is_asked(case: str) -> None:
    limits, said, shares, want = GIVEN[case]
    each = pod("p", limits, annotations={f"tessera.dev/{key}": text for key, text in said.items()})
    assert serves(object_field("Pod", each), read_live_pod(each).need, shares) == want


# Exchanges


def test_pods_exchange_by_what_was_signed_that_they_asked() -> None:
    """A tenant who asked for no isolation does not get another's MIG instance by asking for it now."""
    slice_ = mig_share(0, "1g.5gb", 0)
    honest, _ = assigned("honest", slice_, isolation="hardware")
    forger, _ = assigned("forger", amount(1), isolation="none")
    other, _ = assigned("other", mig_share(0, "1g.5gb", 2), isolation="hardware")
    changed = annotated(forger, isolation="hardware")
    by_name = {
        each.key.pod: each.specification
        for each in read_assigned_requests((honest, changed, other), keys=keys()).requests
    }
    assert by_name["honest"] == by_name["other"] != by_name["forger"]
    requests = read_assigned_requests((honest, changed), keys=keys()).requests
    assert reconcile(requests, (), ()).corrections == ()


def test_who_was_bound_before_requests_were_signed_exchanges_with_none_whose_request_was() -> None:
    honest, _ = assigned("honest", amount(0), isolation="hardware")
    former = annotated(signed(pod("former", LIMITS, amount(1))), isolation="hardware")
    one, other = read_assigned_requests((honest, former), keys=keys()).requests
    assert one.specification != other.specification


def test_what_is_exchanged_keeps_the_request_that_was_signed() -> None:
    each, need = assigned("p", amount(0))
    changed = annotated(each, gpu_memory_unit="MiB")
    (request,) = read_assigned_requests((changed,), keys=keys()).requests
    new = corrected(changed, Correction(request=request, shares=(amount(1),)), keys=keys())
    assert new == {"tessera.dev/assignment": write_shares((amount(1),), need)}
    former = signed(pod("p", LIMITS, amount(0)))
    assert corrected(former, Correction(request=request, shares=(amount(1),)), keys=keys()) == {
        "tessera.dev/assignment": write_shares((amount(1),))
    }, "what a pod says now is not signed for it"


# What agents sign


def test_devices_by_name_are_signed_with_what_was_asked() -> None:
    each = pod("p", {"nvidia.com/gpu": 1})
    device = share(0, 40960, Mode.WHOLE)
    record = (
        KubeletAllocation(namespace="ns", pod="p", container="main", resource="nvidia.com/gpu", device_ids=("d",)),
    )
    text = recorded_assignment(each, record, {"d": device}, keys=keys())
    assert text == write_shares((device,), read_live_pod(each).need)
    each["metadata"]["annotations"]["tessera.dev/assignment"] = text
    changed = annotated(signed(each), isolation="x")
    assert recorded_assignment(changed, record, {"d": device}, keys=keys()) == text
    assert read_live_pod(changed, keys=keys()).wrong == ""


def test_a_request_in_an_unsigned_assignment_is_not_signed() -> None:
    text = write_shares(
        (amount(0),), Need(requests=(DeviceRequest(resource=UNITS, form=Form.NEED, memory_mib=1 << 20),))
    )
    each = pod("old", LIMITS, annotations={"tessera.dev/assignment": text})
    record = (KubeletAllocation(namespace="ns", pod="old", container="main", resource=UNITS, device_ids=("u1",)),)
    assert honored(each, record, keys()) == write_shares((amount(0),))
