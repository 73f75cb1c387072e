"""A virtual machine with NVMe disks, for what this machine's kernel or disks cannot show: RAID, reboots, lost disks.

QEMU emulates the processor, so neither KVM nor a module of this machine's kernel is needed. The kernel is Debian's for
clouds; all else comes from this machine: the Python that runs this, and the programs that act on disks.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tessera.errors import Unavailable

__all__ = ["PROGRAMS", "Ran", "boot", "build", "lack"]

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mdadm": "mdadm",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "blkid": "util-linux",
    "wipefs": "util-linux",
    "losetup": "mount",
    "mount": "mount",
    "umount": "mount",
    "udevadm": "udev",
    "busybox": "busybox-static",
}
"""Programs, and Debian's packages that have them."""
_KERNEL = "linux-image-cloud-amd64"
_MODULES = (
    "drivers/block/loop",
    "lib/libcrc32c",
    "drivers/md/md-mod",
    "drivers/md/raid0",
    "drivers/md/raid1",
    "fs/xfs/xfs",
)
"""In the order in which they need each other; ext4 and NVMe are part of the kernel."""
_LIBRARIES = (
    *("_pytest", "anyio", "click", "idna", "iniconfig", "msgspec", "numpy", "numpy.libs", "packaging", "pluggy"),
    *("py.py", "pygments", "pytest", "rich", "typing_extensions.py", "yaml", "_yaml"),
)
"""What the tests that run in the machine import, of the checkout's environment."""
_NO_NEED = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "ensurepip", "site-packages", "*.a", "config-*"
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ROOT_BYTES = 512 << 20
_JOB_BYTES = 1 << 20
_ENDED = re.compile(r"^guest: job ended with (\d+)\r?$", re.MULTILINE)
_TAIL = 2000
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/tools:{python}:/bin HOME=/root LC_ALL=C PYTHONPATH=/checkout/src:/checkout/tests:/libraries
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
for module in {modules}; do insmod /modules/$module.ko; done
mkdir -p /dev/disk/by-id /run/udev
if [ "$1" = udev ]; then
  systemd-udevd --daemon --resolve-names=never
  udevadm trigger --action=add --subsystem-match=block
  udevadm settle --timeout=120
