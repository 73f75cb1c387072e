"""A stand-in for `nvidia-cuda-mps-control` without a GPU: daemon, console, and their files.

`install` puts a program of that name into a folder for PATH. It implements NVIDIA's documented classic
control: `-f` and `-d` start the daemon of the pipe directory, without an option commands are read from standard input.
Limits are written to `control.log`. As with NVIDIA's, a default is for servers that are started after it is set.
Clients are simulated: `sim_client PID [UID]` connects one, `sim_leave PID` disconnects it.

Source: NVIDIA MPS documentation, "nvidia-cuda-mps-control"; the answers are those of driver 580 (docs/hardware.md).
"""

import contextlib
import fcntl
import os
import re
import signal
import socketserver
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket
from typing import TextIO

__all__ = ["NAME", "install", "main"]

NAME = "nvidia-cuda-mps-control"
_DEFAULT_PIPES = "/tmp/nvidia-mps"  # noqa: S108  # NVIDIA's documented default
_DEFAULT_LOGS = "/var/log/nvidia-mps"
_LIMIT = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[MG]?)B?")
_GIB_MIB = 1024
_MAX_CLIENTS = 48
_MAX_REQUEST = 4096
_MAX_PERCENT = 100


def install(folder: Path) -> Path:
    """Write the program into a folder for PATH, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / NAME
    text = f"#!{sys.executable}\nimport sys\nfrom tessera.sim.mpscontrol import main\nsys.exit(main(sys.argv[1:]))\n"
    if not program.exists() or program.read_text() != text:
        new = program.with_suffix(f".{os.getpid()}")
        new.write_text(text)
        new.chmod(new.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        new.replace(program)
    return program


def main(arguments: Sequence[str]) -> int:
    """Run the program and return its exit status."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _DEFAULT_PIPES))
    if not arguments:
        return _console(pipes / "control")
    if arguments[0] == "-d" and os.fork():
        return 0
    if arguments[0] in {"-f", "-d"}:
        return _daemon(pipes, Path(os.environ.get("CUDA_MPS_LOG_DIRECTORY", _DEFAULT_LOGS)))
    sys.stderr.write(f"unknown option {arguments[0]}\n")
    return 1


def _console(control: Path) -> int:
    """Send each line of standard input to the daemon and print its answer."""
    for line in sys.stdin:
        with socket(AF_UNIX, SOCK_STREAM) as connection:
            try:
                connection.connect(str(control))
            except OSError:
                sys.stdout.write("Cannot find MPS control daemon process\n")
                return 1
            connection.sendall(line.encode())
            with connection.makefile("r") as answer:
                sys.stdout.write(answer.read())
    return 0


