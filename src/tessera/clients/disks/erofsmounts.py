"""EROFS images mounted by the kernel: the host's mounts, and in-memory ones."""

import os
import platform
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tessera.errors import Unavailable, Unsupported

__all__ = ["ErofsMounts", "HostErofsMounts", "MemoryErofsMounts"]

_TIMEOUT_S = 60.0
_SHOWN = 400
_MODULES = ("modules.dep", "modules.builtin")
"""depmod's lists of a kernel's modules, loaded or not."""
_BUSY = 32
"""Exit status of umount for a mount in use, among others. Source: mount(8)."""


class ErofsMounts(Protocol):
    """The mounts of images on one node."""

    def why_not(self) -> str:
        """Return why this node cannot mount images; empty where it can."""
        ...

    def is_mounted(self, folder: Path) -> bool:
        """Return whether an image is mounted there."""
        ...

    def mount(self, image: Path, folder: Path) -> None:
        """Mount an image, read-only; idempotent.

        Raises:
            Unsupported: this node cannot mount images.
            Unavailable: the kernel rejects the image.

        """
        ...

    def unmount(self, folder: Path) -> bool:
        """Unmount it; return whether nothing is mounted there any more: open files keep it."""
        ...


class HostErofsMounts:
    """The mounts of the host; a container makes them in the host's mount namespace. Thread-safe.

    Args:
        root: the host's root folder, as this process sees it: `/proc/1/root` in the agent's container.

    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._mounting = threading.Lock()

    def why_not(self) -> str:
        """Return why this node cannot mount images, by its kernel; empty where it can."""
        if os.geteuid() != 0:
            return "only root mounts images"
        known = (self._root / "proc/filesystems").read_text().split()
        modules = self._root / "lib/modules" / platform.release()
        listed = [path.read_text(errors="replace") for name in _MODULES if (path := modules / name).is_file()]
        if "erofs" not in known and not any("/erofs.ko" in text for text in listed):
            return f"the kernel {platform.release()} has no EROFS"
        if not (self._root / "dev/loop-control").exists() and not any("/loop.ko" in text for text in listed):
            return f"the kernel {platform.release()} has no loop devices"
        return ""

    def is_mounted(self, folder: Path) -> bool:
        """Return whether an image is mounted there."""
        try:
            return folder.stat().st_dev != folder.parent.stat().st_dev
        except OSError:
            return False

    def mount(self, image: Path, folder: Path) -> None:
        """Mount an image, read-only; idempotent."""
        with self._mounting:
            if self.is_mounted(folder):
                return
            if problem := self.why_not():
                hint = "use a kernel that mounts EROFS images, or do not pack"
                raise Unsupported(f"image {image.name}", found=problem, hint=hint)
            options = ("-o", "loop,ro,nodev,nosuid")
            result = self._run("mount", "-t", "erofs", *options, self._named(image), self._named(folder))
            if result.returncode and not self.is_mounted(folder):  # another process may have mounted it meanwhile
                raise Unavailable(str(image), found=_words(result), hint="sync again")

    def unmount(self, folder: Path) -> bool:
        """Unmount it; return whether nothing is mounted there any more."""
        with self._mounting:
            while self.is_mounted(folder):  # more than once, if two processes mounted it at once
                result = self._run("umount", self._named(folder))
                if result.returncode == _BUSY:
                    return not self.is_mounted(folder)
                if result.returncode:
                    raise Unavailable(str(folder), found=_words(result), hint="end the processes that use it")
            return True

    def _named(self, path: Path) -> str:
        """Return a path on the host."""
        return f"/{path.absolute().relative_to(self._root)}"

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = arguments
        if self._root != Path("/"):
            command = ("nsenter", f"--mount={self._root.parent / 'ns/mnt'}", "--", *arguments)
        env = {"LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"}
        try:
            return subprocess.run(command, capture_output=True, env=env, timeout=_TIMEOUT_S, check=False)  # noqa: S603 - no shell, and the paths are ours
        except FileNotFoundError as error:
            hint = "install the packages util-linux and mount"
            raise Unsupported(command[0], found="there is no such program", hint=hint) from error
        except subprocess.TimeoutExpired as error:
            found = f"timed out after {_TIMEOUT_S:g} s"
            raise Unavailable(" ".join(command), found=found, hint="look for disk errors in the kernel log") from error


def _words(result: subprocess.CompletedProcess[bytes]) -> str:
    text = " ".join(result.stderr.decode(errors="replace").split())[:_SHOWN]
    return f"exit status {result.returncode}: {text}"


class MemoryErofsMounts:
    """In-memory mounts: folders stay unchanged.

    Args:
        problem: why nothing can be mounted; empty where it can.
        is_busy: whether something is open in a folder.

    Attributes:
        refusal: why a mount fails that looks possible; empty where it succeeds.

    """

    def __init__(self, problem: str = "", is_busy: Callable[[Path], bool] = lambda _folder: False) -> None:
        self.problem = problem
        self.refusal = ""
        self.mounts: dict[Path, Path] = {}
        self._is_busy = is_busy

    def why_not(self) -> str:
        """Return why this node cannot mount images; empty where it can."""
        return self.problem

    def is_mounted(self, folder: Path) -> bool:
        """Return whether an image is mounted there."""
        return folder in self.mounts

    def mount(self, image: Path, folder: Path) -> None:
        """Remember a mount."""
        if self.problem:
            raise Unsupported(
                f"image {image.name}", found=self.problem, hint="use a kernel that mounts EROFS images, or do not pack"
            )
        if self.refusal:
            raise Unavailable(str(image), found=self.refusal, hint="sync again")
        self.mounts.setdefault(folder, image)

    def unmount(self, folder: Path) -> bool:
        """Forget a mount."""
        if folder in self.mounts and self._is_busy(folder):
            return False
        self.mounts.pop(folder, None)
        return True
