"""Tessera's own processes beside a testbed's control plane: the server, the second scheduler, the controller."""

import json
import sys
from pathlib import Path
from typing import Any

from tessera.api.tessera.v1alpha1.gpupolicies import API_VERSION, KIND
from tessera.cli import COMMANDS
from tessera.core.workload.resources import SCHEDULER_NAME
from testbed.controlplane import REQUESTS_PER_S, Settings
from testbed.deploy import EXTENDER_URL, scheduler_configuration

__all__ = ["account", "command", "health", "names", "policy"]

_PORT = 10261
"""Where the second scheduler tells how it is; the first has 10259."""


def names() -> tuple[str, ...]:
    """Return the processes that this checkout can start, in order of start."""
    return tuple(name for name in ("server", SCHEDULER_NAME, "controller") if name in {*COMMANDS, SCHEDULER_NAME})


def policy() -> dict[str, Any]:
    """Return the GPUPolicy of a testbed that has none: all GPUs are managed by Tessera, which does not wait long."""
    quick = {"repartition": {"idleSeconds": 1, "longestSeconds": 10}}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "testbed"}, "spec": quick}


def account(name: str) -> str:
    """Return whose rights a process has: those in the chart's templates/rbac/ACCOUNT.yaml, of `tessera-ACCOUNT`."""
    return "scheduler" if name == SCHEDULER_NAME else name


def command(name: str, settings: Settings, kubeconfig: Path) -> tuple[str, ...]:
    """Return the command line of a process; what it reads from files is written.

    Args:
        name: one of `names`.
        settings: those of the control plane.
        kubeconfig: that of its account.

    """
    if name == SCHEDULER_NAME:
        return _scheduler(settings, kubeconfig)
    return (str(Path(sys.executable).with_name("tessera")), name)


def health(name: str) -> str:
    """Return what answers inside the namespaces when a process is well; empty where nothing can be asked."""
    return {"server": f"{EXTENDER_URL}/readyz", SCHEDULER_NAME: f"https://127.0.0.1:{_PORT}/healthz"}.get(name, "")


def _scheduler(settings: Settings, kubeconfig: Path) -> tuple[str, ...]:
    requests = {"qps": REQUESTS_PER_S, "burst": 2 * REQUESTS_PER_S}
    configuration: dict[str, Any] = {
        **scheduler_configuration(),
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), **requests},
    }
    path = settings.folder / f"{SCHEDULER_NAME}.json"
    path.write_text(json.dumps(configuration, indent=1))
    authority = (f"--authentication-kubeconfig={kubeconfig}", f"--authorization-kubeconfig={kubeconfig}")
    address = ("--bind-address=127.0.0.1", f"--secure-port={_PORT}")
    # As the chart has it.
    again = "--pod-max-in-unschedulable-pods-duration=30s"
    return (str(settings.bin / "kube-scheduler"), f"--config={path}", again, *address, *authority)
