"""A Pod object that has run to its end: how it ended, and its devices. Nothing raises, even for malformed objects."""

from collections.abc import Iterator, Mapping
from typing import Any

from tessera.api.fields import Field
from tessera.api.kubernetes.podstates import is_finished
from tessera.api.tessera.pods.assignments import read_shares
from tessera.api.tessera.pods.clusterpods import object_field
from tessera.api.untyped import as_dict
from tessera.core.cluster.cluster import FinishedPod
from tessera.core.cluster.snapshot import NodeName, Share
from tessera.core.workload.need import PodKey
from tessera.errors import InvalidInput

__all__ = ["read_finished_pod"]


def read_finished_pod(pod: Mapping[str, Any]) -> FinishedPod | None:
    """Return how a pod ended, by its status, and its recorded devices; None if it has not finished."""
    field = object_field("Pod", pod)
    metadata, spec, status = (as_dict(pod.get(part)) for part in ("metadata", "spec", "status"))
    if not status or not is_finished(field):
        return None
    return FinishedPod(
        pod=PodKey(f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or ''}"),
        node=NodeName(_text(spec, "nodeName")) or None,
        scheduler=_text(spec, "schedulerName"),
        failed=status.get("phase") == "Failed",
        reason=": ".join(filter(None, (_text(status, "reason"), _text(status, "message")))),
        containers=tuple(_ended(status)),
        shares=_shares(field),
    )


def _ended(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield how each failed container ended."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        listed = status.get(kind)
        for each in listed if isinstance(listed, list) else ():
            ended = as_dict(as_dict(as_dict(each).get("state")).get("terminated"))
            code, reason = ended.get("exitCode"), _text(ended, "reason")
            if isinstance(code, int) and code:
                yield f"container {_text(each, 'name')} ended with exit code {code}{f' ({reason})' if reason else ''}"


def _shares(field: Field) -> tuple[Share, ...]:
    try:
        return read_shares(field, None) or ()
    except InvalidInput:
        return ()


def _text(part: Mapping[str, Any], name: str) -> str:
    value = part.get(name)
    return value if isinstance(value, str) else ""
