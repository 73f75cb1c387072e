"""Events about nodes and pods, counted when repeated."""

import datetime as dt

from tessera.api.tessera.node.nodereports import Report, Subject, event, event_name
from tessera.clients.kube.protocol import EVENTS, Kube
from tessera.core.workload.tesseranames import AGENT

__all__ = ["record_event"]


async def record_event(
    kube: Kube, about: str | Subject, report: Report, now: dt.datetime, *, component: str = AGENT
) -> None:
    """Write an event about an object, a node by its name, or count it if the same report was written before.

    Raises:
        Conflict: another wrote it at the same moment.
        Unavailable: the API server does not answer.

    """
    subject = Subject.of_node(about) if isinstance(about, str) else about
    name, namespace = event_name(subject, report), subject.namespace or "default"
    former = await kube.get(EVENTS, name, namespace)
    count = 1 + int((former or {}).get("count") or 0)
    new = event(subject, report, now, count=count, component=component)
    if former is None:
        await kube.create(EVENTS, new)
    else:
        again = {key: new[key] for key in ("count", "lastTimestamp")}
        await kube.patch(EVENTS, name, again, namespace=namespace)
