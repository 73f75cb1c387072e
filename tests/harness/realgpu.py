"""A real GPU of this machine, read only, and programs that use it. Tests marked `gpu` get it by fixture `real_gpu`."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

from tessera.clients.gpu import NvmlDriver
from tessera.errors import Unsupported

PROGRAM = Path(__file__).with_name("cudaprogram.py")
OUT_OF_MEMORY = 2
"""CUDA's return code."""
_ANSWER_S = 60.0
_FOLDERS = ("/usr/local/nvidia/bin", "/usr/bin", "/home/kubernetes/bin/nvidia/bin")
"""Where NVIDIA's programs are, if they are not on PATH."""
_ASK = """
import pynvml
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetCount())
"""
_CHANGES = (
    "set_mig",
    "create_instance",
    "destroy_instance",
    "set_compute_mode",
    "set_power_limit",
    "lock_clocks",
    "set_memory_limit",
)


class ReadOnlyDriver(NvmlDriver):
    """The real driver, on which a test changes no setting: what was asked of it is in `refused`."""

    refused: tuple[str, ...] = ()

    def __getattribute__(self, name: str) -> Any:
        if name in _CHANGES:
            self.refused = (*self.refused, name)
            raise Unsupported(name, found="it changes a setting of a real GPU", hint="none of this machine may change")
        return super().__getattribute__(name)


def program(name: str) -> str:
    """Return the path of one of NVIDIA's programs, or skip the test."""
    found = shutil.which(name) or next((f"{each}/{name}" for each in _FOLDERS if Path(each, name).exists()), "")
    if not found:
        pytest.skip(f"{name} is not on this machine")
    return found


def nvidia_smi(*arguments: str) -> str:
    """Return what nvidia-smi prints."""
    return subprocess.run(
        [program("nvidia-smi"), *arguments], check=True, capture_output=True, text=True, timeout=60
    ).stdout


class SmiGpu:
    """What `nvidia-smi -q -x` prints of the first GPU, by the path of its elements."""

    def __init__(self) -> None:
        self.log = ET.fromstring(nvidia_smi("-q", "-x"))
        found = self.log.find("gpu")
        assert found is not None
        self.gpu = found

    def text(self, path: str) -> str:
        """Return the text of an element; empty where there is none."""
        return (self.gpu.findtext(path) or self.log.findtext(path) or "").strip()

    def number(self, path: str) -> float | None:
        """Return the number before a unit; None for `N/A` and the like."""
        with contextlib.suppress(ValueError):
            return float(self.text(path).split(" ")[0])
        return None

    def processes(self) -> dict[int, int]:
        """Return the MiB that each process uses."""
        found = self.gpu.findall("processes/process_info")
        return {
            int(each.findtext("pid") or 0): int((each.findtext("used_memory") or "-1").split()[0]) for each in found
        }


def without_gpu() -> str:
    """Return why there is no real GPU for this process; empty where there is one."""
    if "TESSERA_NVMLSIM_STATE" in os.environ or "nvmlsim" in Path("/proc/self/maps").read_text():
        return "this process has simulated GPUs; run scripts/hardware, which starts one without"
    run = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=120, check=False)
    if run.returncode or run.stdout.strip() == "0":
        return f"no real GPU here: {(run.stderr.strip().splitlines() or ['none is shown'])[-1]}"
    return ""


class CudaProgram:
    """A running `cudaprogram.py`.

    Args:
        env: more environment than this process has.
        command: what starts it.

    """

    def __init__(self, env: Mapping[str, str] = {}, command: tuple[str, ...] = (sys.executable, str(PROGRAM))) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            text=True,
            bufsize=1,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, do: str, **arguments: object) -> None:
        """Give it a command, whose answer `answer` waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def silent(self, seconds: float) -> bool:
        """Return whether it does not answer for so long."""
        assert self._process.stdout is not None
        return not select.select([self._process.stdout], [], [], seconds)[0]

    def answer(self) -> dict[str, Any]:
        """Return its answer to the last command."""
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], _ANSWER_S)[0]:
            self._fail(f"no answer within {_ANSWER_S:g} s")
        line = output.readline()
        if not line.startswith("{"):
            self._fail(line + (output.read() if line else f"it ended: {self._process.wait(5)}"))
        return dict(json.loads(line))

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Return its answer to a command."""
        self.tell(do, **arguments)
        return self.answer()

    def must(self, do: str, **arguments: object) -> dict[str, Any]:
        """Return its answer to a command that succeeds."""
        answer = self.ask(do, **arguments)
        assert answer["result"] == 0, (do, arguments, answer)
        return answer

    def _fail(self, why: str) -> NoReturn:
        self.kill()
        pytest.fail(f"the CUDA program: {why}")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for each in (self._process.stdin, self._process.stdout):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()


class RealGpu:
    """The first GPU of this machine."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()

    def smi(self) -> SmiGpu:
        """Return what nvidia-smi says of it now."""
        return SmiGpu()

    @contextlib.contextmanager
    def cuda(self, env: Mapping[str, str] = {}, **memory: int) -> Iterator[CudaProgram]:
        """Run a CUDA program with a context, and `mib` of memory."""
        with CudaProgram(env) as one:
            one.must("open")
            if memory:
                one.must("alloc", **memory)
            yield one

    async def driver(self) -> ReadOnlyDriver:
        """Open the product's driver."""
        return await ReadOnlyDriver.open()


def note(**values: object) -> None:
    """Print what was measured, one line, for scripts/hardware."""
    sys.stdout.write(f"\nMEASURED {json.dumps(values, default=str)}\n")
