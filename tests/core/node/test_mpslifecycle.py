"""Steps in the life of an MPS control daemon."""

import itertools
from functools import partial

import msgspec
import pytest

from builders.nodefacts import gpu, node_of
from builders.shares import share
from tessera.core.cluster.mpstargets import MpsTarget, mps_key
from tessera.core.cluster.snapshot import Share
from tessera.core.gpu.mig import Placement
from tessera.core.gpu.sharing import AUTO, Mode
from tessera.core.node.mpslifecycle import (
    DaemonRecord,
    DaemonState,
    DaemonStep,
    ObservedDaemon,
    back_off_s,
    check_daemons,
    next_step,
    ready_keys,
    unlimited,
)
from tessera.core.node.nodesharing import GpuSettings, NodeSharing, SharingEntry, effective
from tessera.errors import InvalidInput, TesseraError, Unavailable

TARGET = MpsTarget(key="GPU-0", gpu="GPU-0", visible="GPU-0", memory_limit_mib=100, thread_percent=50)
RECORD = DaemonRecord(target=TARGET, pid=1, started="boot/1")
OTHER_LIMITS = msgspec.structs.replace(TARGET, memory_limit_mib=200)
UNLIMITED = msgspec.structs.replace(TARGET, memory_limit_mib=0)
ELSEWHERE = msgspec.structs.replace(TARGET, visible="MIG-2")

ANSWERS = ObservedDaemon(record=RECORD, alive=True, clients=0)
WITH_CLIENTS = ObservedDaemon(record=RECORD, alive=True, clients=3)
FOREIGN = msgspec.structs.replace(ANSWERS, foreign=True)
SILENT = ObservedDaemon(record=RECORD, alive=True, silent=1)
SILENT_LONG = ObservedDaemon(record=RECORD, alive=True, silent=3)
ENDED = ObservedDaemon(record=RECORD, idle_s=100)

STEPS: dict[str, tuple[MpsTarget | None, ObservedDaemon, bool, DaemonStep]] = {
    "nothing there": (TARGET, ObservedDaemon(idle_s=1), False, DaemonStep.START),
    "ended by itself": (TARGET, ENDED, True, DaemonStep.START),
    "failed just now": (TARGET, ObservedDaemon(failures=3, idle_s=3.9), False, DaemonStep.WAIT),
    "failed long enough ago": (TARGET, ObservedDaemon(failures=3, idle_s=4), False, DaemonStep.START),
    "all is well": (TARGET, WITH_CLIENTS, True, DaemonStep.KEEP),
    "other limits, also with clients": (OTHER_LIMITS, WITH_CLIENTS, True, DaemonStep.SET_LIMITS),
    "a limit that is to go, unused": (UNLIMITED, ANSWERS, False, DaemonStep.QUIT),
    "a limit that is to go, used by a pod": (UNLIMITED, ANSWERS, True, DaemonStep.WAIT),
    "another instance, with clients": (ELSEWHERE, WITH_CLIENTS, False, DaemonStep.WAIT),
    "another instance": (ELSEWHERE, ANSWERS, False, DaemonStep.QUIT),
    "of a former container": (TARGET, FOREIGN, False, DaemonStep.QUIT),
    "of a former container, used by a pod": (TARGET, FOREIGN, True, DaemonStep.KEEP),
    "of a former container, other limits, used by a pod": (OTHER_LIMITS, FOREIGN, True, DaemonStep.SET_LIMITS),
    "silent": (TARGET, SILENT, False, DaemonStep.WAIT),
    "silent for long": (TARGET, SILENT_LONG, False, DaemonStep.KILL),
    "silent for long, used by a pod": (TARGET, SILENT_LONG, True, DaemonStep.WAIT),
    "expected no more": (None, ANSWERS, False, DaemonStep.QUIT),
    "expected no more, with clients": (None, WITH_CLIENTS, False, DaemonStep.WAIT),
    "expected no more, used by a pod": (None, ANSWERS, True, DaemonStep.WAIT),
    "expected no more, silent": (None, SILENT, False, DaemonStep.KILL),
    "expected no more and ended": (None, ENDED, False, DaemonStep.FORGET),
}


@pytest.mark.parametrize(("desired", "seen", "used", "want"), STEPS.values(), ids=STEPS)
def test_the_next_step(desired: MpsTarget | None, seen: ObservedDaemon, used: bool, want: DaemonStep) -> None:
    assert next_step(desired, seen, used=used) is want


