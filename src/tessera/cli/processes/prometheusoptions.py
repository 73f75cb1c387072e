"""Options for a Prometheus that a process queries, and its client."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from tessera.api.prometheus.matchers import read_matchers
from tessera.cli.options import refuse_without, with_options
from tessera.cli.usage.prometheusclient import prometheus_client
from tessera.clients.prometheus import HttpMetrics, Prometheus
from tessera.errors import InvalidInput, shown

__all__ = ["SELECTOR_HELP", "prometheus_of", "prometheus_options"]

SELECTOR_HELP = "Labels by which it tells this cluster's series from those of others: 'cluster=\"a\"'."

_READ = click.Path(path_type=Path, dir_okay=False, exists=True)


def prometheus_options(option: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options to a command.

    Args:
        option: such as `--prometheus`; the others are named after it.
        text: what it is queried for.

    """
    return with_options(
        click.option(option, metavar="URL", help=text),
        click.option(f"{option}-token-file", type=_READ, help="Bearer token for it; over https, or to this machine."),
        click.option(f"{option}-ca-file", type=_READ, help="Authorities that sign its certificate, PEM."),
        click.option(f"{option}-selector", default="", metavar="MATCHERS", help=SELECTOR_HELP),
    )


def prometheus_of(given: Mapping[str, Any], option: str, *, deadline_s: float, most_bytes: int) -> Prometheus | None:
    """Return the settings of the options of `prometheus_options`; None if no Prometheus is named.

    Args:
        given: the options of the command.
        option: as above.
        deadline_s: for an answer.
        most_bytes: of an answer.

    Raises:
        InvalidInput: an invalid URL, file or selector.

    """
    for other in (f"{option}-token-file", f"{option}-ca-file", f"{option}-selector"):
        refuse_without(other, option)
    name = option.removeprefix("--").replace("-", "_")
    url = given[name]
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(option, found=shown(url), expected="http://HOST[:PORT], or https://")

    def connect() -> HttpMetrics:
        files = given[f"{name}_token_file"], given[f"{name}_ca_file"]
        return prometheus_client(url, *files, deadline_s=deadline_s, most_bytes=most_bytes)

    connect()  # files are read, and rejected, before anything starts
    matchers = read_matchers(given[f"{name}_selector"], f"{option}-selector")
    return Prometheus(url=url, connect=connect, matchers=matchers)
