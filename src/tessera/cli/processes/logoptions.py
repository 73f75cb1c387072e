"""Options of the long-running processes about their logs."""

from typing import get_args

import click

from tessera.cli.options import with_options
from tessera.log import Format, Level

__all__ = ["log_options"]

log_options = with_options(
    click.option(
        "--log-level",
        type=click.Choice(get_args(Level)),
        default="info",
        show_default=True,
        help="Least severe level that is logged.",
    ),
    click.option(
        "--log-format", type=click.Choice(get_args(Format)), default="auto", show_default=True, help="Log format."
    ),
)
"""Adds `--log-level` and `--log-format`."""
