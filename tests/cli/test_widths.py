"""Tables in a terminal of 80 columns: no line is longer, and no word or heading is broken."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner

from builders.usagereports import LONG_NAMES
from harness.agents import serving_reports
from tessera.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"
SIZED = ("--parameters", "8.03B", "--layers", "32", "--kv-heads", "8", "--head-dim", "128")

AGENT = "AGENT"
"""Stands for the address of an agent that reports long names."""

CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all GPU models": (("profiles",), ("ARCHITECTURE", "PLACEMENTS", "RTX-PRO-6000-Blackwell-96GB", "inferred")),
    "one GPU model": (("profiles", "A100-40GB"), ("MEMORY MiB", "PLACEMENTS", "profile names and maximum")),
    "a language model": (("size", *SIZED), ("H100-80GB", "13.5 GiB short", "1024x8192")),
    "a plan": (
        ("plan", "--gpus", "8xH100-80GB", "-f", f"{EXAMPLES}/1-job-of-60-slices/job.yaml"),
        ("ISOLATION", "ALLOCATED"),
    ),
    "a plan of shares": (
        (
            *("plan", "--cluster", f"{EXAMPLES}/6-mixed-fleet/fleet.yaml"),
            *("-f", f"{EXAMPLES}/6-mixed-fleet/workloads.yaml"),
        ),
        ("22.4 GiB ", " 42 %", " 14 %", " 40 %"),
    ),
    "GPU usage": (("inspect", "--cluster", f"{EXAMPLES}/7-gpu-usage/cluster.yaml"), ("ALLOCATED", "FRAGMENTED")),
    "live GPU usage": (
        ("top", "--once", "--agent", AGENT),
        (
            "thermal, caused by ml-research/finetune-llama-7d4b9c6f58-vqbjg/trainer",
            "gke-prod-a3-highgpu-8g-4f1b2c3d-x1y2 GPU 1 H100-80GB: 83 C, 690 W, throttled:",
            "79.1 / 79.6 GiB     100",
            " finetune-llama-7d4b9c6f58-vqbjg/trainer",
            " long-name-5f7c9b8d64-x2x9k/trainer",
            "GPU %  CONTAINER",
            "2g.20gb@4",
            "exited processes",
        ),
    ),
    "recommendations": (
        ("recommend", "--all", "--agent", AGENT),
        (
            "ml-research/finetune-llama-7d4b9c6f58-vqbjg/trainer: node",
            "gke-prod-a3-highgpu-8g-4f1b2c3d-x1y2, GPU 1, whole",
            "ALLOCATED  PEAK      GPU %  OBSERVED",
            "VERDICT",
            "167 h 57 min",
            "(load",
        ),
    ),
    "a simulation": (("simulate", "synthetic", "--nodes", "2"), ("GPU demand dropped %",)),
}


@pytest.mark.parametrize(("arguments", "whole"), CALLS.values(), ids=CALLS)
def test_a_table_fits_80_columns(arguments: tuple[str, ...], whole: tuple[str, ...]) -> None:
    """Addresses alone are longer: a broken one cannot be followed."""
    with serving_reports(LONG_NAMES) if AGENT in arguments else nullcontext([""]) as (address,):
        given = [address if each == AGENT else each for each in arguments]
        result = CliRunner().invoke(main, given, env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [line for line in result.stdout.splitlines() if len(line.rstrip()) > 80 and "https://" not in line] == []
    assert [text for text in whole if text not in result.stdout] == []
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []


def test_a_column_that_nobody_fills_is_not_shown() -> None:
    """No node has more to say than its result."""
    arguments = ("explain", "vllm", "--gpus", "8xH100-80GB", "-f", f"{EXAMPLES}/2-vllm-replicas")
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "80"}, catch_exceptions=False)
    heading = next(line for line in result.stdout.splitlines() if line.startswith("NODE "))
    assert heading.split() == ["NODE", "RESULT"]


@pytest.mark.parametrize("command", ["list", "verify", "warm", "evict"])
def test_a_missing_folder_of_models_is_said(command: str, tmp_path: Path) -> None:
    """It is most often a wrong path."""
    missing = tmp_path / "missing"
    result = CliRunner().invoke(main, ["models", command, str(missing), *(["3f2a"] if command == "evict" else [])])
    assert result.exit_code == 2
    assert f"{missing}: there is no such folder: check the path" in result.stderr


@pytest.mark.parametrize(("command", "code"), [("list", 0), ("verify", 2), ("warm", 2), ("evict", 2)])
def test_a_folder_without_a_revision_is_said(command: str, code: int, tmp_path: Path) -> None:
    """With the command that fetches one."""
    result = CliRunner().invoke(main, ["models", command, str(tmp_path), *(["3f2a"] if command == "evict" else [])])
    assert result.exit_code == code
    assert "no revision" in result.stderr
    assert result.stdout == ""
    assert f"tessera models sync SRC {tmp_path}" in result.stderr


@pytest.mark.parametrize(("source", "want"), [("missing", "there is no such folder: check the"), (".", "no objects")])
def test_a_source_without_a_model_is_said(source: str, want: str, tmp_path: Path) -> None:
    """Nothing was fetched, and trying again is no advice."""
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(main, ["models", "sync", str(tmp_path / "empty" / source), str(tmp_path / "kept")])
    assert result.exit_code == 1
    assert want in result.stderr
