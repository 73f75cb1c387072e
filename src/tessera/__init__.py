"""Tessera shares a Kubernetes cluster's GPUs. The command is `tessera`; `plan` is `tessera plan` for Python programs.

`__all__` is public and described in docs/python.md; all other modules are private and may change.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tessera._planning import (
        AssignmentDocument,
        Conflict,
        CostDocument,
        DeviceDocument,
        FitDocument,
        FleetInput,
        InvalidInput,
        LayoutDocument,
        LeftOutDocument,
        ManifestInput,
        NodesDocument,
        PendingPodDocument,
        PlanDocument,
        ShareUnit,
        SliceDocument,
        SummaryDocument,
        TesseraError,
        Unavailable,
        Unsupported,
        plan,
    )

__all__ = [
    "AssignmentDocument",
    "Conflict",
    "CostDocument",
    "DeviceDocument",
    "FitDocument",
    "FleetInput",
    "InvalidInput",
    "LayoutDocument",
    "LeftOutDocument",
    "ManifestInput",
    "NodesDocument",
    "PendingPodDocument",
    "PlanDocument",
    "ShareUnit",
    "SliceDocument",
    "SummaryDocument",
    "TesseraError",
    "Unavailable",
    "Unsupported",
    "__version__",
    "plan",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Return a public name, importing its module on first use: the command starts without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module("tessera._planning"), name)
    globals()[name] = found
    return found
