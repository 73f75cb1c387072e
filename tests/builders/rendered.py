"""What model servers become, by their objects."""

from typing import Any

from builders.modelservers import server
from tessera.core.serving.render import render
from tessera.core.serving.serverstatus import StartedReplicas

VLLM = {"engine": "vllm", "image": "example.com/vllm:1", "model": {"cache": "llama"}}


def rendered(
    spec: dict[str, Any] | None = None, prometheus: str = "", started: StartedReplicas | None = None, **metadata: Any
) -> dict[str, dict[str, Any]]:
    """Return the objects by their kinds."""
    found = render(server(spec, **metadata), "server", prometheus=prometheus, started=started)
    return {each["kind"]: each for each in found}


def pod_template(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = rendered(spec)["Deployment"]["spec"]["template"]
    return found


def container(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    (found,) = pod_template(spec)["spec"]["containers"]
    return dict(found)
