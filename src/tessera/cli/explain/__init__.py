"""`tessera explain`: one workload, the ways to serve it, where it goes or why it stays pending.

`tessera explain pod NAME` is another command, about a pod of a live cluster; see `pod`.
"""

from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

import click
from rich.console import RenderableType
from rich.markup import escape

from tessera.cli.drawing.lettering import clean
from tessera.cli.explain.tables import listed, node_table, ways_tables
from tessera.cli.inputs import ShareUnit, input_options, note_skipped, read_snapshot
from tessera.cli.options import output_option, policy_option
from tessera.cli.plan.tables import where
from tessera.cli.printing import print_document, trimmed, wide_console
from tessera.cli.progress import progress_bar
from tessera.core.cluster.snapshot import Snapshot
from tessera.core.explain import explain as core
from tessera.core.packing.plan import PLAN_POLICIES
from tessera.core.workload.need import Pod
from tessera.errors import InvalidInput

__all__ = ["explain"]

_MOST_NODES = 20
_OF_FILES = ("-f", "--filename", "--fleet", "--gpus", "--policy", "--share-unit")
"""Options after which `pod` is the name of a workload."""


class _Given(TypedDict):
    """The options as click passes them."""

    workload: str
    cluster: str | None
    gpus: tuple[str, ...]
    gpu_model: tuple[str, ...]
    filename: tuple[str, ...]
    share_unit: ShareUnit | None
    policy: str
    output: str


class _Explain(click.Command):
    """The command; with `pod` as its first word it runs `tessera explain pod`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the command line of either command."""
        if args[:1] == ["pod"] and not any(each.startswith(_OF_FILES) for each in args):
            prefix = f"{parent.auto_envvar_prefix}_EXPLAIN_POD" if parent and parent.auto_envvar_prefix else None
            from tessera.cli.explain.pod import pod  # noqa: PLC0415 - it needs the extra `cluster`

            return pod.make_context(f"{info_name} pod", args[1:], parent, auto_envvar_prefix=prefix, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(
    cls=_Explain,
    epilog="""
\b
Examples:
  tessera explain vllm --gpus 8xH100-80GB -f examples/2-vllm-replicas
  tessera explain Job/default/embed --gpus 8xH100-80GB \\
    -f examples/1-job-of-60-slices/job.yaml
  kubectl get nodes,pods -A -o json | tessera explain vllm --cluster -
  tessera explain pod notebook-3 -n default     # a pod of a live cluster
""",
)
@click.argument("workload")
@input_options
@policy_option(PLAN_POLICIES, default="tessera")
@output_option()
def explain(**given: Unpack[_Given]) -> None:
    """Explain WORKLOAD: its requests, the GPUs that can serve it, its node, or why it is pending.

    WORKLOAD is a pod (namespace/name), a workload (Kind/namespace/name) or just a name. It is planned together with
    all pending pods, as in `tessera plan`. For a pod of a live cluster: `tessera explain pod NAME`.
    """
    snapshot = read_snapshot(
        given["cluster"], given["gpus"], given["filename"], given["share_unit"], given["gpu_model"]
    )
    note_skipped(snapshot.nodes)
    with progress_bar("planning"):
        found = core.explain(snapshot, _named(snapshot, given["workload"]), policy=given["policy"])
    if not print_document(found, given["output"]):
        console = wide_console(output=given["output"])
        console.print(trimmed(*(part for each in found for part in _tables(each))))


def _named(snapshot: Snapshot, workload: str) -> tuple[Pod, ...]:
    """Return the pending pods of a name: the pod, or those of the workload."""
    ends = f"/{workload}"
    chosen = tuple(
        pod
        for pod in snapshot.pending
        if workload in {pod.key, pod.owner} or pod.key.endswith(ends) or pod.owner.endswith(ends)
    )
    if not chosen:
        known = sorted({pod.owner or pod.key for pod in snapshot.pending})
        raise InvalidInput(
            f"workload {workload}",
            found="no pending pod or workload has this name",
            hint=f"name {', '.join(known[:_MOST_NODES])}" if known else "give manifests with -f",
        )
    return chosen


def _room(count: int) -> str:
    number = f"at least {count}" if count == core.MOST_ROOM else f"{count}" if count else "no"
    return f"{number} more such {'pod fits' if count == 1 else 'pods fit'} after this plan"


def _tables(explanation: core.Explanation) -> Iterator[RenderableType]:
    alone = len(explanation.pods) == 1
    yield f"[bold]{escape(listed(explanation.pods))}[/bold] {'needs' if alone else 'need'} {escape(explanation.need)}\n"
    yield from ways_tables(explanation.ways)
    yield from (f"{escape(sentence)}\n" for sentence in explanation.foreign)
    places = f" ({escape(clean(where(explanation.placed, explanation.unrecorded)))})" if explanation.placed else ""
    yield f"{len(explanation.placed)} placed{places}, {len(explanation.pending)} pending; {_room(explanation.room)}\n"
    results = [
        (each.node, each.obstacle.text if each.obstacle else "has room", each.detail) for each in explanation.nodes
    ]
    columns = "node result detail" if any(detail for *_, detail in results) else "node result"
    answers = ((node, tuple(cells[: columns.count(" ")])) for node, *cells in results)
    yield from node_table("Where one more such pod could go after this plan", columns, answers)
