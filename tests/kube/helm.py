"""The real Helm as tests run it."""

import json
import os
import subprocess
import tempfile
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
        with self.start(*arguments, values=values, cluster=cluster) as running:
            out, err = running.communicate()
        assert running.returncode == 0, f"helm {' '.join(arguments)}: {err}"
        return out

    def start(
        self, *arguments: str, values: dict[str, Any] | None = None, cluster: Cluster | None = None
    ) -> subprocess.Popen[str]:
        """Return the process."""
        descriptor, file = tempfile.mkstemp(dir=self._folder, suffix=".json")
        with os.fdopen(descriptor, "w") as written:
            written.write(json.dumps(values or {}))
        homes = {f"HELM_{name}_HOME": str(self._folder / name) for name in ("CACHE", "CONFIG", "DATA")}
        kubeconfig = {"KUBECONFIG": str(cluster.kubeconfig if cluster else "/dev/null")}
        command = (str(self._program), *arguments, "-n", NAMESPACE, *(("--values", file) if values else ()))
        variables = {**os.environ, **homes, **kubeconfig}
        return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
