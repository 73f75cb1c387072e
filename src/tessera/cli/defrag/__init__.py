"""`tessera defrag`: the fewest running pods to move so that others fit; shown, or moved with `--execute`."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tessera._planning import read_documents, with_pods
from tessera.api.documents import Document
from tessera.api.kubernetes import workloads
from tessera.api.kubernetes.evictable import read_evictable
from tessera.api.tessera.cluster.clusters import as_fields
from tessera.cli.clusteraccess import ClusterSource, connected
from tessera.cli.defrag.moving import MoveRunner, observe
from tessera.cli.defrag.tables import parts
from tessera.cli.livecluster import cluster_options, place_of, read_file
from tessera.cli.options import Seconds, WholeNumber, output_option, refuse_beside, refuse_without
from tessera.cli.printing import print_document, trimmed, wide_console
from tessera.cli.progress import progress_bar
from tessera.clients.kube import Kube
from tessera.core.cluster.cluster import Cluster
from tessera.core.packing.defrag import MOST_MOVES, DefragProposal, Evictable, PodToPlace, propose
from tessera.core.workload.need import Isolation, Pod, PodKey
from tessera.core.workload.tesseranames import ISOLATION
from tessera.errors import InvalidInput, Unsupported, shown

__all__ = ["defrag", "execute"]

_Result = TypeVar("_Result")
_DEADLINE_S = 600.0
_MOST_NAMED = 10
_NO_BUDGETS = """\
note: the file has no PodDisruptionBudgets; if the cluster has any, add pdb to
`kubectl get`"""
_EPILOG = """
\b
Examples:
  tessera defrag                                 # for all pending pods
  tessera defrag -f training.yaml                # before you apply it
  tessera defrag --resource nvidia.com/mig-3g.20gb=1
  tessera defrag --resource tessera.dev/gpu-memory=30 --count 2
  tessera defrag --pod ml/training-0 --execute   # evicts one pod at a time
  kubectl get nodes,pods,gpunodes,pdb -A -o json | tessera defrag --cluster -

