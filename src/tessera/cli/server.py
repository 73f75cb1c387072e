"""`tessera server`: the scheduler extender."""

import asyncio
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

import click

from tessera.cli.logoptions import log_options
from tessera.cli.options import Seconds, health_option, kubeconfig_option
from tessera.clients.kube import HttpKube
from tessera.core.packing.pack import POLICIES
from tessera.errors import InvalidInput
from tessera.log import configure
from tessera.probes import answering
from tessera.server.run import Server
from tessera.server.settings import Admission, Limits, Settings, Tls

__all__ = ["server"]

_EPILOG = """
\b
Examples:
  tessera server
  tessera server --kubeconfig ~/.kube/config --port 39999
  tessera server --host 0.0.0.0 --tls-certificate tls.crt --tls-key tls.key --tls-client-authority ca.crt
  tessera server --admission-port 8443 --tls-certificate tls.crt --tls-key tls.key

RBAC: get, list and watch nodes and pods; create pods/binding; get, list, watch, create and
patch gpunodes.tessera.dev; in tessera-system get, create and patch the Secret tessera-assignment-key, and get, list,
watch, create and patch the ConfigMap tessera-assignment-keys.
"""

_SETTINGS, _LIMITS = Settings(), Limits()
_FILE = click.Path(path_type=Path)
_POLICIES = tuple(name for name in POLICIES if name != "random")


@click.command(epilog=_EPILOG)
@kubeconfig_option
@click.option(
    "--host", default=_SETTINGS.host, show_default=True, help="Address; beyond loopback only with TLS both ways."
)
@click.option("--port", type=click.IntRange(0, 65535), default=_SETTINGS.port, show_default=True, help="0 for any.")
@click.option("--tls-certificate", type=_FILE, help="Certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, help="Private key, PEM.")
@click.option("--tls-client-authority", type=_FILE, help="CA that client certificates must be signed by, PEM.")
@click.option("--admission-port", type=click.IntRange(0, 65535), help="Port of the admission webhook; none without.")
@click.option("--admission-host", default="0.0.0.0", show_default=True, help="Address of the webhook.")  # noqa: S104
@click.option("--admission-certificate", type=_FILE, help="Certificate chain, PEM.  [default: --tls-certificate]")
@click.option("--admission-key", type=_FILE, help="Private key, PEM.  [default: --tls-key]")
@click.option(
    "--admission-self-signed",
    type=_FILE,
    metavar="FOLDER",
    help="Make the certificate, renew it, and write it into the webhook of the Helm chart; FOLDER gets the files.",
)
@click.option(
    "--policy", type=click.Choice(_POLICIES), default=_SETTINGS.policy, show_default=True, help="Packing policy."
)
@click.option("--replica", metavar="NAME", help="Identity in claims.  [default: host name and a number]")
@click.option(
    "--request-s", type=Seconds(0.1), default=_LIMITS.request_s, show_default=True, help="Deadline of a request."
)
@click.option(
    "--body-mib",
    type=click.IntRange(1),
    default=_LIMITS.body_bytes >> 20,
    show_default=True,
    help="Largest request body.",
)
@health_option
@log_options
def server(**given: Any) -> None:
    """Run the scheduler extender: filter, score and bind pods that use GPUs, and choose preemption victims.

    A pod is bound with its device assignment. Run any number of replicas; stopping one is always safe. It serves the
    paths of gpushare's extender too, and can replace it.
    """
    configure(given["log_level"], given["log_format"])
    asyncio.run(_run(_settings(given), given["kubeconfig"], given["health_port"]))


def _settings(given: dict[str, Any]) -> Settings:
    certificate, key = given["tls_certificate"], given["tls_key"]
    if bool(certificate) != bool(key) or (given["tls_client_authority"] and not certificate):
        raise InvalidInput(
            "TLS", found="only some of its options", expected="--tls-certificate and --tls-key", hint="or neither"
        )
    authority = given["tls_client_authority"]
    return Settings(
        host=given["host"],
        port=given["port"],
        tls=Tls(certificate=certificate, key=key, client_authority=authority) if certificate else None,
        admission=_admission(given),
        policy=given["policy"],
        freeze=True,
        replica=given["replica"] or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}",
        limits=Limits(request_s=given["request_s"], body_bytes=given["body_mib"] << 20),
    )


def _admission(given: dict[str, Any]) -> Admission | None:
    port = given["admission_port"]
    certificate = given["admission_certificate"] or given["tls_certificate"]
    key = given["admission_key"] or given["tls_key"]
    if port is None:
        return None
    if folder := given["admission_self_signed"]:
        tls = Tls(certificate=folder / "tls.crt", key=folder / "tls.key")
        return Admission(host=given["admission_host"], port=port, tls=tls, self_signed=True)
    if not certificate or not key:
        raise InvalidInput(
            "--admission-port",
            found="no certificate, and the API server calls webhooks over TLS only",
            expected="--admission-certificate and --admission-key, or --admission-self-signed",
            hint="also --tls-certificate and --tls-key, which then serve both",
        )
    return Admission(host=given["admission_host"], port=port, tls=Tls(certificate=certificate, key=key))


async def _run(settings: Settings, kubeconfig: Path | None, health_port: int | None) -> None:
    """Run until SIGTERM or SIGINT."""
    async with HttpKube.connect(kubeconfig) as kube:
        one = Server(settings, kube)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, one.stop)
        async with answering(health_port, one.waiting_for):
            await one.run()
