"""The changes between two views of a fleet: applied to the earlier view, they make the later one."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.explain.fleetview import FleetChange, FleetView, NodeView, PendingView, changes

NODES = st.lists(
    st.builds(NodeView, name=st.sampled_from("abcd"), ready=st.booleans()), unique_by=lambda each: each.name
)
MEMORY = st.dictionaries(st.just("GPU-0"), st.dictionaries(st.sampled_from(("x/p", "x/q")), st.integers(0, 2)))
VIEWS = st.builds(
    FleetView,
    nodes=NODES.map(lambda found: tuple(sorted(found, key=lambda each: each.name))),
    pending=st.sampled_from([(), (PendingView(namespace="ns", pod="p", need="a GPU"),)]),
    partial=st.booleans(),
    activity=st.dictionaries(st.sampled_from(("x/p", "x/q")), st.integers(0, 2)),
    memory_mib=MEMORY,
)


def applied(view: FleetView, change: FleetChange) -> FleetView:
    """Apply a change as a viewer's page does."""
    nodes = {each.name: each for each in view.nodes if each.name not in change.gone}
    nodes |= {each.name: each for each in change.nodes}
    rest = change.rest if change.rest is not None else view
    activity = view.activity if change.activity is None else change.activity
    memory_mib = view.memory_mib if change.memory_mib is None else change.memory_mib
    present = tuple(nodes[name] for name in sorted(nodes))
    return msgspec.structs.replace(rest, nodes=present, activity=activity, memory_mib=memory_mib)


@given(before=VIEWS, after=VIEWS)
def test_the_changes_make_the_later_view_of_the_earlier(before: FleetView, after: FleetView) -> None:
    change = changes(before, after)
    assert applied(before, change) == after
    assert bool(change) == (before != after)
    assert not {each.name for each in change.nodes if each in before.nodes}, "what is unchanged is not sent"


@given(VIEWS, st.dictionaries(st.sampled_from(("x/p", "x/q")), st.integers(0, 2)), MEMORY)
def test_where_only_activity_and_memory_change_nothing_else_is_sent(
    view: FleetView, activity: dict[str, int], memory_mib: dict[str, dict[str, int]]
) -> None:
    found = changes(view, msgspec.structs.replace(view, activity=activity, memory_mib=memory_mib))
    assert found == FleetChange(
        activity=None if activity == view.activity else activity,
        memory_mib=None if memory_mib == view.memory_mib else memory_mib,
    )
