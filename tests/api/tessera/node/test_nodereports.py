"""Events and conditions of nodes, as the Kubernetes API takes them."""

import datetime as dt
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.gpunodes import facts, shared
from tessera.api.tessera.node.nodereports import (
    Report,
    Subject,
    condition,
    enforcement_text,
    event,
    event_name,
    gpu_revision,
    has_agent,
    health_report,
    impairment_report,
    orphan_report,
    read_enforcement,
)
from tessera.core.cluster.enforcement import Enforcement, Level
from tessera.core.cluster.gpunodestate import DesiredDevices, GpuNodeState, Impairment, UnhealthyDevice, Used
from tessera.core.cluster.snapshot import NodeName
from tessera.core.gpu.deviceids import DeviceId
from tessera.core.gpu.inventory import Inventory
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import Mode
from tessera.core.node.health import HealthChange, HealthPhase
from tessera.errors import InvalidInput

NOON = dt.datetime(2026, 11, 21, 13, tzinfo=dt.timezone(dt.timedelta(hours=1)))
APPLIED = Report(reason="LayoutApplied", message="GPU 0: 7 x 1g.5gb")
FAILED = Report(reason="LayoutFailed", message="x" * 2000, warning=True)


NODE = Subject.of_node("n1")


def test_an_event_about_an_object_with_a_long_name_has_a_name_that_kubernetes_takes() -> None:
    for length in (235, 236, 237, 253):
        name = event_name(
            Subject(kind="Deployment", name=("a" * 235 + "-.b" + "c" * 50)[:length], uid="u", node=""), APPLIED
        )
        assert len(name) <= 253
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)


def test_an_event_names_the_node_and_the_reason() -> None:
    got = event(NODE, APPLIED, NOON, count=2)
    assert got["involvedObject"] == {"kind": "Node", "name": "n1", "uid": "n1"}
    assert (got["type"], got["reason"], got["count"]) == ("Normal", "LayoutApplied", 2)
    assert got["lastTimestamp"] == got["firstTimestamp"] == "2026-11-21T12:00:00Z"


def test_a_warning_is_one_and_its_message_is_no_longer_than_the_api_takes() -> None:
    got = event(NODE, FAILED, NOON)
    assert got["type"] == "Warning"
    assert len(got["message"]) == 1024


def test_the_same_report_has_the_same_name() -> None:
    assert event_name(NODE, APPLIED) == event_name(NODE, APPLIED) == event(NODE, APPLIED, NOON)["metadata"]["name"]
    assert len({event_name(NODE, APPLIED), event_name(NODE, FAILED), event_name(Subject.of_node("n2"), APPLIED)}) == 3


def test_a_condition_remembers_when_its_status_changed() -> None:
    first = condition("True", APPLIED, NOON, None)
    later = NOON + dt.timedelta(minutes=1)
    assert first["lastTransitionTime"] == "2026-11-21T12:00:00Z"
    assert condition("True", APPLIED, later, first)["lastTransitionTime"] == "2026-11-21T12:00:00Z"
    assert condition("False", FAILED, later, first)["lastTransitionTime"] == "2026-11-21T12:01:00Z"


def test_what_is_not_in_force_is_one_report_with_the_gravest_as_its_reason() -> None:
    assert impairment_report(()) is None
    impaired = [Impairment(kind="Overridden", message="a"), Impairment(kind="Withheld", message="b")]
    assert impairment_report(impaired) == Report(reason="Withheld", message="a; b", warning=True)
    refused = Impairment(kind="Refused", message="a")
    assert impairment_report([*impaired, refused]) == Report(reason="Refused", message="a; b", warning=True)


LEVELS = (
    *(Enforcement(gpu="GPU-0", mode=mode, level=level) for mode, level in zip(Mode, [*Level, *Level], strict=False)),
    Enforcement(gpu="GPU-1", placement=Placement(4, 4, "3g.20gb"), mode=Mode.MIG, level=Level.HARDWARE),
)
FORMER_LEVELS = (
    '[{"gpu":"GPU-0","placement":null,"mode":"whole","level":"hardware"},'
    '{"gpu":"GPU-0","placement":null,"mode":"mig","level":"driver-mps"},'
    '{"gpu":"GPU-0","placement":null,"mode":"mig-time-slicing","level":"driver-dmem"},'
    '{"gpu":"GPU-0","placement":null,"mode":"mig-mps","level":"none"},'
    '{"gpu":"GPU-0","placement":null,"mode":"mps","level":"hardware"},'
    '{"gpu":"GPU-0","placement":null,"mode":"time-slicing","level":"driver-mps"},'
    '{"gpu":"GPU-0","placement":null,"mode":"memory-share","level":"driver-dmem"},'
    '{"gpu":"GPU-1","placement":{"start":4,"size":4,"profile":"3g.20gb"},"mode":"mig","level":"hardware"}]'
)


