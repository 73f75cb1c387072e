"""Tessera on a testbed as on any cluster: by its image, and by the objects of the chart."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tessera import __version__
from testbed.deploy import NAMESPACE, rendered
from testbed.node import SIMULATED_GPUS, Node
from testbed.tesseraimage import REPOSITORY, scheduler_image, tessera_image

__all__ = ["LABEL", "PARTS", "images", "install", "values"]

LABEL = "tessera.dev/agent"
"""Label of the nodes that have an agent."""
PARTS = {
    "server": "deployment/tessera-server",
    "controller": "deployment/tessera-controller",
    "agent": "daemonset/tessera-agent",
}
_READY_S = 180
_DRIVER = "/opt/nvmlsim"
"""Where the image has the library of the simulated GPUs, and the program that comes with a driver."""


class Kubectl(Protocol):
    """The part of a cluster that is needed here."""

    def kubectl(self, *arguments: str, input_text: str | None = None) -> str:
        """Return what kubectl prints, as the administrator."""


def images(folder: Path, bin_folder: Path, report: Callable[[str], None]) -> tuple[Path, ...]:
    """Return the archives of what the pods run, made where they are not there.

    Args:
        folder: of the testbed's own images.
        bin_folder: the testbed's programs.
        report: told each step as it begins.

    """
    return tessera_image(report), scheduler_image(folder, bin_folder)


def values(*, scheduler: bool, admission: bool) -> dict[str, Any]:
    """Return the chart's values for a testbed: one of each, and simulated GPUs instead of a driver."""
    gpus = str(SIMULATED_GPUS)
    driver = {
        "LD_LIBRARY_PATH": _DRIVER,
        "PATH": f"{_DRIVER}/bin:/usr/local/bin:/usr/bin:/bin",
        "TESSERA_NVMLSIM_STATE": f"{gpus}/state",
    }
    agent = {
        "args": [f"--mig-minors={gpus}/mig-minors"],
        "pullSecrets": ["registry"],
        "env": [{"name": name, "value": value} for name, value in driver.items()],
        "volumes": [{"name": "gpus", "hostPath": {"path": gpus, "type": "Directory"}}],
        "volumeMounts": [{"name": "gpus", "mountPath": gpus}],
    }
    return {
        "createNamespace": True,
        "image": {"repository": REPOSITORY, "tag": __version__},
        "agent": agent,
        "server": {"replicas": int(scheduler), "page": True},
        "controller": {"replicas": int(scheduler)},
        "admission": {} if admission else {"policies": False, "routing": "none"},
    }


def install(cluster: Kubectl, nodes: tuple[Node, ...], objects: dict[str, Any], report: Callable[[str], None]) -> None:
    """Apply the objects of the chart, and return when all pods are ready.

    Args:
        cluster: which has the images on its nodes.
        nodes: that get an agent.
        objects: the chart's values.
        report: told each step as it begins.

    """
    for one in nodes:
        cluster.kubectl("label", "node", one.name, f"{LABEL}=true", "--overwrite")
    apply = partial(cluster.kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-")
    for several in _namespaces_first(rendered(objects)):
        apply(input_text=json.dumps({"apiVersion": "v1", "kind": "List", "items": several}))
    for name, workload in PARTS.items():
        report(f"{name}, from the image")
        cluster.kubectl("rollout", "status", workload, f"--namespace={NAMESPACE}", f"--timeout={_READY_S}s")


def _namespaces_first(objects: tuple[dict[str, Any], ...]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the objects in two parts: those that others lie in, and the rest."""
    first = [each for each in objects if each["kind"] == "Namespace"]
    return first, [each for each in objects if each["kind"] != "Namespace"]
