"""What a testbed needs of the machine: Linux, root, and a few programs that Debian has."""

import os
import platform
import shutil
import subprocess

from tessera.errors import Unsupported

__all__ = ["PACKAGES", "check_machine", "missing"]

PACKAGES = {
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "socat": "socat",
    "ethtool": "ethtool",
    "busybox": "busybox-static",
    "gcc": "gcc libc6-dev",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
"""Programs, and Debian's packages that have them."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing() -> str:
    """Return why no testbed can run here, in words for a person; empty when one can."""
    if platform.system() != "Linux":
        return f"{platform.system()}, not Linux"
    if os.geteuid() != 0:
        return "not root"
    path = f"{os.environ.get('PATH', '')}:{_PATH}"
    absent = {package for name, package in PACKAGES.items() if not shutil.which(name, path=path)}
    return f"no {', '.join(sorted(absent))}" if absent else _forbidden(path)


def _forbidden(path: str) -> str:
    """Return why namespaces cannot be made, as in a container without privileges; empty where they can."""
    probe = "mount -t tmpfs none /mnt && ip link add probe0 type bridge"
    command = ("unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", probe)
    tried = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    return f"no right to make namespaces ({tried.stderr.strip()})" if tried.returncode else ""


def check_machine() -> None:
    """Return when a testbed can run here.

    Raises:
        Unsupported: it cannot; tells what is missing.

    """
    lack = missing()
    if lack:
        desired = "Linux, root, and what `apt-get install` calls " + " ".join(sorted(set(PACKAGES.values())))
        raise Unsupported("this machine", found=lack, hint=f"needed is {desired}")
