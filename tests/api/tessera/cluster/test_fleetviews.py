"""Views of a fleet as the page reads them."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.tessera.cluster.fleetviews import write_change, write_event, write_fleet
from tessera.core.explain.fleetview import FleetChange, FleetView, NodeView, changes


def applied(before: FleetView, content: bytes) -> FleetView:
    """Return the view after a change, as the page makes it."""
    change = msgspec.json.decode(content, type=FleetChange)
    kept = {each.name: each for each in before.nodes if each.name not in change.gone}
    kept |= {each.name: each for each in change.nodes}
    rest = change.rest or before
    activity = before.activity if change.activity is None else change.activity
    return msgspec.structs.replace(rest, nodes=tuple(kept[name] for name in sorted(kept)), activity=activity)


NODES = st.dictionaries(st.sampled_from("abc"), st.booleans()).map(
    lambda found: tuple(NodeView(name=name, ready=ready) for name, ready in sorted(found.items()))
)


ACTIVITY = st.dictionaries(st.sampled_from(("x/p", "x/q")), st.integers(0, 2))
VIEWS = st.builds(
    FleetView, nodes=NODES, pending_elsewhere=st.integers(0, 2), namespaces=st.just(("x",)), activity=ACTIVITY
)


@given(VIEWS, VIEWS)
def test_a_change_leads_from_one_view_to_the_other(before: FleetView, after: FleetView) -> None:
    change = changes(before, after)
    assert applied(before, write_change(change)) == after
    assert bool(change) == (before != after)


@given(VIEWS)
def test_what_is_written_is_read(view: FleetView) -> None:
    assert msgspec.json.decode(write_fleet(view), type=FleetView) == view


def test_an_event_ends_with_an_empty_line() -> None:
    assert write_event("fleet", b"{}", "r1-2") == b"event: fleet\nid: r1-2\ndata: {}\n\n"
    assert write_event("viewer", b"{}") == b"event: viewer\ndata: {}\n\n"