def _daemon(pipes: Path, logs: Path) -> int:
    pipes.mkdir(parents=True, exist_ok=True)
    logs.mkdir(parents=True, exist_ok=True)
    with (pipes / "control_lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("An instance of this daemon is already running\n")
            return 1
        control = pipes / "control"
        control.unlink(missing_ok=True)
        (pipes / f"{NAME}.pid").write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            with _Server(str(control), _Request) as server, (logs / "control.log").open("a", buffering=1) as log:
                server.control = Control(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
                server.log = log
                log.write("Starting control daemon\n")
                while server.control.running:
                    server.handle_request()
        finally:
            control.unlink(missing_ok=True)
            (pipes / f"{NAME}.pid").unlink(missing_ok=True)
    return 0


class _Server(socketserver.UnixStreamServer):
    control: "Control"
    log: TextIO


class _Request(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Answer one command."""
        server = self.server
        assert isinstance(server, _Server)
        line = self.rfile.readline(_MAX_REQUEST).decode(errors="replace")
        answer = server.control.answer(line.split())
        if line.startswith("set_"):
            server.log.write(f"{line.strip()}\n")
        with contextlib.suppress(OSError):
            self.wfile.write(answer.encode())


class ClientLimits:
    """Of the clients of a server, or of later servers."""

    def __init__(self) -> None:
        self.percent = "100.0"
        self._memory: dict[str, int] = {}
        """In MiB, by device."""

    def copy(self) -> "ClientLimits":
        """Return the limits of a server that is started now."""
        made = ClientLimits()
        made.percent, made._memory = self.percent, dict(self._memory)
        return made

    def set_percent(self, percent: str) -> str:
        """Set the part of the threads, unless it is none, and return the one in force."""
        if 0 < float(percent) <= _MAX_PERCENT:
            self.percent = str(float(percent))
        return f"{self.percent}\n"

    def set_memory(self, device: str, limit: str) -> str:
        """Set the memory on a device, none for 0, and return the answer; what is no limit changes nothing."""
        if match := _LIMIT.fullmatch(limit):
            self._memory[str(int(device))] = int(match["count"]) * (_GIB_MIB if match["unit"] == "G" else 1)
        return ""

    def memory_of(self, device: str) -> str:
        """Return the memory on a device, in whole gigabytes from one on; nothing without a limit."""
        mib = self._memory.get(device, 0)
        return (f"{mib // _GIB_MIB}G\n" if mib >= _GIB_MIB else f"{mib}M\n") if mib else ""


class Control:
    """The state of one daemon, and its answers.

    Args:
        visible: its device, `CUDA_VISIBLE_DEVICES`.

    """

    def __init__(self, visible: str) -> None:
        self.running = True
        self._visible = visible
        self._default = ClientLimits()
        self._servers: dict[int, ClientLimits] = {}
        """The limits of later clients, by their server."""
        self._clients: dict[int, int] = {}
        """Clients' user ids by their process ids."""

    def answer(self, words: Sequence[str]) -> str:
        """Return the console's output for a command; an invalid command changes nothing."""
        if not words:
            return ""
        command = getattr(self, f"_{words[0]}", None)
        if command is None or not words[0].islower():
            return f'Unknown command "{words[0]}"\n'
        try:
            text: str = command(*words[1:])
        except (TypeError, ValueError, KeyError):
            return f"Invalid arguments: {' '.join(words)}\n"
        return text

    def _server(self, user: int) -> int:
        """Return the process id of a user's simulated server."""
        return os.getpid() * 10 + user % 10

    def _get_server_list(self) -> str:
        return "".join(f"{self._server(user)}\n" for user in dict.fromkeys(self._clients.values()))

    def _get_client_list(self, server: str = "0") -> str:
        if int(server) not in self._servers:
            return f"Server {server} not found\n"
        return "".join(f"{pid}\n" for pid, user in self._clients.items() if self._server(user) == int(server))

    def _ps(self) -> str:
        lines = [
            f"{pid} 1 {self._server(user)} {self._visible} 4026531836 sim\n" for pid, user in self._clients.items()
        ]
        return "PID ID SERVER DEVICE NAMESPACE COMMAND\n" + "".join(lines)

    def _set_default_active_thread_percentage(self, percent: str) -> str:
        return self._default.set_percent(percent)

    def _get_default_active_thread_percentage(self) -> str:
        return f"{self._default.percent}\n"

    def _set_default_device_pinned_mem_limit(self, device: str, limit: str) -> str:
        return self._default.set_memory(device, limit)

    def _get_default_device_pinned_mem_limit(self, device: str) -> str:
        return self._default.memory_of(device)

    def _set_active_thread_percentage(self, server: str, percent: str) -> str:
        return self._servers[int(server)].set_percent(percent)

    def _get_active_thread_percentage(self, server: str) -> str:
        return f"{self._servers[int(server)].percent}\n"

    def _set_device_pinned_mem_limit(self, server: str, device: str, limit: str) -> str:
        return self._servers[int(server)].set_memory(device, limit)

    def _get_device_pinned_mem_limit(self, server: str, device: str) -> str:
        return self._servers[int(server)].memory_of(device)

    def _quit(self, *_: str) -> str:
        self.running = False
        return ""

    def _sim_client(self, pid: str, user: str = "0") -> str:
        if len(self._clients) >= _MAX_CLIENTS:
            return "too many clients\n"
        self._clients[int(pid)] = int(user)
        self._servers.setdefault(self._server(int(user)), self._default.copy())
        return ""

    def _sim_leave(self, pid: str) -> str:
        self._clients.pop(int(pid), None)
        served = {self._server(user) for user in self._clients.values()}
        self._servers = {server: limits for server, limits in self._servers.items() if server in served}
        return ""
