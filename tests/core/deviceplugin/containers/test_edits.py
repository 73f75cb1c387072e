"""What containers get for their shares."""

import pytest

from builders.nodefacts import gpu
from builders.shares import share
from tessera.core.cluster.snapshot import Share
from tessera.core.deviceplugin.containerresponse import ContainerMount
from tessera.core.deviceplugin.containers.edits import CONTAINER_PIPE, SHARED_MEMORY, HostPlaces, ShareEdits, edits
from tessera.core.gpu.sharing import Mode
from tessera.errors import Unsupported

GPUS = {0: gpu(0), 1: gpu(1, "A100-40GB", "all-3g.20gb", minor=5)}
PLACE = HostPlaces(
    mps_root="/run/mps", caps={("GPU-1", 4): ("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")}
)
COMMON = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


def own(memory: str, compute: str, mode: str) -> tuple[tuple[str, str], ...]:
    return (
        ("TESSERA_GPU_MEMORY_MIB", memory),
        ("TESSERA_GPU_COMPUTE_PERCENT", compute),
        ("TESSERA_GPU_MODE", mode),
    )


def gpushare(gpus: str, units: str, of_gpu: str) -> tuple[tuple[str, str], ...]:
    return (
        ("ALIYUN_COM_GPU_MEM_IDX", gpus),
        ("ALIYUN_COM_GPU_MEM_CONTAINER", units),
        ("ALIYUN_COM_GPU_MEM_POD", units),
        ("ALIYUN_COM_GPU_MEM_DEV", of_gpu),
    )


def mps(memory: str, *percent: str) -> tuple[tuple[str, str], ...]:
    return (
        ("CUDA_MPS_PIPE_DIRECTORY", CONTAINER_PIPE),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", memory),
        *(("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", each) for each in percent),
    )


def pipes(key: str) -> tuple[ContainerMount, ContainerMount]:
    return (
        ContainerMount(host_path=f"/run/mps/{key}/pipe", container_path=CONTAINER_PIPE),
        ContainerMount(host_path=SHARED_MEMORY, container_path=SHARED_MEMORY),
    )


CASES = {
    "nothing": ([], ShareEdits(env=own("", "", ""))),
    "a whole GPU": (
        [share(0, 15360, Mode.WHOLE, percent=100)],
        ShareEdits(env=own("15360", "100", "whole"), device_nodes=("/dev/nvidia0", *COMMON)),
    ),
    "an instance": (
        [share(1, 19968, at="3g.20gb@4", percent=42)],
        ShareEdits(
            env=own("19968", "42", "mig"),
            device_nodes=(
                "/dev/nvidia5",
                "/dev/nvidia-caps/nvidia-cap30",
                "/dev/nvidia-caps/nvidia-cap31",
                *COMMON,
            ),
        ),
    ),
    "an amount by MPS": (
        [share(0, 4096, Mode.MPS, percent=30)],
        ShareEdits(
            env=own("4096", "30", "mps") + mps("0=4096M", "30"),
            mounts=pipes("GPU-0"),
            device_nodes=("/dev/nvidia0", *COMMON),
        ),
    ),
    "an amount that was asked in gpushare's words, by MPS": (
        [share(0, 4096, Mode.MPS, percent=30, resource="aliyun.com/gpu-mem")],
        ShareEdits(
            env=own("4096", "30", "mps") + gpushare("0", "4", "15") + mps("0=4096M", "30"),
            mounts=pipes("GPU-0"),
            device_nodes=("/dev/nvidia0", *COMMON),
        ),
    ),
    "two replicas of one GPU add up, and without a claim to compute there is no limit": (
        [share(0, 4096, Mode.MPS), share(0, 4096, Mode.MPS)],
        ShareEdits(
            env=own("4096,4096", "0,0", "mps,mps") + mps("0=8192M"),
            mounts=pipes("GPU-0"),
            device_nodes=("/dev/nvidia0", *COMMON),
        ),
    ),
    "compute on an instance is counted in percent of the instance": (
        [share(1, 9984, Mode.MIG_MPS, "3g.20gb@0", percent=21)],
        ShareEdits(
            env=own("9984", "21", "mig-mps") + mps("0=9984M", "50"),
            mounts=pipes("GPU-1-0-4"),
            device_nodes=("/dev/nvidia5", *COMMON),
        ),
    ),
    "memory shares of two GPUs, in gpushare's words": (
        [share(0, 4096, Mode.MEMORY_SHARE), share(1, 1024, Mode.MEMORY_SHARE)],
        ShareEdits(
            env=(
                *own("4096,1024", "0,0", "memory-share,memory-share"),
                *gpushare("0,1", "5", "15"),
            ),
            device_nodes=("/dev/nvidia0", "/dev/nvidia5", *COMMON),
        ),
    ),
}


@pytest.mark.parametrize(("shares", "want"), CASES.values(), ids=CASES)
def test_what_a_container_gets(shares: list[Share], want: ShareEdits) -> None:
    assert edits(shares, GPUS, PLACE) == want


@pytest.mark.parametrize("clients", range(1, 8))
def test_replicas_of_an_instance_have_no_more_than_its_compute_divided(clients: int) -> None:
    percent = (100 * 3 // 7) // clients
    env = dict(edits([share(1, 1024, Mode.MIG_MPS, "3g.20gb@0", percent=percent)], GPUS, PLACE).env)
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(100 // clients)


def test_a_container_is_a_client_of_one_daemon() -> None:
    want = "container main: it has MPS shares of 2 GPUs; a GPU has its own MPS daemon.*: request one share a container"
    with pytest.raises(Unsupported, match=want):
        edits([share(0, 4096, Mode.MPS), share(1, mode=Mode.MIG_MPS, at="3g.20gb@0")], GPUS, PLACE)
