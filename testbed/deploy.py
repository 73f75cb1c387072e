"""The files of deploy/: read for a testbed; those that are generated, written by `scripts/generate`."""

import sys
from pathlib import Path
from typing import Any

from tessera.api import documents
from tessera.api.kubernetes import quota
from tessera.api.scheduler.configuration import configuration
from tessera.api.tessera import crds

__all__ = ["EXTENDER_URL", "FOLDER", "NAMESPACE", "objects", "write"]

FOLDER = Path(__file__).parents[1] / "deploy"
NAMESPACE = "tessera-system"
EXTENDER_URL = "http://127.0.0.1:39999"
"""Where `tessera server` answers the scheduler beside it: plain HTTP stays on loopback. The port is gpushare's."""

_HEAD = "# Made by scripts/generate; do not edit.\n"


def objects(*names: str) -> tuple[dict[str, Any], ...]:
    """Return the objects in files of deploy/, in order.

    Args:
        names: files, or folders for all files in them: `crds`, `rbac/agent.yaml`.

    """
    roots = [FOLDER / name for name in names]
    paths = [path for root in roots for path in (sorted(root.glob("*.yaml")) if root.is_dir() else [root])]
    read = [document.data for path in paths for document in documents.read(path.name, path.read_bytes())]
    return tuple(each for each in read if isinstance(each, dict))


def write(folder: Path) -> None:
    """Write the generated files below a folder that stands for deploy/."""
    sources = {module.__name__: Path(module.__file__ or "").read_text() for module in crds.SOURCES}
    files = {f"crds/{name}": each for name, each in crds.definitions(crds.descriptions(sources)).items()}
    files["scheduler/config.yaml"] = configuration(EXTENDER_URL)
    files["quota/needs-only.yaml"] = quota.needs_only()
    files["quota/kueue-resources.yaml"] = quota.kueue_resources()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_HEAD + documents.write(content))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
