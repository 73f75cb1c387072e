"""Options for a Prometheus that a process queries, and its client."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from tessera.cli.options import refuse_without, with_options
from tessera.cli.usage.prometheusclient import prometheus_client
from tessera.clients.prometheus import HttpMetrics
from tessera.errors import InvalidInput, shown

__all__ = ["Prometheus", "prometheus_of", "prometheus_options"]

_READ = click.Path(path_type=Path, dir_okay=False, exists=True)


class Prometheus(msgspec.Struct, frozen=True):
    """A Prometheus to query."""

    url: str
    connect: Callable[[], HttpMetrics]
    """Returns a client; its files are read each time, so that a replaced token counts."""


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
    )


def prometheus_of(given: Mapping[str, Any], option: str, *, deadline_s: float, most_bytes: int) -> Prometheus | None:
    """Return the settings of the options of `prometheus_options`; None if no Prometheus is named.

    Args:
        given: the options of the command.
        option: as above.
        deadline_s: for an answer.
        most_bytes: of an answer.

    Raises:
        InvalidInput: an invalid URL or file.

    """
    for other in (f"{option}-token-file", f"{option}-ca-file"):
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
    return Prometheus(url, connect)
