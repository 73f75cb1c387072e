"""`tessera jobs`: the Jobs of `tessera run`, `notebook` and `render --job`."""

import asyncio
from pathlib import Path

import click
from rich.text import Text

from tessera.api.kubernetes.jobs import BY_RUN, OF_JOB
from tessera.api.kubernetes.jobstates import JobState, read_job
from tessera.cli.clusteraccess import ClusterSource, connected, kubeconfig_options, namespace_of, namespace_option
from tessera.cli.drawing.lettering import clean
from tessera.cli.options import output_option
from tessera.cli.printing import headed_table, print_document, trimmed, wide_console
from tessera.cli.work.jobreading import events_about_jobs, workloads_of_jobs
from tessera.clients.kube import JOBS, PODS, Selection
from tessera.core.serving.annotations import SERVER_LABEL

__all__ = ["jobs"]


@click.command(
    epilog="""
\b
Examples:
  tessera jobs
  tessera jobs -n ml -o json
  tessera jobs -A
"""
)
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="List Jobs of all namespaces.")
@kubeconfig_options
@output_option()
def jobs(namespace: str, *, all_namespaces: bool, kubeconfig: Path | None, context: str | None, output: str) -> None:
    """List the Jobs of `tessera run`, `notebook` and `render --job`: status, parts done, and why pending.

    Those of `tessera run` and `notebook` are deleted a day after their end.
    """
    cluster = ClusterSource(kubeconfig=kubeconfig, context=context)
    found = asyncio.run(_states(cluster, "" if all_namespaces else namespace_of(cluster, namespace)))
    if print_document(found, output):
        return
    table = headed_table("NAME", "NAMESPACE", "STATUS", "REQUESTS", "NODE", "CREATED", "REASON")
    for each in found:
        requests = ", ".join(f"{resource.rpartition('/')[2]}: {amount}" for resource, amount in each.requests)
        cells = (each.name, each.namespace, each.stage.value, requests, each.node, each.created, each.reason)
        table.add_row(*(Text(clean(cell)) for cell in cells))
    wide_console(output=output).print(trimmed(table))


async def _states(cluster: ClusterSource, namespace: str) -> list[JobState]:
    async with connected(cluster) as kube:
        selections = (
            Selection(namespace=namespace, labels=BY_RUN),
            Selection(namespace=namespace, having=(SERVER_LABEL,)),
        )
        listings = await asyncio.gather(*(kube.list(JOBS, each) for each in selections))
        found = [each for listing in listings for each in listing.objects]
        of_jobs = Selection(namespace=namespace, having=(OF_JOB,))
        pods = (await kube.list(PODS, of_jobs)).objects if found else ()
        events = await events_about_jobs(kube, namespace)
        suspended = any(each["spec"].get("suspend") for each in found)
        workloads = await workloads_of_jobs(kube, namespace) if suspended else ()
    states = (read_job(each, pods, events, workloads) for each in found)
    return sorted(states, key=lambda each: (each.created, each.namespace, each.name))
