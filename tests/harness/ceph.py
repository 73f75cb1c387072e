"""A real Ceph: monitor, manager and OSD in memory; with a file system that ceph-fuse mounts, or a bucket of its RGW."""

import contextlib
import hmac
import os
import shutil
import signal
import subprocess
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

from tessera.errors import Unavailable
from testbed.processes import until

PROGRAMS = {
    "ceph": "ceph-common",
    "ceph-mon": "ceph-mon",
    "ceph-mgr": "ceph-mgr",
    "ceph-osd": "ceph-osd",
    "ceph-mds": "ceph-mds",
    "ceph-fuse": "ceph-fuse",
    "radosgw": "radosgw",
    "curl": "curl",
}
"""Debian's packages of the programs."""
_WAIT_S = 60.0
_SETTINGS = """
[global]
fsid = {fsid}
mon_host = [v2:127.0.0.1:{port}]
ms_bind_ipv4 = true
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = true
mon_warn_on_insecure_global_id_reclaim_allowed = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 1
osd_pool_default_pgp_num = 1
osd_pool_default_pg_autoscale_mode = off
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data_avail_crit = 0
mon_data_avail_warn = 0
osd_crush_chooseleaf_type = 0
run_dir = {top}/run
admin_socket = {top}/run/$name.asok
log_file = {top}/log/$name.log
pid_file = {top}/run/$name.pid
keyring = {top}/keyring
mon_data = {top}/mon
mgr_data = {top}/mgr
osd_data = {top}/osd
mds_data = {top}/mds
rgw_data = {top}/rgw
osd_objectstore = memstore
osd_memory_target = 402653184
osd_memory_base = 134217728
osd_memory_cache_min = 67108864
memstore_device_bytes = 6442450944
mgr_initial_modules =
mds_cache_memory_limit = 134217728
"""
_KEYS = {
    "mon.": ("mon", "allow *"),
    "client.admin": ("mon", "allow *", "osd", "allow *", "mds", "allow *", "mgr", "allow *"),
    "mgr.x": ("mon", "allow profile mgr", "osd", "allow *", "mds", "allow *"),
    "osd.0": ("mon", "allow profile osd", "osd", "allow *", "mgr", "allow profile osd"),
    "mds.m": ("mon", "allow profile mds", "osd", "allow *", "mds", "allow", "mgr", "allow profile mds"),
    "client.rgw.g": ("mon", "allow rw", "osd", "allow rwx", "mgr", "allow rw"),
}


def lack() -> str:
    """Return the packages that are missing, with spaces between; empty for none."""
    return " ".join(sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None}))


