"""Starts JupyterLab with other rules of what is activity. Runs in the pod, by the Python of the notebook's image.

Of all API requests changed files alone are activity: the page reads kernels, sessions and files every 10 s, and saves
its layout. A program that runs in a terminal is, in the foreground or not, also while it prints nothing and no browser
shows it; the shell itself is not. Modules are not searched in the folder of the code.

It replaces methods of Jupyter, also private ones; where an image's version lacks one, it ends with that name, as a
notebook that never counts as idle would keep its GPU. Source: Jupyter Server, `base/handlers.py`
(`APIHandler.update_api_activity`), `serverapp.py` (`ServerWebApplication.last_activity`); jupyter_server_terminals,
`terminalmanager.py`; proc(5), `/proc/pid/stat`.
"""

import os
import sys

sys.path[:] = filter(None, sys.path)

# Imports begin when the folder of the code has left the path.
from collections.abc import Iterable
from datetime import datetime, timezone
from shutil import which
from typing import Any

try:
    from jupyter_server.base.handlers import APIHandler
    from jupyter_server.serverapp import ServerWebApplication
    from jupyter_server.services.contents.handlers import ContentsHandler
    from jupyter_server_terminals.terminalmanager import TerminalManager
    from jupyterlab.labapp import main
except ImportError as error:
    sys.exit(f"tessera notebook: the image has no JupyterLab 4 for its python3: {error}: use another image")

for owner, name in (
    (APIHandler, "update_api_activity"),
    (ServerWebApplication, "last_activity"),
    (TerminalManager, "_cull_inactive_terminal"),
):
    if not hasattr(owner, name):
        sys.exit(
            f"tessera notebook: this JupyterLab has no {owner.__name__}.{name}, so idle time cannot be measured: "
            "use an image with another JupyterLab 4"
        )


def runs(manager: Any, terminals: Iterable[Any]) -> bool:
    """Return whether a program other than the shell itself runs in one of the terminals."""
    shells = {str(each.ptyproc.pid) for each in terminals}
    shell = os.path.realpath(which(manager.shell_command[0]) or "")
    for process in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat", errors="replace") as file:
                state, _, _, session = file.read().rpartition(")")[2].split()[:4]
            idle = state in "ZX" or (process in shells and os.readlink(f"/proc/{process}/exe") == shell)
        except OSError:
            continue
        if session in shells and not idle:
            return True
    return False


def note_nothing(_: Any) -> None:
    """Note no activity, as the page asks by itself too."""


def note_change(handler: Any) -> None:
    """Note that a file was changed. Only who is signed in can change one; the rule of old versions knows nobody."""
    if handler.request.method in {"PUT", "POST", "PATCH", "DELETE"} and handler.get_status() < 400:  # noqa: PLR2004
        handler.settings["api_last_activity"] = datetime.now(timezone.utc)


def last_activity(app: Any, known: Any = ServerWebApplication.last_activity) -> Any:
    """Return when the server was last active; now while a program runs in a terminal."""
    manager = app.settings.get("terminal_manager")
    if manager and runs(manager, manager.terminals.values()):
        app.settings["terminal_last_activity"] = datetime.now(timezone.utc)
    return known(app)


async def cull(manager: Any, name: str, known: Any = TerminalManager._cull_inactive_terminal) -> None:
    """End an idle terminal in which no program runs."""
    terminal = manager.terminals.get(name)
    if terminal and runs(manager, (terminal,)):
        terminal.last_activity = datetime.now(timezone.utc)
    await known(manager, name)


APIHandler.update_api_activity = note_nothing
ContentsHandler.update_api_activity = note_change
ServerWebApplication.last_activity = last_activity
TerminalManager._cull_inactive_terminal = cull
main()
