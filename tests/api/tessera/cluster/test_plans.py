"""The plan's wire form: stable keys, MIG fields only where it is MIG."""

import json

import msgspec

from builders.fleets import T4, gpu, node, pods, slices
from tessera.api.tessera.cluster.plans import CostDocument, FitDocument, NodesDocument, document
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.plan import plan
from tessera.core.packing.sizing import NodeType, smallest_fleet
from tessera.core.workload.need import DeviceRequest, Need

WHOLE = Need(requests=(DeviceRequest(resource="nvidia.com/gpu", container="main"),))
SNAPSHOT = Snapshot(
    nodes=(node("n", gpu(0), gpu(1, T4)),),
    pending=(*pods(slices("7g.40gb"), 2, "s"), *pods(WHOLE, 1, "w")),
)


def test_json_has_what_programs_need() -> None:
    got = json.loads(msgspec.json.encode(document(plan(SNAPSHOT, policy="first-fit"))))
    assert got["policy"] == "first-fit"
    assert got["summary"] == {"placed": 2, "pending": 1, "gpus": 2, "gpus_used": 2, "gpus_without_sharing": 2}
    by_pod = {each["pod"]: each for each in got["assignments"]}
    (slice_,) = by_pod["default/s-0"]["devices"]
    assert (slice_["gpu"], slice_["mode"], slice_["profile"], slice_["start"]) == (0, "mig", "7g.40gb", 0)
    assert (slice_["isolation"], slice_["compute_percent"]) == ("hardware", 100)
    assert by_pod["default/w-0"]["devices"] == [
        {
            "gpu": 1,
            "mode": "whole",
            "memory_mib": T4.memory_mib,
            "compute_percent": 100,
            "isolation": "hardware",
            "resource": "nvidia.com/gpu",
            "container": "main",
        }
    ]
    assert [each["pod"] for each in got["pending"]] == ["default/s-1"]
    assert [(each["node"], each["gpu"], each["mig"]) for each in got["layouts"]] == [("n", 0, True), ("n", 1, False)]
    assert got["layouts"][0]["slices"][0]["pods"] == ["default/s-0"]


def test_an_exact_plan_says_what_was_proved() -> None:
    proved = document(plan(SNAPSHOT, policy="first-fit", exact=True)).summary
    assert (proved.at_most, proved.optimal) == (2, True)


def test_prices_and_the_fleet_that_was_found_stand_in_the_document() -> None:
    types = (NodeType(node=node("n", gpu(0, T4)), cost=1.0),)
    found = smallest_fleet(types, pods(WHOLE, 3, "w"))
    got = document(found.plan, {"T4": 0.5}, (types, found))
    assert got.cost == CostDocument(fleet=1.5, used=1.5, without_sharing=1.5, unpriced=())
    assert got.fit == FitDocument(nodes=(NodesDocument(gpus="1xT4", count=3),), cost=3.0, at_least=3.0, optimal=True)
