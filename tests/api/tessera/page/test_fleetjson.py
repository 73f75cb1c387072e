"""Views of a fleet as the page reads them."""

import msgspec
import pytest
from hypothesis import given

from builders.fleetviews import VIEWS, applied
from builders.wirefields import fields_of
from tessera.api.tessera.page import fleetjson
from tessera.api.tessera.page.fleetjson import (
    PageChangeFields,
    PageFleetFields,
    write_change,
    write_event,
    write_fleet,
    write_viewer,
)
from tessera.core.explain import fleetview
from tessera.core.explain.fleetview import FleetChange, FleetView, NodeView, changes
from tessera.core.usage.rightsizing import Sizing

RECORDS = {
    fleetjson.PageScalePointFields: fleetview.ScalePoint,
    fleetjson.PageModelServerFields: fleetview.ModelServerHistory,
    fleetjson.PagePodFields: fleetview.PodView,
    fleetjson.PageContentionFields: fleetview.ContentionView,
    fleetjson.PagePartFields: fleetview.GpuPart,
    fleetjson.PageGpuFields: fleetview.GpuView,
    fleetjson.PageImageFields: fleetview.ImageView,
    fleetjson.PageModelFields: fleetview.ModelView,
    fleetjson.PageNodeFields: fleetview.NodeView,
    fleetjson.PagePendingFields: fleetview.PendingView,
    fleetjson.PageRecommendationFields: fleetview.WorkloadRecommendation,
    PageFleetFields: FleetView,
    PageChangeFields: FleetChange,
}


@pytest.mark.parametrize(("written", "known"), RECORDS.items(), ids=lambda each: each.__name__)
def test_no_field_is_lost(written: type[msgspec.Struct], known: type[msgspec.Struct]) -> None:
    assert fields_of(written) == fields_of(known)


def read(content: bytes) -> FleetView:
    """Return a view that was written."""
    return msgspec.convert(msgspec.json.decode(content, type=PageFleetFields), FleetView, from_attributes=True)


@given(VIEWS, VIEWS)
def test_a_change_leads_from_one_view_to_the_other(before: FleetView, after: FleetView) -> None:
    change = changes(before, after)
    fields = msgspec.json.decode(write_change(change), type=PageChangeFields)
    assert applied(before, msgspec.convert(fields, FleetChange, from_attributes=True)) == after


@given(VIEWS)
def test_what_is_written_is_read(view: FleetView) -> None:
    assert read(write_fleet(view)) == view


POD = fleetview.PodView(namespace="ml", pod="a-1", workload="a", phase="running", unrecorded=True, memory_mib=9)
FULL = FleetView(
    nodes=(
        NodeView(
            name="n1",
            driver="570",
            gpus=(
                fleetview.GpuView(
                    index=0,
                    uuid="GPU-0",
                    model="T4",
                    memory_mib=9,
                    width=9,
                    mode="mig",
                    health="healthy",
                    parts=(
                        fleetview.GpuPart(start=0, size=2, label="1g.5gb", state="allocated", pods=(POD,)),
                        fleetview.GpuPart(start=2, size=7, state="desired", exists=False),
                    ),
                    allocated_mib=9,
                    used_mib=0,
                    contention=(fleetview.ContentionView(cause="thermal", caused_by=(POD,), scope="node"),),
                    throttled=("thermal",),
                ),
            ),
            images=(fleetview.ImageView(image="a:1", state="Present", bytes=7),),
            models=(fleetview.ModelView(model="m", state="Fetching", fetched_percent=0),),
        ),
    ),
    pending=(fleetview.PendingView(namespace="ml", pod="b", need="1g.5gb", created_on=("n1",)),),
    pending_elsewhere=1,
    model_servers=(
        fleetview.ModelServerHistory(
            namespace="ml", name="m", points=(fleetview.ScalePoint(at_s=1.0, desired=2, ready=1, in_flight=3.5),)
        ),
    ),
    recommendations=(
        fleetview.WorkloadRecommendation(
            node="n1", gpu=0, device="whole", namespace="ml", pod="a-1", container="c", verdict=Sizing.TOO_LITTLE,
            peak_mib=8, observed_s=60.0, saved_mib=1, load_unknown=True, workload="a",
        ),
    ),
    activity={"ml/a-1": 7},
    memory_mib={"GPU-0": {"ml/a-1": 0}},
    namespaces=("ml",),
)  # fmt: skip


def test_names_are_camel_case_and_what_is_empty_is_left_out() -> None:
    """The page's scripts and those of others read these names: another one is a change for all of them."""
    pod = {"namespace": "ml", "pod": "a-1", "workload": "a", "phase": "running", "unrecorded": True, "memoryMib": 9}
    assert msgspec.json.decode(write_fleet(FULL)) == {
        "nodes": [
            {
                "name": "n1",
                "driver": "570",
                "gpus": [
                    {
                        "index": 0,
                        "uuid": "GPU-0",
                        "model": "T4",
                        "memoryMib": 9,
                        "width": 9,
                        "mode": "mig",
                        "health": "healthy",
                        "parts": [
                            {"start": 0, "size": 2, "label": "1g.5gb", "state": "allocated", "pods": [pod]},
                            {"start": 2, "size": 7, "state": "desired", "exists": False},
                        ],
                        "allocatedMib": 9,
                        "usedMib": 0,
                        "contention": [{"cause": "thermal", "causedBy": [pod], "scope": "node"}],
                        "throttled": ["thermal"],
                    }
                ],
                "images": [{"image": "a:1", "state": "Present", "bytes": 7}],
                "models": [{"model": "m", "state": "Fetching", "fetchedPercent": 0}],
            }
        ],
        "pending": [{"namespace": "ml", "pod": "b", "need": "1g.5gb", "createdOn": ["n1"]}],
        "pendingElsewhere": 1,
        "modelServers": [{"namespace": "ml", "name": "m", "points": [[1.0, 2, 1, 3.5]]}],
        "recommendations": [
            {
                "node": "n1",
                "gpu": 0,
                "device": "whole",
                "namespace": "ml",
                "pod": "a-1",
                "container": "c",
                "verdict": "too-little",
                "peakMib": 8,
                "observedS": 60.0,
                "savedMib": 1,
                "loadUnknown": True,
                "workload": "a",
            }
        ],
        "activity": {"ml/a-1": 7},
        "memoryMib": {"GPU-0": {"ml/a-1": 0}},
        "namespaces": ["ml"],
    }


def test_events_end_with_an_empty_line() -> None:
    assert write_event("fleet", b"{}", "r1-2") == b"event: fleet\nid: r1-2\ndata: {}\n\n"
    assert write_event("viewer", b"{}") == b"event: viewer\ndata: {}\n\n"
    assert msgspec.json.decode(write_viewer("ann", signed_in=True, version="1f")) == {
        "name": "ann",
        "signedIn": True,
        "version": "1f",
    }
