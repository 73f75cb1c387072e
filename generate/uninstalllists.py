"""The lists of deploy/uninstall: what the chart installs outside of its namespace, and what agents write on nodes."""

import re
from collections.abc import Iterable
from typing import Any

from generate.reference.names import names
from tessera.api.tessera.node.nodereports import CONDITION, CONFIGURATION
from tessera.api.tessera.storage.nodedisks import CONDITION as DISKS

__all__ = ["with_lists"]

_PLACE = re.compile(
    r"(?<=^# Lists made by scripts/generate; do not edit\.\n).*?(?=^# End of these lists\.$)", re.DOTALL | re.MULTILINE
)
_APART = {"Namespace", "CustomResourceDefinition", "APIService"}
"""Kinds that it deletes in steps of their own."""
_OURS = "tessera.dev/"


def with_lists(script: str, objects: Iterable[dict[str, Any]]) -> str:
    """Return the script with its lists.

    Args:
        script: its text.
        objects: all that the chart may install.

    """
    outside = {
        each["kind"]
        for each in objects
        if each["metadata"].get("namespace") != "tessera-system"
        and each["kind"] not in _APART
        and _OURS not in each["apiVersion"]
    }
    kinds = sorted(re.sub("ys$", "ies", re.sub("sss$", "sses", f"{each}s")).lower() for each in outside)
    own = sorted(
        name.removeprefix(_OURS)
        for name, facts in names()
        if name.startswith(_OURS) and facts["owner"] == "a node" and facts["writer"] in {"the agent", "the disk agent"}
    )
    lines = (
        f"kinds='{' '.join(kinds)}'",
        f"own='{re.escape(_OURS)}({'|'.join(own)})'",
        f"conditions='{CONDITION} {CONFIGURATION} {DISKS}'",
    )
    return _PLACE.sub(lambda _: "".join(f"{each}\n" for each in lines), script)
