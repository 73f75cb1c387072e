"""The command of a notebook: JupyterLab in a pod, which ends when idle."""

from typing import Final

__all__ = ["NOTEBOOK_PORT", "notebook_command"]

NOTEBOOK_PORT: Final = 8888
_CULL_INTERVAL_S: Final = 60
_JUPYTERLAB: Final = """\
import sys
sys.path[:] = filter(None, sys.path)
from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.contents.handlers import ContentsHandler
from jupyterlab.labapp import main
APIHandler._track_activity = False
ContentsHandler._track_activity = property(lambda handler: handler.request.method != "GET")
main()
"""
"""Starts JupyterLab, to which of all API requests changed files alone are activity: its page reads kernels, sessions
and files every 10 s, and saves its layout. Modules are not searched in the folder of the code. Source: Jupyter Server,
`base/handlers.py` (`APIHandler._track_activity`)."""


def notebook_command(idle_s: int) -> tuple[str, ...]:
    """Return the command of JupyterLab, reachable only from its own pod and with its token, which ends when idle.

    Idle kernels and terminals are ended, even while a browser shows them; without any of them, and without a changed
    file, the server ends as well. Source: Jupyter Server, `jupyter lab --help-all`.

    Args:
        idle_s: the time without work in seconds.

    """
    return (
        *("python3", "-c", _JUPYTERLAB),
        *("--ip=127.0.0.1", f"--port={NOTEBOOK_PORT}", "--ServerApp.port_retries=0"),
        *("--no-browser", "--allow-root"),
        f"--ServerApp.shutdown_no_activity_timeout={idle_s}",
        f"--MappingKernelManager.cull_idle_timeout={idle_s}",
        f"--MappingKernelManager.cull_interval={min(idle_s, _CULL_INTERVAL_S)}",
        "--MappingKernelManager.cull_connected=True",
        f"--TerminalManager.cull_inactive_timeout={idle_s}",
    )
