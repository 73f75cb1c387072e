"""How fast a file gets from the page cache, or from the disk, into a GPU's memory, by how a program reads it.

`python bench/model_to_gpu.py [--gib N] [--rounds N] [--folder FOLDER]`

mmap      maps the file and copies from the mapping, as loaders of safetensors do
read      reads into two page-locked buffers of 32 MiB in turn and copies from one while it reads into the other,
          by one thread or several, each with its own part of the file
direct    the same past the page cache (O_DIRECT)
loader    safetensors' own loader, into tensors of PyTorch; where both are installed

With `cached` the page cache has the file, as after `tessera models warm`; else it is dropped before, as root. There is
no floor: it says what to recommend. Without a GPU it is not run.
"""

import argparse
import ctypes
import importlib
import json
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
from typing import Any

MIB, GIB = 2**20, 2**30
PIECE = 32 * MIB


class Gpu:
    """The first GPU, by CUDA's driver library."""

    def __init__(self, size: int) -> None:
        self.cuda: Any = ctypes.CDLL("libcuda.so.1")
        self.context, self.memory = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.enter()
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(size))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of CUDA, and end the program if it fails."""
        code = getattr(self.cuda, name)(*arguments)
        if code:
            sys.exit(f"{name}: CUDA error {code}")

    def enter(self) -> None:
        """Make the context that of the calling thread."""
        self.call("cuCtxSetCurrent", self.context)

    def copy(self, at: int, source: int, size: int) -> None:
        """Copy memory of the machine to an offset, and wait for it."""
        self.call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(self.memory.value + at), ctypes.c_void_p(source), ctypes.c_size_t(size)
        )


class Buffers:
    """Two page-locked buffers with a stream each, for one thread."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.pieces: list[ctypes.c_void_p] = []
        self._streams: list[ctypes.c_void_p] = []
        for _ in range(2):
            piece, stream = ctypes.c_void_p(), ctypes.c_void_p()
            gpu.call("cuMemAllocHost_v2", ctypes.byref(piece), ctypes.c_size_t(PIECE))
            gpu.call("cuStreamCreate", ctypes.byref(stream), 1)
            self.pieces.append(piece)
            self._streams.append(stream)

    def view(self, number: int) -> memoryview:
        """Return a buffer, once its last copy has ended."""
        self._gpu.call("cuStreamSynchronize", self._streams[number])
        address = self.pieces[number].value
        assert address is not None
        return memoryview((ctypes.c_char * PIECE).from_address(address)).cast("B")

    def send(self, number: int, at: int, size: int) -> None:
        """Begin to copy a buffer to an offset."""
        to = ctypes.c_uint64(self._gpu.memory.value + at)
        self._gpu.call("cuMemcpyHtoDAsync_v2", to, self.pieces[number], ctypes.c_size_t(size), self._streams[number])

    def free(self) -> None:
        """Wait for the copies, and give the buffers back."""
        for piece, stream in zip(self.pieces, self._streams, strict=True):
            self._gpu.call("cuStreamSynchronize", stream)
            self._gpu.call("cuStreamDestroy_v2", stream)
            self._gpu.call("cuMemFreeHost", piece)


def mapped(gpu: Gpu, path: Path) -> None:
    """Copy from a mapping of the file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as view:
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        for at in range(0, len(view), PIECE):
            gpu.copy(at, start + at, min(PIECE, len(view) - at))


def _part(gpu: Gpu, buffers: Buffers, path: Path, begin: int, end: int, *, direct: bool) -> None:
    gpu.enter()
    number = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    try:
        for turn, at in enumerate(range(begin, end, PIECE)):
            size = os.preadv(number, [buffers.view(turn % 2)[: min(PIECE, end - at)]], at)
            buffers.send(turn % 2, at, size)
        for each in range(2):
            buffers.view(each)
    finally:
        os.close(number)


def read(gpu: Gpu, all_buffers: list[Buffers], path: Path, *, direct: bool = False) -> None:
    """Read the file by as many threads as there are buffers."""
    size, count = path.stat().st_size, len(all_buffers)
    part = -(-size // (count * PIECE)) * PIECE
    threads = [
        threading.Thread(
            target=partial(_part, gpu, buffers, path, number * part, min(size, (number + 1) * part), direct=direct)
        )
        for number, buffers in enumerate(all_buffers)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def drop_caches() -> None:
    """Forget what the page cache has of disks."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")


def make_file(path: Path, size: int) -> None:
    """Write a file in safetensors' format, of tensors that each are the same random bytes."""
    piece = os.urandom(PIECE)
    tensors = {
        f"t{at}": {"dtype": "U8", "shape": [PIECE], "data_offsets": [at, at + PIECE]} for at in range(0, size, PIECE)
    }
    header = json.dumps(tensors).encode()
    header += b" " * (-(8 + len(header)) % mmap.PAGESIZE)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in tensors:
            file.write(piece)


def loader(path: Path) -> Callable[[], None] | None:
    """Return what loads the file by safetensors; None where it is not installed."""
    try:
        load_file = importlib.import_module("safetensors.torch").load_file
        torch = importlib.import_module("torch")
    except ImportError:
        return None

    def load() -> None:
        tensors = load_file(str(path), device="cuda:0")
        torch.cuda.synchronize()
        tensors.clear()

    return load


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    given = parser.parse_args()
    size = given.gib * GIB
    try:
        gpu = Gpu(size + PIECE)
    except OSError as error:
        print(f"not run: {error}")
        return 1
    one, several = [Buffers(gpu)], [Buffers(gpu) for _ in range(4)]
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-to-gpu-") as made:
        path = Path(made) / "model.bin"
        make_file(path, size)
        cases: dict[str, Callable[[], None]] = {
            "mmap": partial(mapped, gpu, path),
            "read, 1": partial(read, gpu, one, path),
            "read, 4": partial(read, gpu, several, path),
            "direct, 1": partial(read, gpu, one, path, direct=True),
            "direct, 4": partial(read, gpu, several, path, direct=True),
        }
        if load := loader(path):
            load()  # the first time it prepares PyTorch too
            cases["loader"] = load
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(given.rounds):
            for name, run in cases.items():
                for state in ("cached",) if os.geteuid() else ("", "cached"):
                    if "direct" in name and state:
                        continue
                    if not state:
                        drop_caches()
                    begun, before = time.monotonic(), os.times()
                    run()
                    after = os.times()
                    seconds = time.monotonic() - begun
                    found.setdefault(f"{name} {state}".strip(), []).append((seconds, sum(after[:4]) - sum(before[:4])))
        print(f"{given.gib} GiB, threads behind the comma; load {os.getloadavg()[0]:.0f}")
        print(f"{'':<16} {'seconds':>8} {'GiB/s':>7} {'CPU s':>6}")
        for name, runs in found.items():
            seconds, cpu = (statistics.median(each) for each in zip(*runs, strict=True))
            print(f"{name:<16} {seconds:>8.2f} {given.gib / seconds:>7.2f} {cpu:>6.2f}", flush=True)
    for each in (*one, *several):
        each.free()
    return 0


if __name__ == "__main__":
    sys.exit(main())
