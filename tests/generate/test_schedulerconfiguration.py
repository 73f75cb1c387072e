"""The configuration of the second scheduler."""

from typing import Any

from generate.schedulerconfiguration import configuration
from tessera.core.gpu.gpumodels import CATALOG
from tessera.core.gpu.sharing import mig_resource

CONFIGURATION: dict[str, Any] = configuration("http://127.0.0.1:1")


def test_the_extender_decides_about_every_resource_that_tessera_serves() -> None:
    extender = CONFIGURATION["extenders"][0]
    names = [each["name"] for each in extender["managedResources"]]
    assert len(set(names)) == len(names)
    want = {"tessera.dev/gpu-memory", "tessera.dev/gpu-compute", "aliyun.com/gpu-mem", "nvidia.com/gpu"}
    want |= {mig_resource(profile.name) for model in CATALOG for profile in model.profiles}
    assert want <= set(names)
    assert all(len(name.partition("/")[2]) <= 63 for name in names)


def test_what_no_node_advertises_is_not_counted_by_the_scheduler() -> None:
    managed = CONFIGURATION["extenders"][0]["managedResources"]
    ignored = {each["name"] for each in managed if each.get("ignoredByScheduler")}
    assert ignored == {"tessera.dev/gpu-compute", "tessera.dev/gpu-count"}


def test_one_point_of_the_extender_outweighs_all_plugins() -> None:
    assert CONFIGURATION["extenders"][0]["weight"] * 10 > 14 * 100


def test_the_server_chooses_the_node_itself() -> None:
    assert CONFIGURATION["extenders"][0]["filterVerb"] == "choose"
