"""Quotas in one unit: no name that Tessera serves is left uncounted."""

from typing import Any

import pytest

from generate.quotafiles import kueue_resources, needs_only
from tessera.api.kubernetes.quota import read_resource_quota
from tessera.core.gpu.gpumodels import CATALOG
from tessera.core.gpu.sharing import mig_resource

PROFILES = {profile.name for model in CATALOG for profile in model.profiles}


def test_needs_alone_are_left_where_the_quota_is() -> None:
    quota: dict[str, Any] = needs_only()
    closed = {name for name, amount in quota["spec"]["hard"].items() if amount == "0"}
    assert closed == quota["spec"]["hard"].keys()
    assert {f"requests.{mig_resource(name)}" for name in PROFILES} <= closed
    assert {"requests.nvidia.com/gpu", "requests.aliyun.com/gpu-mem", "requests.tessera.dev/gpu-count"} <= closed
    assert not {"requests.tessera.dev/gpu-memory", "requests.tessera.dev/gpu-compute"} & closed


OUTPUTS = {
    "a slice of an A100": ("nvidia.com/mig-1g.5gb", {"tessera.dev/gpu-memory": "5", "tessera.dev/gpu-compute": "14"}),
    "half of the memory": ("nvidia.com/mig-3g.40gb", {"tessera.dev/gpu-memory": "40", "tessera.dev/gpu-compute": "42"}),
    "gpushare's memory": ("aliyun.com/gpu-mem", {"tessera.dev/gpu-memory": "1"}),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_what_a_device_counts_as(case: str) -> None:
    name, want = OUTPUTS[case]
    resources: Any = kueue_resources()["resources"]
    found = {each["input"]: each for each in resources["transformations"]}
    assert len(found) == len(resources["transformations"]) == len(PROFILES) + 1
    assert found[name] == {"input": name, "strategy": "Replace", "outputs": want}
    assert resources["excludeResourcePrefixes"] == ["models.tessera.dev/"], (
        "a queue that does not count them admits none of their pods"
    )


def test_what_the_quota_forbids_is_no_quota_of_anything() -> None:
    quota: dict[str, Any] = needs_only()
    assert [*read_resource_quota({**quota, "metadata": {"name": "gpus", "namespace": "team-a"}})] == []
