"""The dashboard page's wire format: JSON of `GET /api/fleet`, and the events of `GET /api/events` (docs/page.md).

Fields are named as in `core/explain/fleetview`; those that are empty, false or unknown are left out. The points of a
service are lists: seconds since 1970, desired replicas, ready replicas, requests in flight.
"""

import msgspec

from tessera.core.explain.fleetview import FleetChange, FleetView

__all__ = ["read_change", "read_fleet", "write_change", "write_event", "write_fleet"]

_FLEET, _CHANGE = msgspec.json.Decoder(FleetView), msgspec.json.Decoder(FleetChange)


def write_fleet(view: FleetView) -> bytes:
    """Return a view as JSON."""
    return msgspec.json.encode(view)


def read_fleet(content: bytes) -> FleetView:
    """Return the view in the JSON of `write_fleet`."""
    return _FLEET.decode(content)


def write_change(change: FleetChange) -> bytes:
    """Return a change as JSON."""
    return msgspec.json.encode(change)


def read_change(content: bytes) -> FleetChange:
    """Return the change in the JSON of `write_change`."""
    return _CHANGE.decode(content)


def write_event(kind: str, data: bytes, event_id: str = "") -> bytes:
    """Return a server-sent event; JSON has no line breaks. Source: WHATWG HTML, "Server-sent events"."""
    numbered = f"id: {event_id}\n" if event_id else ""
    return f"event: {kind}\n{numbered}data: ".encode() + data + b"\n\n"
