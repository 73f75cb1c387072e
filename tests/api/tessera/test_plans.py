"""The plan's wire form: stable keys, MIG fields only where it is MIG."""

import json

import pytest
import yaml

from builders.fleets import T4, gpu, node, pods, slices
from tessera.api.tessera.plans import to_json, to_yaml
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.packing.plan import plan
from tessera.core.workload.need import Ask, Need

WHOLE = Need(asks=(Ask(resource="nvidia.com/gpu", container="main"),))
SNAPSHOT = Snapshot(
    nodes=(node("n", gpu(0), gpu(1, T4)),),
    pending=(*pods(slices("7g.40gb"), 2, "s"), *pods(WHOLE, 1, "w")),
)


def test_json_has_what_programs_need() -> None:
    got = json.loads(to_json(plan(SNAPSHOT, policy="first-fit")))
    assert got["policy"] == "first-fit"
    assert got["summary"] == {"placed": 2, "waiting": 1, "gpus": 2, "gpus_used": 2}
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
    assert [each["pod"] for each in got["waiting"]] == ["default/s-1"]
    assert [(each["node"], each["gpu"], each["mig"]) for each in got["layouts"]] == [("n", 0, True), ("n", 1, False)]
    assert got["layouts"][0]["slices"][0]["pods"] == ["default/s-0"]


@pytest.mark.parametrize("exact", [False, True])
def test_yaml_says_the_same_as_json(exact: bool) -> None:
    made = plan(SNAPSHOT, policy="first-fit", exact=exact)
    assert yaml.safe_load(to_yaml(made)) == json.loads(to_json(made))
    assert ("optimal" in json.loads(to_json(made))["summary"]) is exact
