"""Restricts the dashboard page to what a viewer may see."""

from typing import Final

import msgspec

from tessera.core.explain.fleetview import FleetView, GpuPart, GpuView, NodeView, PodView, Scope

__all__ = ["in_scope"]

_WITHHELD: Final = "withheld: it names pods of other namespaces"


def in_scope(view: FleetView, scope: Scope) -> FleetView:
    """Return what a viewer may see: without names of other namespaces and their pods, also inside texts.

    The division of GPUs stays, and how much of them other namespaces are allocated, but not their usage.
    Images and models belong to all namespaces, and are shown only to viewers who see everything.
    """
    if scope.everything:
        return view
    shown = _Shown(scope, _hidden_names(view, scope))
    pending = tuple(each for each in view.pending if scope.shows(each.namespace))
    return FleetView(
        nodes=tuple(map(shown.node, view.nodes)),
        pending=tuple(msgspec.structs.replace(each, reason=shown.text(each.reason)) for each in pending),
        pending_elsewhere=view.pending_elsewhere + len(view.pending) - len(pending),
        services=tuple(
            msgspec.structs.replace(each, reason=shown.text(each.reason))
            for each in view.services
            if scope.shows(each.namespace)
        ),
        recommendations=tuple(each for each in view.recommendations if scope.shows(each.namespace)),
        namespaces=tuple(each for each in view.namespaces if scope.shows(each)),
        partial=True,
    )


def _hidden_names(view: FleetView, scope: Scope) -> frozenset[str]:
    holders = (
        holder
        for node in view.nodes
        for holder in (*node.unplaced, *(each for gpu in node.gpus for part in gpu.parts for each in part.pods))
    )
    named = [
        *((each.namespace, each.pod) for each in holders),
        *((each.namespace, each.pod) for each in view.pending),
        *((each.namespace, each.name) for each in view.services),
        *((each, "") for each in view.namespaces),
    ]
    hidden = {name for pair in named if not scope.shows(pair[0]) for name in pair}
    return frozenset(part for name in hidden for part in (name, *name.split(".")) if part)


class _Shown:
    """Redacts a view."""

    def __init__(self, scope: Scope, hidden: frozenset[str]) -> None:
        self._scope = scope
        self._hidden = hidden

    def text(self, text: str) -> str:
        """Return a text, or that it is withheld if a word of it is a hidden name."""
        words = "".join(each if each.isalnum() or each == "-" else " " for each in text).split()
        return _WITHHELD if not self._hidden.isdisjoint(word.strip("-") for word in words) else text

    def node(self, node: NodeView) -> NodeView:
        return msgspec.structs.replace(
            node,
            problem=self.text(node.problem),
            gpus=tuple(map(self._gpu, node.gpus)),
            unplaced=tuple(map(self._pod_view, node.unplaced)),
            images=(),
            models=(),
        )

    def _gpu(self, gpu: GpuView) -> GpuView:
        own = all(self._scope.shows(holder.namespace) for part in gpu.parts for holder in part.pods)
        return msgspec.structs.replace(
            gpu,
            parts=tuple(map(self._part, gpu.parts)),
            used_mib=gpu.used_mib if own else None,
            problems=tuple(map(self.text, gpu.problems)),
            slowdowns=tuple(
                msgspec.structs.replace(each, drivers=tuple(map(self._pod_view, each.drivers)))
                for each in gpu.slowdowns
            ),
        )

    def _part(self, part: GpuPart) -> GpuPart:
        own = all(self._scope.shows(holder.namespace) for holder in part.pods)
        return msgspec.structs.replace(part, idle=part.idle and own, pods=tuple(map(self._pod_view, part.pods)))

    def _pod_view(self, holder: PodView) -> PodView:
        if self._scope.shows(holder.namespace):
            return holder
        return PodView(phase=holder.phase, isolation=holder.isolation, memory_mib=holder.memory_mib)
