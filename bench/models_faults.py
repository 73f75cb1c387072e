"""What readers of a model see while syncs are killed, stores fail, disks are full, and what was fetched is damaged.

`python bench/models_faults.py [--faults N] [--seed N] [--folder FOLDER]`

One model in a store that changes again and again is kept by `tessera models sync` with revisions, and by `--mirror`. A
reader for each, which knows nothing of Tessera but `current`, looks all the time: with revisions all files are those of
one state of the store; of a mirror each file is one of its states, whole. Faults, in turn at random:

kill       the sync gets SIGKILL at a random moment
damage     a byte of what a killed sync has fetched is changed on the disk
full       the disk is full (a tmpfs of its own, where this runs as root)
others     of the server: 503, a flipped bit, a wrong length, a cut body, silence, a reset, one byte in 50 ms, and an
           object that changes while it is fetched

Floors: no reader sees a torn or wrong file; each sync that reports success leaves the state that the store has; no
folder grows beyond the revisions it keeps, the one that comes and the one that is read; and a sync without faults
succeeds after each ten syncs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.flakys3 import FAULTS, FlakyS3

MIB = 2**20
CHUNK = 8 * MIB
KEEP = 2
SYNC_S = 60.0
NOTES = ".tessera"
FULL_MIB = 26
"""Of the small disk: a state and a half."""

SYNC = """
import sys
from pathlib import Path
from tessera.agent.storage.models.folder import ModelFolder
from tessera.agent.storage.models.mirror import sync_mirror
from tessera.agent.storage.models.staging import SyncOptions
from tessera.agent.storage.models.sync import sync
from tessera.agent.storage.models.reading import TransferLimits
from tessera.clients.store.s3 import S3Settings, S3Store, utc_now
from tessera.core.storage.retries import Patience
from tessera.errors import TesseraError

patience = Patience(stall_s=0.6, give_up_s=3.0, first_wait_s=0.01, longest_wait_s=0.05)
settings = S3Settings(sys.argv[1], access_key="a", secret_key="b", timeout_s=0.5)
store, top = S3Store("models", "m", settings, utc_now), Path(sys.argv[2])
options = SyncOptions(limits=TransferLimits(patience), reserve_bytes=0)
try:
    sync_mirror(store, top, options) if sys.argv[3] == "mirror" else sync(store, ModelFolder(top), options)
