"""The Prometheus that a command which runs in a pod reads: the options that name it, and a client of it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from tessera.cli.options import refuse_without, with_options
from tessera.cli.usage.asking import asked
from tessera.clients.prometheus import HttpMetrics
from tessera.errors import InvalidInput, shown

__all__ = ["Prometheus", "prometheus_of", "prometheus_options"]

_READ = click.Path(path_type=Path, dir_okay=False, exists=True)


class Prometheus(msgspec.Struct, frozen=True):
    """A Prometheus to read."""

    url: str
    connect: Callable[[], HttpMetrics]
    """Gives a client; its files are read each time, so that a token that was replaced counts."""


def prometheus_options(option: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what adds the options to a command.

    Args:
        option: `--prometheus`, say; the others are called after it.
        text: what it is read for.

    """
    return with_options(
        click.option(option, metavar="URL", help=text),
        click.option(f"{option}-token-file", type=_READ, help="Bearer token for it; over https, or to this machine."),
        click.option(f"{option}-ca-file", type=_READ, help="Authorities that sign its certificate, PEM."),
    )


def prometheus_of(given: Mapping[str, Any], option: str, *, deadline_s: float, most_bytes: int) -> Prometheus | None:
    """Return what the options of `prometheus_options` say; None where no Prometheus is named.

    Args:
        given: the options of the command.
        option: as given there.
        deadline_s: for an answer.
        most_bytes: of an answer.

    Raises:
        InvalidInput: a URL or a file that is none.

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
        return asked(url, *files, deadline_s=deadline_s, most_bytes=most_bytes)

    connect()  # files are read, and refused, before anything starts
    return Prometheus(url, connect)