fi
for disk in /sys/block/nvme*; do
  name=${{disk##*/}}
  serial=$(tr -d ' ' <$disk/device/serial)
  # As udev makes them.
  [ "$1" = udev ] || ln -s ../../$name /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_$serial
  [ $serial != job ] || tr -d '\\0' </dev/$name >/tmp/job
done
sh /tmp/job
echo "guest: job ended with $?"
sync
poweroff -f
"""


class Ran(NamedTuple):
    """What a job did."""

    code: int
    """Its exit status."""
    output: str
    """What it printed, after what the kernel did."""


def lack() -> str:
    """Return what this machine has not, in Debian's names of packages; empty when a machine can be made."""
    absent = {package for program, package in PROGRAMS.items() if not shutil.which(program, path=_PATH)}
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "Linux on x86-64"
    return " ".join(sorted(absent))


def build(folder: Path, checkout: Path) -> Path:
    """Return the image of a machine's first disk: Python, the checkout's sources and tests, and the programs.

    Raises:
        Unavailable: the kernel cannot be downloaded, or a program fails.

    """
    root = folder / "root"
    for name in ("bin", "dev", "mnt", "modules", "proc", "root", "run", "sys", "tmp", "tools", "var/lib"):
        (root / name).mkdir(parents=True)
    _copy_python(root)
    libraries = Path(sysconfig.get_paths()["purelib"])
    for name in _LIBRARIES:
        _copy(libraries / name, root / "libraries" / name)
    for name in ("src/tessera", "tests"):
        _copy(checkout / name, root / "checkout" / name)
    # Compiled here, because the emulated processor takes ten times as long.
    sources = (str(root / "libraries"), str(root / "checkout" / "src"))
    _run(sys.executable, "-m", "compileall", "-q", "-s", str(root), "-p", "/", *sources)
    programs = _copy_programs(root)
    python = Path(sys.executable).resolve()
    _copy_shared(root, [python, *programs, *root.rglob("*.so"), *root.rglob("*.so.*")])
    modules = _kernel() / "lib/modules"
    for name in _MODULES:
        shutil.copy2(next(modules.glob(f"*/kernel/{name}.ko")), root / "modules")
    names = " ".join(Path(each).name for each in _MODULES)
    init = root / "init"
    init.write_text(_INIT.format(python=python.parent, modules=names))
    init.chmod(0o755)
    image = folder / "root.img"
    with image.open("wb") as file:
        file.truncate(_ROOT_BYTES)
    _run("mkfs.ext4", "-q", "-d", str(root), str(image))
    shutil.rmtree(root)
    return image


def boot(root: Path, disks: Mapping[str, Path], job: str, timeout_s: float, *, udev: bool = False) -> Ran:
    """Start a machine, run a job in its shell as root, power it off, and return what the job did.

    Args:
        root: the image of its first disk, which keeps what is written to it.
        disks: images of its other NVMe disks, by serial number.
        job: a shell script.
        timeout_s: when the machine is stopped, whatever it does.
        udev: whether udev runs with this machine's rules, and so may assemble arrays before the job does.

    Raises:
        Unavailable: the job did not end; tells the last lines of the console.

    """
    script = job.encode()
    with tempfile.NamedTemporaryFile(suffix=".img") as file:
        file.write(script + bytes(_JOB_BYTES - len(script)))
        file.flush()
        command = _machine({"root": root, **disks, "job": Path(file.name)}, udev=udev)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode(errors="replace")
            found = f"no end within {timeout_s:g} s, after: {output[-_TAIL:]}"
            raise Unavailable("virtual machine", found=found, hint="see its log") from error
    output = done.stdout.decode(errors="replace")
    ended = _ENDED.search(output)
    if not ended:
        found = f"no end of the job: {output[-_TAIL:]}{done.stderr.decode(errors='replace')[-_TAIL:]}"
        raise Unavailable("virtual machine", found=found, hint="see its log")
    return Ran(int(ended[1]), output[: ended.start()])


def _machine(images: Mapping[str, Path], *, udev: bool) -> list[str]:
    """Return the command that emulates a machine with these NVMe disks, by serial number; it starts from the first."""
    drives = [
        option
        for number, (serial, image) in enumerate(images.items())
        for option in (
            *("-drive", f"file={image},if=none,id=d{number},format=raw,cache=unsafe"),
            *("-device", f"nvme,drive=d{number},serial={serial}"),
        )
    ]
    kernel = next((_kernel() / "boot").glob("vmlinuz-*"))
    arguments = (
        "console=ttyS0",
        "quiet",
        "panic=-1",
        "no_timer_check",  # on a busy machine an emulated timer is late, which the kernel takes for a broken one
        "root=/dev/nvme0n1",
        "rw",
        "init=/init",
        *(("udev",) if udev else ()),
    )
    return [
        *(_program("qemu-system-x86_64"), "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024"),
        *("-nographic", "-no-reboot", "-nic", "none", "-kernel", str(kernel), "-append", " ".join(arguments)),
        *drives,
    ]


def _program(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    if not found:
        raise Unavailable("virtual machine", found=f"there is no {name}", hint=f"install the package {PROGRAMS[name]}")
    return found


def _kernel() -> Path:
    """Return the folder with Debian's kernel and its modules, downloaded the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessera" / "guest"
    depends = _run("apt-cache", "depends", _KERNEL)
    package = next(iter(re.findall(r"Depends: (linux-image-\S+)", depends)), "")
    if not package:
        raise Unavailable(
            "kernel of the virtual machine", found=f"there is no package {_KERNEL}", hint="use Debian's packages"
        )
    folder = cache / package
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            _run("apt-get", "download", "-qq", package, cwd=scratch)
            archive = next(Path(scratch).glob("*.deb"))
            _run("dpkg-deb", "--extract", str(archive), str(Path(scratch) / "whole"))
            (Path(scratch) / "whole").rename(folder)
    return folder


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("data", "tests", "*.dist-info"))
    else:
        shutil.copy2(source, target)


def _copy_programs(root: Path) -> list[Path]:
    """Copy busybox, the tools and udev with its rules; return the copied tools."""
    shutil.copy2(_program("busybox"), root / "bin")
    programs = [Path(_program(each)) for each in PROGRAMS if each not in {"busybox", "qemu-system-x86_64"}]
    for each in programs:
        shutil.copy2(each, root / "tools" / each.name)
    # udev is udevadm by another name; its rules call mdadm by its path.
    (root / "tools/systemd-udevd").symlink_to("udevadm")
    (root / "sbin").mkdir()
    (root / "sbin/mdadm").symlink_to("/tools/mdadm")
    shutil.copytree("/lib/udev/rules.d", root / "lib/udev/rules.d")
    return programs


def _copy_python(root: Path) -> None:
    """Copy the interpreter and its library to their own paths."""
    python = Path(sys.executable).resolve()
    target = root / python.relative_to("/")
    target.parent.mkdir(parents=True)
    shutil.copy2(python, target)
    (target.parent / "python").symlink_to(target.name)
    paths = sysconfig.get_paths(vars={"base": sys.base_prefix, "platbase": sys.base_prefix})
    for folder in {Path(paths["stdlib"]), Path(paths["platstdlib"])}:
        shutil.copytree(folder, root / folder.relative_to("/"), ignore=_NO_NEED, dirs_exist_ok=True)


def _copy_shared(root: Path, files: Iterable[Path]) -> None:
    """Copy the shared libraries that files need, to the paths where they are."""
    for each in files:
        listing = subprocess.run(("ldd", str(each)), capture_output=True, text=True, check=False).stdout
        for path in re.findall(r"(?:=> )?(/\S+) \(0x", listing):
            target = root / Path(path).relative_to("/")
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(Path(path).resolve(), target)


def _run(*command: str, cwd: str | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, env={**os.environ, "PATH": _PATH, "LC_ALL": "C"}
    )
    if done.returncode:
        raise Unavailable(" ".join(command[:3]), found=done.stderr.strip()[-_TAIL:], hint="see what it says")
    return done.stdout
