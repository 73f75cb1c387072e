"""How fast a model on the local disk is read, by how a program reads it.

`python bench/model_reading.py [--files N] [--mib N] [--rounds N] [--folder FOLDER]`

mmap      maps each file and touches each page, as safetensors' loaders do
populate  the same, with MADV_POPULATE_READ for 64 MiB at a time first
read      reads into one buffer of 4 MiB, by one thread or several
direct    the same past the page cache (O_DIRECT)
warm      `tessera models warm`, as its own row, then mmap of what is cached

Programs run in turn, each with the page cache dropped, as root; the table has the medians. There is no floor: it says
what to recommend on this disk. CPU is the kernel's and the program's.
"""

import argparse
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

MIB = 2**20
PIECE, POPULATED = 4 * MIB, 64 * MIB
POPULATE_READ = 22
"""MADV_POPULATE_READ of linux/mman.h, which Python's mmap does not name."""


def make_files(top: Path, files: int, mib: int) -> list[Path]:
    """Write files of random bytes."""
    made = []
    for number in range(files):
        path = top / f"{number}.bin"
        with path.open("wb") as file:
            for _ in range(mib):
                file.write(os.urandom(MIB))
        made.append(path)
    return made


def drop_caches() -> None:
    """Forget what the page cache has of disks."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


def mapped(path: Path, *, populate: bool = False) -> None:
    """Touch each page of a file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        for start in range(0, len(view), POPULATED):
            size = min(POPULATED, len(view) - start)
            if populate:
                view.madvise(POPULATE_READ, start, size)
            sum(view[start : start + size : mmap.PAGESIZE])


def read(path: Path, *, direct: bool = False) -> None:
    """Read a file piece by piece."""
    number = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    buffer = mmap.mmap(-1, PIECE)
    try:
        while os.readv(number, [buffer]):
            pass
    finally:
        os.close(number)


def with_threads(paths: list[Path], threads: int, work: Callable[[Path], None]) -> None:
    """Let threads work through files."""
    jobs = list(paths)

    def run() -> None:
        while True:
            try:
                path = jobs.pop()
            except IndexError:
                return
            work(path)

    started = [threading.Thread(target=run) for _ in range(threads)]
    for each in started:
        each.start()
    for each in started:
        each.join()


def warm(top: Path) -> None:
    """Read all into the page cache, as the command does."""
    code = "import sys; from pathlib import Path; from tessera.agent.storage.models.plain import warm\n"
    code += "from tessera.core.storage.models.revisions import Manifest, ModelFile\ntop = Path(sys.argv[1])\n"
    code += "warm(top, Manifest('', tuple(ModelFile(p.name, 0, ()) for p in sorted(top.iterdir()))))"
    subprocess.run([sys.executable, "-c", code, str(top)], check=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--mib", type=int, default=128, help="of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    given = parser.parse_args()
    if os.geteuid() != 0:
        print("not run: only root drops the page cache")
        return 1
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-reading-") as made:
        paths = make_files(Path(made), given.files, given.mib)
        cases: dict[str, Callable[[], None]] = {}
        for threads in (1, 4):
            for name, work in (
                ("mmap", mapped),
                ("populate", partial(mapped, populate=True)),
                ("read", read),
                ("direct", partial(read, direct=True)),
            ):
                cases[f"{name}, {threads}"] = partial(with_threads, paths, threads, work)
        cases["warm"] = partial(warm, Path(made))
        cases["mmap, cached"] = cases["mmap, 1"]
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(given.rounds):
            for name, run in cases.items():
                if "cached" not in name:
                    drop_caches()
                begun, before = time.monotonic(), os.times()
                run()
                after = os.times()
                found.setdefault(name, []).append((time.monotonic() - begun, sum(after[:4]) - sum(before[:4])))
        total = given.files * given.mib
        print(f"{given.files} x {given.mib} MiB, threads behind the comma; load {os.getloadavg()[0]:.0f}")
        print(f"{'':<14} {'seconds':>8} {'MiB/s':>7} {'CPU s':>6}")
        for name, runs in found.items():
            seconds, cpu = (statistics.median(each) for each in zip(*runs, strict=True))
            print(f"{name:<14} {seconds:>8.2f} {total / seconds:>7.0f} {cpu:>6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