except (TesseraError, OSError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
"""What `tessera models sync` does, with less patience: silence is noticed after half a second, not after ten."""

State = dict[str, bytes]
Digests = dict[str, str]


def make_state(number: int) -> State:
    """Return the files of a state of the model: some are as before, some change, one comes and goes."""
    made = random.Random(number)  # noqa: S311 - a seed gives the same files
    files = {
        "config.json": json.dumps({"state": number}).encode(),
        "fixed.bin": bytes(range(256)) * 1200,
        "weights/0.bin": made.randbytes(CHUNK + 12_345),
        "weights/1.bin": made.randbytes(1_000_000),
        "empty": b"",
    }
    files |= {f"small/{index:03}.json": made.randbytes(300) for index in range(120)}  # requested several at a time
    return files | ({f"extra/{number}.bin": made.randbytes(70_000)} if number % 2 else {})


def digests(files: State) -> Digests:
    """Return the SHA-256 of each file."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def look(top: Path) -> Digests:
    """Read all files below a folder, but notes, that are there to the end of the look."""
    found = {}
    for folder, _, names in os.walk(top):
        for name in names:
            path = Path(folder, name)
            short = str(path.relative_to(top))
            if not short.startswith(f"{NOTES}/"):
                with contextlib.suppress(FileNotFoundError):
                    found[short] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


class Reader:
    """Looks at a folder all the time, in a thread, and notes what it must not see.

    Args:
        top: the folder.
        mirror: whether it is a mirror.

    """

    def __init__(self, top: Path, *, mirror: bool) -> None:
        self._top = top
        self._mirror = mirror
        self._known: list[Digests] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.looks = 0
        self.wrong: list[str] = []

    def know(self, state: Digests) -> None:
        """Accept another state; before the store has it."""
        self._known.append(state)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Look until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            if self._mirror:
                self._look_at_files()
            elif (self._top / "current").exists():
                self._look_at_revision()

    def _look_at_files(self) -> None:
        found = look(self._top) if self._top.exists() else {}
        good = {(name, digest) for state in self._known for name, digest in state.items()}
        self.wrong += [f"{name} is of no state" for name, digest in found.items() if (name, digest) not in good]
        self.looks += 1

    def _look_at_revision(self) -> None:
        """Enter the folder once, as a program with a working folder does, and read what is there."""
        opened = os.open(self._top / "current", os.O_PATH | os.O_DIRECTORY)
        try:
            found = look(Path(f"/proc/self/fd/{opened}/."))
        finally:
            os.close(opened)
        if found not in self._known:
            names = sorted(found)
            self.wrong.append(f"a revision that is no state of the store: {names}")
        self.looks += 1


def command(server: FlakyS3, top: Path, *, mirror: bool) -> subprocess.Popen[bytes]:
    """Start a sync with little patience."""
    address = f"http://127.0.0.1:{server.server_port}"
    kind = "mirror" if mirror else "revisions"
    return subprocess.Popen((sys.executable, "-c", SYNC, address, str(top), kind), stderr=subprocess.PIPE)


class Trial:
    """One folder under faults.

    Args:
        name: `revisions` or `mirror`.
        top: the folder.
        seed: of all that is random.
        small: whether the folder's disk is small.

    """

    def __init__(self, name: str, top: Path, seed: int, *, small: bool) -> None:
        self._mirror = name == "mirror"
        self._top = top
        self._random = random.Random(f"{name} {seed}")  # noqa: S311 - a seed gives the same faults
        self._small = small
        self._state = 0
        self.reader = Reader(top, mirror=self._mirror)
        self.faults = Counter[str]()
        self.outcomes = Counter[str]()
        self.wrong: list[str] = []
        self.most_bytes = 0

    def run(self, faults: int) -> None:
        """Sync until so many faults were injected."""
        self.reader.know(digests(make_state(0)))
        with FlakyS3(make_state(0)) as server, self.reader.running():
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                number = 0
                while self.faults.total() < faults:
                    number += 1
                    if self._random.random() < 0.5:
                        self._change(server)
                    self._sync(server, clean=number % 10 == 0)
                self._sync(server, clean=True)
            finally:
                server.shutdown()
                thread.join()

    def _change(self, server: FlakyS3) -> None:
        self._state += 1
        state = make_state(self._state)
        self.reader.know(digests(state))
        server.contents = state

    def _sync(self, server: FlakyS3, *, clean: bool) -> None:
        kill_s, changes = 0.0, False
        server.fault = lambda _number: ""
        ballast = self._top.parent / "ballast"
        if not clean:
            kind = self._random.choice(("kill", "kill", "server", "server", "server", "damage", "changed", "full"))
            if kind in {"kill", "damage"}:
                kill_s = 0.15 + self._random.random() * 0.5
            elif kind == "server":
                server.fault = self._server_faults()
            changes = kind == "changed"
            if kind == "full" and self._small:
                self._fill(ballast)
        before = self._state
        process = command(server, self._top, mirror=self._mirror)
        try:
            if changes:
                time.sleep(0.2 + self._random.random() * 0.2)
                self.faults["changed"] += 1
                self._change(server)
            if kill_s:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(kill_s)
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    self.faults["kill"] += 1
            output = process.communicate(timeout=SYNC_S)[1].decode(errors="replace").strip()
        finally:
            process.kill()
            process.wait()
        ballast.unlink(missing_ok=True)
        self._judge(process.returncode, output, clean=clean, states=range(before, self._state + 1))
        if kill_s and self._random.random() < 0.5:
            self._damage()

    def _server_faults(self) -> "ServerFaults":
        return ServerFaults(self._random, self.faults)

    def _fill(self, ballast: Path) -> None:
        """Leave a part of a state's size free."""
        status = os.statvfs(self._top.parent)
        free = status.f_bavail * status.f_frsize - self._random.randrange(MIB, 8 * MIB)
        if free > 0:
            ballast.write_bytes(bytes(free))
            self.faults["full"] += 1

    def _damage(self) -> None:
        there = [each for each in (self._top / NOTES / "staging").rglob("*") if each.is_file() and each.stat().st_size]
        if there:
            path = self._random.choice(sorted(there))
            with path.open("r+b") as file:
                file.seek(self._random.randrange(path.stat().st_size))
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes((byte[0] ^ 0x40,)))
            self.faults["damage"] += 1

    def _judge(self, status: int, output: str, *, clean: bool, states: range) -> None:
        self.outcomes["done" if status == 0 else "killed" if status < 0 else output.partition(":")[0]] += 1
        if status > 0 and ("Traceback" in output or not output.startswith(("Unavailable:", "Conflict:"))):
            self.wrong.append(f"a sync ended with {output[-300:]!r}")
        if clean and status != 0:
            self.wrong.append(f"a sync without faults failed: {output}")
        if status == 0:
            found = look(self._top if self._mirror else self._top / "current/.")
            if found not in [digests(make_state(each)) for each in states]:
                self.wrong.append("a sync reported success, and the files are not those of the store")
        used = sum(each.lstat().st_blocks * 512 for each in self._top.rglob("*"))
        self.most_bytes = max(self.most_bytes, used)


