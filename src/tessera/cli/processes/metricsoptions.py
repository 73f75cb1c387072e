"""Options of the metrics port of a process."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tessera.certificates import Tls
from tessera.cli.options import PortNumber, with_options
from tessera.errors import InvalidInput
from tessera.processports import MetricsPort

__all__ = ["metrics_options", "metrics_port"]

_PEM = click.Path(path_type=Path, exists=True, dir_okay=False)
metrics_options = with_options(
    click.option("--metrics-port", type=PortNumber(), help="Port that answers GET /metrics.  [default: none]"),
    click.option("--metrics-certificate", type=_PEM, help="Serve it over TLS: PEM, read again when it is replaced."),
    click.option("--metrics-key", type=_PEM, help="The certificate's key, PEM."),
    click.option(
        "--metrics-client-authority", type=_PEM, help="Answer only clients with a certificate of this authority, PEM."
    ),
)
"""Adds the options of the metrics port to a command."""


def metrics_port(given: Mapping[str, Any]) -> MetricsPort:
    """Return the settings of the options of `metrics_options`.

    Raises:
        InvalidInput: the TLS options are incomplete.

    """
    certificate, key, authority = (given[f"metrics_{name}"] for name in ("certificate", "key", "client_authority"))
    if bool(certificate) != bool(key) or (authority and not certificate):
        expected = "--metrics-certificate and --metrics-key"
        raise InvalidInput(
            "TLS of the metrics", found="some of its options are missing", hint=f"give {expected}, or none"
        )
    tls = Tls(certificate=certificate, key=key, client_authority=authority) if certificate else None
    return MetricsPort(port=given["metrics_port"], tls=tls)
