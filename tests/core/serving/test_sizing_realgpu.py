"""What CUDA and PyTorch themselves take of a real GPU, against what `tessera size` leaves for them."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from harness.realgpu import RealGpu, note
from tessera.core.serving.sizing import Architecture, fit, overhead_bytes

pytestmark = [pytest.mark.anyio, pytest.mark.gpu]
_TORCH = """
import json, sys, torch
free, total = torch.cuda.mem_get_info()
first = torch.cuda.mem_get_info()[0]
one = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
for _ in range(3):
    two = one @ one
torch.cuda.synchronize()
last = torch.cuda.mem_get_info()[0]
mib = 1 << 20
print(json.dumps({"torch": torch.__version__, "total": total // mib, "context_left": first // mib, "left": last // mib,
                  "reserved": torch.cuda.memory_reserved() // mib}), flush=True)
sys.stdin.readline()
"""
_NOTHING = Architecture(
    layers=1, kv_heads=1, head_dim=1, hidden=1, intermediate=1, vocabulary=1, context=16, weight_bytes=0
)


def left_of(memory_mib: int) -> int:
    """Return the least MiB that `tessera size` leaves beside what vLLM takes."""
    most = fit(_NOTHING, memory_mib, context=16, kv_element_bytes=2, utilization=1.0)
    return memory_mib - ((most.kv_bytes + overhead_bytes(_NOTHING, most.batch)) >> 20)


@contextlib.contextmanager
def pytorch() -> Iterator[dict[str, Any]]:
    """Run PyTorch, which multiplies two matrices, and return what it says of memory."""
    with subprocess.Popen(
        [sys.executable, "-c", _TORCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as torch:
        assert torch.stdout is not None
        if not (line := torch.stdout.readline()):
            pytest.skip("PyTorch is not installed")
        yield dict(json.loads(line))
        torch.communicate("\n", timeout=60)


async def test_the_context_is_within_what_is_left_for_it(real_gpu: RealGpu) -> None:
    async with await real_gpu.driver() as driver:
        facts = (await driver.inventory()).gpus[0]
        before = (await driver.use(facts.uuid)).memory_used_mib
        with real_gpu.cuda() as one:
            seen = one.must("memory")
            used = (await driver.use(facts.uuid)).memory_used_mib - before
            own = {each.pid: each.memory_mib for each in await driver.processes(facts.uuid)}[one.pid]
            got = 0
            for piece in (1024, 64, 2):
                while one.ask("alloc", mib=piece)["result"] == 0:
                    got += piece
        reserve = left_of(facts.memory_mib)
        note(
            context_mib=used,
            of_the_process=own,
            cuda=seen,
            usable_mib=facts.memory_mib,
            allocated_mib=got,
            not_allocatable=facts.memory_mib - got,
            left_by_size=reserve,
        )
        assert used <= reserve
        assert facts.memory_mib - got <= reserve


async def test_pytorch_takes_no_more_than_is_left_for_it(real_gpu: RealGpu) -> None:
    async with await real_gpu.driver() as driver:
        facts = (await driver.inventory()).gpus[0]
        before = (await driver.use(facts.uuid)).memory_used_mib
        with pytorch() as reported:
            used = (await driver.use(facts.uuid)).memory_used_mib - before
    beside = used - reported["reserved"]
    note(**reported, used_mib=used, beside_its_own_memory=beside, left_by_size=left_of(facts.memory_mib))
    assert beside <= left_of(facts.memory_mib)
