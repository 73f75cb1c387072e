"""A CUDA program of a few lines, by the driver's library alone: `python cudaprogram.py`, commands on standard input.

One JSON object a line, answered by one with `result`, CUDA's return code:

{"do": "open"}                   a context on the first visible device; its UUID, multiprocessors, milliseconds
{"do": "alloc", "mib": N}        memory of the device
{"do": "memory"}                 `free_mib` and `total_mib`, as the program sees them
{"do": "wave", "blocks": N}      one kernel of blocks that each keep half a multiprocessor for a millisecond; `ms`
{"do": "busy", "seconds": S}     such kernels for so long; how many `rounds`
{"do": "wild"}                   a kernel that writes to an address that is not its own

Only the standard library, so that it runs wherever there is a Python.
"""

import ctypes
import json
import sys
import time
from collections.abc import Callable
from typing import Any

MIB = 1 << 20
_UUID, _MULTIPROCESSORS = 16, 16
_THREADS = 1024
_CYCLES = 1_500_000
_WAVE_BLOCKS = 528
"""Four times the 132 multiprocessors of an H100, of which each holds two blocks at a time."""
_WARM_S = 0.3
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
  .reg .u64 %begin, %now, %past, %most;
  .reg .pred %again;
  ld.param.u64 %most, [cycles];
  mov.u64 %begin, %clock64;
next:
  mov.u64 %now, %clock64;
  sub.u64 %past, %now, %begin;
  setp.lt.u64 %again, %past, %most;
  @%again bra next;
  ret;
}
.visible .entry wild(.param .u64 at)
{
  .reg .u64 %at;
  .reg .u32 %value;
  ld.param.u64 %at, [at];
  mov.u32 %value, 1;
  st.global.u32 [%at], %value;
  ret;
}
"""


class Failed(Exception):
    """A call of CUDA returned an error."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what)
        self.what, self.code = what, code


class Program:
    """The state of the program: a context, and what was allocated."""

    def __init__(self) -> None:
        self.cuda: Any = None
        self.context = ctypes.c_void_p()
        self.module = ctypes.c_void_p()
        self.device = ctypes.c_int()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of CUDA.

        Raises:
            Failed: it returned an error.

        """
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise Failed(name, code)

    def open(self) -> dict[str, Any]:
        """Make a context on the first device."""
        began = time.perf_counter()
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)
        took = time.perf_counter() - began
        uuid, count = (ctypes.c_ubyte * _UUID)(), ctypes.c_int()
        self.call("cuDeviceGetUuid", uuid, self.device)
        self.call("cuDeviceGetAttribute", ctypes.byref(count), _MULTIPROCESSORS, self.device)
        text = bytes(uuid).hex()
        parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
        return {"uuid": f"GPU-{'-'.join(parts)}", "multiprocessors": count.value, "ms": round(took * 1000)}

    def alloc(self, mib: int) -> dict[str, Any]:
        """Allocate memory."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(mib * MIB))
        return {}

    def memory(self) -> dict[str, Any]:
        """Return free and total memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free_mib": free.value // MIB, "total_mib": total.value // MIB}

    def launch(self, kernel: bytes, value: int, blocks: int) -> None:
        """Run a kernel of one number, and wait for its end."""
        if not self.module.value:
            self.call("cuModuleLoadData", ctypes.byref(self.module), ctypes.c_char_p(PTX))
        function, argument = ctypes.c_void_p(), ctypes.c_uint64(value)
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, ctypes.c_char_p(kernel))
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p))
        self.call("cuLaunchKernel", function, blocks, 1, 1, _THREADS, 1, 1, 0, None, arguments, None)
        self.call("cuCtxSynchronize")

    def wave(self, blocks: int = _WAVE_BLOCKS) -> dict[str, Any]:
        """Run one kernel and time it, once the clocks have risen."""
        self.busy(_WARM_S)
        began = time.perf_counter()
        self.launch(b"spin", _CYCLES, blocks)
        return {"ms": round((time.perf_counter() - began) * 1000, 2)}

    def busy(self, seconds: float) -> dict[str, Any]:
        """Run kernels, one after the other."""
        rounds, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            self.launch(b"spin", _CYCLES, _WAVE_BLOCKS)
            rounds += 1
        return {"rounds": rounds}

    def wild(self) -> dict[str, Any]:
        """Write to an address that is not the program's."""
        self.launch(b"wild", 0x10, 1)
        return {}


def main() -> None:
    """Answer commands until the input ends."""
    program = Program()
    does: dict[str, Callable[..., dict[str, Any]]] = {
        name: getattr(program, name) for name in ("open", "alloc", "memory", "wave", "busy", "wild")
    }
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"result": 0, **does[command.pop("do")](**command)}
        except Failed as error:
            answer = {"result": error.code, "what": error.what}
        except OSError as error:
            answer = {"result": -1, "what": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
