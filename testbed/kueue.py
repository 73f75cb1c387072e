"""Kueue as its users install it: its own chart and its own manager, from the Go module, in an image made here."""

import platform
import shutil
from pathlib import Path
from typing import Any

import yaml

from testbed.images import Image, write_archive, write_layer
from testbed.programs import Module

__all__ = ["KUEUE", "kueue_chart", "kueue_image"]

_PATH = "sigs.k8s.io/kueue"
_VERSION = "v0.17.0"
KUEUE = (
    Module(
        "kueue",
        _PATH,
        _VERSION,
        (f"{_PATH}/cmd/kueue",),
        (f"-X {_PATH}/pkg/version.GitVersion={_VERSION}",),
        files=("charts",),
    ),
)
"""Kueue's manager and chart, which a walk-through asks; built in about five minutes on two cores."""
_REPOSITORY = "testbed.local/kueue"


def kueue_image(folder: Path, program: Path) -> Path:
    """Return the archive of the image of Kueue's manager, written where it is not there.

    Args:
        folder: where it lies.
        program: the manager itself.

    """
    archive = folder / "kueue.tar"
    if not archive.exists():
        root = folder / "kueue"
        root.mkdir(parents=True)
        shutil.copy(program, root / "manager")  # where the chart expects it
        write_layer(folder / "kueue-layer.tar", root)
        image = Image(f"{_REPOSITORY}:{_VERSION}", {"User": "65532:65532", "WorkingDir": "/"})
        write_archive(archive, image, (folder / "kueue-layer.tar",), platform.machine())
    return archive


def kueue_chart(target: Path, chart: Path) -> None:
    """Write Kueue's chart with this testbed's image in place of the one that Kueue publishes.

    Args:
        target: a folder that becomes the chart.
        chart: Kueue's own.

    """
    shutil.copytree(chart, target)
    target.chmod(0o755)
    path = target / "values.yaml"
    path.chmod(0o644)
    values: dict[str, Any] = yaml.safe_load(path.read_text())
    manager = values["controllerManager"]["manager"]
    manager["image"] = {"repository": _REPOSITORY, "tag": _VERSION, "pullPolicy": "Never"}
    manager["resources"] = {}
    path.write_text(yaml.safe_dump(values))
