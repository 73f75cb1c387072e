"""The command of a notebook: JupyterLab in a pod, which ends when idle."""

from typing import Final

__all__ = ["NOTEBOOK_PORT", "notebook_command"]

NOTEBOOK_PORT: Final = 8888
_CULL_INTERVAL_S: Final = 60


def notebook_command(program: str, idle_s: int) -> tuple[str, ...]:
    """Return the command of JupyterLab, reachable only from its own pod and with its token, which ends when idle.

    Idle kernels and terminals are ended, even while a browser shows them; without any of them, and without a changed
    file, the server ends as well. Source: Jupyter Server, `jupyter lab --help-all`.

    Args:
        program: Python that starts JupyterLab.
        idle_s: the time without work in seconds.

    """
    return (
        *("python3", "-c", program),
        *("--ip=127.0.0.1", f"--port={NOTEBOOK_PORT}", "--ServerApp.port_retries=0"),
        *("--no-browser", "--allow-root"),
        f"--ServerApp.shutdown_no_activity_timeout={idle_s}",
        f"--MappingKernelManager.cull_idle_timeout={idle_s}",
        f"--MappingKernelManager.cull_interval={min(idle_s, _CULL_INTERVAL_S)}",
        "--MappingKernelManager.cull_connected=True",
        f"--TerminalManager.cull_inactive_timeout={idle_s}",
        f"--TerminalManager.cull_interval={min(idle_s, _CULL_INTERVAL_S)}",
    )