class Ceph:
    """The daemons that every Ceph has.

    Args:
        top: folder for all that it writes.
        port: of the monitor, on the loopback.
        inside: returns the command that runs a command where Ceph is to run, such as `Node.command`.

    """

    def __init__(self, top: Path, port: int, inside: Callable[..., list[str]] = lambda *words: [*words]) -> None:
        self._top = top
        self._conf = top / "ceph.conf"
        self._inside = inside
        for name in ("mon", "mgr", "osd", "mds", "rgw", "run", "log", "mnt"):
            (top / name).mkdir(parents=True)
        self._fsid = str(uuid.uuid4())
        self._conf.write_text(_SETTINGS.format(fsid=self._fsid, port=port, top=top))
        self._port = port

    def start(self) -> None:
        """Start the daemons."""
        ring = str(self._top / "keyring")
        for index, (name, caps) in enumerate(_KEYS.items()):
            words = [word for kind, cap in zip(caps[::2], caps[1::2], strict=True) for word in ("--cap", kind, cap)]
            made = ("--create-keyring",) if index == 0 else ()
            self._run("ceph-authtool", *made, ring, "--gen-key", "-n", name, *words)
        address = f"[v2:127.0.0.1:{self._port}]"
        self._run("monmaptool", "--create", "--addv", "a", address, "--fsid", self._fsid, f"{self._top}/monmap")
        self._daemon("ceph-mon", "-i", "a", "--mkfs", "--monmap", f"{self._top}/monmap", "--keyring", ring)
        self._daemon("ceph-mon", "-i", "a")
        self._ceph("-s")
        self._daemon("ceph-mgr", "-i", "x")
        disk = str(uuid.uuid4())
        number = self._ceph("osd", "create", disk).strip()
        self._daemon("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", disk)
        self._ceph("osd", "crush", "add", f"osd.{number}", "1.0", "root=default", "host=localhost")
        self._daemon("ceph-osd", "-i", number)
        until("the OSD", lambda: "1 up" in self._ceph("osd", "stat"), timeout_s=_WAIT_S)

    def stop(self) -> None:
        """End all daemons, each by its id."""
        pids = self._pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until("the daemons' end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), timeout_s=_WAIT_S)

    def _pids(self) -> set[int]:
        """Return the processes whose command line names this Ceph's configuration."""
        found = set()
        for each in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (each / "cmdline").read_bytes().split(b"\0")
                if words[0].startswith((b"ceph-", b"radosgw")) and str(self._conf).encode() in words:
                    found.add(int(each.name))
        return found

    def _ceph(self, *words: str) -> str:
        return self._run("ceph", "--conf", str(self._conf), *words)

    def _daemon(self, program: str, *words: str) -> None:
        self._run(program, *words, "-c", str(self._conf))

    def _run(self, *command: str) -> str:
        log = self._top / "log" / "commands"
        with log.open("ab") as errors:  # a daemon keeps it open, and would keep a pipe
            done = subprocess.run(
                self._inside(*command), check=True, stdout=subprocess.PIPE, stderr=errors, timeout=_WAIT_S, text=True
            )
        return done.stdout


class CephFS(Ceph):
    """A CephFS, mounted at `mount`."""

    def __init__(self, top: Path, port: int) -> None:
        super().__init__(top, port)
        self.mount = top / "mnt"

    def start(self) -> None:
        """Start all daemons, make the file system and mount it."""
        super().start()
        for pool in ("fsmeta", "fsdata"):
            self._ceph("osd", "pool", "create", pool, "1")
        self._daemon("ceph-mds", "-i", "m")
        self._ceph("fs", "new", "demo", "fsmeta", "fsdata")
        until("the metadata server", lambda: "up:active" in self._ceph("mds", "stat"), timeout_s=_WAIT_S)
        self.mount_it()

    def mount_it(self) -> None:
        """Mount it with a client whose cache is empty."""
        self._daemon("ceph-fuse", "-n", "client.admin", str(self.mount))

    def unmount(self) -> None:
        """Unmount it, and wait for the client's end."""
        if self.mount.is_mount():
            clients = self._pids()
            self._run("umount", str(self.mount))
            until("the client's end", lambda: not any(_is_client(each) for each in clients), timeout_s=_WAIT_S)

    def stop(self) -> None:
        """Unmount it, and end all daemons."""
        with contextlib.suppress(subprocess.CalledProcessError, Unavailable):  # a client that hangs keeps no daemon
            self.unmount()
        super().stop()


class ObjectGateway(Ceph):
    """Ceph's RGW, which speaks S3 at an address, for who has the access key `key` with `secret`."""

    def open(self, address: str, bucket: str) -> None:
        """Start the gateway at HOST:PORT, and make a bucket."""
        self._daemon("radosgw", "-n", "client.rgw.g", f"--rgw-frontends=beast endpoint={address}")
        user = ("--uid=models", "--display-name=models", "--access-key=key", "--secret-key=secret")
        self._run("radosgw-admin", "-c", str(self._conf), "user", "create", *user)
        self._address = address
        self._name = bucket
        until("the gateway", lambda: self._put(""), timeout_s=_WAIT_S)

    def upload(self, folder: Path) -> None:
        """Upload all files below a folder."""
        for each in (each for each in folder.rglob("*") if each.is_file()):
            name = str(each.relative_to(folder))
            assert self._put(name, "--upload-file", str(each)), name

    def _put(self, name: str, *options: str) -> bool:
        """Put an object, or with an empty name the bucket, by an address that is signed as version 2 of AWS's does."""
        path, until_s = f"/{self._name}/{name}", int(time.time()) + 3600
        signature = hmac.digest(b"secret", f"PUT\n\n\n{until_s}\n{path}".encode(), "sha1")
        query = urlencode({"AWSAccessKeyId": "key", "Expires": until_s, "Signature": b64encode(signature).decode()})
        asked = ("curl", "--silent", "--fail", "--request", "PUT", *options, f"http://{self._address}{path}?{query}")
        return subprocess.run(self._inside(*asked), check=False, timeout=_WAIT_S).returncode == 0


def _is_client(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ceph-fuse")
    except OSError:
        return False


@contextlib.contextmanager
def cephfs(top: Path, port: int) -> Iterator[CephFS]:
    """Run a CephFS."""
    made = CephFS(top, port)
    try:
        made.start()
        yield made
    finally:
        made.stop()
