"""`tessera recommend`: GPU memory and MIG profiles from the usage of containers."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import click
from rich.console import RenderableType
from rich.text import Text

from tessera.api.tessera.usage.usagejson import recommendation_fields
from tessera.cli.clusteraccess import ClusterSource
from tessera.cli.drawing.lettering import clean
from tessera.cli.options import output_option, refuse_beside
from tessera.cli.printing import (
    WIDE_COLUMNS,
    Section,
    headed_table,
    print_document,
    sectioned_table,
    trimmed,
    wide_console,
)
from tessera.cli.usage.agents import agents, agents_options, note_silent, refuse_two_sources
from tessera.cli.usage.historyoptions import prometheus, prometheus_options, refuse_without_prometheus
from tessera.core.usage.rightsizing import Recommendation, recommendations
from tessera.core.workload.units import gib

__all__ = ["recommend"]


class _Given(TypedDict):
    """The options as click passes them."""

    agent: tuple[str, ...]
    kubeconfig: Path | None
    context: str | None
    prometheus: str | None
    window: str
    token_file: Path | None
    ca_file: Path | None
    prometheus_selector: str
    all: bool


@click.command(
    epilog="""
\b
Examples:
  tessera recommend
  tessera recommend --agent 10.0.3.7 --all -o json
  tessera recommend --prometheus http://127.0.0.1:9090 --window 4w
  tessera recommend --prometheus http://p --prometheus-selector 'cluster="a"'
"""
)
@agents_options
@prometheus_options
@click.option("--all", is_flag=True, help="Also list containers that have what they need.")
@output_option()
def recommend(output: str, **given: Unpack[_Given]) -> None:
    """Recommend GPU memory and MIG profiles from the usage of containers.

    It lists containers that were allocated too much or too little, or do not use what they were allocated, which size
    would fit, and how much memory that frees, by the peak memory of each container since its node's agent started, or
    in Prometheus. Check the column OBSERVED before you act on it. The recommended size is 20 % above the peak; of an
    exclusive device its compute covers the mean load (GPU %) too, where that is known.
    """
    refuse_two_sources()
    if given["prometheus"]:
        for other in ("--agent", "--kubeconfig", "--context"):
            refuse_beside(other, "--prometheus")
    else:
        refuse_without_prometheus()
    rows = asyncio.run(_rows(given))
    shown = [each for each in rows if given["all"] or not each.verdict.needs_no_change]
    if print_document([recommendation_fields(each) for each in shown], output):
        return
    console = wide_console(output=output)
    console.print(trimmed(_table(shown, console.width)))
    saved_mib = sum(each.saved_mib for each in rows)
    click.echo(f"{len(rows)} containers, {len(shown)} shown; {gib(saved_mib)} could be allocated to others")


def _table(shown: Sequence[Recommendation], columns: int) -> RenderableType:
    """Return them as a table; in less than 120 columns each container has a line of its own above its numbers."""
    usage = "ALLOCATED", "PEAK", "GPU %", "OBSERVED", "VERDICT"
    if columns < WIDE_COLUMNS:
        sections = [
            Section(
                f"{_container(each)}: node {clean(each.node)}, GPU {each.gpu}, {clean(each.device)}",
                ((*_usage(each), _frees(each), _fits(each)),),
            )
            for each in shown
        ]
        return sectioned_table((*usage, "FREES", "FITS"), sections)
    table = headed_table("CONTAINER", "NODE", "DEVICE", *usage, "FITS", "FREES")
    for each in shown:
        place = _container(each), clean(each.node), f"{each.gpu} {clean(each.device)}"
        table.add_row(*map(Text, (*place, *_usage(each), _fits(each), _frees(each))))
    return table


def _container(row: Recommendation) -> str:
    return clean(f"{row.namespace}/{row.pod}/{row.container}")


def _usage(row: Recommendation) -> tuple[str, ...]:
    """Return what it was allocated, what it used, for how long that was known, and the verdict."""
    percent = "-" if row.mean_percent is None else f"{row.mean_percent:.0f}"
    amounts = ("-" if mib is None else gib(mib) for mib in (row.allocated_mib, row.peak_mib))
    return *amounts, percent, _duration(row.observed_s), row.verdict.value


def _fits(row: Recommendation) -> str:
    return f"{row.fits} (load unknown)" if row.load_unknown else row.fits


def _frees(row: Recommendation) -> str:
    return gib(row.saved_mib) if row.saved_mib else ""


async def _rows(given: _Given) -> list[Recommendation]:
    if given["prometheus"]:
        files = given["token_file"], given["ca_file"]
        usages = prometheus(given["prometheus"], given["window"], *files, given["prometheus_selector"])
    else:
        place = ClusterSource(kubeconfig=given["kubeconfig"], context=given["context"])
        usages = agents(given["agent"], place)
    async with usages as source:
        found = await source.read()
    reports = found.some()
    note_silent(found.silent)
    return recommendations(reports)


def _duration(seconds: float) -> str:
    hours, minutes = divmod(int(seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
