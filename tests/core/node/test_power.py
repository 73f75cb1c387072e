"""What power policies change and what is put back."""

import msgspec
import pytest

from builders.nodefacts import gpu
from tessera.core.node.nodesharing import GpuSettings
from tessera.core.node.power import LockClocks, Original, PowerAction, SetPower, forgotten, power_actions, remembered

T4 = gpu(0, power_limit_watts=70, power_default_watts=70)
NOTHING = Original(gpu="GPU-0")
CAPPED = Original(gpu="GPU-0", power=True)
LOCKED = Original(gpu="GPU-0", clocks=True)


def policy(watts: int | None = None, mhz: tuple[int, int] | None = None) -> GpuSettings:
    return GpuSettings(uuid="GPU-0", power_limit_watts=watts, clocks_mhz=mhz)


CASES: dict[str, tuple[GpuSettings, Original, dict[str, tuple[int, int]], list[PowerAction]]] = {
    "nothing desired, nothing changed": (policy(), NOTHING, {}, []),
    "a cap": (policy(60), NOTHING, {}, [SetPower(gpu="GPU-0", watts=60)]),
    "a cap that is there": (policy(70), CAPPED, {}, []),
    "a cap whose policy went": (policy(), CAPPED, {}, [SetPower(gpu="GPU-0", watts=None, restores=True)]),
    "clocks": (policy(mhz=(300, 900)), NOTHING, {}, [LockClocks(gpu="GPU-0", mhz=(300, 900))]),
    "clocks that are locked": (policy(mhz=(300, 900)), LOCKED, {"GPU-0": (300, 900)}, []),
    "clocks another process locked are locked again": (
        policy(mhz=(300, 900)),
        LOCKED,
        {},
        [LockClocks(gpu="GPU-0", mhz=(300, 900))],
    ),
    "clocks whose policy went": (policy(), LOCKED, {}, [LockClocks(gpu="GPU-0", mhz=None, restores=True)]),
}


@pytest.mark.parametrize(("desired", "before", "locked", "want"), CASES.values(), ids=CASES)
def test_actions(
    desired: GpuSettings, before: Original, locked: dict[str, tuple[int, int]], want: list[PowerAction]
) -> None:
    assert list(power_actions([desired], [T4], {"GPU-0": before}, locked)) == want
    lost = msgspec.structs.replace(T4, lost=True)
    assert power_actions([desired], [lost], {"GPU-0": before}, locked) == ()


def test_a_gpu_without_policy_is_put_back() -> None:
    assert power_actions([], [T4], {"GPU-0": CAPPED}, {}) == (SetPower(gpu="GPU-0", watts=None, restores=True),)


def test_what_is_kept_before_and_after() -> None:
    cap, lock = SetPower(gpu="GPU-0", watts=60), LockClocks(gpu="GPU-0", mhz=(1, 2))
    assert remembered(cap, T4, NOTHING) == CAPPED
    own = msgspec.structs.replace(T4, power_limit_watts=65)
    custom = Original(gpu="GPU-0", power=True, power_limit_watts=65)
    assert remembered(cap, own, NOTHING) == custom
    assert remembered(cap, T4, custom) == custom
    assert remembered(lock, T4, NOTHING) == LOCKED
    assert forgotten(cap, custom) == custom
    uncap, unlock = SetPower(gpu="GPU-0", watts=65, restores=True), LockClocks(gpu="GPU-0", mhz=None, restores=True)
    assert remembered(uncap, T4, custom) == custom
    assert forgotten(uncap, custom) is None
    both = Original(gpu="GPU-0", power=True, clocks=True)
    assert forgotten(unlock, both) == CAPPED
    assert forgotten(uncap, both) == LOCKED