@given(levels=st.lists(st.from_type(Enforcement)))
def test_what_is_in_force_is_read_back(levels: list[Enforcement]) -> None:
    text = enforcement_text(levels)
    assert read_enforcement(text) == tuple(levels)
    assert msgspec.json.decode(text, type=list[Enforcement]) == levels, "an older version reads it"


def test_what_earlier_agents_reported_in_force_is_read_and_the_form_of_today_stays_as_it_is() -> None:
    assert read_enforcement(FORMER_LEVELS) == LEVELS
    assert enforcement_text(LEVELS) == FORMER_LEVELS.replace('{"gpu"', '{"version":1,"gpu"')


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "it is not complete JSON"),
        ("{}", "a mapping is not a list"),
        ('[{"version": 2}]', "[0].version: 2 is not a value that is accepted there"),
        (FORMER_LEVELS.replace('"mode":"mig",', ""), "[1].mode: it is missing"),
        (FORMER_LEVELS.replace("driver-dmem", "strong"), "[2].level: 'strong' is not"),
        ("\ud800", "half of a character"),
    ],
)
def test_an_unreadable_report_of_what_is_in_force_is_refused(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_enforcement(text)
    assert want in str(refused.value)


def test_an_event_about_a_pod_lies_in_its_namespace() -> None:
    got = event(Subject(kind="Pod", name="p", namespace="ml", uid="u", node="n1"), FAILED, NOON)
    assert got["involvedObject"] == {"kind": "Pod", "name": "p", "namespace": "ml", "uid": "u"}
    assert (got["metadata"]["namespace"], got["source"]["host"]) == ("ml", "n1")


def test_a_revision_changes_with_what_the_gpus_can_be_allocated_as_and_with_nothing_else() -> None:
    state = GpuNodeState(name=NodeName("n1"), gpus=(shared(facts(0)),))
    slices = (DesiredDevices(gpu=facts(0).uuid, instances=(Placement(0, 1, "1g.5gb"),)),)
    first = gpu_revision(state, ())
    assert first == gpu_revision(state, ())
    assert first == gpu_revision(msgspec.structs.replace(state, used=(Used(gpu=facts(0).uuid, memory_mib=9),)), ())
    unhealthy = msgspec.structs.replace(
        state, unhealthy=(UnhealthyDevice(device=DeviceId(facts(0).uuid), reason="Xid 79"),)
    )
    assert len({first, gpu_revision(state, slices), gpu_revision(unhealthy, ())}) == 3


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        ({"annotations": {"tessera.dev/device-list-strategy": "envvar"}}, True),
        ({"labels": {"tessera.dev/gpu-revision": "4f"}}, True),
        ({"labels": {"nvidia.com/gpu.product": "Tesla-T4"}, "annotations": None}, False),
        (None, False),
    ],
)
def test_an_agent_marks_its_node(metadata: dict[str, Any] | None, want: bool) -> None:
    assert has_agent({"metadata": metadata}) is want


def test_a_device_that_fails_and_recovers_is_reported_by_its_index() -> None:
    gpu = facts(1)
    change = HealthChange(
        device=DeviceId(gpu.uuid, Placement(0, 1, "1g.5gb")),
        before=HealthPhase.HEALTHY,
        after=HealthPhase.UNHEALTHY,
        reason="Xid 79",
    )
    got = health_report(change, Inventory(gpus=(facts(0), gpu)))
    assert (got.reason, got.warning) == ("DeviceUnhealthy", True)
    assert got.message == f"GPU 1 ({gpu.uuid}), 1g.5gb at 0: unhealthy, Xid 79"
    well = health_report(
        HealthChange(device=DeviceId("GPU-x"), before=HealthPhase.UNHEALTHY, after=HealthPhase.HEALTHY, reason="back"),
        Inventory(gpus=()),
    )
    assert (well.reason, well.warning, well.message) == ("DeviceHealthy", False, "GPU ? (GPU-x): healthy, back")


def test_a_device_that_a_pod_left_processes_on_is_reported_with_what_follows() -> None:
    got = orphan_report(
        UnhealthyDevice(device=DeviceId(facts(1).uuid), reason="pod ml/a is gone"), Inventory(gpus=(facts(1),))
    )
    assert (got.reason, got.warning) == ("DeviceOrphaned", True)
    assert got.message == f"GPU 1 ({facts(1).uuid}): pod ml/a is gone; no pod is sent to it until they have ended"
