"""The command of a notebook: JupyterLab in a pod, which ends when idle."""

from typing import Final

__all__ = ["NOTEBOOK_PORT", "notebook_command"]

NOTEBOOK_PORT: Final = 8888
_CULL_INTERVAL_S: Final = 60
_JUPYTERLAB: Final = """\
import os, sys
sys.path[:] = filter(None, sys.path)
from datetime import datetime, timezone
from shutil import which
from jupyter_server.base.handlers import APIHandler
from jupyter_server.serverapp import ServerWebApplication
from jupyter_server.services.contents.handlers import ContentsHandler
from jupyter_server_terminals.terminalmanager import TerminalManager
from jupyterlab.labapp import main

APIHandler._track_activity = False
ContentsHandler._track_activity = property(lambda handler: handler.request.method != "GET")

def runs(manager, terminals):
    shells = {str(each.ptyproc.pid) for each in terminals}
    shell = os.path.realpath(which(manager.shell_command[0]) or "")
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat", errors="replace") as file:
                state, _, _, session = file.read().rpartition(")")[2].split()[:4]
            idle = state in "ZX" or process in shells and os.readlink(f"/proc/{process}/exe") == shell
        except OSError:
            continue
        if session in shells and not idle:
            return True
    return False

def last_activity(app, known=ServerWebApplication.last_activity):
    manager = app.settings.get("terminal_manager")
    if manager and runs(manager, manager.terminals.values()):
        app.settings["terminal_last_activity"] = datetime.now(timezone.utc)
    return known(app)

async def cull(manager, name, known=TerminalManager._cull_inactive_terminal):
    terminal = manager.terminals.get(name)
    if terminal and runs(manager, (terminal,)):
        terminal.last_activity = datetime.now(timezone.utc)
    await known(manager, name)

ServerWebApplication.last_activity = last_activity
TerminalManager._cull_inactive_terminal = cull
main()
"""
"""Starts JupyterLab with other rules of what is activity. Of all API requests changed files alone are: its page reads
kernels, sessions and files every 10 s, and saves its layout. A program that runs in a terminal is, in the foreground or
not, also while it prints nothing and no browser shows it; the shell itself is not. Modules are not searched in the
folder of the code. Source: Jupyter Server, `base/handlers.py` (`APIHandler._track_activity`), `serverapp.py`
(`ServerWebApplication.last_activity`); jupyter_server_terminals, `terminalmanager.py`; proc(5), `/proc/pid/stat`."""


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
        f"--TerminalManager.cull_interval={min(idle_s, _CULL_INTERVAL_S)}",
    )
