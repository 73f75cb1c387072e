"""The dashboard page's wire format: JSON of `GET /api/fleet`, and the events of `GET /api/events` (docs/page.md).

Fields are named as in `core/explain/fleetview`; those that are empty, false or unknown are left out. The points of a
model server are lists: seconds since 1970, desired replicas, ready replicas, requests in flight.
"""

import msgspec

from tessera.core.explain.fleetview import FleetChange, FleetView

__all__ = ["write_change", "write_event", "write_fleet"]


def write_fleet(view: FleetView) -> bytes:
    """Return a view as JSON."""
    return msgspec.json.encode(view)


def write_change(change: FleetChange) -> bytes:
    """Return a change as JSON."""
    return msgspec.json.encode(change)


def write_event(kind: str, data: bytes, event_id: str = "") -> bytes:
    """Return a server-sent event; JSON has no line breaks. Source: WHATWG HTML, "Server-sent events"."""
    numbered = f"id: {event_id}\n" if event_id else ""
    return f"event: {kind}\n{numbered}data: ".encode() + data + b"\n\n"
