"""Views of a fleet, and what a page makes of the changes that it is sent."""

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis import strategies as st

from tessera.core.explain.fleetview import FleetChange, FleetView, NodeView, PendingView

__all__ = ["USAGE", "VIEWS", "applied"]

USAGE = st.dictionaries(st.sampled_from(("x/p", "x/q")), st.integers(0, 2))
"""Of pods."""
VIEWS = st.builds(
    FleetView,
    nodes=st.dictionaries(st.sampled_from("abcd"), st.booleans()).map(
        lambda found: tuple(NodeView(name=name, ready=ready) for name, ready in sorted(found.items()))
    ),
    pending=st.sampled_from([(), (PendingView(namespace="ns", pod="p", need="a GPU"),)]),
    partial=st.booleans(),
    namespaces=st.just(("x",)),
    activity=USAGE,
    memory_mib=st.dictionaries(
        st.sampled_from(("GPU-0", "GPU-1")),
        st.dictionaries(st.sampled_from(("x/p", "x/q")), st.integers(0, 2), min_size=1),
    ),
)


def applied(view: FleetView, change: FleetChange) -> FleetView:
    """Return the view after a change, as the page makes it."""
    nodes = {each.name: each for each in view.nodes if each.name not in change.gone}
    nodes |= {each.name: each for each in change.nodes}
    return msgspec.structs.replace(
        change.rest or view,
        nodes=tuple(nodes[name] for name in sorted(nodes)),
        activity=_merged(view.activity, change.activity),
        memory_mib=_merged(view.memory_mib, change.memory_mib),
    )


def _merged(known: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the target of a merge patch. Source: RFC 7386, section 2."""
    merged = dict(known)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name, {}), value) if isinstance(value, Mapping) else value
    return merged
