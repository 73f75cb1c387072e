"""A batch Job on the image, the model and the parts of GPUs of a model server."""

from typing import Any, Final

from tessera.core.serving.modelserver import ModelServer
from tessera.core.serving.render.engines import EngineProgram
from tessera.core.serving.render.objects import server_object
from tessera.core.serving.render.pods import pod_template
from tessera.errors import InvalidInput

__all__ = ["job"]

# Source: kubernetes `pkg/apis/batch/validation` (`completionsSoftLimit`, `parallelismLimitForHighCompletions`,
# `maxFailedIndexesLimitForHighCompletions`).
_MANY_PARTS: Final = 100_000
_MOST_OF_MANY: Final = 10_000


def job(server: ModelServer, command: tuple[str, ...], *, parallelism: int, completions: int) -> dict[str, Any]:
    """Return a Job that runs a program on the same image, model and parts of GPUs as a model server.

    Each pod has an index, `JOB_COMPLETION_INDEX`, which selects its part of the work; a failed one is retried three
    times, and the others go on.

    Args:
        server: image, model and part of a GPU.
        command: the program; empty for that of the image.
        parallelism: pods at once.
        completions: parts of the work.

    Raises:
        InvalidInput: more pods at once than Kubernetes takes for so many parts.

    """
    if completions > _MANY_PARTS and parallelism > _MOST_OF_MANY:
        raise InvalidInput(
            f"--parallelism {parallelism}",
            found=f"Kubernetes takes at most {_MOST_OF_MANY} for more than {_MANY_PARTS} completions",
            hint=f"lower it, or --completions to at most {_MANY_PARTS}",
        )
    runs = EngineProgram(command=command, args=(), ports=(), live="", ready="")
    template = pod_template(server, runs, serving=False)
    template["spec"]["restartPolicy"] = "Never"
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "parallelism": parallelism,
        "completions": completions,
        "backoffLimitPerIndex": 3,
        "template": template,
    }
    if completions > _MANY_PARTS:
        spec["maxFailedIndexes"] = _MOST_OF_MANY
    return server_object(server, "batch/v1", "Job", spec)
