"""Batch Jobs on the model and the parts of GPUs of a server."""

from builders.modelservers import server
from builders.rendered import VLLM
from tessera.core.serving.annotations import SERVER_LABEL
from tessera.core.serving.render import job

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
