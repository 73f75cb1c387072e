"""`tessera size`: what models need, from folders, files and numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from builders.modelconfigs import GEMMA, LLAMA_8B
from tessera.cli.size import size
from tessera.errors import TesseraError

NUMBERS = ("--layers", "32", "--kv-heads", "8", "--head-dim", "128")


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(size, [str(each) for each in words], standalone_mode=False, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def facts(*words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "-o", "json"))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def test_weights_are_as_large_as_what_says_most_of_them(folder: Path) -> None:
    counted = facts(folder)
    assert counted["weight_bytes"] == 2 * 8_030_261_248
    assert "computed from the widths" in counted["notes"][0]
    with (folder / "a.safetensors").open("wb") as file:
        file.truncate(1000)
    assert (facts(folder)["weight_bytes"], facts(folder)["notes"]) == (1000, [])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 2000}}))
    assert facts(folder / "config.json")["weight_bytes"] == 2000
    said = facts(folder, "--parameters", "1B", "--dtype", "fp8")
    assert (said["weight_bytes"], said["parameters"], said["dtype"]) == (10**9, 10**9, "fp8")


def test_every_size_of_instance_of_a_gpu_is_listed_once_the_smallest_first(folder: Path) -> None:
    found = facts(folder, "--gpu", "A100-40GB", "--gpu", "a100-40gb")["devices"]
    assert [each["profile"] for each in found] == ["1g.5gb", "1g.10gb", "3g.20gb", "7g.40gb", ""]
    assert [each["alike"] for each in found] == [["1g.5gb+me"], ["2g.10gb"], ["4g.20gb"], [], []]
    assert [each["fits"] for each in found] == [False, False, True, True, True]
    assert [each["tokens"] for each in found] == sorted(each["tokens"] for each in found)


def test_the_memory_to_request_is_the_least_that_suffices(folder: Path) -> None:
    requests = facts(folder)["requests"]
    assert [each["sequences"] for each in requests] == [1, 8, 16, 64]
    assert "memoryGiB to request: " in run(folder)
    assert f"{requests[0]['memory_gib']} for 1 sequence of this length, {requests[1]['memory_gib']} for 8, " in run(
        folder
    )


def test_the_context_is_the_models_where_that_is_shorter(tmp_path: Path) -> None:
    (tmp_path / "gemma.json").write_text(json.dumps(GEMMA))
    assert facts(tmp_path / "gemma.json")["context"] == 4096
    assert facts(tmp_path / "gemma.json", "--context", "100")["context"] == 100


def test_a_model_may_be_given_by_its_numbers() -> None:
    found = facts("--parameters", "8.03B", *NUMBERS, "--gpu", "H100-80GB", "--kv-dtype", "fp8")
    assert (found["weight_bytes"], found["dtype"], found["context"]) == (16_060_000_000, "bf16", 8192)
    assert found["kv_bytes_per_sequence"] == 8192 * 32 * 2 * 8 * 128
    assert found["devices"][-1]["tokens"] > 800_000


def test_the_table_says_what_holds_it_and_what_is_short(folder: Path) -> None:
    text = run(folder, "--gpu", "A100-40GB")
    assert "13.5 GiB short" in text
    assert "8.03B parameters in bf16, 14.96 GiB; a sequence of 8,192 tokens takes 1.000 GiB of KV cache" in text
    assert "note: the size of the weights is computed" in text
    assert "H100-80GB" in run(folder), "without --gpu some that many have"


WRONG = {
    "nothing": ((), "--parameters, --layers"),
    "half of the numbers": (
        ("--parameters", "8B", "--layers", "32"),
        "not all of its numbers are given: give a folder or config.json, or --kv-heads, --head-dim",
    ),
    "no number": (("--parameters", "8 billion", *NUMBERS), "a number such as 8.03B"),
    "none at all": (("--parameters", "0", *NUMBERS), "a number such as 8.03B"),
    "no such file": (("/no/such/folder",), "No such file"),
    "no such GPU": (("--parameters", "8B", *NUMBERS, "--gpu", "X9"), "a GPU model that Tessera knows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    words, want = WRONG[case]
    with pytest.raises(TesseraError) as caught:
        run(*words)
    assert want in str(caught.value)