def test_a_daemon_whose_limits_are_not_set_yet_has_them_set_by_whoever_adopts_it() -> None:
    adopted = msgspec.structs.replace(ANSWERS, record=msgspec.structs.replace(RECORD, target=unlimited(TARGET)))
    assert next_step(TARGET, ANSWERS, used=True) is DaemonStep.KEEP
    assert next_step(TARGET, adopted, used=True) is DaemonStep.SET_LIMITS


def test_a_daemon_in_use_is_never_ended() -> None:
    desired = (None, TARGET, OTHER_LIMITS, UNLIMITED, ELSEWHERE)
    for target, clients, silent, used in itertools.product(desired, (None, 0, 2), (0, 1, 3, 9), (False, True)):
        seen = ObservedDaemon(record=RECORD, alive=True, clients=clients, silent=silent)
        if used or clients:
            assert next_step(target, seen, used=used) not in {
                DaemonStep.QUIT,
                DaemonStep.KILL,
                DaemonStep.START,
                DaemonStep.FORGET,
            }


def test_starts_back_off() -> None:
    assert [back_off_s(failures) for failures in (0, 1, 2, 3, 7, 10**6)] == [0, 1, 2, 4, 60, 60]


def test_who_may_offer_mps() -> None:
    inventory = node_of(*(gpu(index) for index in range(4)))
    said = NodeSharing(
        entries=(SharingEntry(resource="nvidia.com/gpu", mode=Mode.MPS, replicas=4),),
        policies=tuple(GpuSettings(uuid=f"GPU-{index}", sharing=AUTO) for index in (2, 3)),
    )
    gpus = effective(inventory, said)
    states = (
        DaemonState(key="GPU-0", phase="running"),
        DaemonState(key="GPU-1", phase="draining"),
        DaemonState(key="GPU-3", phase="failed", reason="x"),
    )
    assert ready_keys(gpus, states, available=True) == {"GPU-0", "GPU-2"}
    assert ready_keys(gpus, states, available=False) == {"GPU-0"}
    assert ready_keys(gpus, (), available=False) == frozenset()


INVENTORY = node_of(gpu(0), gpu(1, "A100-40GB", "all-3g.20gb"))
MIG_KEY = mps_key("GPU-1", Placement(4, 4, "3g.20gb"))
RUNNING = (DaemonState(key="GPU-0", phase="running"), DaemonState(key=MIG_KEY, phase="running"))
FAILED = (DaemonState(key="GPU-0", phase="failed", reason="no such program"),)
mps = partial(share, mode=Mode.MPS)
REPLICA = share(1, mode=Mode.MIG_MPS, at="3g.20gb@4")
ALL_RUN: dict[str, list[Share]] = {
    "nothing": [],
    "a whole GPU and a replica on an instance": [mps(0), REPLICA],
    "shares that need no daemon": [share(1, at="3g.20gb@0"), share(1, mode=Mode.MEMORY_SHARE)],
    "a GPU that is not there": [mps(7)],
}


@pytest.mark.parametrize("case", ALL_RUN)
def test_shares_whose_daemons_run(case: str) -> None:
    check_daemons(ALL_RUN[case], INVENTORY, RUNNING, unable="")


# sentence: (shares, states of daemons, why there is no MPS, error and its text)
NOT_RUNNING: dict[str, tuple[list[Share], tuple[DaemonState, ...], str, type[TesseraError], str]] = {
    "one daemon failed": (
        [REPLICA, mps(0)],
        (*RUNNING[1:], *FAILED),
        "",
        Unavailable,
        "memory: no such program",
    ),
    "one drains": (
        [mps(0)],
        (DaemonState(key="GPU-0", phase="draining"),),
        "",
        Unavailable,
        "no MPS daemon limits its memory: its daemon is draining: see",
    ),
    "none is there": ([mps(0)], (), "", Unavailable, "no MPS daemon limits its memory: there is none: see"),
    "the node has no MPS": ([mps(0)], (), "no nvidia-cuda-mps-control", Unavailable, "no nvidia-cuda-mps-con"),
    "another instance's runs": (
        [share(1, mode=Mode.MIG_MPS, at="3g.20gb@0")],
        RUNNING,
        "",
        Unavailable,
        "GPU 1: no MPS",
    ),
    "no instance can be there": (
        [share(1, mode=Mode.MIG_MPS, at="9g.1gb@0")],
        RUNNING,
        "",
        InvalidInput,
        "'9g.1gb' at 0",
    ),
}


@pytest.mark.parametrize("case", NOT_RUNNING)
def test_shares_whose_daemons_do_not_run(case: str) -> None:
    shares, states, unable, error, want = NOT_RUNNING[case]
    with pytest.raises(error, match=want):
        check_daemons(shares, INVENTORY, states, unable=unable)
