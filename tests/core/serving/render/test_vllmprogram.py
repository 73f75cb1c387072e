"""The text of the program that starts vLLM, and that it changes only where that is meant."""

import hashlib
import json
from typing import Any

import pytest

from builders.rendered import VLLM, pod_template
from tessera.core.serving.render.vllmprogram import START, START_ALONE, START_SIZED

NEED = {"memoryGiB": 20}
TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "vllm": ({"gpu": NEED, **VLLM}, "936b6415cd65521b"),
    "vllm on a device of its own": ({"gpu": NEED | {"isolation": "hardware"}, **VLLM}, "f6433db2b8b9f762"),
    "vllm with a size": ({**VLLM, "args": ["--gpu-memory-utilization=0.4"]}, "25957825718a8643"),
    "triton": ({"gpu": NEED}, "b43093c21f6b8b5f"),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_the_template_of_pods_changes_only_where_that_is_meant(case: str) -> None:
    spec, want = TEMPLATES[case]
    found = hashlib.sha256(json.dumps(pod_template(spec), sort_keys=True).encode()).hexdigest()[:16]
    assert found == want, "this restarts every model server of a cluster: say so in CHANGELOG.md, then write it here"


def test_the_program_is_what_runs_alone() -> None:
    for each in ("Args:", "Source:", "# ", "tessera.core", "->", "__all__", "collections.abc", "Any", "Callable"):
        assert [program for program in (START, START_ALONE, START_SIZED) if each in program] == []


def test_on_a_device_of_its_own_the_program_is_short() -> None:
    assert len(START_ALONE.splitlines()) <= 25
    assert "batch_bytes" not in START_ALONE