RBAC: list nodes, pods, gpunodes.tessera.dev and poddisruptionbudgets; with --execute also create
pods/eviction, and get and patch nodes.
"""


class _Outcome(msgspec.Struct, frozen=True):
    """The JSON output."""

    asked: tuple[PodToPlace, ...]
    proposal: DefragProposal
    executed: bool
    evicted: tuple[PodKey, ...] = ()


@click.command(epilog=_EPILOG)
@cluster_options
@click.option(
    "-f",
    "--filename",
    "--for",
    multiple=True,
    metavar="PATH",
    help="Make room for the pods of manifests: a file, a folder, or - for stdin; repeatable.",
)
@click.option("--pod", multiple=True, metavar="NAMESPACE/NAME", help="Make room for this pending pod; repeatable.")
@click.option(
    "--resource", multiple=True, metavar="NAME=AMOUNT", help="Make room for a pod that requests this; repeatable."
)
@click.option(
    "--isolation", type=click.Choice([each.value for each in Isolation]), help="With --resource: weakest isolation."
)
@click.option(
    "--count", type=WholeNumber(1, 100), default=1, show_default=True, help="With --resource: number of pods."
)
@click.option(
    "--priority",
    type=WholeNumber(-(1 << 31), (1 << 31) - 1),
    help="Do not move pods of higher priority.  [default: priority of the pending pod; 0 with --resource]",
)
@click.option(
    "--max-moves", type=WholeNumber(0, 1000), default=MOST_MOVES, show_default=True, help="Most pods to move."
)
@click.option("--dry-run", is_flag=True, help="Only show the moves, as without --execute.")
@click.option("--execute", is_flag=True, help="Make the moves: evict one pod at a time.")
@click.option(
    "--deadline-s",
    type=Seconds(1),
    default=_DEADLINE_S,
    show_default=True,
    help="With --execute: deadline of each move, and of the pending pods' binding.",
)
@output_option()
def defrag(**given: Any) -> None:
    """Find the fewest running pods to move so that pending pods fit; move them with --execute.

    A move evicts a pod whose controller creates a replacement that fits elsewhere. Without -f, --pod or --resource
    it makes room for all pending pods. docs/defrag.md lists the pods that are never moved.
    """
    _check()
    place = place_of(given)
    if given["execute"]:
        asyncio.run(_on_cluster(place, lambda kube: execute(kube, given)))
        return
    with progress_bar("looking for moves"):
        cluster, evictable = _saved(place.file) if place.file is not None else asyncio.run(_on_cluster(place, observe))
        asked = _asked(cluster, given)
        proposal = propose(cluster, asked, evictable, most=given["max_moves"])
    _print(_Outcome(asked, proposal, executed=False), given["output"])


def _check() -> None:
    for option, other in (
        ("--kubeconfig", "--cluster"),
        ("--context", "--cluster"),
        ("--execute", "--cluster"),
        ("--execute", "--dry-run"),
        ("--resource", "--filename"),
        ("--pod", "--filename"),
        ("--pod", "--resource"),
    ):
        refuse_beside(option, other)
    for option in ("--isolation", "--count"):
        refuse_without(option, "--resource")
    refuse_without("--deadline-s", "--execute")


def _saved(filename: str) -> tuple[Cluster, Mapping[PodKey, Evictable]]:
    cluster, objects = read_file(filename)
    if not any(each.get("kind") == "PodDisruptionBudget" for each in objects):
        click.echo(_NO_BUDGETS, err=True)
    return cluster, read_evictable(as_fields(objects))


async def _on_cluster(place: ClusterSource, work: Callable[[Kube], Awaitable[_Result]]) -> _Result:
    async with connected(place) as kube:
        return await work(kube)


def _print(outcome: _Outcome, output: str) -> None:
    if not print_document(outcome, output):
        wide_console(output=output).print(trimmed(*parts(outcome.asked, outcome.proposal)))


# The pods to place


def _asked(cluster: Cluster, given: Mapping[str, Any]) -> tuple[PodToPlace, ...]:
    """Return the pods to make room for, the most urgent first.

    Raises:
        InvalidInput: none, or one that requests no GPU.

    """
    if given["filename"]:
        documents = with_pods(document for path in given["filename"] for document in read_documents(path))
        unit = cluster.share_unit_mib
        found: Sequence[Pod] = workloads.read(documents, share_unit_mib=unit, nodes=cluster.snapshot.nodes).pods
    elif given["resource"]:
        found = _described(cluster, given)
    else:
        found = _waiting(cluster, given["pod"])
    asking = [pod for pod in found if pod.need.requests]
    if not asking:
        if given["resource"]:
            amounts = " ".join(given["resource"])
            raise InvalidInput("--resource", found=f"{shown(amounts)} requests no GPU", hint="give nvidia.com/gpu=1")
        subject = "manifests" if given["filename"] else "cluster"
        desired = "-f, --pod or --resource" if not given["filename"] else "a workload with GPU limits"
        raise InvalidInput(subject, found="no pending pod requests GPUs", hint=f"give {desired}")
    priority = given["priority"]
    ordered = sorted(asking, key=lambda pod: -pod.priority)
    return tuple(
        PodToPlace(pod=pod.key, need=pod.need, priority=pod.priority if priority is None else priority)
        for pod in ordered
    )


def _described(cluster: Cluster, given: Mapping[str, Any]) -> tuple[Pod, ...]:
    limits: dict[str, str] = {}
    for text in given["resource"]:
        name, equals, amount = text.partition("=")
        if not name or (equals and not amount):
            raise InvalidInput("--resource", found=text, expected="NAME=AMOUNT", hint="nvidia.com/mig-3g.20gb=1")
        limits[name] = amount or "1"
    annotations = {ISOLATION: given["isolation"]} if given["isolation"] else {}
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"asked-{number}", "annotations": annotations},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        for number in range(given["count"])
    ]
    documents = [Document(source="--resource", number=1, data=each, first_line=1) for each in objects]
    try:
        return workloads.read(with_pods(documents), share_unit_mib=cluster.share_unit_mib).pods
    except InvalidInput as error:
        named = (f"{each}={limits[each]}" for each in limits if error.subject.endswith((f".{each}", f"[{each}]")))
        raise InvalidInput(
            " ".join(("--resource", *named)), found=error.found, expected=error.expected, hint=error.hint
        ) from error


def _waiting(cluster: Cluster, names: Sequence[str]) -> tuple[Pod, ...]:
    waiting = {each.key: each for each in cluster.snapshot.pending}
    for name in names:
        if name not in waiting:
            raise InvalidInput(
                f"pod {name}",
                found="no pending pod has this namespace and name",
                hint=f"name one of {', '.join([*waiting][:_MOST_NAMED])}" if waiting else "give -f or --resource",
            )
    return tuple(waiting[PodKey(name)] for name in names) if names else cluster.snapshot.pending


# Making the moves


async def execute(kube: Kube, given: Mapping[str, Any]) -> None:
    """Make the moves and print the result; `given` are the options of the command.

    Raises:
        Conflict: the cluster changed so that the remaining moves are not enough.
        Unavailable: a deadline passed.
        Unsupported: no moves place the pods.

    """
    cluster, evictable = await observe(kube)
    asked = _asked(cluster, given)
    proposal = propose(cluster, asked, evictable, most=given["max_moves"])
    if given["output"] not in {"json", "yaml"}:
        _print(_Outcome(asked, proposal, executed=True), given["output"])
    placed = {each.pod for each in proposal.placed}
    mover = MoveRunner(kube, [each for each in asked if each.pod in placed], given["deadline_s"])
    try:
        with _progress(len(proposal.moves)) as report:
            await mover.make(len(proposal.moves), report)
    finally:
        print_document(_Outcome(asked, proposal, executed=True, evicted=tuple(mover.evicted)), given["output"])
        click.echo(f"{len(mover.evicted)} of {len(proposal.moves)} moves made", err=True)
    if proposal.stuck:
        names = ", ".join(each.pod for each in proposal.stuck[:_MOST_NAMED])
        raise Unsupported(f"pods {names}", found=proposal.stuck[0].reasons[0], hint="other GPUs, or fewer pods")


@contextlib.contextmanager
def _progress(total: int) -> Any:
    """Yield a function that shows the number of moves and the current step."""
    console = Console(stderr=True)
    shown = sys.stderr.isatty()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shown) as progress:
        task = progress.add_task("moves", total=total)

        def report(done: int, what: str) -> None:
            progress.update(task, completed=done, description=what)
            if not shown:
                click.echo(what, err=True)

        yield report
