"""What model servers become, by their objects."""

from typing import Any

from builders.modelservers import server
from tessera.core.serving.render import render

VLLM = {"engine": "vllm", "image": "example.com/vllm:1", "model": {"cache": "llama"}}


def rendered(spec: dict[str, Any] | None = None, prometheus: str = "", **metadata: Any) -> dict[str, dict[str, Any]]:
    """Return the objects by their kinds."""
    return {each["kind"]: each for each in render(server(spec, **metadata), "server", prometheus=prometheus)}


def pod_template(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = rendered(spec)["Deployment"]["spec"]["template"]
    return found


def container(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    (found,) = pod_template(spec)["spec"]["containers"]
    return dict(found)
