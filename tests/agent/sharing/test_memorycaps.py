"""Memory limits of cgroups in the driver."""

from pathlib import Path

import pytest

from tessera.agent.sharing.memorycaps import MemoryCaps, systemd_cgroups
from tessera.clients.gpu import MemoryDriver
from tessera.core.node.memorycaps import MemoryCap
from tessera.log import logger


def test_how_the_kubelet_names_cgroups(tmp_path: Path) -> None:
    assert systemd_cgroups(tmp_path)
    (tmp_path / "kubepods").mkdir()
    assert not systemd_cgroups(tmp_path)
    (tmp_path / "kubepods.slice").mkdir()
    assert systemd_cgroups(tmp_path)


@pytest.mark.anyio
async def test_limits_come_with_the_cgroup_and_go_with_the_share(tmp_path: Path) -> None:
    driver = MemoryDriver.of("T4")
    uuid = (await driver.inventory()).gpus[0].uuid
    keeper = MemoryCaps(driver, logger(), tmp_path)

    async def limit() -> int | None:
        return (await driver.memory_limit(uuid, "/kubepods/pod1")).hard_mib

    cap = MemoryCap(gpu=uuid, cgroup="/kubepods/pod1", hard_mib=100)
    assert await keeper.apply([cap]) == ()
    assert await limit() is None
    (tmp_path / "kubepods" / "pod1").mkdir(parents=True)
    for hard_mib in (100, 100, 200):
        assert await keeper.apply([MemoryCap(gpu=uuid, cgroup=cap.cgroup, hard_mib=hard_mib)]) == ()
        assert await limit() == hard_mib
    assert await keeper.apply([]) == ()
    assert await limit() is None
    await keeper.apply([cap])
    (tmp_path / "kubepods" / "pod1").rmdir()
    assert await keeper.apply([]) == ()


@pytest.mark.anyio
async def test_a_driver_without_limits_says_so(tmp_path: Path) -> None:
    (tmp_path / "pod1").mkdir()
    driver = MemoryDriver.of("T4", memory_limits=False)
    uuid = (await driver.inventory()).gpus[0].uuid
    (problem,) = await MemoryCaps(driver, logger(), tmp_path).apply([MemoryCap(gpu=uuid, cgroup="pod1", hard_mib=1)])
    assert "615" in problem
