"""How fast epochs over a data set of small files are: from CephFS, and from the node's cache of it.

`python bench/data_cache.py [--files N] [--rounds N] [--threads N] [--folder FOLDER]`

source    an epoch through ceph-fuse with an empty cache: a real Ceph on loopback, its OSD in memory
fetch     `tessera models sync` of the same files, from another such client: as plain files, and as an image
cold      an epoch from the disk, its page cache dropped: the cache, its image, and the files copied to the same disk
ahead     that of the image after `tessera models warm`, whose time is added
hot       an epoch from the page cache

Each epoch reads each of 20,000 files of 16 KiB once, in a random order of its own, by one thread and by several. Cold
and hot epochs of all three alternate; the table has the medians of the rounds.

Floors: an epoch from the cache takes at most 1.3 times that from local files, cold and hot, and at most half of the
source's, cold. That from the image takes at most 1.3 times that from local files, hot, and half of the source's, cold;
that it is slower than plain files then is printed alone (docs/decisions/0032-data-sets-are-packed.md).
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.ceph import CephFS, cephfs, lack

TESSERA = [sys.executable, "-c", "from tessera.cli import main; main()", "models"]
SIZE = 16 * 1024
PORT = 16789


def make_files(top: Path, count: int) -> None:
    """Write files of random bytes, a thousand to a folder."""
    for number in range(count):
        path = top / f"{number // 1000:03}" / f"{number:06}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SIZE))


def epoch(top: Path, names: list[str], threads: int, seed: int) -> float:
    """Read all files in a random order; return the seconds."""
    order = [f"{top}/{name}" for name in names]
    random.Random(seed).shuffle(order)  # noqa: S311

    def read(paths: list[str]) -> int:
        total = 0
        for path in paths:
            number = os.open(path, os.O_RDONLY)
            total += len(os.read(number, SIZE + 1))
            os.close(number)
        return total

    begun = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, [order[index::threads] for index in range(threads)]))
    seconds = time.monotonic() - begun
    if total != len(names) * SIZE:
        raise SystemExit(f"{top}: {total} bytes read, expected {len(names) * SIZE}")
    return seconds


def drop_caches() -> None:
    """Forget what the page cache has of disks."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


def from_source(ceph: CephFS, names: list[str], threads: int) -> float:
    """Read the files through a client that knows nothing of them yet."""
    ceph.unmount()
    ceph.mount_it()
    return epoch(ceph.mount / "data", names, threads, threads)


def fetch(ceph: CephFS, top: Path, pack: str) -> float:
    """Bring the files into the cache."""
    ceph.unmount()
    ceph.mount_it()
    begun = time.monotonic()
    subprocess.run([*TESSERA, "sync", "--pack", pack, str(ceph.mount / "data"), str(top)], check=True)
    return time.monotonic() - begun


def local_epochs(folders: dict[str, Path], names: list[str], threads: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of epochs from local folders, cold and hot, in turn."""
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, top in folders.items():
            drop_caches()
            for kind in ("cold", "hot"):
                seconds = epoch(top, names, threads, 2 * number + (kind == "hot"))
                found.setdefault(f"{name}, {kind}", []).append(seconds)
    return {name: statistics.median(each) for name, each in found.items()}


def ahead(top: Path, names: list[str], threads: int) -> float:
    """Read the image ahead, then an epoch."""
    drop_caches()
    begun = time.monotonic()
    subprocess.run([*TESSERA, "warm", str(top)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - begun + epoch(top / "current", names, threads, 99)


def floor(failed: list[str], name: str, value: float, most: float) -> None:
    """Print a floor, and note it where it is missed."""
    print(f"{'ok  ' if value <= most else 'FAIL'}  {name}: {value:.2f}, at most {most}")
    if value > most:
        failed.append(name)


def measure(ceph: CephFS, work: Path, given: argparse.Namespace) -> list[str]:
    """Measure, print, and return the floors that are missed."""
    make_files(ceph.mount / "data", given.files)
    names = sorted(str(path.relative_to(ceph.mount / "data")) for path in (ceph.mount / "data").rglob("*.bin"))
    plain, image, copy = work / "plain", work / "image", work / "copy"
    source = {threads: from_source(ceph, names, threads) for threads in (1, given.threads)}
    fetched = {top: fetch(ceph, top, pack) for top, pack in ((plain, "Never"), (image, "Always"))}
    try:
        shutil.copytree(plain / "current", copy)
        print(f"fetched in {fetched[plain]:.1f} s as plain files, in {fetched[image]:.1f} s as an image")
        failed: list[str] = []
        for threads in (1, given.threads):
            folders = {"files": copy, "cache": plain / "current", "image": image / "current"}
            found = {"source": source[threads], **local_epochs(folders, names, threads, given.rounds)}
            found["image, ahead"] = ahead(image, names, threads)
            print(f"\n{len(names)} x {SIZE // 1024} KiB, {threads} threads: seconds, and ratio to files, cold")
            for name, seconds in found.items():
                print(f"{name:<14} {seconds:>8.2f} {seconds / found['files, cold']:>6.2f}")
            for name in ("cache", "image"):
                kinds = ("cold", "hot") if name == "cache" else ("hot",)
                for kind in kinds:
                    ratio = found[f"{name}, {kind}"] / found[f"files, {kind}"]
                    floor(failed, f"{name}, {kind} / files, {kind} ({threads})", ratio, 1.3)
                floor(failed, f"{name}, cold / source ({threads})", found[f"{name}, cold"] / found["source"], 0.5)
    finally:
        for mounted in (image / "versions").iterdir():
            subprocess.run(["umount", str(mounted)], check=False)
    return failed


def main() -> int:
    """Measure, print, and return 1 where a floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    given = parser.parse_args()
    if os.geteuid() != 0 or lack():
        raise SystemExit(f"not measured: it needs root, and these Debian packages: {lack() or 'all there'}")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-data-") as made:
        work = Path(made)
        with cephfs(work / "ceph", PORT) as ceph:
            return 1 if measure(ceph, work, given) else 0


if __name__ == "__main__":
    sys.exit(main())
