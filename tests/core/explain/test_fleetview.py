"""The changes between two views of a fleet: applied to the earlier view, they make the later one."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from builders.fleetviews import USAGE, VIEWS, applied
from tessera.core.explain.fleetview import FleetChange, FleetView, changes


@given(before=VIEWS, after=VIEWS)
def test_the_changes_make_the_later_view_of_the_earlier(before: FleetView, after: FleetView) -> None:
    change = changes(before, after)
    assert applied(before, change) == after
    assert bool(change) == (before != after)


@given(before=VIEWS, after=VIEWS)
def test_what_is_unchanged_is_not_sent(before: FleetView, after: FleetView) -> None:
    change = changes(before, after)
    assert not {each.name for each in change.nodes if each in before.nodes}
    assert all(before.activity.get(pod) != percent for pod, percent in change.activity.items())
    for gpu, pods in change.memory_mib.items():
        assert pods != {}
        assert all(before.memory_mib.get(gpu, {}).get(pod) != mib for pod, mib in (pods or {}).items())


@given(VIEWS, USAGE, st.dictionaries(st.just("GPU-0"), USAGE))
def test_where_only_activity_and_memory_change_nothing_else_is_sent(
    view: FleetView, activity: dict[str, int], memory_mib: dict[str, dict[str, int]]
) -> None:
    change = changes(view, msgspec.structs.replace(view, activity=activity, memory_mib=memory_mib))
    assert msgspec.structs.replace(change, activity={}, memory_mib={}) == FleetChange()


def test_of_one_pod_that_uses_other_memory_nothing_but_that_is_sent() -> None:
    before = FleetView(nodes=(), activity={"x/p": 1, "x/q": 2}, memory_mib={"GPU-0": {"x/p": 5, "x/q": 6}, "GPU-1": {}})
    after = msgspec.structs.replace(before, activity={"x/p": 1}, memory_mib={"GPU-0": {"x/p": 5, "x/q": 7}})
    want = FleetChange(activity={"x/q": None}, memory_mib={"GPU-0": {"x/q": 7}, "GPU-1": None})
    assert changes(before, after) == want