class ServerFaults:
    """Fails every other request in a way of its own.

    Args:
        source: of what is random.
        counts: counts the faults.

    """

    def __init__(self, source: random.Random, counts: Counter[str]) -> None:
        self._random = source
        self._counts = counts
        self._lock = threading.Lock()

    def __call__(self, _number: int) -> str:
        """Return how the next request fails; empty where it does not."""
        with self._lock:
            if self._random.random() < 0.5:
                return ""
            kind = self._random.choice(FAULTS)
            self._counts[kind] += 1
            return kind


@contextlib.contextmanager
def disk(folder: Path) -> Iterator[bool]:
    """Give whether the folder is a small disk of its own; it is one where this process may mount."""
    folder.mkdir(parents=True)
    size = f"size={FULL_MIB * 3}m"
    made = subprocess.run(("mount", "-t", "tmpfs", "-o", size, "tmpfs", folder), capture_output=True, check=False)
    try:
        yield made.returncode == 0
    finally:
        if made.returncode == 0:
            subprocess.run(("umount", folder), check=True)


def main() -> int:
    """Run both trials and print what happened; return 1 below a floor."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=1000, help="faults in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder where it is left out")
    options = parser.parse_args()
    work = options.folder or Path(tempfile.mkdtemp(prefix="models-faults-"))
    failed = False
    try:
        for name in ("revisions", "mirror"):
            with disk(work / name) as small:
                trial = Trial(name, work / name / "model", options.seed, small=small)
                begun = time.monotonic()
                trial.run(options.faults // 2)
                failed |= report(name, trial, time.monotonic() - begun, small=small)
    finally:
        shutil.rmtree(work)
    return int(failed)


def report(name: str, trial: Trial, seconds: float, *, small: bool) -> bool:
    """Print a trial; return whether it is below a floor."""
    one = max(sum(map(len, make_state(each).values())) for each in (0, 1))
    bound = (KEEP + 2) * one + MIB  # those that are kept, one that comes, and one that the reader is in
    counts = ", ".join(f"{kind} {count}" for kind, count in sorted(trial.faults.items()))
    ends = ", ".join(f"{kind} {count}" for kind, count in sorted(trial.outcomes.items()))
    sys.stdout.write(f"{name}: {trial.faults.total()} faults in {seconds:.0f} s: {counts}\n")
    sys.stdout.write(f"  syncs: {ends}; {'' if small else 'no full disk: this process may not mount; '}")
    sys.stdout.write(
        f"{trial.reader.looks} looks of the reader; at most {trial.most_bytes / MIB:.1f} MiB on the disk\n"
    )
    wrong = [*trial.wrong, *trial.reader.wrong]
    if trial.most_bytes > bound:
        wrong.append(f"{trial.most_bytes / MIB:.1f} MiB on the disk; at most {bound / MIB:.1f} are right")
    for each in wrong[:20]:
        sys.stdout.write(f"  WRONG: {each}\n")
    return bool(wrong) or trial.reader.looks == 0


if __name__ == "__main__":
    sys.exit(main())
