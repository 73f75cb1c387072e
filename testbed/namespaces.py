"""Namespaces in which a testbed runs, so that nothing of it is left on the machine when they end.

The outer one has its own processes, network and mounts; process 1 in it is a program that only waits. When that is
killed, the kernel kills every process inside, drops every mount and removes the network. Each node has a network and
mounts of its own inside.
"""

import os
import subprocess
from pathlib import Path

import msgspec

from tessera.errors import Unavailable
from testbed.processes import Process, Processes, until

__all__ = ["Namespaces", "build_waiter", "environment", "make", "make_node"]

_WAITER = r"""
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int number) {
  (void)number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

static void leave(int number) {
  (void)number;
  _exit(0);
}

int main(void) {
  struct sigaction ended = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  sigaction(SIGCHLD, &ended, NULL);
  signal(SIGTERM, leave);
  signal(SIGINT, leave);
  for (;;) {
    pause();
  }
}
"""
"""What runs as process 1: it takes in processes whose parent has ended. Pods' sandboxes run the same program."""

_NODE_SETUP = r"""
set -e
mount --bind "$1/var-lib" /var/lib
mount --bind "$1/var-log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
find /dev -mindepth 1 -maxdepth 1 \( -type c -o -type l \) ! -name 'nvidia*' -exec cp -a '{}' "$1/dev/" \;
mkdir "$1/dev/pts" "$1/dev/shm"
mount --rbind /dev/pts "$1/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
mount --move "$1/dev" /dev
mount --make-rshared /
ip link set lo up
shift
exec "$@"
"""
"""A node's own view: what Kubernetes keeps in fixed folders lies in the run folder, and the machine's is hidden.

Its /dev has the machine's character devices but real GPUs, and room for those of simulated ones."""


class Namespaces(msgspec.Struct, frozen=True):
    """A process inside the namespaces, through which others enter."""

    holder: Process

    def enter(self) -> tuple[str, ...]:
        """Return what to put before a command so that it runs inside, as the holder's sibling."""
        # The root must be named, because entering mounts would otherwise leave a changed root such as a chroot.
        return ("nsenter", f"--target={self.holder.pid}", "--net", "--mount", "--pid", "--root", "--wd", "--")

    def run(self, *command: str, input_text: str | None = None) -> str:
        """Return what a command inside prints.

        Raises:
            Unavailable: it failed; tells what it said.

        """
        done = subprocess.run(
            [*self.enter(), *command], capture_output=True, text=True, check=False, input=input_text, env=environment()
        )
        if done.returncode:
            raise Unavailable(
                " ".join(command[:4]), found=done.stderr.strip() or done.stdout.strip(), hint="see what it says"
            )
        return done.stdout


def environment() -> dict[str, str]:
    """Return the environment of processes inside: the caller's, with the folders where Debian keeps administration."""
    path = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"]
    return {**os.environ, "PATH": os.pathsep.join(dict.fromkeys(filter(None, path)))}


def build_waiter(target: Path) -> Path:
    """Compile the program that only waits; kept when it is there.

    Raises:
        Unavailable: there is no C compiler, or it failed.

    """
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source = target.with_suffix(".c")
        source.write_text(_WAITER)
        done = subprocess.run(
            ["gcc", "-O2", "-static", "-o", str(target), str(source)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unavailable(
                "compiler gcc", found=done.stderr.strip(), hint="install a compiler that links static programs"
            )
    return target


def make(processes: Processes, waiter: Path) -> Namespaces:
    """Return the outer namespaces, made where they are not there.

    Raises:
        Unavailable: the system does not let us; tells what it said.

    """
    flags = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
    return _hold(processes, "namespaces", ("unshare", *flags), (str(waiter),), waiter)


def make_node(processes: Processes, outer: Namespaces, name: str, folder: Path, waiter: Path) -> Namespaces:
    """Return the namespaces of a node, made inside the outer ones where they are not there."""
    for kept in ("var-lib", "var-log", "dev"):
        (folder / kept).mkdir(parents=True, exist_ok=True)
    unshare = ("unshare", "--net", "--mount", "--propagation", "private")
    setup = ("sh", "-c", _NODE_SETUP, "sh", str(folder), str(waiter))
    return _hold(processes, name, outer.enter(), (*unshare, *setup), waiter)


def _hold(
    processes: Processes, name: str, inside: tuple[str, ...], command: tuple[str, ...], waiter: Path
) -> Namespaces:
    process = processes.start(name, command, inside=inside, environment=environment())

    def settled() -> bool:
        if not process.alive:
            raise Unavailable(f"namespaces {name}", found=processes.last_words(name), hint="see its log")
        return Path(f"/proc/{process.pid}/exe").readlink().name == waiter.name

    until(f"namespaces {name}", settled, timeout_s=10, found=lambda: processes.last_words(name))
    return Namespaces(process)
