"""The real Helm as tests run it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from testbed.cluster import Cluster
from testbed.deploy import NAMESPACE

__all__ = ["Helm"]


class Helm:
    """The real Helm, with folders of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder

    def run(self, *arguments: str, values: dict[str, Any] | None = None, cluster: Cluster | None = None) -> str:
        """Return what it prints."""
        file = self._folder / "values.json"
        file.write_text(json.dumps(values or {}))
        homes = {f"HELM_{name}_HOME": str(self._folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        kubeconfig = {"KUBECONFIG": str(cluster.kubeconfig if cluster else "/dev/null")}
        command = (str(self._program), *arguments, "-n", NAMESPACE, *(("--values", str(file)) if values else ()))
        variables = {**os.environ, **homes, **kubeconfig}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout
