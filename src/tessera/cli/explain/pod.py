"""`tessera explain pod`: where a pod of a live cluster runs and why, or why it is pending and what would help."""

import asyncio
import datetime as dt
from collections.abc import Iterable, Iterator
from typing import TypedDict, Unpack

import click
import msgspec
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tessera.api.kubernetes.leases import renewed_s
from tessera.api.kubernetes.podevents import ObservedEvent, read_events
from tessera.api.tessera.pods.finishedpods import read_finished_pod
from tessera.api.tessera.usage.usagejson import PodContentionFields, contention_fields
from tessera.api.tessera.v1alpha1.objects import NAMESPACE
from tessera.cli.clusteraccess import ClusterSource, connected
from tessera.cli.drawing.lettering import clean
from tessera.cli.explain.tables import node_table, ways_tables
from tessera.cli.livecluster import cluster_options, events_of, observe, place_of, read_file
from tessera.cli.options import output_option, refuse_beside
from tessera.cli.printing import print_document, trimmed, wide_console
from tessera.cli.usage.agents import agent_option, agents
from tessera.cli.usage.tables import contention_words
from tessera.clients.kube import LEASES, PODS, Kube, Object
from tessera.clients.nodeusage import ProxiedUsage
from tessera.core.cluster.cluster import Cluster, Phase
from tessera.core.explain.podexplanation import (
    ExplainedDevice,
    PodExplanation,
    explain_finished,
    explain_pod,
    share_words,
)
from tessera.core.usage.usagereport import PodContention, contention_around
from tessera.core.workload.need import PodKey
from tessera.core.workload.tesseranames import CONTROLLER
from tessera.errors import InvalidInput, TesseraError, Unavailable

__all__ = ["observe_contention", "observe_pod", "pod"]

_MOST_EVENTS = 10
_MOST_NAMED = 10
_SILENT_S = 60.0
"""A leader renews its Lease every few seconds; clocks may differ."""


class _Given(TypedDict):
    """The options as click passes them."""

    name: str
    namespace: str
    cluster: str | None
    kubeconfig: object
    context: str | None
    agent: tuple[str, ...]
    output: str


class _Answer(msgspec.Struct, frozen=True):
    """What is known of the pod."""

    explanation: PodExplanation
    events: tuple[ObservedEvent, ...]
    contention: tuple[PodContention, ...] | None = ()
    """What slows it down, or is slowed by it, by the agent of its node; None where that is unknown."""


class _Document(msgspec.Struct, frozen=True):
    """The same as JSON."""

    explanation: PodExplanation
    events: tuple[ObservedEvent, ...]
    contention: tuple[PodContentionFields, ...] | None


@click.command(
    epilog="""
\b
Examples:
  tessera explain pod vllm-0 -n ml
  kubectl tessera explain pod vllm-0 -n ml
  tessera explain pod vllm-0 -n ml --agent 127.0.0.1:9400
  kubectl get nodes,pods,gpunodes,events -A -o json > now.json
  tessera explain pod vllm-0 -n ml --cluster now.json
"""
)
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, metavar="NAME", help="The pod's namespace.")
@cluster_options
@agent_option
@output_option()
def pod(**given: Unpack[_Given]) -> None:
    """Explain where pod NAME of a live cluster runs and why, why it is pending, or how it ended.

    Prints what it needs, its devices with their other pods and the isolation in force, whether each node has room, what
    would make it fit, the events of schedulers and kubelets, and which pods slow down its GPUs. Slowdowns are read
    from the node's agent: through the API server if you may get pods/proxy there, else from --agent.
    """
    for other in ("--kubeconfig", "--context"):
        refuse_beside(other, "--cluster")
    place = place_of(given)
    namespace, name = given["namespace"], given["name"]
    key = PodKey(f"{namespace}/{name}")
    if place.file is not None:
        cluster, events = read_file(place.file)
        objects = events
    else:
        cluster, events, objects = asyncio.run(_observe(place, key))
    found = explain_pod(cluster, key) or _finished(objects, key)
    if found is None:
        raise _absent(cluster, namespace, name)
    contention, unknown = _observed_contention(given["agent"], place, found)
    answer = _Answer(found, read_events(events, kind=PODS.name, namespace=namespace, name=name), contention)
    written = None if contention is None else tuple(map(contention_fields, contention))
    document = _Document(answer.explanation, answer.events, written)
    if not print_document(document, given["output"]):
        wide_console(output=given["output"]).print(trimmed(*_parts(answer, unknown)))


def _observed_contention(
    addresses: tuple[str, ...], place: ClusterSource, explanation: PodExplanation
) -> tuple[tuple[PodContention, ...] | None, str]:
    """Return what slows down a pod, None where it is unknown, and why a queried agent does not report it."""
    if addresses:
        return asyncio.run(_contention(addresses, place, explanation)), ""
    if not explanation.node or not explanation.devices:
        return (), ""
    if place.file is not None:
        return None, ""
    try:
        return asyncio.run(observe_contention(connected(place), explanation.node, explanation.pod)), ""
    except Unavailable as error:
        return None, f"unknown: the agent of node {explanation.node} does not answer ({error.found})"


async def _observe(place: ClusterSource, key: PodKey) -> tuple[Cluster, tuple[Object, ...], tuple[Object, ...]]:
    async with connected(place) as kube:
        return await observe_pod(kube, key)


async def observe_pod(kube: Kube, key: PodKey) -> tuple[Cluster, tuple[Object, ...], tuple[Object, ...]]:
    """Return the cluster, the events about a pod, and the pod's object if it is missing from the cluster."""
    namespace, _, name = key.partition("/")
    cluster, events = await observe(kube), await events_of(kube, PODS, name, namespace)
    cluster = msgspec.structs.replace(cluster, controller_silent=await _controller_silent(kube))
    known = any(each.pod.key == key for each in cluster.pods)
    found = None if known else await kube.get(PODS, name, namespace)
    return cluster, events, () if found is None else (found,)


async def _controller_silent(kube: Kube) -> str:
    """Return why no controller acts, by its Lease; empty where one does, or the Lease may not be read."""
    try:
        lease = await kube.get(LEASES, CONTROLLER, NAMESPACE)
    except TesseraError:
        return ""
    renewed = None if lease is None else renewed_s(lease)
    if lease is None or renewed is None:
        why = "no controller runs"
    elif (age_s := dt.datetime.now(dt.UTC).timestamp() - renewed) > _SILENT_S:
        why = f"no controller has renewed its Lease for {age_s:.0f} s"
    else:
        return ""
    return f"{why}: kubectl get pods -n {NAMESPACE}"


async def observe_contention(kube: Kube, node: str, pod: str) -> tuple[PodContention, ...]:
    """Return what slows down a pod, by its node's agent.

    Raises:
        Unavailable: that does not answer, may not be asked, or has observed nothing.

    """
    source = ProxiedUsage(kube, node=node)
    try:
        reports = (await source.read()).some()
    finally:
        await source.close()
    observed = [each for each in reports if each.age_s is not None]
    if not observed:
        raise Unavailable(f"agent of node {node}", found="it has observed no GPU", hint="see its log")
    return tuple(contention for each in observed for contention in contention_around(each, pod))


def _finished(objects: Iterable[Object], key: PodKey) -> PodExplanation | None:
    """Return how a pod among these objects ended; None if it has not."""
    ended = (read_finished_pod(each) for each in objects if each.get("kind") == PODS.name)
    return next((explain_finished(each) for each in ended if each is not None and each.pod == key), None)


async def _contention(
    addresses: tuple[str, ...], place: ClusterSource, explanation: PodExplanation
) -> tuple[PodContention, ...]:
    """Return what slows down the pod, by its node's agent."""
    async with agents(addresses, place) as source:
        reports = {each.node: each for each in (await source.read()).some()}
    if explanation.node not in reports:
        there = f"that of {', '.join(sorted(map(clean, reports)))}"
        where = f"that of node {explanation.node}" if explanation.node else "none, because the pod is on no node"
        raise InvalidInput("--agent", found=f"{there}, and it belongs to {where}", hint="give one of the two")
    return tuple(contention_around(reports[explanation.node], explanation.pod))


def _absent(cluster: Cluster, namespace: str, name: str) -> InvalidInput:
    here = [each.pod.key.partition("/")[2] for each in cluster.pods if each.pod.key.startswith(f"{namespace}/")]
    elsewhere = [each.pod.key for each in cluster.pods if each.pod.key.endswith(f"/{name}")]
    accepted = (
        f"give -n {elsewhere[0].partition('/')[0]}"
        if elsewhere
        else f"name {'one of ' if len(here) > 1 else ''}{', '.join(here[:_MOST_NAMED])}"
        if here
        else "give another -n"
    )
    return InvalidInput(f"pod {namespace}/{name}", found="the cluster has no such pod", hint=accepted)


def _parts(answer: _Answer, unknown: str) -> Iterator[RenderableType]:
    found = answer.explanation
    yield Text.assemble((clean(found.pod), "bold"), f" needs {clean(found.need)}" if found.need else "")
    where = f" on {clean(found.node)}" if found.node else ""
    pending = found.phase is Phase.WAITING
    yield Text("pending" if pending else f"{found.phase.value}{where}", "bold yellow" if pending else "bold green")
    for device in found.devices:
        yield Padding(Text(_device(device)), (0, 0, 0, 2))
    yield from _list(
        "What slows down its GPUs", (unknown,) if unknown else tuple(map(_slowed, answer.contention or ()))
    )
    for title, sentences in (("Why", found.sentences), ("What would make it fit", found.remedies)):
        yield from _list(title, sentences)
    yield from _list("Events, oldest first", tuple(map(_event, answer.events[-_MOST_EVENTS:])))
    yield ""
    yield from ways_tables(found.ways)
    if not found.nodes:
        return
    title = "Each node" if found.node is None else "Each node, if the pod were scheduled again"
    answers = ((each.node, (each.obstacle.text if each.obstacle else "has room",)) for each in found.nodes)
    yield from node_table(title, "node result", answers)


def _list(title: str, sentences: tuple[str, ...]) -> Iterator[RenderableType]:
    if sentences:
        yield Text(f"\n{title}", "bold")
        rows = Table.grid(padding=(0, 1, 0, 0))
        for sentence in sentences:
            rows.add_row(" -", Text(clean(sentence)))
        yield rows


def _device(device: ExplainedDevice) -> str:
    share = device.share
    parts = (
        clean(share_words(share)),
        clean(device.model),
        f"{share.memory_mib} MiB" if share.profile or not share.mode.isolation else "",
        f"{share.compute_percent} % compute" if share.compute_percent else "",
        f"isolation in force: {device.level.value}" if device.level else "the node has no such GPU",
        f"shared with {', '.join(map(clean, device.neighbors[:_MOST_NAMED]))}"
        if device.neighbors
        else "alone on the GPU",
    )
    return ", ".join(part for part in parts if part)


def _slowed(contention: PodContention) -> str:
    return f"GPU {contention.gpu}: {contention_words(contention)}"


def _event(event: ObservedEvent) -> str:
    times = f" ({event.count} times)" if event.count > 1 else ""
    return f"{event.last} {event.type} {event.reason}{times}: {event.message}"
