"""Options for a Prometheus with the history of GPUs, and the window."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tessera.api.prometheus.matchers import read_matchers
from tessera.cli.options import refuse_without, with_options
from tessera.cli.usage.prometheusclient import prometheus_client
from tessera.clients.nodeusage import PrometheusUsage, UsageSource
from tessera.errors import InvalidInput, shown

__all__ = ["prometheus", "prometheus_options", "refuse_without_prometheus"]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)
_WINDOW: Final = re.compile(r"[1-9][0-9]{0,3}[mhdw]")
_MOST_BYTES: Final = 64 << 20
"""Largest answer; one of 10,000 containers has 4 MB."""
_DEADLINE_S: Final = 60.0
"""Timeout; weeks of a large fleet take Prometheus a while."""


def prometheus_options(command: _Command) -> _Command:
    """Add `--prometheus` and its companions to a command."""
    return with_options(
        click.option(
            "--prometheus", metavar="URL", help="Prometheus to query for a longer history, instead of the agents."
        ),
        click.option(
            "--window",
            default="14d",
            metavar="DURATION",
            show_default=True,
            help="How far back to query Prometheus: 12h, 14d, 4w.",
        ),
        click.option("--token-file", type=_FILE, help="Bearer token for Prometheus; over https, or to this machine."),
        click.option("--ca-file", type=_FILE, help="PEM of the authorities of Prometheus' certificate."),
        click.option(
            "--prometheus-selector",
            default="",
            metavar="MATCHERS",
            help="Labels of one cluster's series, where Prometheus has those of several: 'cluster=\"a\"'.",
        ),
    )(command)


@asynccontextmanager
async def prometheus(
    url: str, window: str, token_file: Path | None, ca_file: Path | None, selector: str
) -> AsyncIterator[UsageSource]:
    """Yield the usages in a Prometheus.

    Raises:
        InvalidInput: an invalid address, window, file or selector, or a token that would be sent in clear text.

    """
    if not _WINDOW.fullmatch(window):
        raise InvalidInput("--window", found=shown(window), expected="a number and m, h, d or w", hint="14d")
    matchers = read_matchers(selector, "--prometheus-selector")
    client = prometheus_client(url, token_file, ca_file, deadline_s=_DEADLINE_S, most_bytes=_MOST_BYTES)
    source = PrometheusUsage(client, url, window, matchers)
    try:
        yield source
    finally:
        await source.close()


def refuse_without_prometheus() -> None:
    """Reject options for a Prometheus if none is named."""
    for option in ("--window", "--token-file", "--ca-file", "--prometheus-selector"):
        refuse_without(option, "--prometheus")
