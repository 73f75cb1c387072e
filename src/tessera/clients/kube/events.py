"""Events about nodes, counted where the same one comes again."""

import datetime as dt

from tessera.api.nodereports import Report, event, event_name
from tessera.clients.kube.protocol import EVENTS, Kube

__all__ = ["record_event"]


async def record_event(
    kube: Kube, node: str, report: Report, now: dt.datetime, *, component: str = "tessera-agent"
) -> None:
    """Write an event about a node, or count it where the same report was written before.

    Raises:
        Conflict: another wrote it at the same moment.
        Unavailable: the API does not answer.

    """
    name = event_name(node, report)
    former = await kube.get(EVENTS, name, "default")
    count = 1 + int((former or {}).get("count") or 0)
    new = event(node, report, now, count=count, component=component)
    if former is None:
        await kube.create(EVENTS, new)
    else:
        again = {key: new[key] for key in ("count", "lastTimestamp")}
        await kube.patch(EVENTS, name, again, namespace="default")
