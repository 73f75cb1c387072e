"""The text of the program that starts vLLM, and that it changes only where that is meant."""

import hashlib
import json
from typing import Any

import pytest

from builders.rendered import VLLM, pod_template
from tessera.core.serving.render.vllmprogram import START

NEED = {"memoryGiB": 20}
TEMPLATES: dict[str, tuple[dict[str, Any], str]] = {
    "vllm": ({"gpu": NEED, **VLLM}, "a51c71ed55ea82c1"),
    "vllm with a size": ({**VLLM, "args": ["--gpu-memory-utilization=0.4"]}, "12582794548f7d47"),
    "triton": ({"gpu": NEED}, "b43093c21f6b8b5f"),
}


@pytest.mark.parametrize("case", TEMPLATES)
def test_the_template_of_pods_changes_only_where_that_is_meant(case: str) -> None:
    spec, want = TEMPLATES[case]
    found = hashlib.sha256(json.dumps(pod_template(spec), sort_keys=True).encode()).hexdigest()[:16]
    assert found == want, "this restarts every model server of a cluster: say so in CHANGELOG.md, then write it here"


def test_the_program_is_what_runs_alone() -> None:
    for each in ("Args:", "Source:", "# ", "tessera.core", "->", "__all__"):
        assert each not in START
