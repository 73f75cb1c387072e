"""The shipped examples give the answers their comments promise, through the command itself."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from generate.pages import refreshed
from tessera.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def planned(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["plan", *arguments, "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert_nothing_over_granted(document)
    return document


def assert_nothing_over_granted(document: dict[str, Any]) -> None:
    allocated: Counter[tuple[str, int]] = Counter()
    for assignment in document["assignments"]:
        for device in assignment["devices"]:
            allocated[assignment["node"], device["gpu"]] += device["memory_mib"]
    for layout in document["layouts"]:
        assert allocated[layout["node"], layout["gpu"]] <= layout["memory_mib"]


def profiles(document: dict[str, Any]) -> Counter[str]:
    return Counter(device.get("profile") for a in document["assignments"] for device in a["devices"])


@pytest.mark.parametrize("exact", [(), ("--exact",)])
def test_56_of_60_pods_run_on_slices_of_eight_h100(exact: tuple[str, ...]) -> None:
    got = planned("--gpus", "8xH100-80GB", "-f", str(EXAMPLES / "1-job-of-60-slices/job.yaml"), *exact)
    assert got["summary"]["placed"] == 56
    assert profiles(got) == {"1g.10gb": 56}
    assert len({(a["devices"][0]["gpu"], a["devices"][0]["start"]) for a in got["assignments"]}) == 56
    assert len(got["pending"]) == 4
    assert all("1g.10gb" in each["reason"] and "memory slice 7 free" in each["reason"] for each in got["pending"])


def test_the_same_on_a_gke_node_that_names_its_slices_gpus() -> None:
    folder = EXAMPLES / "1-job-of-60-slices"
    got = planned("--cluster", str(folder / "gke-node.yaml"), "-f", str(folder / "gke-job.yaml"))
    assert got["summary"]["placed"] == 56
    assert profiles(got) == {"1g.10gb": 56}
    assert {device["resource"] for a in got["assignments"] for device in a["devices"]} == {"nvidia.com/gpu"}
    assert ["8 GPUs are allocated" in each["reason"] for each in got["pending"]] == [True] * 4


def test_a_gke_pod_without_the_toleration_waits_for_the_taint() -> None:
    folder = EXAMPLES / "1-job-of-60-slices"
    got = planned("--cluster", str(folder / "gke-node.yaml"), "-f", str(folder / "job.yaml"))
    assert got["summary"]["placed"] == 0
    assert "taint nvidia.com/gpu=present:NoSchedule" in got["pending"][0]["reason"]


def test_sixteen_vllm_replicas_get_3g_40gb_each() -> None:
    got = planned("--gpus", "8xH100-80GB", "-f", str(EXAMPLES / "2-vllm-replicas/vllm.yaml"))
    assert got["pending"] == []
    assert profiles(got) == {"3g.40gb": 16}
    assert {device["isolation"] for a in got["assignments"] for device in a["devices"]} == {"hardware"}
    cut = [[piece["profile"] for piece in layout["slices"]] for layout in got["layouts"]]
    assert cut == [["3g.40gb", "3g.40gb"]] * 8


def test_the_eighth_triton_waits_on_seven_slices() -> None:
    folder = EXAMPLES / "3-triton-on-one-a100"
    got = planned("--cluster", str(folder / "all-1g.yaml"), "-f", str(folder / "triton.yaml"))
    assert profiles(got) == {"1g.5gb": 7}
    assert [each["pod"] for each in got["pending"]] == ["default/triton-7"]


def test_balanced_and_time_sliced_serves_8_3_and_4() -> None:
    folder = EXAMPLES / "3-triton-on-one-a100"
    got = planned("--cluster", str(folder / "balanced-time-sliced.yaml"), "-f", str(folder / "triton-sizes.yaml"))
    assert got["pending"] == []
    assert profiles(got) == {"1g.5gb": 8, "2g.10gb": 3, "3g.20gb": 4}
    assert {device["mode"] for a in got["assignments"] for device in a["devices"]} == {"mig-time-slicing"}


def test_fourteen_notebooks_share_a_t4_and_the_plan_warns() -> None:
    folder = EXAMPLES / "4-t4-time-slicing"
    got = planned("--cluster", str(folder / "fleet.yaml"), "-f", str(folder / "notebooks.yaml"))
    assert got["summary"]["placed"] == 14
    assert [each["pod"] for each in got["pending"]] == ["default/notebook-14"]
    assert len(got["warnings"]) == 1
    assert "does not isolate" in got["warnings"][0]
    assert all(f"default/notebook-{i}" in got["warnings"][0] for i in range(14))


def test_memory_shares_leave_whole_gpus_for_those_who_need_them() -> None:
    folder = EXAMPLES / "5-memory-shares"
    fleet, shares = str(folder / "fleet.yaml"), str(folder / "shares.yaml")
    got = planned("--cluster", fleet, "-f", shares)
    best = planned("--cluster", fleet, "-f", shares, "--exact")
    assert got["pending"] == best["pending"] == []
    whole = [device for a in got["assignments"] if "train" in a["pod"] for device in a["devices"]]
    assert [device["mode"] for device in whole] == ["whole"] * 4
    assert got["summary"]["gpus_used"] <= best["summary"]["gpus_used"] + 1


@pytest.mark.parametrize("exact", [(), ("--exact",)])
def test_31_of_32_pods_run_on_the_mixed_fleet_and_no_plan_places_more(exact: tuple[str, ...]) -> None:
    folder = EXAMPLES / "6-mixed-fleet"
    got = planned("--cluster", str(folder / "fleet.yaml"), "-f", str(folder / "workloads.yaml"), *exact)
    assert got["summary"]["placed"] == 31
    assert [each["pod"] for each in got["pending"]] == ["default/tune-0"]


@pytest.mark.parametrize("page", ["README.md", "docs/inspect.md"])
def test_pages_show_what_is_printed(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`scripts/generate` refreshes them."""
    monkeypatch.chdir(EXAMPLES.parent)
    assert refreshed(page) == (EXAMPLES.parent / page).read_text()
