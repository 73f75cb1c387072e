"""What vLLM may take of its device, for any memory that is free and allocated."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tessera.core.serving.render.vllmdevice import first_of, usable_memory

MIB = 1 << 20


@given(total=st.integers(300, 300_000), free_part=st.floats(0, 1), allocated=st.none() | st.integers(0, 300_000))
@example(total=81_920, free_part=257 / 81_920, allocated=None)
def test_vllm_takes_neither_what_is_used_nor_what_is_not_its_own(
    total: int, free_part: float, allocated: int | None
) -> None:
    free = int(total * free_part)
    environment = {} if allocated is None else {"TESSERA_GPU_MEMORY_MIB": f"{allocated},1"}
    own = min(allocated or total, total)
    if min(0.92 * own, free - 256) / total < 0.0001:
        with pytest.raises(
            SystemExit, match=rf"^GPU: {free} of {total} MiB are free, too little for vLLM: `tessera top`"
        ):
            usable_memory((free * MIB, total * MIB), environment)
        return
    found, usable, option = usable_memory((free * MIB, total * MIB), environment)
    assert found == own * MIB
    assert usable == int(min(0.92 * own * MIB, (free - 256) * MIB))
    part = float(option.removeprefix("--gpu-memory-utilization="))
    assert part > 0, "vLLM takes no 0"
    assert 0 <= (usable + 1) / (total * MIB) - part < 0.0001 + 1e-8, "rounded down"


@pytest.mark.parametrize(("text", "want"), [("mps,mig", "mps"), ("mig", "mig"), ("", "")])
def test_the_first_device_counts(text: str, want: str) -> None:
    assert first_of({"A": text}, "A") == want
    assert first_of({}, "A") == ""
