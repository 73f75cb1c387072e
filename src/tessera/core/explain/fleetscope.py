"""Restricts the dashboard page to what a viewer may see."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tessera.core.explain.fleetview import FleetView, GpuPart, GpuView, NodeView, PodView

__all__ = ["EVERYTHING", "Scope", "in_scope"]

_NAME: Final = re.compile(r"(?<![\w./-])([a-z0-9][-a-z0-9]*)/[a-z0-9](?:[-a-z0-9./]*[a-z0-9])?")
"""`namespace/pod`, also with a container; no part of a path, an address or a name with a domain."""
_NO_NAMES: Final = re.compile(
    r"affinity/(selector|anti-affinity)\b|[0-9]+/[0-9]+(?= nodes are available)|(?<=taint {)"
    r"|(?<=see )docs/[-a-z]+\.md\b|[a-z0-9][-a-z0-9./]*="
)
"""What looks like such a name in messages: kube-scheduler's words, pages of the documentation, and labels with values.

Source: kubernetes/kubernetes `pkg/scheduler/framework/plugins`, the reasons of `nodeaffinity` and `interpodaffinity`.
"""
_HIDDEN: Final = "(another namespace)"
_MOST_ADVICE: Final = 500
"""Recommendations that are shown."""
_MOST_SERVERS: Final = 200
"""Model servers that are shown."""


class Scope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The names that a viewer may see."""

    everything: bool = False
    namespaces: frozenset[str] = frozenset()

    def shows(self, namespace: str) -> bool:
        """Return whether the names of a namespace may be shown."""
        return self.everything or namespace in self.namespaces


EVERYTHING: Final = Scope(everything=True)


def in_scope(view: FleetView, scope: Scope) -> FleetView:
    """Return what a viewer may see: without names of other namespaces and their pods, also inside texts.

    The division of GPUs stays, and how much of them other namespaces are allocated, but not their usage: what
    slows down a GPU is shown where a pod on it is.
    Images and models belong to all namespaces, and are shown only to viewers who see everything.
    Of long lists the first are shown that the viewer may see.
    """
    shown = view if scope.everything else _partial(view, scope)
    return msgspec.structs.replace(
        shown,
        model_servers=shown.model_servers[:_MOST_SERVERS],
        recommendations=shown.recommendations[:_MOST_ADVICE],
    )


def _partial(view: FleetView, scope: Scope) -> FleetView:
    shown = _Shown(scope)
    pending = tuple(each for each in view.pending if scope.shows(each.namespace))
    return FleetView(
        nodes=tuple(map(shown.node, view.nodes)),
        pending=tuple(msgspec.structs.replace(each, reason=shown.text(each.reason)) for each in pending),
        pending_elsewhere=view.pending_elsewhere + len(view.pending) - len(pending),
        model_servers=tuple(each for each in view.model_servers if scope.shows(each.namespace)),
        recommendations=tuple(each for each in view.recommendations if scope.shows(each.namespace)),
        activity={pod: percent for pod, percent in view.activity.items() if scope.shows(pod.partition("/")[0])},
        memory_mib=dict(shown.memory(view.memory_mib)),
        namespaces=tuple(each for each in view.namespaces if scope.shows(each)),
        partial=True,
    )


class _Shown:
    """Redacts a view."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def text(self, text: str) -> str:
        """Return a text without the names of other namespaces' pods.

        By their form, not by comparing with the pods that exist, so that no viewer learns from the result which do.
        """
        return _NAME.sub(self._name, text)

    def _name(self, match: re.Match[str]) -> str:
        known = self._scope.shows(match[1]) or _NO_NAMES.match(match.string, match.start())
        return match[0] if known else _HIDDEN

    def memory(self, memory_mib: Mapping[str, Mapping[str, int]]) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield what pods of these namespaces use of GPUs."""
        for gpu, pods in memory_mib.items():
            if own := {pod: mib for pod, mib in pods.items() if self._scope.shows(pod.partition("/")[0])}:
                yield gpu, own

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
        shown = [self._scope.shows(pod.namespace) for part in gpu.parts for pod in part.pods]
        return msgspec.structs.replace(
            gpu,
            parts=tuple(map(self._part, gpu.parts)),
            used_mib=gpu.used_mib if all(shown) else None,
            problems=tuple(map(self.text, gpu.problems)),
            contention=tuple(
                msgspec.structs.replace(
                    each,
                    caused_by=tuple(map(self._pod_view, each.caused_by)),
                    evenly=tuple(map(self._pod_view, each.evenly)),
                )
                for each in (gpu.contention if any(shown) else ())
            ),
            throttled=gpu.throttled if any(shown) else (),
        )

    def _part(self, part: GpuPart) -> GpuPart:
        own = all(self._scope.shows(pod.namespace) for pod in part.pods)
        return msgspec.structs.replace(part, idle=part.idle and own, pods=tuple(map(self._pod_view, part.pods)))

    def _pod_view(self, pod: PodView) -> PodView:
        if self._scope.shows(pod.namespace):
            return pod
        return PodView(phase=pod.phase, isolation=pod.isolation, memory_mib=pod.memory_mib)
