"""Batch Jobs on the model and the parts of GPUs of a server."""

import pytest

from builders.modelservers import server
from builders.rendered import VLLM
from tessera.core.serving.annotations import SERVER_LABEL
from tessera.core.serving.render import job
from tessera.errors import InvalidInput

ALONE = {"memoryGiB": 20, "isolation": "hardware"}


def test_a_job_has_the_servers_model_and_gpu_and_is_not_found_by_its_service() -> None:
    found = job(server(VLLM | {"gpu": ALONE}), ("python3", "run.py"), parallelism=4, completions=60)
    assert (found["kind"], found["spec"]["parallelism"], found["spec"]["completions"]) == ("Job", 4, 60)
    template = found["spec"]["template"]
    (one,) = template["spec"]["containers"]
    assert one["command"] == ["python3", "run.py"]
    assert (
        one["resources"]["limits"].items() >= {"tessera.dev/gpu-memory": "20", "models.tessera.dev/llama": "1"}.items()
    )
    assert not {"args", "ports", "readinessProbe", "lifecycle"} & one.keys()
    assert SERVER_LABEL not in template["metadata"]["labels"]
    assert template["spec"]["restartPolicy"] == "Never"
    assert "command" not in job(server(), (), parallelism=1, completions=1)["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("completions", [1, 100_000, 100_001])
@pytest.mark.parametrize("parallelism", [1, 10_000, 10_001])
def test_a_job_is_within_the_bounds_of_kubernetes(completions: int, parallelism: int) -> None:
    """Source: Kubernetes, `pkg/apis/batch/validation`: more than 100,000 parts need both bounds."""
    many = completions > 100_000
    if many and parallelism > 10_000:
        with pytest.raises(InvalidInput, match=r"--parallelism 10001: .* at most 10000 for more than 100000"):
            job(server(), (), parallelism=parallelism, completions=completions)
    else:
        spec = job(server(), (), parallelism=parallelism, completions=completions)["spec"]
        assert (spec["parallelism"], spec["completions"]) == (parallelism, completions)
        assert spec.get("maxFailedIndexes") == (10_000 if many else None)
