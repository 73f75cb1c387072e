"""Options of an engine: Tessera's, the user's, and those that cannot be."""

import re
from pathlib import Path

import pytest

from builders.rendered import VLLM, container, rendered
from tessera.core.serving.engineflags import check_options, options_of
from tessera.errors import InvalidInput

RECORDED = Path(__file__).parents[2] / "data" / "servermetrics"


def test_options_of_the_user_come_before_those_of_tessera() -> None:
    args = container(VLLM | {"args": ["--max_num_seqs", "8", "--no-enable-prefix-caching", "-q", "fp8"]})["args"]
    assert not [each for each in args if each.startswith("--max-num-seqs")]
    assert args[-5:] == ["--max_num_seqs", "8", "--no-enable-prefix-caching", "-q", "fp8"]


BAD_ARGS = {
    "misspelled": ("vllm", ["--max-model-length=1"], "did you mean --max-model-len"),
    "of the other engine": ("triton", ["--max-model-len=1"], "allowUnknownArgs"),
    "a short one that is none": ("triton", ["-q"], "an option of triton"),
    "a port": ("triton", ["--http-port=1"], "the Service and the probes expect 8000"),
    "the number of GPUs": ("vllm", ["--tensor-parallel-size", "2"], "spec.gpu.count"),
    "the number of GPUs, in short": ("vllm", ["-tp", "2"], "spec.gpu.count"),
    "the number of GPUs, with underscores": ("vllm", ["--tensor_parallel_size=2"], "spec.gpu.count"),
}


@pytest.mark.parametrize("case", BAD_ARGS)
def test_options_that_cannot_be_are_refused_with_their_place(case: str) -> None:
    engine, args, want = BAD_ARGS[case]
    with pytest.raises(InvalidInput, match=re.escape(want)) as caught:
        rendered({"engine": engine, "args": ["value", "-3", *args]})
    assert caught.value.subject == "server: spec.args[2]"


def test_options_of_another_version_are_taken_where_that_is_said() -> None:
    assert "--brand-new" in container({"args": ["--brand-new"], "allowUnknownArgs": True})["args"]


@pytest.mark.parametrize("engine", ["triton", "vllm"])
def test_the_options_that_tessera_writes_are_those_of_the_engine(engine: str) -> None:
    args = container({"engine": engine})["args"]
    check_options(engine, args, "args")  # type: ignore[arg-type]  # a parameter is a plain text
    assert len(options_of(args)) > 4


def test_the_options_of_a_vllm_that_ran_are_known_and_those_that_tessera_writes_are_among_them() -> None:
    """Of vLLM 0.32.0, the release before the one whose options are listed; recorded from its `--help=all`."""
    recorded = (RECORDED / "vllm-options.txt").read_text().split()
    assert len(recorded) > 300
    check_options("vllm", recorded, "args")
    for gpu in ({"memoryGiB": 20}, {"resource": "nvidia.com/gpu", "count": 2}):
        written = container(VLLM | {"gpu": gpu})["args"]
        assert {f"--{each}" for each in options_of(written)} <= {*recorded}
