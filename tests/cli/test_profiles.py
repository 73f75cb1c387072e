"""`tessera profiles` prints the facts a user looks up, for people and for programs."""

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from tessera.cli import main
from tessera.cli.profiles import profiles
from tessera.core.gpu.gpumodels import CATALOG


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(profiles, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def rows(text: str) -> dict[str, list[str]]:
    """Return the words of each line by its first word."""
    return {words[0]: words for words in map(str.split, text.splitlines()) if words}


@pytest.mark.parametrize(
    ("gpu", "want"),
    [
        ("nvidia-tesla-a100", {"1g.5gb": 7, "2g.10gb": 3, "3g.20gb": 2, "7g.40gb": 1}),
        ("nvidia-a100-80gb", {"1g.10gb": 7, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1}),
        ("nvidia-h100-80gb", {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "7g.80gb": 1}),
    ],
)
def test_gke_table_of_partitions_comes_out(gpu: str, want: dict[str, int]) -> None:
    table = rows(shown(gpu).partition("slice ")[0])
    assert {name: int(table[name][3]) for name in want} == want


def test_a_profile_row_has_slices_memory_count_sm_id_starts_and_how_they_are_known() -> None:
    table = rows(shown("H100-80GB").partition("slice ")[0])
    assert table["2g.20gb"] == ["2g.20gb", "2", "20090", "3", "32", "14", "0", "2", "4", "observed"]


def test_placements_are_drawn_under_their_memory_slices() -> None:
    lines = {line.split()[0]: line for line in shown("H100-80GB").partition("slice ")[2].splitlines() if line.strip()}
    axis = next(line for line in shown("H100-80GB").splitlines() if line.startswith("slice "))
    assert lines["4g.40gb"] == "4g.40gb     [──────────0───────────]"
    assert lines["2g.20gb"] == "2g.20gb     [────0─────][────2─────][────4─────]"
    ones = lines["1g.10gb"]
    assert [ones.index(str(unit), 11) for unit in range(7)] == [axis.index(str(unit)) for unit in range(7)]


@pytest.mark.parametrize(
    ("gpu", "want"),
    [
        pytest.param("A100-40GB", r"layouts +239 maximal layouts", id="maximal layouts"),
        pytest.param("A100-40GB", r"mig-parted +all-disabled, all-enabled, all-1g\.5gb,", id="named configurations"),
        pytest.param("A100-40GB", r"also called +A100-SXM4-40GB,", id="other names"),
        pytest.param("A100-40GB", r"media +at most one \+me instance per GPU", id="media rule"),
        pytest.param("A100-40GB", r"sources\n  smi: memory total", id="sources"),
        pytest.param("A100-40GB", r"observed +placements as nvidia-smi lists them", id="how placements are known"),
        pytest.param("B300", r"1g\.34gb +1 +~30942 ", id="an estimate is marked"),
        pytest.param("B300", r"memory +~ marks a low estimate", id="and explained"),
        pytest.param("RTX-PRO-5000", r"2g\.24gb-me +2 +~\d+ +1 +\? +unknown", id="placements not known"),
        pytest.param("RTX-PRO-5000", r"memory slices unknown", id="an axis not known"),
        pytest.param("RTX-PRO-5000", r"note +placements were not found", id="a note"),
        pytest.param("T4", r"^T4, Turing, 15360 MiB usable, no MIG\n", id="a GPU without MIG"),
        pytest.param("L40", r"no MIG\nsources\n  smi", id="a GPU without other names"),
    ],
)
def test_of_one_model_it_tells(gpu: str, want: str) -> None:
    assert re.search(want, shown(gpu))


def test_without_a_model_all_are_listed() -> None:
    text = shown()
    table = rows(text)
    assert {each.name for each in CATALOG} <= table.keys()
    assert table["H100-80GB"] == ["H100-80GB", "Hopper", "81559", "7", "8", "observed"]
    assert table["T4"] == ["T4", "Turing", "15360", "no", "MIG"]
    assert "~45776" in text
    assert "~ marks a low estimate" in text


def test_json_of_all_models_is_a_summary_each() -> None:
    facts = {each["name"]: each for each in json.loads(shown("-o", "json"))}
    assert facts["RTX-PRO-5000-Blackwell-48GB"] == {
        "name": "RTX-PRO-5000-Blackwell-48GB",
        "arch": "Blackwell",
        "memory_mib": 45776,
        "memory_known": False,
        "mig": True,
        "compute_slices": 4,
        "memory_slices": 0,
        "placement": "unknown",
    }
    assert facts["T4"]["placement"] is None


def test_json_of_one_model_has_everything() -> None:
    facts: dict[str, Any] = json.loads(shown("a100-40gb", "-o", "json"))
    assert facts["name"] == "A100-40GB"
    assert facts["profiles"][0]["starts"] == [0, 1, 2, 3, 4, 5, 6]
    assert {"start": 4, "size": 4, "profile": "3g.20gb"} in facts["placements"]
    assert facts["configurations"]["all-balanced"] == {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    assert facts["maximal_layouts"] == 239
    assert set(facts["sources"]) == {"smi", "ug-profiles", "go-nvml", "instaslice", "mig-parted"}


@pytest.mark.parametrize("output", ["table", "json"])
def test_an_unknown_model_is_one_line_and_exit_code_2(output: str) -> None:
    result = CliRunner().invoke(main, ["profiles", "A100", "-o", output])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: GPU model: 'A100' is not a GPU model that Tessera knows: "
        "did you mean A100-40GB or A100-80GB? `tessera profiles` lists all\n"
    )


def test_help_has_examples() -> None:
    assert "tessera profiles A100-40GB\n" in shown("--help")


@pytest.mark.parametrize("gpu", [each for each in CATALOG if each.memory_slices], ids=lambda each: each.name)
def test_every_model_can_be_drawn(gpu: Any) -> None:
    """Placements of one profile lie side by side on every model, so one line is enough for each."""
    boxes = rows(shown(gpu.name).partition("slice ")[2])
    assert all("".join(boxes[each.name]).count("[") == len(each.starts) for each in gpu.profiles)
